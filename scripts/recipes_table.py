"""Compare published recipes with the best plans of our search: docs/reference/recipe-plans.md.

    python scripts/recipes_table.py                      # every recipe; some minutes
    python scripts/recipes_table.py --only NAME,NAME --print
    python scripts/recipes_table.py --seconds 300        # stop a search after this time

For each recipe: whether its strategy is in the default space of the search (or the fields that are
not), its measured and its predicted step; of the plan that the search recommends for the same
model, machine, batch, types and software the predicted step (and its 80 % quantile where the search
returns one), memory over capacity, whether it fits where the busiest experts have 1.5 times an even
load, and whether its launcher can express it; and the gap: the recipe's predicted step over that of
the plan, less one. What was found is saved in build/recipes-table.json after each recipe; the next
run reuses it with --resume. 49 recipes take 3 to 10 minutes on two cores.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise import InputError, Recipe, estimate, recipes, search
from shardwise.analysis.results import Estimate
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.launchers.exportable import Exportable
from shardwise.launchers.registry import LAUNCHERS
from shardwise.planning.recipes import estimate_recipe
from shardwise.planning.search.explain import UserStrategy
from shardwise.planning.search.query import load_space
from shardwise.report.tables.strategy_line import in_brief, word

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "recipe-plans.md"
SAVED = ROOT / "build" / "recipes-table.json"
START, END = "<!-- table: scripts/recipes_table.py -->", "<!-- end of table -->"
_HEADS = (
    *("recipe", "in the default space", "its plan", "measured [s]", "[s]", "our plan", "[s]"),
    *("80 % [s]", "gap", "memory", "fits at 1.5", "export", "search [s]"),
)
_LINE = "|---|---|---|--:|--:|---|--:|--:|--:|--:|---|---|--:|"
_NATURAL = 1.5
"""Load of the busiest experts over an even one where nothing forces routing to be even."""
Row = dict[str, Any]


def compare(
    recipe: Recipe, *, seconds: float | None = None, narrowed: Mapping[str, Any] | None = None
) -> Row:
    """Search a better plan for the question of a recipe.

    Parameters
    ----------
    recipe
        The recipe.
    seconds
        Longest time of the search [s]; None: no limit. A search that was stopped is incomplete.
    narrowed
        Fields that the space fixes in addition.
    """
    space = load_space(recipe.question() | dict(narrowed or {}), {})
    started = time.perf_counter()
    found = search(
        recipe.model, recipe.system, space, top=1, progress=_stop_after(seconds, started)
    )
    elapsed_s = time.perf_counter() - started
    advised = getattr(found, "recommendation", None)
    first = found.best[0] if found.best else None
    best = first if advised is None else advised.plan
    row: Row = {
        "name": recipe.name,
        "outside": outside(recipe, space),
        "seconds": elapsed_s,
        "candidates": found.candidates,
        "complete": found.complete,
        "best_s": None if best is None else best.step_time_s,
        "best": None if best is None else in_brief(best.strategy),
        "quantile_s": getattr(best, "step_time_p80_s", None),
    }
    if best is not None:
        row |= risks(recipe, best)
    try:
        mine = estimate_recipe(recipe)
    except InputError as refusal:
        none = dict.fromkeys(("recipe_s", "gap", "measured_s"))
        return row | none | {"refused": str(refusal)}
    step_s = mine.estimate.step_time_s
    gap = None if best is None else step_s / best.step_time_s - 1
    plan = in_brief(mine.estimate.strategy)
    adds = [] if best is None else _added(mine.estimate.strategy, best.strategy)
    row |= {"measured_s": mine.measured_step_time_s}
    return row | {"recipe_s": step_s, "gap": gap, "plan": plan, "adds": adds}


def risks(recipe: Recipe, plan: Estimate) -> Row:
    """Memory of a plan over capacity, whether it fits with natural routing, and its launcher."""
    model, system = Model.load(recipe.model), System.load(recipe.system)
    share = plan.memory_bytes.reserved / system.accelerator.memory[0].capacity
    strategy = {**plan.strategy, "expert_imbalance": _NATURAL}
    fits = estimate(model, system, strategy).fits if model.has_experts else None
    stack = plan.strategy["stack"]
    name = stack if isinstance(stack, str) else str(stack.get("base") or stack.get("name"))
    family = name.rsplit("-", 1)[0]
    launcher = next((one for one in LAUNCHERS if one.stack.rsplit("-", 1)[0] == family), None)
    accepts = None if launcher is None else Exportable(launcher, model, system)(plan.strategy)
    return {"memory": share, "fits_natural": fits, "export": accepts}


def _added(mine: Mapping[str, Any], best: Mapping[str, Any]) -> list[str]:
    """What the best plan does for experts that the recipe does not."""
    added = []
    if best["dispatcher"] != mine["dispatcher"]:
        added.append("another dispatcher")
    if best["expert_overlap"] and not mine["expert_overlap"]:
        added.append("expert overlap")
    return added


def _by_addition(rows: Sequence[Row]) -> str:
    """Number of recipes, median and largest gap, by what the best plan adds for experts."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row["gap"] is not None:
            groups.setdefault(" and ".join(row["adds"]), []).append(row["gap"])
    lines = [
        f"- {f'adds {name}' if name else 'same dispatcher and overlap, or no experts'}: "
        f"{len(gaps)} recipes, {statistics.median(gaps):+.1%} in the median, "
        f"{max(gaps):+.1%} at most"
        for name, gaps in sorted(groups.items())
    ]
    return "\n".join(
        ["By what the best plan does for experts that the recipe does not:", "", *lines]
    )


