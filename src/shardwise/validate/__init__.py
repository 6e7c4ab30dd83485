"""Accuracy: published figures, our estimates and those of the predecessors side by side."""

from collections.abc import Callable, Collection

from shardwise.errors import Fault, InputError, allowed_words
from shardwise.predecessors.validate.amped import amped
from shardwise.predecessors.validate.nersc_collectives import nersc_collectives
from shardwise.predecessors.validate.seqsel import seqsel
from shardwise.predecessors.validate.simumax import simumax
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

# Name of each suite, a description, and the function that runs it.
SUITES: dict[str, tuple[str, Callable[[], Scoreboard]]] = {
    "seqsel": (
        "sequence-parallelism paper: memory formulas, 8 measured steps and 10 passes",
        seqsel,
    ),
    "simumax": (
        "SimuMax's measured runs: peak memory and step time, 8 B200 and 8 A100",
        simumax,
    ),
    "nersc-collectives": (
        "NCCL collectives on Perlmutter: 1 to 256 nodes of A100, 32 KiB to 8 GiB",
        nersc_collectives,
    ),
    "amped": (
        "what AMPeD is compared with: 20 steps on 32 to 3,072 A100, GPipe's throughput on P100",
        amped,
    ),
}

# Collections of rows, shipped or in files, with their own scoreboards.
COLLECTIONS = {
    "runs": "1,853 published training runs: step time and peak memory, or rows of your own",
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
    _, run = SUITES[suite]
    return run()


def no_such_suite(suite: str, known: Collection[str]) -> InputError:
    """Return the error for an unknown suite."""
    problem = f"no such suite; {allowed_words(suite, known)}"
    return InputError(Fault(field="suite", value=suite, has_value=True, problem=problem))
