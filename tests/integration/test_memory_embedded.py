"""The embedded model through the server: there, missing, damaged (M8)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog
from foldline.memory import embed
from foldline.v1 import admin_service_pb2, event_pb2

from tests.integration.host import Host
from tests.integration.hosted import HostedHost, talk
from tests.integration.test_folds import LONG
from tests.support.embeddings import FakeEmbeddings
from tests.support.requests import assistant, user
from tests.support.server import Client, running_server, served_process, until

SAID = ["My parrot adores walnuts and almonds.", "The launch moved to the 14th of March.", "We painted the kitchen."]


def folded(client: Client) -> Host:
    host = Host(client, "s", auto_compact=False)
    talk = [*SAID, *(f"Item {n}: {LONG}" for n in range(8))]
    host.append(*(m for text in talk for m in (user(text), assistant("Noted."))))
    host.compact()
    return host


def told(host: Host) -> list[str]:
    return [e.memory_degraded.message for e in host.events() if e.kind == event_pb2.EVENT_KIND_MEMORY_DEGRADED]


def test_m8_by_default_a_paraphrase_is_found_and_nothing_is_degraded(tmp_path: Path) -> None:
    with running_server(tmp_path, {"memory.embedder": "minilm"}) as client:
        host = folded(client)
        assert until(lambda: host.get().totals.memory_pending == 0, 60)
        found = host.search("Which snacks would a bird enjoy?")
        assert not found.degraded
        assert found.hits[0].text == SAID[0]
        assert told(host) == []
        info = client.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest()).server
        assert info.embedder == embed.MiniLm.identity


@pytest.mark.parametrize("damage", ["missing", "not installed", "flipped bit", "empty"])
def test_m8_without_its_model_everything_works_by_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """The answer says degraded, the event log says it once, the server's log says how to mend it."""
    model = tmp_path / "model.onnx"
    if damage == "not installed":
        monkeypatch.setattr(embed, "MODEL_MODULE", "no_such_package_of_weights")
    else:
        data = bytearray(embed._installed_model().read_bytes())
        data[len(data) // 2] ^= 1
        if damage != "missing":
            model.write_bytes(b"" if damage == "empty" else bytes(data))
        monkeypatch.setattr(embed, "_installed_model", lambda: model)
    with structlog.testing.capture_logs() as logs, running_server(tmp_path, {"memory.embedder": "minilm"}) as client:
        host = folded(client)
        assert until(lambda: len(told(host)) == 1, 20)
        for _ in range(3):
            found = host.search("what does the parrot like, walnuts?")
            assert found.degraded
            assert "embedding model" in found.degraded_reason
            assert str(tmp_path) not in found.degraded_reason
            assert found.hits[0].text == SAID[0]
        host.append(user(f"more {LONG}"), assistant("yes"))
        host.compact()
        assert host.verify().ok
        assert len(told(host)) == 1
    errors = [log for log in logs if log["log_level"] == "error"]
    assert len(errors) == 1
    assert "pip install" in errors[0]["mend"]


def test_m8_a_mended_package_embeds_what_waited(tmp_path: Path) -> None:
    """In a process of its own, whose package holds no model first."""
    package = tmp_path / "packages" / embed.MODEL_MODULE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    args = ("--set", "memory.embedder=minilm")
    broken = served_process(tmp_path, *args, env={"PYTHONPATH": str(package.parent)})
    with broken as process, Client(process.wait_ready()) as client:
        host = folded(client)
        assert host.search("parrot").degraded
        assert until(lambda: len(told(host)) == 1, 20)
        lines = [json.loads(line) for line in process.log.read_text().splitlines()]
        assert any("pip install" in line.get("mend", "") for line in lines)
    with served_process(tmp_path, *args) as process, Client(process.wait_ready()) as client:
        host.client = client
        assert until(lambda: host.get().totals.memory_pending == 0, 60)
        assert until(lambda: told(host)[-1] == "memory is whole again", 20)
        assert not host.search("Which snacks would a bird enjoy?").degraded


def test_m8_without_an_embedder_nothing_waits_for_one(tmp_path: Path) -> None:
    with running_server(tmp_path, {"memory.embedder": "none"}) as client:
        host = folded(client)
        found = host.search("parrot walnuts")
        assert found.hits[0].text == SAID[0]
        assert found.hits[0].semantic_score == 0
        assert "no embedder is configured" in found.degraded_reason
        assert told(host) == []


def test_h3_each_fold_of_a_hosts_list_is_found_though_all_before_it_is_embedded(tmp_path: Path) -> None:
    """M2: and rows that the host holds active again are not, until they fold again; no list here changes meanwhile."""
    with FakeEmbeddings() as fake:
        settings = {"memory.embedder": "openai", "memory.model": "m", "memory.base_url": fake.base_url}
        with running_server(tmp_path, settings) as client:
            host = HostedHost(client, "s")
            shown: list[int] = []
            for first in (0, 12):
                talk(host, 12, first=first)
                before = list(host.list)
                discarded = host.fold(manual=True).record.discarded
                assert until(lambda: host.get().totals.memory_pending == 0, 30)
                shown.append(discarded[-1].last)
                assert set(shown) <= {offset for said in shown for offset in host.found(host.text(said))}
            host.list = before
            host.compact(override={"auto_compact": False})
            assert shown[0] in host.found(host.text(shown[0]))
            assert shown[1] not in host.found(host.text(shown[1]))
