"""Policy: every knob of the contract's ``Policy`` with its built-in default and range.

A layer (config file, tenant, session, request) is a partial mapping of dotted field names; ``resolve`` lays them over
the built-in values and remembers where each value came from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from foldline.domain.enums import (
    BoundingCut,
    MemoryFusion,
    MemoryIndex,
    OnFailure,
    Oversize,
    PromptCache,
    SummarySourcePolicy,
)
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.rows import ModelRef

MASK = "[redacted]"
"""What stands in the place of a secret, wherever one is hidden (S4, W8)."""
DEFAULT_REDACT = (
    r"sk-[A-Za-z0-9_-]{16,}",
    r"AKIA[0-9A-Z]{16}",
    r"gh[pousr]_[A-Za-z0-9]{20,}",
    r"AIza[0-9A-Za-z_-]{30,}",
    r"xox[abprs]-[A-Za-z0-9-]{10,}",
    r"(?i)bearer\s+[A-Za-z0-9._~+/-]{16,}=*",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----",
)


@dataclass(frozen=True, slots=True)
class Retention:
    """Kept tail (F1): the longer of whole turns and of rows widened to units."""

    turns: int = 4
    messages: int = 8


@dataclass(frozen=True, slots=True)
class Summary:
    """Sources, budgets and checks of summaries (§8); tokens unless said otherwise."""

    source: SummarySourcePolicy = SummarySourcePolicy.AUTO
    on_failure: OnFailure = OnFailure.PRESERVE
    fast_model: ModelRef | None = None
    timeout: float = 60.0
    retries: int = 2
    max_tokens: int = 4096
    instructions: str = ""
    oversize: Oversize = Oversize.TRIM
    prompt_cache: PromptCache = PromptCache.SEPARATE
    redact: tuple[str, ...] = DEFAULT_REDACT
    coverage_floor: float = 0.6
    appendix_tokens: int = 512
    ledger_tokens: int = 2048
    mechanical_tokens: int = 2048


@dataclass(frozen=True, slots=True)
class Background:
    """Folding ahead of need (A1); ``enabled`` None means: for extractive summaries, not for paid ones."""

    enabled: bool | None = None
    fraction: float = 0.8


@dataclass(frozen=True, slots=True)
class Bounding:
    cut: BoundingCut = BoundingCut.HEAD
    min_bytes: int = 512


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bounds of the learned factor (4.5)."""

    factor_min: float = 0.5
    factor_max: float = 2.5


@dataclass(frozen=True, slots=True)
class Memory:
    index_tool_results: bool = True
    chunk_tokens: int = 256
    index: MemoryIndex = MemoryIndex.AUTO
    fusion: MemoryFusion = MemoryFusion.MIN_MAX
    max_answer_tokens: int = 2000
    projection_ttl: float = 3600.0


@dataclass(frozen=True, slots=True)
class Switch:
    enabled: bool = False


@dataclass(frozen=True, slots=True)
class Expiry:
    """How long something is kept, in seconds; None is for ever."""

    retention: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """Effective policy of one boundary. Durations are seconds; the contract's ``Policy`` gives each field's rule."""

    auto_compact: bool = True
    auto_compact_threshold: int | None = None
    threshold_fraction: float = 0.8
    target_fraction: float = 0.5
    byte_fraction: float = 0.8
    body_cap_bytes: int | None = None
    output_reserve_tokens: int | None = None
    min_boundaries_between: int = 3
    min_progress: float = 0.1
    cooldown: float = 600.0
    max_paid_folds_per_hour: int = 60
    max_cost_per_day: float | None = None
    max_tokens_per_day: int | None = None
    retention: Retention = field(default_factory=Retention)
    run_ttl: float = 3600.0
    fold_wait: float | None = None
    summary: Summary = field(default_factory=Summary)
    background: Background = field(default_factory=Background)
    bounding: Bounding = field(default_factory=Bounding)
    estimate: Estimate = field(default_factory=Estimate)
    memory: Memory = field(default_factory=Memory)
    checkpoints: Switch = field(default_factory=Switch)
    native: Switch = field(default_factory=Switch)
    archive: Expiry = field(default_factory=Expiry)
    events: Expiry = field(default_factory=Expiry)


Layer = Mapping[str, Any]
"""A partial policy: dotted field name (``retention.turns``) to a value of the field's type."""
DURATIONS = frozenset({
    "cooldown", "run_ttl", "fold_wait", "summary.timeout", "memory.projection_ttl", "archive.retention",
    "events.retention",
})  # fmt: skip
"""Knobs in seconds."""
CHOOSE_WRITER = frozenset({"summary.source", "summary.fast_model"})
"""Knobs by which a provider is called that ``require_provider`` may refuse."""


def _positive(value: Any) -> bool:
    return bool(value > 0)


