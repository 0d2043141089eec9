"""4.2: what a catalog file may say, and which entry a model gets."""

import re

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import ModelType
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.models import ModelInfo, Prices
from foldline.domain.policy import Policy
from foldline.domain.rows import ModelRef
from foldline.engine.catalog import DEFAULT_CATALOG, Catalog
from foldline.engine.limits import limits


def test_4_2_the_shape_of_a_catalog_file() -> None:
    catalog = Catalog.from_json(
        {
            "gpt-x": {"context_window": 1_000_000, "type": "openai"},
            "claude-x": {
                "context_window": 200_000, "type": "anthropic", "input_ceiling": 190_000, "max_output": 64_000,
                "body_cap_bytes": 32_000_000, "prices": {"input": 3, "cached_input": 0.3, "output": 15},
            },
            "local": {"context_window": 8_192, "encoding": "cl100k_base"},
            "default": {"context_window": 64_000, "type": "google"},
        }
    )  # fmt: skip
    claude = catalog.lookup(ModelRef("anthropic", "claude-x"))
    assert claude == ModelInfo(
        200_000, ModelType.ANTHROPIC, 190_000, 64_000, 32_000_000, "", Prices(3.0, 0.3, 15.0, "USD")
    )
    assert claude.ceiling == 190_000
    assert catalog.lookup(ModelRef("", "local")).encoding == "cl100k_base"
    assert catalog.lookup(ModelRef("", "never-heard-of")) == ModelInfo(64_000, ModelType.GOOGLE, known=False)


def test_4_2_an_unknown_model_is_the_built_in_default_and_says_so() -> None:
    found = Catalog.from_json({}).lookup(ModelRef("acme", "llama-3"))
    assert (found.context_window, found.type, found.known) == (256_000, ModelType.OPENAI, False)


def test_4_2_ids_are_exact() -> None:
    catalog = Catalog.from_json({"gpt-x": {"context_window": 1_000}})
    assert catalog.lookup(ModelRef("openai", "gpt-x")).known
    assert not catalog.lookup(ModelRef("openai", "gpt-x-2026")).known
    assert not catalog.lookup(ModelRef("openai", "GPT-X")).known


@pytest.mark.parametrize(
    ("provider", "model", "encoding"),
    [
        ("openai", "gpt-4o", "o200k_base"),
        ("", "gpt-4.1-mini", "o200k_base"),
        ("", "gpt-5", "o200k_base"),
        ("", "o3", "o200k_base"),
        ("openrouter", "openai/gpt-4o-mini", "o200k_base"),
        ("openai", "brand-new", "o200k_base"),
        ("openai", "gpt-4", "cl100k_base"),
        ("openai", "gpt-4-turbo", "cl100k_base"),
        ("openai", "gpt-3.5-turbo", "cl100k_base"),
        ("azure", "gpt-35-turbo", "cl100k_base"),
        ("openai", "ft:gpt-3.5-turbo:acme", "cl100k_base"),
        # A compatible server's models are of type openai and have vocabularies of their own.
        ("vllm", "llama-3-70b", ""),
        ("", "", ""),
        ("anthropic", "claude-sonnet-4-5", ""),
        ("google", "gemini-2.5-pro", ""),
    ],
)
def test_4_5_embedded_vocabulary_by_family(provider: str, model: str, encoding: str) -> None:
    assert DEFAULT_CATALOG.lookup(ModelRef(provider, model)).encoding == encoding


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ([], "catalog"),
        ({"m": 5}, "m"),
        ({"m": {"context_window": 0}}, "m.context_window"),
        ({"m": {"context_window": -1}}, "m.context_window"),
        ({"m": {"context_window": 1.5}}, "m.context_window"),
        ({"m": {"context_window": True}}, "m.context_window"),
        ({"m": {"input_ceiling": "9"}}, "m.input_ceiling"),
        ({"m": {"type": "OpenAI"}}, "m.type"),
        ({"m": {"typ": "openai"}}, "m.typ"),
        ({"m": {"encoding": "p50k_base"}}, "m.encoding"),
        ({"m": {"prices": 3}}, "m.prices"),
        ({"m": {"prices": {"input": 1}}}, "m.prices.output"),
        ({"m": {"prices": {"input": -1, "output": 1}}}, "m.prices.input"),
        ({"m": {"prices": {"input": 1, "output": float("nan")}}}, "m.prices.output"),
        ({"m": {"prices": {"input": 1, "output": 1, "currency": ""}}}, "m.prices.currency"),
        ({"m": {"prices": {"input": 1, "output": 1, "tax": 1}}}, "m.prices.tax"),
        ({"default": {"context_window": None}}, "default.context_window"),
        ({"m": {"context_window": 2**53 + 1}}, "m.context_window"),
        ({"m": {"body_cap_bytes": 2**64}}, "m.body_cap_bytes"),
        ({"m": {"type": ["openai"]}}, "m.type"),
        ({"m": {"type": None}}, "m.type"),
        ({"m": {"encoding": 5}}, "m.encoding"),
        ({"m": {"encoding": None}}, "m.encoding"),
        ({"m": {"prices": {"input": float("inf"), "output": 1}}}, "m.prices.input"),
        ({"m": {"prices": {"input": True, "output": 1}}}, "m.prices.input"),
        ({"m": {"prices": {"input": 1, "output": 1, "currency": "DOUBLOONS"}}}, "m.prices.currency"),
        ({"m": {"prices": {"input": 1, "cached_input": "0", "output": 1}}}, "m.prices.cached_input"),
        ({"": {}}, "catalog"),
    ],
)
def test_4_2_a_bad_catalog_is_refused_by_place(data: object, place: str) -> None:
    with pytest.raises(FoldlineError, match=re.escape(place)) as caught:
        Catalog.from_json(data)  # type: ignore[arg-type]
    assert caught.value.reason == Reason.FIELD_VALIDATION
    assert caught.value.metadata["field"] == place


def test_4_2_cached_input_costs_as_input_unless_it_is_priced() -> None:
    catalog = Catalog.from_json({"m": {"prices": {"input": 2, "output": 8, "currency": "EUR"}}})
    assert catalog.lookup(ModelRef("", "m")).prices == Prices(2.0, 2.0, 8.0, "EUR")


def test_4_2_what_costs_nothing_may_say_so() -> None:
    catalog = Catalog.from_json({"m": {"prices": {"input": 0, "output": 0.0}}})
    assert catalog.lookup(ModelRef("", "m")).prices == Prices(0.0, 0.0, 0.0)


def test_4_2_a_catalog_laid_over_another_wins_by_id() -> None:
    over = Catalog.from_json({"gpt-4o": {"context_window": 1_000}, "default": {"context_window": 2_000}})
    both = DEFAULT_CATALOG.overlaid(over)
    assert both.lookup(ModelRef("", "gpt-4o")).context_window == 1_000
    assert both.lookup(ModelRef("", "gpt-4.1")).context_window == 1_047_576
    assert both.lookup(ModelRef("", "nothing")).context_window == 2_000


@pytest.mark.parametrize("name", sorted(DEFAULT_CATALOG.models))
def test_4_2_every_built_in_model_leaves_room_for_input(name: str) -> None:
    info = DEFAULT_CATALOG.lookup(ModelRef("", name))
    found = limits(Policy(), info, info.max_output)
    assert 0 < found.threshold < found.ceiling <= info.context_window
    assert found.reserve <= found.ceiling // 4
    assert replace(info, encoding="") == DEFAULT_CATALOG.models[name]
