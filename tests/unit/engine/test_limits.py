"""4.2: T, W, the output reserve, the input budget and the byte limit."""

import pytest
from foldline.domain.enums import ModelType
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.models import ModelInfo
from foldline.domain.policy import Policy
from foldline.engine.limits import limits


@pytest.mark.parametrize(
    ("policy", "info", "threshold", "ceiling"),
    [
        (Policy(), ModelInfo(context_window=200_000), 160_000, 200_000),
        (Policy(threshold_fraction=0.5), ModelInfo(context_window=200_000), 100_000, 200_000),
        (Policy(), ModelInfo(context_window=400_000, input_ceiling=272_000), 217_600, 272_000),
        (Policy(), ModelInfo(context_window=100_000, input_ceiling=272_000), 80_000, 100_000),
        (Policy(auto_compact_threshold=24_000), ModelInfo(context_window=128_000), 24_000, 128_000),
        # honoured whatever the window
        (Policy(auto_compact_threshold=500_000), ModelInfo(context_window=128_000), 500_000, 128_000),
    ],
)
def test_4_2_threshold_and_ceiling(policy: Policy, info: ModelInfo, threshold: int, ceiling: int) -> None:
    found = limits(policy, info, None)
    assert (found.threshold, found.ceiling) == (threshold, ceiling)


@pytest.mark.parametrize(
    ("explicit", "requested", "info", "reserve"),
    [
        (None, None, ModelInfo(context_window=200_000), 8_192),
        (None, 32_000, ModelInfo(context_window=200_000), 32_000),
        (None, 64_000, ModelInfo(context_window=200_000), 50_000),  # never over W/4
        (None, None, ModelInfo(context_window=8_192), 2_048),
        (None, None, ModelInfo(context_window=128_000, max_output=4_096), 4_096),
        (None, 0, ModelInfo(context_window=200_000), 0),
        (100_000, 32_000, ModelInfo(context_window=200_000), 100_000),  # the knob as it is set
        (0, 32_000, ModelInfo(context_window=200_000), 0),
    ],
)
def test_4_2_output_reserve(explicit: int | None, requested: int | None, info: ModelInfo, reserve: int) -> None:
    assert limits(Policy(output_reserve_tokens=explicit), info, requested).reserve == reserve


def test_4_2_input_budget_is_the_window_less_the_reserve_but_no_more_than_the_ceiling() -> None:
    wide = limits(Policy(), ModelInfo(context_window=200_000), 20_000)
    assert wide.input_budget == 180_000
    low = limits(Policy(), ModelInfo(context_window=400_000, input_ceiling=272_000), 20_000)
    assert low.input_budget == 272_000


@pytest.mark.parametrize(
    ("policy", "info", "cap"),
    [
        (Policy(), ModelInfo(type=ModelType.ANTHROPIC), 9_000_000),
        (Policy(), ModelInfo(type=ModelType.OPENAI), 50_000_000),
        (Policy(), ModelInfo(type=ModelType.GOOGLE), 20_000_000),
        (Policy(), ModelInfo(type=ModelType.OTHER), None),
        (Policy(), ModelInfo(type=ModelType.ANTHROPIC, body_cap_bytes=32_000_000), 32_000_000),
        (Policy(body_cap_bytes=1_000), ModelInfo(body_cap_bytes=32_000_000), 1_000),
    ],
)
def test_4_2_body_cap_and_byte_limit(policy: Policy, info: ModelInfo, cap: int | None) -> None:
    found = limits(policy, info, None)
    assert found.body_cap == cap
    assert found.byte_limit == (None if cap is None else cap * 8 // 10)


def test_4_2_a_threshold_of_nothing_is_refused_with_the_numbers() -> None:
    with pytest.raises(FoldlineError, match="0 tokens") as caught:
        limits(Policy(threshold_fraction=0.001), ModelInfo(context_window=500), 0)
    assert caught.value.reason == Reason.FIELD_VALIDATION
    assert caught.value.metadata["ceiling"] == "500"


@pytest.mark.parametrize("reserve", [10_000, 10_001])
def test_4_2_a_reserve_that_reaches_the_ceiling_is_refused_with_the_numbers(reserve: int) -> None:
    policy = Policy(output_reserve_tokens=reserve)
    with pytest.raises(FoldlineError, match=f"{reserve} tokens.*10000") as caught:
        limits(policy, ModelInfo(context_window=10_000), None)
    assert caught.value.metadata["field"] == "policy.output_reserve_tokens"
    assert limits(Policy(output_reserve_tokens=9_999), ModelInfo(context_window=10_000), None).input_budget == 1
