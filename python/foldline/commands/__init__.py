"""Use cases, one a file, free of transport: they take and give domain values and meet I/O through domain protocols."""
