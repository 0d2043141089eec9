"""Transcripts that the host keeps (§14): measured and folded as they come, committed when the host has applied them."""
