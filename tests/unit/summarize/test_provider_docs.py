"""The configurations that the documents show (S2, W8): each is taken as it stands, and names all that there is."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from foldline.config import Config, Provider
from foldline.domain.rows import ModelRef
from foldline.engine.catalog import Catalog
from foldline.summarize.providers import provider_from

from tests.unit.summarize.asked import JUDGES

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "providers.md").read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


EXAMPLES = [*blocks(DOCUMENT, "toml"), *blocks((ROOT / "README.md").read_text("utf-8"), "toml")]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_s2_an_example_is_a_configuration(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foldline.toml").write_text(example)
    config = Config.load(tmp_path / "foldline.toml", env={})
    assert config.origins, "it sets something"
    for provider in config.providers.values():
        if provider.api_key_env:
            monkeypatch.setenv(provider.api_key_env, "a-key")
        if provider.api_key_file:
            provider.api_key_file.write_text("a-key")
    assert (provider_from(config, JUDGES) is None) == (not config.providers)


def test_s2_every_type_and_kind_of_server_has_an_example() -> None:
    types = set(re.findall(r'^type = "(\w+)"', DOCUMENT, re.MULTILINE))
    assert types == {"openai", "openai_responses", "anthropic", "google"}
    assert {"vllm", "ollama", "llama"} <= set(re.findall(r"^\[providers\.(\w+)\]", DOCUMENT, re.MULTILINE))


def test_every_setting_of_a_provider_is_told() -> None:
    table = DOCUMENT.split("### Every setting")[1].split("\n\n")[1]
    told = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert told == {item.name for item in fields(Provider)}


def test_the_example_of_a_catalog_is_one() -> None:
    (example,) = blocks(DOCUMENT, "json")
    catalog = Catalog.from_json(json.loads(example))
    for model, entry in json.loads(example).items():
        assert catalog.lookup(ModelRef("any", model)).context_window == entry["context_window"]
