"""The gRPC server: decode, call a use case, encode."""
