"""Accuracy: published figures, our estimates and those of the predecessors side by side."""

from collections.abc import Collection

from shardwise import registry
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.validate.scores import Compared, Criterion, Part, Row, Score, Scoreboard

__all__ = [
    "COLLECTIONS",
    "SUITES",
    "Compared",
    "Criterion",
    "Part",
    "Row",
    "Score",
    "Scoreboard",
    "no_such_suite",
    "validate",
]

SUITES: dict[str, tuple[str, str]] = dict(registry.added("suites"))
"""Suites of the packages around the core: what each compares, and the function that does it."""

# Collections of rows, shipped or in files, with their own scoreboards.
COLLECTIONS = {
    "runs": "1,867 published training runs: step time and peak memory, or rows of your own",
    "kernels": "your tables of measured kernels and collectives, set by --data",
}


def validate(suite: str) -> Scoreboard:
    """Run a suite.

    Raises
    ------
    InputError
        If there is none of that name.

    Examples
    --------
    >>> from shardwise.validate import validate
    >>> [part.name for part in validate("seqsel").parts]
    ['fig1_state', 'fig1_activations', 'fig7_activations', 'tab4_layer', 'tab5_step_time']
    """
    if suite not in SUITES:
        raise no_such_suite(suite, SUITES)
    found: Scoreboard = registry.load(SUITES[suite][1])()
    return found


def no_such_suite(suite: str, known: Collection[str]) -> InputError:
    """Return the error for an unknown suite."""
    problem = f"no such suite; {allowed_words(suite, known)}"
    return InputError(Fault(field="suite", value=suite, has_value=True, problem=problem))
