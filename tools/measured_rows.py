"""Translate rows of published training runs into run files, which shardwise reads.

    python tools/measured_rows.py FILE -o OUT.json   # any file of rows
    python tools/measured_rows.py --catalog          # tools/rows into the catalog, file by file
    python tools/measured_rows.py --catalog --check  # whether the catalog has what they say

A row describes a run in the words of its source (`published_rows`). Its run has a model, a system
and a strategy, what was measured, what was assumed because the source does not say it, and what the
source says and the strategy does not (docs/accuracy/measured-runs.md). A row that cannot be
translated is printed with the reason and stays in the file, so that it is counted. Assumed
micro-batches and recompute depend on what fits: translate again after the memory of the estimates
has changed, and after a fit, because strategies copy figures of stacks.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from published_rows.packed import load_rows, read_rows, row_files
from published_rows.row import Run
from published_rows.translate import Translation, facts_of, figures_of, translate
from shardwise import catalog
from shardwise.config.plain import as_json
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.validate.measured.runs import NotModeledError

CATALOG = Path(catalog.__file__).parent / "measured"
_SIZES = ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab")
# Keys of every run, and of every one that is not refused.
_FACTS = ("source", "title", "ref", "grade", "task", "setup", "accelerator", "precision", "kind")
_CASE = ("model", "system", "stack", "software", "unstated")


def main() -> int:
    """Translate a file, or the rows of the catalog."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", nargs="?", help="JSON list of rows, JSON lines, or a packed file")
    parser.add_argument("-o", "--output", help="run file (.json)")
    parser.add_argument("--catalog", action="store_true", help="write the runs of the catalog")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file differs")
    options = parser.parse_args()
    if options.catalog == (options.file is not None) or options.catalog == bool(options.output):
        parser.error("use either FILE -o OUT or --catalog")
    if options.catalog:
        return _write_catalog(check=options.check)
    try:
        rows = read_rows(options.file)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    text, refused = run_file(rows)
    Path(options.output).write_text(text, encoding="utf-8")
    for name, reason in refused:
        print(f"{name}: {reason}", file=sys.stderr)
    counts = f"translated {len(rows) - len(refused)}, refused {len(refused)}"
    print(f"read {len(rows)} rows: {counts}; wrote {options.output}", file=sys.stderr)
    return 0


def _write_catalog(*, check: bool) -> int:
    """Write a run file for each file of rows, or say which differ."""
    groups = defaultdict(list)
    for row in load_rows():
        groups[row.group].append(row)
    differ = []
    counts = Counter[str]()
    for name, rows in zip(row_files(), groups.values(), strict=True):
        text, refused = run_file(rows)
        counts += Counter(read=len(rows), refused=len(refused))
        path = CATALOG / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            differ.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    translated = counts["read"] - counts["refused"]
    print(f"read {counts['read']} rows: translated {translated}, refused {counts['refused']}")
    print(f"{'differ' if check else 'written'}: {', '.join(differ) or 'none'}")
    return 1 if check and differ else 0


def run_file(rows: Sequence[Run]) -> tuple[str, list[tuple[str, str]]]:
    """The text of a run file of rows, and the id and the reason of each that is refused."""
    file = _RunFile()
    refused = []
    runs = []
    for row, setup in zip(rows, _setups(rows), strict=True):
        facts = facts_of(row) | {"setup": setup}
        try:
            said = translate(row)
        except NotModeledError as reason:
            refused.append((row.id, str(reason)))
            runs.append(_refused(row, facts, str(reason)))
        else:
            runs.append(file.run(row, facts, said))
    return file.text(runs), refused


def _setups(rows: Sequence[Run]) -> list[str | None]:
    """The setup of each row, with the sizes of its model where others of the name have others."""
    facts = [facts_of(row) for row in rows]
    sizes = [tuple(getattr(row.model, name) for name in _SIZES) for row in rows]
    alike = defaultdict(set)
    keys = [
        (one.get("source"), row.model.name, row.model.seq_len, one.get("setup"))
        for row, one in zip(rows, facts, strict=True)
    ]
    for key, size in zip(keys, sizes, strict=True):
        alike[key].add(size)
    return [
        one.get("setup")
        if len(alike[key]) == 1
        else "; ".join(filter(None, (one.get("setup"), _shown(size))))
        for one, key, size in zip(facts, keys, sizes, strict=True)
    ]


