"""Decision tables: rows that begin with the id of their rule and the case in words.

``marks(rows)`` gives pytest its parameters, with ids such as ``F3-stage-2-when-nothing-before-the-run``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def marks(rows: Sequence[tuple[Any, ...]]) -> list[ParameterSet]:
    """Parameters of a table without its first two columns, which make the id."""
    made = [pytest.param(*row[2:], id=f"{row[0].lstrip('§').replace(' ', '-')}-{_slug(row[1])}") for row in rows]
    ids = [m.id for m in made]
    assert len(set(ids)) == len(ids), f"cases said twice: {[i for i in ids if ids.count(i) > 1]}"
    return made


def _slug(words: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-")
