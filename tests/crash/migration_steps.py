"""Migrations to be interrupted."""

from __future__ import annotations

from foldline.store.sqlite.migrate import Migration


def steps() -> list[Migration]:
    """Thirty migrations; each adds a table with rows, and moves those of the one before."""
    fill = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 2000) SELECT x FROM n"
    found = [Migration(1, "first", f"CREATE TABLE t1 (x); INSERT INTO t1 {fill};")]
    for v in range(2, 31):
        script = f"CREATE TABLE t{v} (x); INSERT INTO t{v} SELECT x + 1 FROM t{v - 1}; DROP TABLE t{v - 1};"
        found.append(Migration(v, f"step_{v}", script))
    return found