def _shown(size: Sequence[int | None]) -> str:
    known = zip(_SIZES, size, strict=True)
    return ", ".join(f"{name} {value}" for name, value in known if value is not None)


def _refused(row: Run, facts: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """A run that is not predicted."""
    sizes = {"seq_len": row.model.seq_len, "global_batch_size": row.global_batch}
    known = {name: value for name, value in sizes.items() if value is not None}
    return _without_none(
        {"refused": reason, "model": row.model.name, **facts, **known, "measured": figures_of(row)}
    )


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class _RunFile:
    """A run file that is being written: what its runs have in common has a name."""

    def __init__(self) -> None:
        self.defined: dict[str, dict[str, tuple[str, Mapping[str, Any]]]] = {}

    def run(self, row: Run, facts: Mapping[str, Any], said: Translation) -> dict[str, Any]:
        """A run that is predicted."""
        strategy = said.strategy.model_dump(
            mode="json", exclude_unset=True, exclude={"stack", "any_software"}
        )
        model = said.model.model_dump(mode="json", exclude_unset=True)
        stack = said.strategy.loaded_stack().to_fields()
        fields = {
            **facts,
            "model": self._named("models", said.model.name, model),
            "system": self._named("systems", said.system.name, changed(said.system)),
            "stack": stack
            if isinstance(stack, str)
            else self._named("stacks", stack["base"], stack),
            "strategy": strategy,
            "measured": figures_of(row),
            "software": said.software.model_dump(mode="json", exclude_defaults=True),
            "unstated": list(said.unstated) or None,
            "assumed": list(said.assumed) or None,
            "ignored": list(said.ignored) or None,
        }
        del fields["gpus"]  # the strategy has them
        return _without_none(fields)

    def _named(self, section: str, name: str, data: Mapping[str, Any]) -> str:
        """The name of a definition of the file, or that of the catalog for nothing but a name."""
        if not data:
            return name
        known = self.defined.setdefault(section, {})
        key = as_json(data)
        if key not in known:
            count = sum(called.rpartition("-")[0] == name for called, _ in known.values())
            known[key] = f"{name}-{count + 1}", data
        return known[key][0]

    def text(self, runs: Sequence[dict[str, Any]]) -> str:
        """The text: each run and each definition is one line."""
        predicted = [run for run in runs if "refused" not in run]
        common = _common(runs, _FACTS) | _common(predicted, _CASE)
        strategies = [run["strategy"] for run in predicted]
        if strategy := _common(strategies, {name: 0 for one in strategies for name in one}):
            common["strategy"] = strategy
        sections = {"common": common} | {
            section: dict(self.defined[section].values())
            for section in ("models", "systems", "stacks")
            if section in self.defined
        }
        lines = [f'"{name}": {_block(section)}' for name, section in sections.items() if section]
        lines.append('"runs": [\n' + ",\n".join(map(as_json, runs)) + "\n]")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def changed(system: System) -> dict[str, Any]:
    """What a system has other than its entry of the catalog; tiers that both have, by name."""
    usual, now = (one.model_dump(mode="json") for one in (System.load(system.name), system))
    fields = {key: value for key, value in now.items() if value != usual[key]}
    if not fields:
        return {}
    if [tier["name"] for tier in now["network"]] == [tier["name"] for tier in usual["network"]]:
        pairs = zip(now["network"], usual["network"], strict=True)
        tiers = {
            tier["name"]: {key: value for key, value in tier.items() if value != other[key]}
            for tier, other in pairs
        }
        fields["network"] = {name: some for name, some in tiers.items() if some}
    return {"name": system.name, "base": system.name, **fields}


def _common(rows: Sequence[dict[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    """Take what most rows have out of them, of keys that all of them have."""
    common = {}
    for name in names:
        if not rows or not all(name in row for row in rows):
            continue
        (value, uses), *_ = Counter(as_json(row[name]) for row in rows).most_common(1)
        if uses > 1:
            common[name] = json.loads(value)
            for row in rows:
                if as_json(row[name]) == value:
                    del row[name]
    return common


def _block(section: Mapping[str, Any]) -> str:
    """A mapping, one line for each key."""
    lines = (f"{as_json(name)}: {as_json(value)}" for name, value in section.items())
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    sys.exit(main())
