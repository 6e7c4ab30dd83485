"""Scenarios side by side, as tables."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from rich.table import Table
from rich.text import Text

from shardwise.analysis.comparison import (
    BEST_BY,
    Change,
    Comparison,
    InputDifference,
    Outcome,
    PartChange,
)
from shardwise.analysis.features import feature_words
from shardwise.config.plain import joined
from shardwise.report.console import (
    GIB,
    as_markdown,
    chance,
    percent,
    plain_table,
    seconds,
    show,
    signed,
)
from shardwise.report.tables.estimate import PART_NAMES
from shardwise.report.tables.methods import break_even_lines, price_lines
from shardwise.report.tables.strategy_line import interval_words

FOLLOW_WORDS = {
    "bubble": "time of a pass",
    "pp_comm": "time of a pass",
    "dp_comm": "compute that hides it",
    "offload": "compute that hides it",
    "other": "share of all components",
}
"""How a part changes with others."""
# Longer names are listed once, and letters stand for them in tables.
_LONGEST = 16
_ALPHABET = 26
_WHAT = "meaning"
_BEARS = "depends on"


def print_comparison(found: Comparison) -> None:
    """Print the inputs that differ, the results, and what the time changes by."""
    letters = _letters(found)
    if letters:
        legend = [
            f"{letter}: {one.name}" for letter, one in zip(letters, found.scenarios, strict=True)
        ]
        show("\n" + "\n".join(legend))
        found = _renamed(found, letters)
    show(Text(f"\n{who_runs(found)}\n", style="bold"))
    if found.asked:
        show(_asked(found))
        if not all(all(one.given) for one in found.asked):
            show("(in brackets: not set; derived or default)\n", style="dim")
    else:
        show("the inputs are the same\n")
    show(_outcomes(found))
    for change in found.changes:
        if any(part.delta_s for part in change.parts):
            show(_change(change, found.per))
        else:
            show(f"{change_words(change, found.per)}, in every part\n")
    show("\n".join(_closing(found)), style="dim")


def markdown(found: Comparison, failed: Sequence[str] = ()) -> str:
    """Return a comparison as Markdown, the answer first, for a comment on a pull request.

    Parameters
    ----------
    failed
        Conditions of the command that do not hold.
    """
    answers = [f"**{change_words(change, found.per)}.**" for change in found.changes]
    answers += [f"**failed:** {line}" for line in failed]
    parts = [_change(change, found.per) for change in found.changes]
    paragraphs = [
        f"### {who_runs(found)}",
        "\n".join(f"- {line}" for line in answers),
        as_markdown(_outcomes(found)),
        as_markdown(_asked(found)) if found.asked else "The inputs are the same.",
        "<details><summary>Parts of the step</summary>",
        *(line for part in parts for line in (f"{part.title}".strip(), as_markdown(part))),
        "</details>",
        "\n".join(f"- {line}" for line in _closing(found)),
    ]
    return "\n\n".join(one.strip() for one in paragraphs) + "\n"


def _closing(found: Comparison) -> list[str]:
    """What is best, what the prices rest on, and caveats."""
    prices = price_lines({one.system: one.price for one in found.scenarios})
    prices += break_even_lines(found.break_even)
    return [*best_words(found), *_alike_words(found), *prices, *found.notes]


def _letters(found: Comparison) -> list[str]:
    """Short names for heads of columns, where the scenarios' own are long; else none."""
    names = [one.name for one in found.scenarios]
    if max(map(len, names)) <= _LONGEST:
        return []
    return [chr(ord("A") + i) if i < _ALPHABET else str(i + 1) for i in range(len(names))]


def _renamed(found: Comparison, names: list[str]) -> Comparison:
    """The same with other names."""
    new = dict(zip((one.name for one in found.scenarios), names, strict=True))

    def named(one: Outcome | Change) -> Any:
        other = {"against": new[one.against]} if isinstance(one, Change) else {}
        return one.model_copy(update={"name": new[one.name], **other})

    best = {by: None if name is None else new[name] for by, name in found.best.items()}
    return found.model_copy(
        update={
            "scenarios": tuple(map(named, found.scenarios)),
            "changes": tuple(map(named, found.changes)),
            "best": best,
            "alike": tuple(new[name] for name in found.alike),
        }
    )


def who_runs(found: Comparison) -> str:
    """Names of the scenarios with their models and systems, each of these once."""
    runs: dict[str, list[str]] = {}
    for one in found.scenarios:
        runs.setdefault(f"{one.model} on {one.system}", []).append(one.name)
    return "; ".join(f"{', '.join(names)}: {run}" for run, names in runs.items())


def _asked(found: Comparison) -> Table:
    names = [one.name for one in found.scenarios]
    table = plain_table(
        *("inputs that differ", *names, _WHAT),
        texts=(_WHAT,),
        optional=(_WHAT, *reversed(names[2:])),
        wraps=(_WHAT, *names),
    )
    for one in found.asked:
        table.add_row(one.field.replace("_", " "), *_values(one), one.words)
    return table


def _values(difference: InputDifference) -> list[str]:
    words = [in_words(value) for value in difference.values]
    return [w if g else f"({w})" for w, g in zip(words, difference.given, strict=True)]


