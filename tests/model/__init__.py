"""Foldline from outside: random hosts over gRPC, held to a plain model of what must be true after every step."""
