"""Fit the figures of the catalog that measured runs decide, and write them where they stand.

Run it after a change of the model:

    python benchmarks/fit_runs.py [--write]

It prints the errors before and after, and of each run with its own source left out. With --write
it moves the figures in catalog/systems and catalog/stacks, notes in catalog/fit/steps.yaml how far
each parameter is from what was known before, and keeps the errors with the source left out in
catalog/fit/left_out.json, which the intervals of estimates come from.
"""

import argparse
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from shardwise import catalog, files
from shardwise.measured.fit import Linear, fitted, left_out, linear
from shardwise.measured.parameters import Parameter, load_parameters
from shardwise.measured.predict import Translation, described, translate
from shardwise.measured.refused import NotModelledError
from shardwise.measured.run import Run
from shardwise.measured.statistics import summary
from shardwise.measured.store import load_runs
from shardwise.stack import Stack
from shardwise.system import System
from shardwise.uncertainty import Described

_CATALOG = Path(catalog.__file__).parent
_DIGITS = 4
_Place = tuple[str | int, ...]
_ROUNDS = 5


def main() -> None:
    """Fit, print, and write if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="change the files of the catalog")
    write = parser.parse_args().write
    runs, parameters = load_runs(), load_parameters()
    before = np.array([-p.moved for p in parameters])
    translated = _translated(runs, parameters, "A")
    offsets, at = before * 0, None
    for _ in range(_ROUNDS):
        at = _from_prior(linear(translated, runs, parameters, offsets), before)
        _print("fitted so far", at, at.errors)
        offsets = fitted(at, parameters) + before
    at = _from_prior(linear(translated, runs, parameters, offsets), before)
    _print("fitted", at, at.errors)
    without = left_out(at, parameters)
    _print("its source left out", at, without)
    rest = _translated(runs, parameters, "B")
    others = linear(rest, runs, parameters, offsets, derivatives=False)
    _print("grade B, never fitted", others, others.errors)
    if write:
        _write_values(parameters, offsets)
        _write_parameters(parameters, offsets)
        _write_errors(at, without, others)


def _translated(
    runs: Sequence[Run], parameters: Sequence[Parameter], grade: str
) -> dict[int, Translation]:
    """Runs of a grade with a time, on systems that some parameter moves."""
    systems = {name for p in parameters if p.of == "systems" for name in p.names}
    found = {}
    for place, run in enumerate(runs):
        if run.grade != grade or run.measured_step_time_s is None:
            continue
        try:
            said = translate(run)
        except NotModelledError:
            continue
        if said.system.name in systems:
            found[place] = said
    return found


def _from_prior(at: Linear, before: np.ndarray) -> Linear:
    """The same with offsets counted from what was known before, which the spread is about."""
    return Linear(
        runs=at.runs, offsets=at.offsets - before, errors=at.errors, derivatives=at.derivatives
    )


def _print(title: str, at: Linear, errors: np.ndarray) -> None:
    moe = np.array([run.is_moe for run in at.runs])
    parts = {"all": moe | True, "dense": ~moe, "moe": moe}
    told = []
    for name, rows in parts.items():
        s = summary(np.exp(errors[rows]) - 1)
        sizes = f"{s.mape:.1%} median {s.median_ape:.1%} p90 {s.p90:.1%}"
        told.append(f"{name} {s.n}: {sizes} bias {s.bias:+.1%}")
    print(f"{title:22s} " + " | ".join(told), flush=True)


def _write_values(parameters: Sequence[Parameter], offsets: np.ndarray) -> None:
    """Put the figures in place of those of the catalog."""
    for of, noun in (("systems", System), ("stacks", Stack)):
        now: dict[str, Any] = {}
        for name in catalog.names(of):
            one: Any = noun.load(name)
            for parameter, offset in zip(parameters, offsets, strict=True):
                if parameter.of == of and parameter.moves(name):
                    one = parameter.apply(one, float(offset))
            now[name] = one
        bases = {name: _told(of, name).get("base") for name in now}
        for name, one in now.items():
            told = _told(of, name)
            values = one.to_dict(units=True)
            base = now[bases[name]].to_dict(units=True) if bases[name] else {}
            changes = dict(_changes(parameters, of, name, told, values, base))
            if changes:
                _replace(_CATALOG / of / f"{name}.yaml", changes)


def _told(of: str, name: str) -> Mapping[str, Any]:
    return files.read_mapping(_CATALOG / of / f"{name}.yaml")


def _changes(
    parameters: Sequence[Parameter],
    of: str,
    name: str,
    told: Mapping[str, Any],
    values: Mapping[str, Any],
    base: Mapping[str, Any],
) -> Iterator[tuple[_Place, str]]:
    """Dotted places of figures that a parameter moves, with their values."""
    for parameter in parameters:
        if parameter.of != of:
            continue
        for field in parameter.fields:
            for place, value in _places(values, field.split(".")):
                if _at(told, place) is not None:
                    if parameter.moves(name):
                        yield place, _rounded(value)
                elif base and len(place) == 1 and _rounded(value) != _rounded(base[place[0]]):
                    yield place, _rounded(value)


def _places(values: Any, parts: Sequence[str], done: _Place = ()) -> Iterator[tuple[_Place, Any]]:
    """Every place that a dotted field stands for, with its value."""
    if not parts:
        if isinstance(values, Mapping):
            for key, value in values.items():
                yield from _places(value, [], (*done, key))
        elif values:  # what is 0 is not there, and stays so
            yield done, values
        return
    head, *rest = parts
    if isinstance(values, (list, tuple)):
        if int(head) < len(values):
            yield from _places(values[int(head)], rest, (*done, int(head)))
    elif isinstance(values, Mapping):
        keys = list(values) if head == "*" else [key for key in values if str(key) == head]
        for key in keys:
            yield from _places(values[key], rest, (*done, key))


def _at(values: Any, place: _Place) -> Any:
    """What stands at a place, or None."""
    for key in place:
        if isinstance(values, Mapping):
            values = values.get(key, values.get(int(key) if str(key).isdigit() else key))
        elif isinstance(values, (list, tuple)):
            values = values[key]
        if values is None:
            return None
    return values


def _rounded(value: float | str) -> str:
    """A figure as files have it, to four digits; of quantities the number before the unit."""
    if isinstance(value, str):
        number, _, unit = value.partition(" ")
        return f"{_digits(float(number))} {unit}"
    return _digits(float(value))


def _digits(number: float) -> str:
    if number == 0:
        return "0"
    return f"{round(number, _DIGITS - 1 - math.floor(math.log10(abs(number)))):g}"


def _replace(path: Path, changes: Mapping[_Place, str]) -> None:
    """Write new values into a YAML file, and leave the rest of its text as it is."""
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text)
    spans, added = [], []
    for place, value in changes.items():
        node = _node(root, place)
        if node is None:
            added.append(f"{place[0]}: {value}\n")
        else:
            spans.append((node.start_mark.index, node.end_mark.index, str(value)))
    for start, end, value in sorted(spans, reverse=True):
        text = text[:start] + value + text[end:]
    if added:
        before = text.index("sources:")
        text = text[:before] + "".join(added) + text[before:]
    path.write_text(text, encoding="utf-8")


def _node(node: yaml.Node | None, place: _Place) -> yaml.Node | None:
    """The text of a place in a YAML file, or None."""
    for key in place:
        if isinstance(node, yaml.MappingNode):
            node = next((v for k, v in node.value if k.value == str(key)), None)
        elif isinstance(node, yaml.SequenceNode):
            node = node.value[key]
        if node is None:
            return None
    return node


def _write_parameters(parameters: Sequence[Parameter], offsets: np.ndarray) -> None:
    path = _CATALOG / "fit" / "steps.yaml"
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text)
    rows = next(v for k, v in root.value if k.value == "parameters").value
    for row, parameter, offset in reversed(list(zip(rows, parameters, offsets, strict=True))):
        node = next(v for k, v in row.value if k.value == "moved")
        moved = f"{parameter.moved + offset:.4f}"
        text = text[: node.start_mark.index] + moved + text[node.end_mark.index :]
    path.write_text(text, encoding="utf-8")


def _write_errors(at: Linear, errors: np.ndarray, others: Linear) -> None:
    """Keep errors, of fitted runs with their source left out, with what describes the runs."""
    names = [column.name for column in dataclasses.fields(Described)]
    rows = [json.dumps(["id", "source", "error", *names])]
    pairs = [*zip(at.runs, errors, strict=True), *zip(others.runs, others.errors, strict=True)]
    for run, error in pairs:
        what = described(translate(run))
        figures = [getattr(what, name) for name in names]
        rows.append(json.dumps([run.id, run.study, round(float(error), 4), *figures]))
    text = "[\n" + ",\n".join(rows) + "\n]\n"
    (_CATALOG / "fit" / "left_out.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
