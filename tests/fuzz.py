"""Random inputs for the command line and the Python API, and what no input may do.

Commands and calls of Python start from valid ones in `data/fuzz.yaml`, files from those that
`fuzz_files` names. Options and their words come from what each verb declares. A case is plain data,
so that it is stored as it was found: `words` and `files`, or a `call`.
"""

import ast
import gzip
import random
import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

import fuzz_files
from shardwise import cli

Case = dict[str, Any]

_START = yaml.safe_load((Path(__file__).parent / "data" / "fuzz.yaml").read_text("utf-8"))
# Kinds of files: folders of `fuzz_files`, and whether names of the catalog stand for them too.
_KINDS = {
    "model": ("models", True),
    "system": ("systems", True),
    "stack": ("stacks", True),
    "strategy": ("strategy", False),
    "huggingface": ("huggingface", False),
    "simumax-model": ("simumax/[ldgm]", False),
    "simumax-system": ("simumax/[ab]", False),
    "calculon-model": ("calculon-models", False),
    "calculon-system": ("calculon-systems", False),
    "execution": ("calculon-execution", False),
    "nersc-model": ("nersc-models", False),
    "nersc-system": ("nersc-systems", False),
    "amped": ("amped", False),
    "tables": ("tables", False),
    "reliability": ("docs/reliability", False),
    "scenario": ("results/estimate|docs/scenario|results/fsdp", False),
    "result": ("results", False),
    "modules": ("flat|nested", False),
    "comm": ("comm", False),
    "space": ("space", False),
    "rows": ("rows", False),
    "recipe": ("recipes", True),
    "launch": ("launch", False),
    "log": ("log", False),
    "trace": ("trace", False),
    "saved": ("results", False),
}
# What an option reads, where its name is that of no kind; other options with files write them.
_READS = {
    "plan": "saved",
    "data": "rows",
    "from_table": "rows",
    "from_runs": "rows",
    "source": "modules",
}
# These start processes or another program, or read all of the file system.
_LEFT_OUT = {"jobs", "backend", "solver_path", "solver"}
_WORDS = (*_START["words"], "9" * 400, "9" * 5000, "a" * 5000, f"{'a' * 5000}/b", "tp=2," * 200)
_VALUES = (*_START["values"], "x" * 3000, 10**4000)
_OUTPUTS = ("out", "output", "plot", "graph", "report", "csv", "save")
# Changes of a value in a file, with their weights; and arguments of some.
_CHANGES = {"set": 3, "scale": 2, "delete": 1, "nest": 1, "rename": 1, "repeat": 1}
_FACTORS = (0.5, 2, 3, -1, 0, 1.1, 1e3, 1e6, 1e12, 1e-6, 1e-30, 1e300)
_KEYS = ("x", "", "name", "unknown", "gpus", "hidden", "\n")
# What a line of a text becomes; LINE is the line itself.
_LINES = (
    "",
    "LINELINE",
    "#LINE",
    "LINE\\\n",
    "x LINE",
    "\tLINE",
    "LINE$(rm -rf x)\n",
    "EOF\n",
    "'LINE",
    "{LINE",
)
# Variables of the environment, with values of some; without any, nothing is set.
_VARIABLES: dict[str, tuple[str, ...]] = {
    "COLUMNS": ("1", "5", "20", "40", "79", "0", "-3", "x", "100000", "9" * 5000),
    "PYTHONIOENCODING": ("cp1252", "ascii", "latin-1", "utf-16", "cp437:replace", "utf-8:strict"),
    "LC_ALL": ("C", "POSIX", "C.UTF-8", "xx_YY"),
    "TERM": ("dumb", "xterm-256color", ""),
    "NO_COLOR": ("1",),
    "FORCE_COLOR": ("1",),
    "SHARDWISE_CACHE": ("", "/dev/null", "no/such"),
    "HOME": ("", "/dev/null"),
    "TZ": ("UTC", "nowhere"),
    "GPUS_PER_NODE": ("8", "x", "9" * 5000),
    "WORLD_SIZE": ("32", "-1"),
}
_INSERTED = ("\x00", "\xff", "\n", "{", "]", '"', ": ", "- ", "&a *a", "\t", "\ufeff")


