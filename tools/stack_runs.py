"""Count the measured runs of each stack, and their sources.

    python tools/stack_runs.py [--write] [FILE ...]

Files hold rows that do not come with shardwise. With --write the result replaces
catalog/fit/stacks.json.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from published_rows.packed import load_rows, read_rows
from published_rows.row import Run
from published_rows.translate import measured_run
from shardwise import catalog
from shardwise.config.software.resolve import UNKNOWN_STACK
from shardwise.validate.measured.predict import predict_runs

_PATH = Path(catalog.__file__).parent / "fit" / "stacks.json"


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


def stack_table(runs: Sequence[Run]) -> dict[str, dict[str, int]]:
    """Count runs that are predicted with each stack, and their sources."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in predict_runs([measured_run(run) for run in runs]):
        strategy = one.run.strategy
        if one.step_time_s is None or one.measured_step_time_s is None or strategy is None:
            continue
        found[strategy.loaded_stack().name].append(one.run.source)
    some = {name: found[name] for name in sorted(found) if name != UNKNOWN_STACK}
    return {
        "stacks": {name: len(sources) for name, sources in some.items()},
        "sources": {name: len(set(sources)) for name, sources in some.items()},
    }


if __name__ == "__main__":
    main()
