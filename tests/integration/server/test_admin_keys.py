"""What needs an admin key is refused without one, and keys never show (M7, W8)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from foldline.access import AdminKeys
from foldline.config import Config, ConfigError
from foldline.v1 import admin_service_pb2, memory_service_pb2
from hypothesis import given
from hypothesis import strategies as st

from tests.integration.host import Host
from tests.support.server import ADMIN_KEY, Client, bearer, refused, running_server, served_process

PROTOS = Path(__file__).resolve().parents[3] / "proto/foldline/v1"
OLD, NEW = "the-old-key-0123456789", "the-new-key-0123456789"

Call = Callable[..., Any]


def calls(client: Client) -> dict[str, Call]:
    """Each RPC that needs a key, without one."""
    return {
        "DropScope": lambda **how: client.memory.DropScope(
            memory_service_pb2.DropScopeRequest(session_id="s"), **how
        ),
        "EnumerateScope": lambda **how: client.memory.EnumerateScope(
            memory_service_pb2.EnumerateScopeRequest(session_id="s"), **how
        ),
        "GetEffectiveConfig": lambda **how: client.admin.GetEffectiveConfig(
            admin_service_pb2.GetEffectiveConfigRequest(), **how
        ),
    }  # fmt: skip


def test_m7_what_the_contract_says_needs_a_key_is_what_is_tested_here() -> None:
    told = {
        name
        for file in ("memory_service", "admin_service", "session_service", "compaction_service", "event_service")
        for comment, name in re.findall(r"((?:^ +//.*\n)+) +rpc (\w+)", (PROTOS / f"{file}.proto").read_text(), re.M)
        if re.search(r"admin(?:\n? +//)? key", comment)
    }
    assert told == {"DropScope", "EnumerateScope", "GetEffectiveConfig"}


@pytest.mark.parametrize("keys", [None, "file"], ids=["no keys", "keys"])
@pytest.mark.parametrize(
    "metadata",
    [
        (), bearer("another-key-0123456789"), bearer(""), bearer(ADMIN_KEY[:-1]), bearer(ADMIN_KEY + "x"),
        (("authorization", ADMIN_KEY),), (("authorization", f"Basic {ADMIN_KEY}"),), (("x-admin", ADMIN_KEY),),
    ],
    ids=repr,
)  # fmt: skip
def test_m7_without_a_key_nothing_is_told_or_dropped(tmp_path: Path, keys: str | None, metadata: Any) -> None:
    """Closed where no key is configured, too; the message says how to name one."""
    settings = {} if keys else {"admin.keys_file": None}
    with running_server(tmp_path, settings) as client:
        host = Host(client, "s")
        for name, call in calls(client).items():
            found = refused(call, metadata=metadata)
            assert (found.code, found.reason, found.metadata) == ("PERMISSION_DENIED", "ADMIN_ONLY", {"method": name})
            assert "admin.keys_file" in found.message
            assert ADMIN_KEY not in found.message
        assert not host.search("walnut").scope_dropped


def test_m7_without_keys_nobody_is_an_administrator(tmp_path: Path) -> None:
    with running_server(tmp_path, {"admin.keys_file": None}) as client:
        Host(client, "s")
        for call in calls(client).values():
            assert refused(call, metadata=bearer(ADMIN_KEY)).reason == "ADMIN_ONLY"


def test_m7_two_keys_are_valid_while_one_takes_over_from_the_other(tmp_path: Path) -> None:
    """Without a restart; a scheme in any case, as RFC 7235 has it."""
    file = tmp_path / "keys"
    with running_server(tmp_path, {"admin.keys_file": str(write(file, OLD))}) as client:
        Host(client, "s")
        read = calls(client)["EnumerateScope"]
        read(metadata=bearer(OLD))
        assert refused(read, metadata=bearer(NEW)).reason == "ADMIN_ONLY"
        write(file, f"{OLD}\n{NEW}\n")
        read(metadata=bearer(OLD))
        read(metadata=(("authorization", f"bearer {NEW}"),))
        write(file, f"\n{NEW}\n")
        read(metadata=bearer(NEW))
        assert refused(read, metadata=bearer(OLD)).reason == "ADMIN_ONLY"
        file.unlink()
        assert refused(read, metadata=bearer(NEW)).reason == "ADMIN_ONLY", "no file, no administrator"


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def test_m7_no_key_is_shown_by_anything(tmp_path: Path) -> None:
    """Neither by the configuration, nor by answers, nor in the log, of a process with keys in its environment."""
    args = ("--set", "admin.keys_file=", "--set", "admin.keys_env=OUR_KEYS", "--set", "log.level=debug")
    with served_process(tmp_path, *args, env={"OUR_KEYS": f"{OLD} {NEW}"}) as process, Client(
        process.wait_ready()
    ) as client:  # fmt: skip
        Host(client, "s")
        told = ""
        for call in calls(client).values():
            told += str(call(metadata=bearer(NEW)))
            told += str(refused(call, metadata=bearer("wrong-key-0123456789")))
        assert "admin.keys_env" in told
        process.process.terminate()
        assert process.wait() == 0
        log = process.log.read_text()
    assert "ADMIN_ONLY" in log
    for secret in (OLD, NEW, "wrong-key"):
        assert secret not in told + log


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no key"), (" \n", "holds no key"), ("short", "fewer than 16 characters"),
        (f"{OLD}\nshort", "fewer than 16 characters"), ("schlüssel-0123456789", "characters that no key has"),
        (None, "cannot be read"),
    ],
)  # fmt: skip
def test_m7_what_is_no_key_is_refused_at_the_start(tmp_path: Path, text: str | None, message: str) -> None:
    """W8: and not shown."""
    file = tmp_path / "keys"
    if text is not None:
        write(file, text)
    with pytest.raises(ConfigError, match=message) as caught:
        AdminKeys(file=file)
    with pytest.raises(ConfigError, match=message), running_server(tmp_path, {"admin.keys_file": str(file)}):
        pass
    assert not text or not text.strip() or text not in str(caught.value)


def test_m7_keys_lie_in_one_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of them"):
        AdminKeys("OUR_KEYS", tmp_path)
    with pytest.raises(ConfigError, match="OUR_KEYS holds no key"):
        AdminKeys("OUR_KEYS")
    path = tmp_path / "etc" / "foldline.toml"
    path.parent.mkdir()
    path.write_text('[admin]\nkeys_file = "keys"')
    assert Config.load(path, {}).admin.keys_file == path.parent / "keys"


@given(
    keys=st.lists(st.text("abcdefgh0123-_.", min_size=16, max_size=40), min_size=1, max_size=5),
    other=st.text(max_size=40),
    apart=st.sampled_from([" ", "\n", "\r\n", "\t", "\n\n"]),
)
def test_m7_exactly_the_keys_are_admitted(keys: list[str], other: str, apart: str) -> None:
    os.environ["FOLDLINE_TESTS_KEYS"] = apart.join(keys)
    try:
        held = AdminKeys("FOLDLINE_TESTS_KEYS")
        assert all(held.admit(key) for key in keys)
        assert held.admit(other) == (other in keys)
        assert not held.admit(keys[0] + " ")
    finally:
        del os.environ["FOLDLINE_TESTS_KEYS"]
    assert not AdminKeys().admit(other)
