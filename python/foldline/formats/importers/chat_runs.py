"""Runs of customer-service benchmarks: a list of ``{task_id, trial, traj}``; ``traj`` holds chat messages."""

from __future__ import annotations

from foldline.formats.codec import expect_object
from foldline.formats.importers.messages import record_chat
from foldline.formats.importers.recording import Recording
from foldline.formats.json_text import Json


def is_runs(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "traj" in value[0]


def load(name: str, runs: list[Json]) -> list[Recording]:
    """One recording a run, named by its place, task and trial.

    Raises:
        FoldlineError: FORMAT_INVALID with the path.
    """
    recordings = []
    for index, value in enumerate(runs):
        run = expect_object(value, f"$[{index}]")
        marks = "-".join(str(run[key]) for key in ("task_id", "trial") if key in run)
        recordings.append(record_chat(f"{name}-{index}" + (f"-task-{marks}" if marks else ""), run.get("traj")))
    return recordings
