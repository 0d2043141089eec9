import os

# As the server runs (foldline/cli).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
