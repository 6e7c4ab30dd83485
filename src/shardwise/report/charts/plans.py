"""A plan of a search in words: titles of charts, labels of axes, hover texts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.config.plain import as_json, joined
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_fields import DEGREES
from shardwise.frozen import FrozenDict
from shardwise.planning.search.results import Plan, SearchResult
from shardwise.report.console import GIB, chance, gpu_count
from shardwise.report.tables.strategy_line import FOLLOWS

_SHORT = {"micro_batch_size": "micro-batch", "global_batch_size": "global batch", "gpus": "GPUs"}
_BATCH = ("gpus", "micro_batch_size", "global_batch_size", "seq_len")
# Always shown; other fields only where they differ from the default.
_ALWAYS = ("dtype", "recompute", "zero", "tp_exchange", "stack")
# It follows from another one.
_DERIVED = ("sequence_parallel",)
_HUNDRED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What the color of a map shows."""

    title: str
    unit: str = ""
    lower_is_better: bool = True

    @property
    def axis_title(self) -> str:
        """Title and unit."""
        return f"{self.title} [{self.unit}]" if self.unit else self.title


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(Quantity):
    """What charts show of plans."""

    value: Callable[[Plan], float]

    def rank(self, plan: Plan) -> float:
        """The value, or its negative, so that the best plan has the least."""
        return self.value(plan) if self.lower_is_better else -self.value(plan)


def _million_tokens_per_dollar(plan: Plan) -> float:
    return 1e3 / plan.usd_per_billion_tokens if plan.usd_per_billion_tokens else 0.0


OBJECTIVE_MEASURES = {
    "step_time": Measure(title="step time", unit="s", value=lambda plan: plan.step_time_s),
    "tokens_per_s_per_gpu": Measure(
        title="tokens/s per GPU",
        value=lambda plan: plan.tokens_per_s_per_gpu,
        lower_is_better=False,
    ),
    "tokens_per_dollar": Measure(
        title="tokens per dollar",
        unit="million",
        value=_million_tokens_per_dollar,
        lower_is_better=False,
    ),
}
"""By the objective of a search."""


@dataclass(frozen=True, slots=True)
class FrontAxis:
    """What a Pareto front shows against time."""

    title: str
    axis_title: str
    value: Callable[[Plan], float]


FRONT_AXES = {
    "memory": FrontAxis(
        "memory", "memory of a GPU [GiB]", lambda plan: plan.memory_reserved_bytes / GIB
    ),
    "gpus": FrontAxis("GPUs", "GPUs", lambda plan: float(plan.strategy["gpus"])),
    "cost": FrontAxis(
        "price", "price of a billion tokens [$]", lambda plan: plan.usd_per_billion_tokens or 0.0
    ),
}


