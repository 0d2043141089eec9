"""Decisions of Foldline as pure functions over frozen dataclasses."""
