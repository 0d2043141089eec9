"""The gRPC server: decode, call a use case, encode."""

ENCODING = "o200k_base"
"""Vocabulary that sizes chunks and summaries, whatever model is served."""