def outside(recipe: Recipe, space: Any) -> list[str]:
    """What of a recipe a space does not try, and rules that it breaks, a phrase each."""
    model, system = Model.load(recipe.model), System.load(recipe.system)
    user = UserStrategy.of(model, system, space, in_counts(recipe.fields(), model.depth))
    mine = user.row.strategy(0).to_dict()
    fields = [f"{name} {word(mine[name])}" for name in user.outside(space)]
    return fields + [f"rule: {reason}" for reason in user.broken]


def in_counts(fields: dict[str, Any], depth: int) -> dict[str, Any]:
    """Fields with layers of stages in place of an embedding and a loss that count as layers.

    n layers a chunk with both ends counted are n - 1 layers on the first and the last chunk.
    """
    ends = ("embedding_as_layer", "loss_as_layer")
    chunks = fields.get("pp", 1) * fields.get("vpp", 1)
    if not all(fields.get(name) for name in ends) or (depth + 2) % chunks or chunks == 1:
        return fields
    lengths = [(depth + 2) // chunks] * chunks
    lengths[0] -= 1
    lengths[-1] -= 1
    return {n: v for n, v in fields.items() if n not in ends} | {"stage_layers": lengths}


def _stop_after(seconds: float | None, started: float) -> Callable[..., None] | None:
    """Interrupt a search, which then returns what it has found."""
    if seconds is None:
        return None

    def progress(done: int, total: int, _findings: object) -> None:
        if done < total and time.perf_counter() - started > seconds:
            raise KeyboardInterrupt

    return progress


def table(rows: Sequence[Row]) -> str:
    """The table of the page in Markdown, with a summary above it."""
    gaps = [row["gap"] for row in rows if row["gap"] is not None]
    inside = sum(not row["outside"] for row in rows)
    summary = (
        f"Of {len(rows)} recipes {inside} are in the default space; the others say by which fields "
        f"they are not. The gap is {statistics.median(gaps):+.1%} in "
        f"the median, {max(gaps):+.1%} at most, {min(gaps):+.1%} at least (one outside the space "
        "may be faster than the best in it)."
    )
    summary += "\n\n" + risk_words(rows)
    lines = [
        f"| {' | '.join(_HEADS)} |",
        _LINE,
        *map(_line, rows),
    ]
    return "\n".join([summary, "", _by_addition(rows), "", *lines]).replace("+0.0%", "0.0%")


def risk_words(rows: Sequence[Row]) -> str:
    """The largest gap with what makes it, and how many plans may not run."""
    known = [row for row in rows if row["gap"] is not None]
    worst = max(known, key=lambda row: abs(row["gap"]))
    why = f"the plan adds {' and '.join(worst['adds'])}" if worst["adds"] else "other degrees"
    names = ("fits_natural", "export")
    out, refused = (sum(row.get(name) is False for row in rows) for name in names)
    words = (
        f"The largest gap is {worst['gap']:+.1%}, of {worst['name']}: {why}. {refused} plans are "
        f"refused by export, and {out} run out of memory where the busiest experts have {_NATURAL} "
        "times an even load."
    )
    for name, figure in (("Our plan", "best_s"), ("Its 80 % quantile", "quantile_s")):
        late = [row[figure] / row["measured_s"] - 1 for row in known if row[figure]]
        if late:
            words += f" {name} is {statistics.median(late):+.1%} in the median against the "
            words += "measured step of the recipe."
    return words


_WORDS = {None: "-", True: "yes", False: "no"}


def _line(row: Row) -> str:
    inside = "yes" if not row["outside"] else "no: " + "; ".join(row["outside"])
    gap = "-" if row["gap"] is None else f"{row['gap']:+.1%}"
    best = row["best"] or "none feasible"
    note = "" if row["complete"] else " (stopped)"
    cells = (
        row["name"],
        inside,
        row.get("plan") or f"refused: {row['refused']}",
        _seconds(row["measured_s"]),
        _seconds(row["recipe_s"]),
        best + note,
        _seconds(row["best_s"]),
        _seconds(row["quantile_s"]),
        gap,
        f"{row['memory']:.0%}" if "memory" in row else "-",
        *(_WORDS[row.get(name)] for name in ("fits_natural", "export")),
        f"{row['seconds']:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def with_table(page: str, text: str) -> str:
    """The page with its table replaced."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"{PAGE.name} has no lines {START} and {END}")
    return f"{before}{START}\n\n{text}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the searches, and write or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", help="names of recipes, separated by commas")
    parser.add_argument("--seconds", type=float, help="longest time of a search")
    parser.add_argument("--print", action="store_true", help="print the table, write no page")
    parser.add_argument("--resume", action="store_true", help="reuse what the last run found")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else [recipe.name for recipe in recipes()]
    saved = options.resume and SAVED.exists()
    rows: dict[str, Row] = json.loads(SAVED.read_text()) if saved else {}
    for name in names:
        if name not in rows:
            rows[name] = compare(Recipe.load(name), seconds=options.seconds)
            SAVED.parent.mkdir(exist_ok=True)
            SAVED.write_text(json.dumps(rows, indent=1))
        print(_line(rows[name]), file=sys.stderr, flush=True)
    text = table([rows[name] for name in names])
    if options.print:
        print(text)
    else:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
