"""Contract messages to domain values and back, one file a group; no decisions are made here."""