def _not_negative(value: Any) -> bool:
    return bool(value >= 0)


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "auto_compact_threshold": (_positive, "> 0"),
    "threshold_fraction": (lambda v: 0 < v <= 1, "(0, 1]"),
    "target_fraction": (lambda v: 0 < v < 1, "(0, 1)"),
    "byte_fraction": (lambda v: 0 < v <= 1, "(0, 1]"),
    "body_cap_bytes": (_positive, "> 0"),
    "output_reserve_tokens": (_not_negative, ">= 0"),
    "min_boundaries_between": (_not_negative, ">= 0"),
    "min_progress": (lambda v: 0 <= v < 1, "[0, 1)"),
    "cooldown": (_not_negative, ">= 0 seconds"),
    "max_paid_folds_per_hour": (_not_negative, ">= 0"),
    "max_cost_per_day": (_not_negative, ">= 0"),
    "max_tokens_per_day": (_not_negative, ">= 0"),
    "retention.turns": (_not_negative, ">= 0"),
    "retention.messages": (_not_negative, ">= 0"),
    "run_ttl": (_positive, "> 0 seconds"),
    "fold_wait": (_not_negative, ">= 0 seconds"),
    "summary.timeout": (_positive, "> 0 seconds"),
    "summary.retries": (lambda v: 0 <= v <= 5, "0-5"),
    "summary.max_tokens": (_positive, "> 0"),
    "summary.instructions": (lambda v: len(v.encode()) <= 16384, "at most 16 384 bytes"),
    "summary.coverage_floor": (lambda v: 0 <= v <= 1, "[0, 1]"),
    "summary.appendix_tokens": (_not_negative, ">= 0"),
    "summary.ledger_tokens": (_positive, "> 0"),
    "summary.mechanical_tokens": (_positive, "> 0"),
    "background.fraction": (lambda v: 0 < v < 1, "(0, 1)"),
    "bounding.min_bytes": (_not_negative, ">= 0"),
    "estimate.factor_min": (_positive, "> 0"),
    "estimate.factor_max": (_positive, "> 0"),
    "memory.chunk_tokens": (_positive, "> 0"),
    "memory.max_answer_tokens": (_positive, "> 0"),
    "memory.projection_ttl": (_positive, "> 0 seconds"),
}


_NOT_YET: dict[str, str] = {
    "archive.retention": "remove archived rows after a time",
    "events.retention": "remove events after a time",
}
"""Knobs whose effect is not there yet and whose silence would mislead: asking for one is refused."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """An effective policy and, for every dotted field, the name of the layer its value came from."""

    policy: Policy
    origin: Mapping[str, str]


def field_names() -> tuple[str, ...]:
    """Every knob, dotted, in the contract's order."""
    return tuple(_walk(Policy(), ""))


def _walk(node: Any, prefix: str) -> list[str]:
    names: list[str] = []
    for item in fields(node):
        value = getattr(node, item.name)
        if is_dataclass(value):
            names += _walk(value, f"{prefix}{item.name}.")
        else:
            names.append(prefix + item.name)
    return names


def check_layer(layer: Layer) -> None:
    """Refuses a value out of its range or an unknown name.

    Raises:
        FoldlineError: FIELD_VALIDATION, naming field, value and range; NOT_YET for a knob whose effect is not there.
    """
    known = set(field_names())
    for name, value in layer.items():
        if name not in known:
            raise FoldlineError(
                Reason.FIELD_VALIDATION,
                f"policy.{name} is no knob",
                field=f"policy.{name}",
                value=value,
                range="known name",
            )
        if value and name in _NOT_YET:
            raise FoldlineError(
                Reason.NOT_YET,
                f"policy.{name} is not served yet; it will {_NOT_YET[name]}",
                method=f"policy.{name}",
                will=_NOT_YET[name],
            )
        rule = _RANGES.get(name)
        if value is not None and rule is not None and not rule[0](value):
            raise FoldlineError(
                Reason.FIELD_VALIDATION,
                f"policy.{name} is {value}, allowed is {rule[1]}",
                field=f"policy.{name}",
                value=value,
                range=rule[1],
            )


def resolve(layers: Mapping[str, Layer]) -> Resolved:
    """Lays ``layers`` (lowest first, by name) over the built-in defaults.

    Raises:
        FoldlineError: FIELD_VALIDATION where a value is out of range, factor_min exceeds factor_max, or summary.source
            is NATIVE without native.enabled.
    """
    policy, origin = Policy(), dict.fromkeys(field_names(), "built-in")
    for layer_name, layer in layers.items():
        check_layer(layer)
        for name, value in layer.items():
            policy = _set(policy, name.split("."), value)
            origin[name] = layer_name
    if policy.estimate.factor_min > policy.estimate.factor_max:
        raise FoldlineError(
            Reason.FIELD_VALIDATION,
            f"policy.estimate.factor_min {policy.estimate.factor_min} exceeds factor_max {policy.estimate.factor_max}",
            field="policy.estimate.factor_min",
            value=policy.estimate.factor_min,
            range=f"<= {policy.estimate.factor_max}",
        )
    if policy.summary.source is SummarySourcePolicy.NATIVE and not policy.native.enabled:
        raise FoldlineError(
            Reason.FIELD_VALIDATION,
            "policy.summary.source is NATIVE, which needs policy.native.enabled; it is false",
            field="policy.summary.source",
            value=policy.summary.source,
            range="another source, or policy.native.enabled true",
        )
    return Resolved(policy, origin)


def require_provider(policy: Policy, providers: Collection[str]) -> None:
    """Refuses a fast model whose provider nobody has configured (S2): its folds would fail, or another would write.

    Nothing is said where the source is EXTRACTIVE, which calls no provider.

    Args:
        providers: names of those that are configured; with none the fast model is not asked for.

    Raises:
        FoldlineError: FIELD_VALIDATION.
    """
    asked, source = policy.summary.fast_model, policy.summary.source
    if not providers or asked is None or not asked.model or source is SummarySourcePolicy.EXTRACTIVE:
        return
    if asked.provider not in providers:
        known = ", ".join(sorted(providers))
        raise FoldlineError(
            Reason.FIELD_VALIDATION,
            f"policy.summary.fast_model names the provider {asked.provider or '(none)'}; configured are {known}",
            field="policy.summary.fast_model", value=f"{asked.provider}/{asked.model}", range=f"a model of {known}",
        )  # fmt: skip


def _set(node: Any, path: list[str], value: Any) -> Any:
    head, *rest = path
    return replace(node, **{head: _set(getattr(node, head), rest, value) if rest else value})
