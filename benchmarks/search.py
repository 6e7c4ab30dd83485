"""CPU time and memory of `search`: large spaces, and default searches of many sizes.

Run it as `python benchmarks/search.py [MODEL ...] [options]`; `searches.yaml` lists the searches.
Every search runs in a process of its own, one after the other. Times are CPU times of one core;
with `--jobs` they are elapsed times of several processes.

`--against TREE` also runs the large ones with an older checkout, and prints the ratio of CPU time.
An older commit needs minutes for spaces of 10^8 strategies: with `--share 0.05` it evaluates a
twentieth of the layouts, evenly spaced, and its time is scaled to all of them.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

_HERE = Path(__file__).parent
_MOST_CPU_S, _MOST_MIB = 3.0, 500.0
"""What a default search should need at most, as a process."""
_QUICK = {"large": 1, "default": 3}
"""How many searches of each list `--quick` runs: the first ones."""
_COMMAND = "from shardwise.cli import main; main()"


def main() -> None:
    """Measure the searches that the options select."""
    options = read_options()
    if options.only != "default":
        measure_large(selected("large", options), options)
    if options.only != "large":
        measure_defaults(selected("default", options))


def selected(kind: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Searches of a list that the options select."""
    cases = yaml.safe_load((_HERE / "searches.yaml").read_text(encoding="utf-8"))[kind]
    if options.models:
        cases = [case for case in cases if case["model"] in options.models]
    return cases[: _QUICK[kind]] if options.quick else cases


def read_options() -> argparse.Namespace:
    """Read the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="only the searches of these")
    parser.add_argument("--only", choices=("large", "default"), help="only this list")
    parser.add_argument("--quick", action="store_true", help="only the first searches of each list")
    parser.add_argument("--against", metavar="TREE", help="checkout of an older commit")
    parser.add_argument("--share", type=float, default=1.0, help="of the layouts for that commit")
    parser.add_argument("--jobs", type=int, help="processes of each large search")
    parser.add_argument("--profile", action="store_true", help="what the large ones spend time on")
    return parser.parse_args()


def measure_large(cases: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the figures of each large space, next to those of the older commit."""
    for case in cases:
        space = str(_HERE / "spaces" / f"{case['space']}.yaml")
        task = {**case, "space": space, "share": 1.0, "jobs": options.jobs, "profile": False}
        if options.profile:
            print(f"{case['space']}\n{run_once(task | {'profile': True})}", end="", flush=True)
            continue
        new = json.loads(run_once(task))
        if new["candidates"] != case["candidates"]:
            sys.exit(f"{case['space']}: {new['candidates']} strategies, not {case['candidates']}")
        print(f"{case['space']}: {line_of(new)}", flush=True)
        if options.against is not None:
            old = json.loads(run_once(task | {"share": options.share}, tree=options.against))
            print(f"   {options.against}: {line_of(old)}")
            print(f"   {old['time_s'] / new['time_s']:.1f} times as fast; {same_best(old, new)}")


def line_of(figures: dict[str, Any]) -> str:
    """Figures of one search in a line."""
    rate = figures["candidates"] / figures["time_s"] / 1e6
    share = figures.get("share")
    return (
        f"{figures['candidates']:,} strategies, {figures['timed']:,} timed, "
        f"{figures['time_s']:.2f} s, {rate:,.1f} million strategies per second, "
        f"peak {figures['peak_mib']:,.0f} MiB"
        + ("" if share is None else f" (from {100 * share:.1f} % of the layouts)")
    )


def same_best(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Whether both commits found the same plans."""
    if "best" not in old:
        return "the best were not compared"
    same = old["best"] == new["best"]
    return f"{len(new['best'])} best, {'identical' if same else 'NOT identical'}"


def run_once(task: dict[str, Any], *, tree: str | None = None) -> str:
    """Measure one search in a process of its own, with the shardwise of a tree."""
    script = [sys.executable, str(_HERE / "search_once.py"), json.dumps(task)]
    sources = (Path(tree) if tree is not None else _HERE.parent) / "src"
    done = subprocess.run(  # noqa: S603 - this script itself
        script, env=environment(sources), stdout=subprocess.PIPE, check=True, text=True
    )
    return done.stdout


def environment(sources: Path) -> dict[str, str]:
    """Environment of a process that imports shardwise from a folder."""
    return {**os.environ, "PYTHONPATH": str(sources.resolve())}


def measure_defaults(cases: list[dict[str, Any]]) -> None:
    """Print the figures of each default search, as a function and as a process."""
    measured = []
    for case in cases:
        space = {"gpus": case["gpus"], "gbs": case["gbs"]}
        task = {**case, "space": space, "share": 1.0, "jobs": None, "profile": False}
        figures = json.loads(run_once(task))
        name = f"{case['model']} on {case['gpus']:,} {case['system']}"
        cpu_s, peak_mib = process_figures(case)
        measured.append((cpu_s, peak_mib, name))
        print(
            f"{name}: {figures['candidates']:,} strategies, {figures['timed']:,} timed, search() "
            f"{figures['time_s']:.2f} CPU s, process {cpu_s:.2f} CPU s, peak {peak_mib:,.0f} MiB",
            flush=True,
        )
    if measured:
        slowest, largest = max(measured), max(measured, key=lambda one: one[1])
        slow = sum(cpu_s > _MOST_CPU_S for cpu_s, _, _ in measured)
        large = sum(peak_mib > _MOST_MIB for _, peak_mib, _ in measured)
        print(
            f"{len(measured)} default searches as processes: slowest {slowest[2]} with "
            f"{slowest[0]:.2f} CPU s, largest {largest[2]} with {largest[1]:,.0f} MiB; "
            f"{slow} above {_MOST_CPU_S:g} s, {large} above {_MOST_MIB:g} MiB"
        )


def process_figures(case: dict[str, Any]) -> tuple[float, float]:
    """CPU time [s] and peak memory [MiB] of `shardwise search`, from its start to its end."""
    words = ["search", case["model"], case["system"], "--gpus", case["gpus"], "--gbs", case["gbs"]]
    process = subprocess.Popen(  # noqa: S603 - a catalog name and numbers
        [sys.executable, "-c", _COMMAND, *map(str, words), "--ok-if-none"],
        env=environment(_HERE.parent / "src"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{case} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 2**10


if __name__ == "__main__":
    main()
