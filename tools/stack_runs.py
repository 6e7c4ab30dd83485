"""Count the measured runs of each stack, and how far frameworks are from the median software.

    python tools/stack_runs.py [--write] [FILE ...]

Files hold rows that do not come with shardwise. With --write the result replaces
catalog/fit/stacks.json, which the intervals of stacks without measured runs come from.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from published_rows.packed import load_rows, read_rows
from published_rows.row import Run
from published_rows.software import stack_of
from published_rows.translate import measured_run
from shardwise import catalog
from shardwise.analysis.validated_runs import framework_of
from shardwise.config.software.resolve import UNKNOWN_STACK
from shardwise.validate.measured.predict import Prediction, predict_runs

_PATH = Path(catalog.__file__).parent / "fit" / "stacks.json"
# Runs of a framework that make a level of it.
_LEAST_RUNS = 3


def main() -> None:
    """Print the table, and write it if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="change the file of the catalog")
    parser.add_argument("files", nargs="*", help="more rows of measured runs")
    arguments = parser.parse_args()
    runs = {run.id: run for run in load_rows()}
    runs |= {run.id: run for file in arguments.files for run in read_rows(file)}
    table = stack_table([run for run in runs.values() if run.grade in ("A", "B")])
    text = json.dumps(table, indent=1) + "\n"
    print(text)
    if arguments.write:
        _PATH.write_text(text, encoding="utf-8")


def stack_table(runs: Sequence[Run]) -> dict[str, dict[str, object]]:
    """Runs of each stack, and the level of each framework with the figures of `unknown`.

    A level is the median error of log time of the framework's runs.
    """
    counts: Counter[str] = Counter()
    levels = defaultdict(list)
    named = {run.id: stack_of(run, []).name for run in runs}
    for run, (own, prior) in zip(runs, _errors(runs), strict=True):
        if own is None or named[run.id] == UNKNOWN_STACK:
            continue
        counts[named[run.id]] += 1
        if prior is not None:
            levels[framework_of(named[run.id])].append(prior)
    return {
        "stacks": dict(sorted(counts.items())),
        "frameworks": {
            name: round(float(np.median(errors)), 4)
            for name, errors in sorted(levels.items())
            if len(errors) >= _LEAST_RUNS
        },
    }


def _errors(runs: Sequence[Run]) -> list[tuple[float | None, float | None]]:
    """Errors of log time with a run's own stack and with the prior."""
    own, prior = (
        predict_runs([measured_run(run, unknown_software=unknown) for run in runs])
        for unknown in (False, True)
    )
    return [(_error(a), _error(b)) for a, b in zip(own, prior, strict=True)]


def _error(one: Prediction) -> float | None:
    measured = one.measured_step_time_s
    if one.step_time_s is None or measured is None:
        return None
    return float(np.log(one.step_time_s / measured))


if __name__ == "__main__":
    main()