def rounded(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= _HUNDRED else f"{value:#.3g}"


def short_name(field: str) -> str:
    """A field as a label of an axis."""
    return _SHORT.get(field, field.replace("_", " "))


def value_word(value: object) -> str:
    """A value of a field as a label: words for true, false and unset values."""
    if value is None:
        return "by placement"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return joined(value)
    if isinstance(value, Mapping):  # a stack that is not of the catalog as it is
        changed = [f"{key} {item}" for key, item in value.items() if key != "base"]
        if "base" in value:
            return f"{value['base']}, {', '.join(changed)}"
        return str(value.get("name", as_json(value)))
    return str(value)


def ordered_values(field: str, values: Sequence[Any]) -> list[Any]:
    """Distinct values of a field: numbers by size, words as `Strategy` lists them."""
    distinct = [value for i, value in enumerate(values) if value not in values[:i]]
    schema = as_json(_properties()[field])

    def key(value: object) -> tuple[int, float, str]:
        if value is None or isinstance(value, (int, float)):
            return (0, -1.0 if value is None else float(value), "")
        place = schema.find(as_json(value))
        return (1, float(place), str(value))

    return sorted(distinct, key=key)


@cache
def _properties() -> Any:
    """Fields of a strategy as JSON Schema has them."""
    return Strategy.model_json_schema()["properties"]


def degrees(strategy: Mapping[str, Any]) -> str:
    """Degrees that split something."""
    split = [f"{axis} {strategy[axis]}" for axis in DEGREES if strategy[axis] > 1]
    return " · ".join(split) or "unsplit"


def options_of(strategy: Mapping[str, object]) -> list[str]:
    """Fields besides degrees and batch: the important ones, and those that are not default."""
    usual = FrozenDict(Strategy().to_dict())
    return [
        _option(short_name(name), value)
        for name, value in strategy.items()
        if name not in (*DEGREES, *_BATCH, *_DERIVED)
        and (name != "schedule" or value not in FOLLOWS)
        and (name in _ALWAYS or value != usual[name])
    ]


def _option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {value_word(value)}"


def hover_text(plan: Plan, capacity_bytes: float) -> str:
    """Text that is shown when the mouse rests on a plan, as lines of HTML."""
    strategy = plan.strategy
    options = options_of(strategy)
    used, room = plan.memory_reserved_bytes / GIB, capacity_bytes / GIB
    usd, likely = plan.usd_per_billion_tokens, plan.fits_probability
    batch = f"global batch {strategy['global_batch_size']} x {strategy['seq_len']} tokens"
    lines = [
        f"<b>step time {rounded(plan.step_time_s)} s</b>, MFU {100 * plan.mfu:.1f} %",
        *([] if plan.interval_s is None else [_range_words(*plan.interval_s)]),
        f"{plan.tokens_per_s:,.0f} tokens/s, {plan.tokens_per_s_per_gpu:,.0f} per GPU",
        f"memory {used:.1f} of {room:.1f} GiB ({100 * used / room:.0f} %)"
        + ("" if likely is None else f", fits with {chance(likely)}"),
        *([] if usd is None else [f"${usd:,.0f} per billion tokens"]),
        "",
        f"{gpu_count(strategy['gpus'])} = {degrees(strategy)}",
        f"micro-batch {strategy['micro_batch_size']}, {batch}",
        *(", ".join(options[i : i + 3]) for i in range(0, len(options), 3)),
    ]
    return "<br>".join(lines)


def _range_words(low_s: float, high_s: float) -> str:
    return f"8 of 10 runs: {rounded(low_s)} to {rounded(high_s)} s"


def whisker_words(plans: Iterable[Plan]) -> str:
    """What whiskers are, at the end of a subtitle; nothing if no plan has an interval."""
    known = any(plan.interval_s is not None for plan in plans)
    return "; whiskers: range of 8 in 10 runs" if known else ""


def range_of(plan: Plan, value: float, *, is_rate: bool = False) -> tuple[float, float] | None:
    """Return the prediction interval of a value that is proportional to the step time of a plan.

    Parameters
    ----------
    is_rate
        Whether it is proportional to steps per time instead.
    """
    if plan.interval_s is None:
        return None
    low, high = (end / plan.step_time_s for end in plan.interval_s)
    return (value / high, value / low) if is_rate else (value * low, value * high)


def search_words(result: SearchResult) -> str:
    """Model, system, accelerators and batch of a search, in a line."""
    parts = [f"{result.model} on {result.system}"]
    parts += _extent(result.space, "gpus", "{} GPUs")
    parts += _extent(result.space, "global_batch_size", "global batch {}")
    first: Estimate | None = next(iter(result.rows), None)
    lengths = result.space.get("seq_len")
    if first is not None and (lengths is None or len(lengths) == 1):
        parts[-1] += f" x {first.strategy['seq_len']} tokens"
    return ", ".join(parts)


def _extent(space: Mapping[str, Any], field: str, words: str) -> list[str]:
    """Values of a field of a space: one, or from the least to the largest."""
    values = space.get(field)
    if not values or isinstance(values, str):
        return []
    least, most = min(values), max(values)
    return [words.format(least if least == most else f"{least} to {most}")]
