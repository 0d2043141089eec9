"""The published reasons: every value says its gRPC code, its metadata keys, and an example."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from foldline.v1 import error_reason_pb2

SOURCE = Path(__file__).resolve().parents[2] / "proto/foldline/v1/error_reason.proto"
VALUE = re.compile(r"((?: +//[^\n]*\n)+) +ERROR_REASON_(\w+) = \d+;")
COMMENTS = {
    name: " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())
    for comment, name in VALUE.findall(SOURCE.read_text())
}
REASONS = [v.name.removeprefix("ERROR_REASON_") for v in error_reason_pb2.ErrorReason.DESCRIPTOR.values]


def test_every_reason_has_a_comment() -> None:
    assert list(COMMENTS) == REASONS


@pytest.mark.parametrize("reason", REASONS[1:])
def test_a_reason_names_code_metadata_and_example(reason: str) -> None:
    """P24."""
    found = re.search(r"Code: ([A-Z_]+)\. Metadata: (.+?)\. Example: `(\{.*\})`\.", COMMENTS[reason])
    assert found is not None, COMMENTS[reason]
    code, metadata, example = found.groups()
    assert code in grpc.StatusCode.__members__
    stated = set(re.findall(r"`(\w+)`", metadata))
    assert set(re.findall(r"(\w+): \"", example)) <= stated
    assert len(reason) <= 63


def test_only_transient_conditions_may_be_retried_blindly() -> None:
    """W7: UNAVAILABLE is retried by every client that follows the service config."""
    blind = {reason for reason, comment in COMMENTS.items() if "Code: UNAVAILABLE." in comment}
    assert blind == {"NOT_READY", "EMBEDDER_UNAVAILABLE"}
