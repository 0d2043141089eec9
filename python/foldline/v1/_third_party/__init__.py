"""Generated from ``proto/foldline/v1`` by ``scripts/gen_protos.py``; the import path is the proto package."""
