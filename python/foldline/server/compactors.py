"""Compactors that Python packages offer as entry points (F12)."""

from __future__ import annotations

from importlib.metadata import entry_points

from foldline.config import ConfigError
from foldline.domain.ports import Compactor

GROUP = "foldline.compactors"


def compactor_named(name: str) -> Compactor:
    """Loads the entry point and calls it for its compactor.

    Raises:
        ConfigError: no package offers that name, several do, it cannot be loaded, or what it gives cannot compact.
    """
    found = entry_points(group=GROUP)
    named = [e for e in found if e.name == name]
    if len(named) != 1:
        offered = ", ".join(sorted({e.name for e in found})) or "none"
        what = "several packages offer" if named else "no package offers"
        raise ConfigError(f"compactor is {name!r}: {what} it in the group {GROUP}; there are: {offered}")
    try:
        made = named[0].load()()
    except Exception as error:
        raise ConfigError(f"compactor {name!r} ({named[0].value}) cannot be loaded: {error!r}") from error
    if not callable(getattr(made, "compact", None)):
        raise ConfigError(f"compactor {name!r} ({named[0].value}) gives a {type(made).__name__} without compact()")
    return made  # type: ignore[no-any-return]