def in_words(value: object) -> str:
    """A value of an input, as a word."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return joined(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _outcomes(found: Comparison) -> Table:
    per_tokens = found.per != "step"
    heads = ["step time", "8 of 10 runs"]
    heads += [*(["per M tokens"] if per_tokens else []), "change"]
    heads += ["tokens/s", "tokens/s/GPU", "MFU", "GiB", "capacity GiB", "fits"]
    heads += ["$/B tokens"] if any(o.usd_per_billion_tokens for o in found.scenarios) else []
    heads += ["days"] if any(o.effective_days for o in found.scenarios) else []
    optional = (
        "capacity GiB",
        "8 of 10 runs",
        "tokens/s",
        "MFU",
        "$/B tokens",
        "GiB",
        "tokens/s/GPU",
    )
    table = plain_table("results", *heads, optional=[head for head in optional if head in heads])
    shares = [None, *(change.share for change in found.changes)]
    for outcome, share in zip(found.scenarios, shares, strict=True):
        cells = _cells(outcome) | {"change": "" if share is None else signed(share)}
        style = None if outcome.fits else "red"
        table.add_row(outcome.name, *(cells[head] for head in heads), style=style)
    return table


def _fits(outcome: Outcome) -> str:
    if outcome.fits_probability is None:
        return "yes" if outcome.fits else "no"
    return chance(outcome.fits_probability)


def _cells(outcome: Outcome) -> dict[str, str]:
    usd, days = outcome.usd_per_billion_tokens, outcome.effective_days
    return {
        "step time": seconds(outcome.step_time_s),
        "8 of 10 runs": interval_words(outcome.interval),
        "per M tokens": seconds(1e6 / outcome.tokens_per_s),
        "tokens/s": f"{outcome.tokens_per_s:,.0f}",
        "tokens/s/GPU": f"{outcome.tokens_per_s_per_gpu:,.0f}",
        "MFU": percent(outcome.mfu),
        "GiB": f"{outcome.memory_bytes.reserved / GIB:.2f}",
        "capacity GiB": f"{outcome.memory_bytes.capacity / GIB:.2f}",
        "fits": _fits(outcome),
        "$/B tokens": "-" if usd is None else f"{usd:,.0f}",
        "days": "-" if days is None else f"{days:,.1f}" if isfinite(days) else "never",
    }


def change_words(change: Change, per: str) -> str:
    """How much longer one takes than the other, in a line."""
    unit = "a step" if per == "step" else f"per {per}"
    if not change.delta_s:
        return f"{change.name} takes as long as {change.against} {unit}"
    more = "more" if change.delta_s > 0 else "less"
    amount = f"{seconds(abs(change.delta_s))} {more} ({signed(change.share)})"
    return f"{change.name} takes {amount} {unit} than {change.against}"


def _change(change: Change, per: str) -> Table:
    table = plain_table(
        *("part", change.against, change.name, "change", "of the term", "of the total", _BEARS),
        texts=(_BEARS,),
        title=f"\n{change_words(change, per)}",
        optional=("of the term", "of the total", change.against),
        wraps=(_BEARS,),
    )
    for part in change.parts:
        table.add_row(
            PART_NAMES[part.part],
            seconds(part.before_s),
            seconds(part.after_s),
            _delta(part.delta_s),
            "-" if part.share is None else signed(part.share),
            signed(part.delta_s / change.before_s),
            _bears(part),
            style=(None if not part.delta_s else "red" if part.delta_s > 0 else "green"),
        )
    table.add_section()
    table.add_row(
        *("total", seconds(change.before_s), seconds(change.after_s), _delta(change.delta_s)),
        *(signed(change.share), signed(change.share), ""),
        style="bold",
    )
    return table


def _delta(delta_s: float) -> str:
    return "-" if not delta_s else ("+" if delta_s > 0 else "") + seconds(delta_s)


def _bears(part: PartChange) -> str:
    """The inputs that act on a part, what is hidden of it, and what it changes with."""
    words = [", ".join(name.replace("_", " ") for name in part.inputs)] if part.inputs else []
    if part.follows:
        words.append(FOLLOW_WORDS[part.part])
    hidden = part.hidden_before_s, part.hidden_after_s
    if hidden[0] != hidden[1]:
        before, after = (seconds(time) if time else "0" for time in hidden)
        words.append(f"hidden {before} -> {after}")
    return "; ".join(words)


def best_words(found: Comparison) -> list[str]:
    """Which is the best by what, a line for each that is."""
    by: dict[str, list[str]] = {}
    for measure, name in found.best.items():
        if name is not None:
            by.setdefault(name, []).append(BEST_BY[measure])
    lines = [f"{name} is best by {', '.join(measures)}" for name, measures in by.items()]
    return lines or ["none fits"]


def _alike_words(found: Comparison) -> list[str]:
    """Which cannot be separated, and what each relies on that no measured run used."""
    lines = []
    if found.alike and found.within is not None:
        within = percent(found.within)
        lines.append(f"{' and '.join(found.alike)} cannot be separated (within {within})")
    lines += [
        f"{one.name} relies on {feature_words(one.unmeasured_features)}, which no measured run has "
        "used; its interval is wider"
        for one in found.scenarios
        if one.unmeasured_features
    ]
    return lines
