"""The command line: one file a command."""

import os

# A sidecar leaves the cores to the agent, and a thread a core would spin on each search; read when numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
