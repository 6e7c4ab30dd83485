"""Saved results as addresses of the page: a link that opens a plan, or the plans of a search."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.analysis.saved_plan import SavedPlan, count_plans, plan_of
from shardwise.web.state import MOST_PINS, Named, State
from shardwise.web.views import texts_of


def query_of(data: Mapping[str, Any], source: str, number: int | None) -> str:
    """Return the part of an address that shows a saved result.

    Parameters
    ----------
    data
        Content of the file of an estimate or a search.
    number
        Plan that is shown; None: the first, with the first plans of the search to compare.

    Raises
    ------
    InputError
        If it is another result, has no such plan, or none of the catalog's models and systems.
    """
    shown = _state(plan_of(data, source, number or 1))
    most = min(MOST_PINS, count_plans(data, source)) if number is None else 1
    if most > 1:
        others = [_state(plan_of(data, source, at)) for at in range(2, most + 1)]
        shown = replace(shown, pinned=tuple(one.to_query() for one in (shown, *others)))
    return shown.to_query()


def _state(plan: SavedPlan) -> State:
    """What the page shows of a plan."""
    found, model = plan.estimate, plan.model()
    run = found.whole_run
    return State(
        model=Named(name=model.name),
        system=Named(name=plan.system()),
        strategy=texts_of(model, found.strategy),
        run={} if run is None else {"tokens": f"{run.tokens_asked:g}"},
    )
