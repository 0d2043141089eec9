"""Generated from the contract by ``scripts/gen_protos.py``; the import path is the proto package."""
