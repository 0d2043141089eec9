"""A long session that ships with the package, for ``foldline demo``, tests and first tries."""
