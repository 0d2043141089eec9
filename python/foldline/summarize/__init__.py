"""Sources of summaries (§8): one file per source, and what they share. Imports only ``domain``."""
