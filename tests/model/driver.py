"""A seeded random host: every step is one call or a small scene, and the model is asked after each."""

from __future__ import annotations

from tests.model.upheavals import Upheavals

OPS = {
    "turn": 14, "step_of_run": 40, "prepare_again": 5, "record": 12, "refuse": 3, "finish": 5, "append": 12,
    "bad_append": 5, "stale": 5, "pin": 3, "edit": 4, "restore": 3, "compact": 4, "ask": 6, "update": 2, "repeat": 5,
    "move": 1, "fork": 1.5, "weather": 1, "restart": 0.3, "crowd": 1.5, "impatient": 1, "kill": 2,
    "browse": 2, "drop": 0.4, "agent": 2, "hosted": 15, "curate": 2, "checkpoint": 3,
}  # fmt: skip
"""How often each step is taken, by weight."""


class Driver(Upheavals):
    """Takes one step after the other until there are enough, or one breaks a rule."""

    steps = OPS