@cache
def _commands(key: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(shlex.split(line)) for line in _START[key].splitlines())


@cache
def _options(verb: str) -> tuple[Any, ...]:
    """Declared options of a verb."""
    found = get_command(cli._app(verb)).commands[verb].params  # noqa: SLF001
    return tuple(p for p in found if p.opts[0].startswith("-") and p.name not in _LEFT_OUT)


@cache
def _named(kind: str) -> tuple[str, ...]:
    pattern = re.compile(_KINDS[kind][0])
    return tuple(name for name in fuzz_files.names() if pattern.match(name))


class Maker:
    """Makes the case of a seed: the same one in every process."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.files: dict[str, Any] = {}

    def maybe(self, share: float) -> bool:
        return self.random.random() < share

    def command(self, key: str) -> Case:
        """A command of the shell, from one of the valid ones of `fuzz.yaml`."""
        words = list(self.random.choice(_commands(key)))
        verb = words[0]
        words = [re.sub("@([a-z-]+)", lambda slot: self._slot(slot[1]), word) for word in words]
        options = _options(verb)
        if key == "commands":  # charts take long
            options = tuple(option for option in options if option.name not in ("plot", "out"))
        for _ in range(self.random.choice((0, 0, 1, 1, 2)) if options else 0):
            words += self._option(self.random.choice(options))
        if self.maybe(0.1):
            self._damage(words)
        if self.maybe(0.5) and any(option.name == "json" for option in options):
            words.append("--json")
        case: Case = {"words": words}
        if self.files:
            case["files"] = self.files
        if self.maybe(0.2):
            names = self.random.sample(sorted(_VARIABLES), 2)
            case["environment"] = {name: self.random.choice(_VARIABLES[name]) for name in names}
        return case

    def _slot(self, kind: str) -> str:
        """A name of the catalog, or a file, which may be damaged."""
        folder, in_catalog = _KINDS[kind]
        base = self.random.choice(_named(kind))
        if in_catalog and self.maybe(0.55):
            return base.removeprefix(f"{folder}/")
        edits = [self._edit(base) for _ in range(self.random.choice((0, 0, 0, 1, 1, 2)))]
        ending = self.random.choice((".json", ".yaml", ".yaml", ".json", ".toml", ".json.gz"))
        if fuzz_files.is_text(base):
            packed = ".gz" if self.maybe(0.1) else ""
            ending = base[base.index(".") :] + packed
        name = f"{len(self.files)}{ending}"
        self.files[name] = {"base": base, "edits": [edit for edit in edits if edit]}
        return name

    def _edit(self, base: str) -> dict[str, Any]:
        draw = self.random
        if self.maybe(0.06):
            return {"cut": round(draw.random(), 3)}
        if self.maybe(0.06):
            return {"insert": draw.choice(_INSERTED), "at": round(draw.random(), 3)}
        if self.maybe(0.04):
            return {"content": draw.choice(tuple(fuzz_files.CONTENTS))}
        if fuzz_files.is_text(base):
            return {"line": round(draw.random(), 3), "becomes": draw.choice(_LINES)}
        paths = fuzz_files.paths_of(base)
        if not paths:
            return {}
        (change,) = draw.choices(tuple(_CHANGES), tuple(_CHANGES.values()))
        values: dict[str, tuple[Any, ...]] = {
            "set": _VALUES,
            "scale": _FACTORS,
            "delete": (True,),
            "nest": ("list", "mapping"),
            "rename": _KEYS,
            "repeat": (3,),
        }
        return {"path": list(draw.choice(paths)), change: draw.choice(values[change])}

    def _option(self, option: Any) -> list[str]:
        name = self.random.choice([*option.opts, *option.secondary_opts])
        if option.is_flag:
            return [name]
        return [name, self._value(option)]

    def _value(self, option: Any) -> str:
        """A value of an option, mostly of its kind."""
        draw, meta = self.random, option.metavar or ""
        kind = _READS.get(option.name, option.name)
        if kind in _KINDS and self.maybe(0.8):
            return self._slot(kind)
        if option.name not in _OUTPUTS and self.maybe(0.25):
            return draw.choice(_WORDS)
        if "=" in meta or "FIELD" in meta:
            field = draw.choice([o for o in _options("estimate") if not o.is_flag])
            return f"{field.opts[-1].lstrip('-')}={self._value(field)}"
        words = meta.split("|") if "|" in meta else re.findall(r"[\w-]+", option.help or "")
        if option.name in _OUTPUTS:
            words = _START["outputs"]
        elif meta.split("|")[0] in ("N", "K", "X"):
            words = _START["legal_numbers"]
        elif meta in ("QUANTITY", "SIZE"):
            words = _START["quantities"]
        return draw.choice(words or [""])

    def _damage(self, words: list[str]) -> None:
        draw = self.random
        at = draw.randrange(1, len(words)) if len(words) > 1 else 0
        change = draw.choice(("delete", "double", "replace", "swap", "insert"))
        if change == "delete":
            del words[at]
        elif change == "double":
            words.insert(at, words[at])
        elif change == "swap":
            other = draw.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        elif words[at - 1] not in ("--output", "-o", "--csv", "--out"):
            words[at : at + (change == "replace")] = [draw.choice(_WORDS)]

    def call(self, keys: Sequence[str]) -> Case:
        """A call of Python, from one of the valid ones of `fuzz.yaml`."""
        valid = [source for key in keys for source in _START[key]]
        tree = ast.parse(self.random.choice(valid), mode="eval")
        for _ in range(self.random.choice((0, 1, 1, 1, 2))):
            self._change(tree)
        return {"call": ast.unparse(tree)}

    def _change(self, tree: ast.Expression) -> None:
        """Replace one argument, or one value inside it."""
        fields = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                fields += [(node.args, i) for i in range(len(node.args))]
                fields += [(keyword, "value") for keyword in node.keywords]
            elif isinstance(node, (ast.List, ast.Tuple)):
                fields += [(node.elts, i) for i in range(len(node.elts))]
            elif isinstance(node, ast.Dict):
                fields += [(node.values, i) for i in range(len(node.values))]
                fields += [(node.keys, i) for i in range(len(node.keys))]
        if not fields:
            return
        holder, key = self.random.choice(fields)
        value = ast.parse(self.random.choice(_START["sources"]), mode="eval").body
        if isinstance(holder, list):
            holder[key] = value
        else:
            setattr(holder, key, value)


def cases(seed: int, count: int, *, kind: str = "command", cheap: bool = False) -> list[Case]:
    """Draw cases; a case depends only on the seed, its number and these two words.

    Parameters
    ----------
    kind
        `command` or `call`.
    cheap
        Whether to leave out what takes longer.
    """
    return [case_of(seed, number, kind=kind, cheap=cheap) for number in range(count)]


def case_of(seed: int, number: int, *, kind: str, cheap: bool) -> Case:
    """One of the `cases`."""
    maker = Maker(f"{seed}/{number}/{kind}/{cheap}")
    if kind == "call":
        return maker.call(("calls",) if cheap else ("calls", "long_calls"))
    return maker.command("long_commands" if not cheap and maker.maybe(0.15) else "commands")


def contents(case: Case) -> dict[str, bytes]:
    """Files of a case."""
    made = {}
    for name, file in case.get("files", {}).items():
        ending = "." + name.split(".", maxsplit=1)[1]
        made[name] = fuzz_files.text_of(file["base"], file["edits"], ending)
    return made


def unpacked(raw: bytes, name: str) -> str:
    """Text of an output file."""
    return (gzip.decompress(raw) if name.endswith(".gz") else raw).decode("utf-8", "replace")
