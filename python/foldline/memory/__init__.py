"""Recall over folded rows (§10): entries, lexical and semantic ranking, vectors."""

from foldline.memory.index import ScopeCache
from foldline.memory.service import MemoryService
from foldline.memory.text import row_text

__all__ = ["MemoryService", "ScopeCache", "row_text"]
