"""Input files for fuzzing: valid ones by name, and edits that damage them.

An edit is a mapping with `path` (keys and positions) and one of `set`, `delete`, `nest`, `scale`,
`rename`, `repeat`; or without a path `cut` (drops the end of the text) or `insert` with `at`.
Positions in the text are shares of its length. So a damaged file is a few words, and can be stored.
"""

import gzip
import io
import json
import math
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import shardwise
from amped_samples import SMALL as AMPED
from fsdp_ilp_samples import GOLDEN, flat, nested
from shardwise.cli import run

DATA = Path(__file__).parent / "data"
DOCS = DATA.parent.parent / "docs"
EXAMPLES = DOCS / "examples"
CATALOG = Path(shardwise.__file__).parent / "catalog"

# Safe ones; in C where they are.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_ESTIMATE = ["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--gbs", "64", "--tp", "2"]
_SMALL_SEARCH = ["--gpus", "4", "--gbs", "8", "--fix", "tp=2", "--fix", "mbs=1"]
# Results are what the command line prints with --json.
_RESULTS = {
    "estimate": [*_ESTIMATE, "--ops"],
    "search": ["search", "megatron-126m", "h100-sxm", *_SMALL_SEARCH],
    "sweep": ["sweep", *_ESTIMATE[1:], "--fixed", "--vary", "inner.bandwidth=0.5x,1x"],
    "fsdp": ["fsdp", "megatron-126m", "--gpus", "8"],
    "trace": ["trace", "megatron-126m", "h100-sxm", "--gpus", "4", "--pp", "2", "--gbs", "8"],
    "peers": ["peers", *_ESTIMATE[1:]],
}
_DESCRIBED: dict[str, Any] = {
    "strategy/all": {
        "gpus": 16,
        "tp": 2,
        "pp": 2,
        "dp": 4,
        "vpp": 2,
        "micro_batch_size": 1,
        "global_batch_size": 64,
        "schedule": "interleaved",
        "recompute": "selective",
        "recompute_parts": ["core_attention"],
        "stage_layers": [8, 8, 8, 8],
        "zero": 2,
    },
    "strategy/stack": {
        "gpus": 8,
        "global_batch_size": 8,
        "stack": {"base": "megatron-core-2025", "tp_hidden": 0.5},
    },
    "space/all": {"tp": [1, 2], "pp": "1,2", "recompute": ["none", "full"], "zero": [0, 1]},
    "comm/all": {
        "all_gather": {"latency": 1e-5, "bandwidth": 1e11},
        "reduce_scatter": {"latency": 1e-5, "bandwidth": 1e11},
    },
}


@cache
def names() -> tuple[str, ...]:
    """Names of all valid files, as `folder/name`."""
    catalog = [
        f"{folder}/{path.stem}"
        for folder in ("models", "systems", "stacks")
        for path in sorted((CATALOG / folder).glob("*.yaml"))
    ]
    stored = [f"huggingface/{path.stem}" for path in sorted((DATA / "huggingface").glob("*.json"))]
    stored += [
        f"simumax/{path.stem}"
        for path in sorted((DATA / "simumax").glob("*.json"))
        if path.stem != "runs"
    ]
    docs = [f"docs/{path.stem}" for path in sorted(EXAMPLES.glob("*.yaml"))]
    modules = [f"{kind}/{name}" for kind in ("flat", "nested") for name in GOLDEN["module_infos"]]
    runs = [
        f"{tool}-{kind}/{name}"
        for tool in ("calculon", "nersc")
        for kind in ("models", "systems")
        for name in _runs(tool)[kind]
    ]
    results = [f"results/{name}" for name in _RESULTS]
    others = ["calculon-execution/readme", "amped/small", "amped/docs", "tables/docs"]
    others += ["rows/measured", *_DESCRIBED]
    return (*catalog, *stored, *docs, *modules, *runs, *results, *others)


@cache
def _runs(tool: str) -> dict[str, Any]:
    return json.loads(gzip.decompress((DATA / tool / "runs.json.gz").read_bytes()))


def _plain(path: Path) -> Any:
    """A YAML or JSON file, with dates as the texts that JSON has for them."""
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    return json.loads(json.dumps(yaml.load(text, Loader=_LOADER), default=str))  # noqa: S506


@cache
def _content(name: str) -> Any:
    folder, _, entry = name.partition("/")
    tool, _, kind = folder.partition("-")
    readers: dict[str, Callable[[], Any]] = {
        "docs": lambda: _plain(EXAMPLES / f"{entry}.yaml"),
        "flat": lambda: flat(entry),
        "nested": lambda: nested(entry),
        "calculon-execution": lambda: next(
            case for case in _runs("calculon")["cases"] if case["id"] == "readme_example"
        )["execution"],
        "rows": lambda: {"rows": _plain(DATA / "measured_rows.json")[:3]},
        "amped": lambda: (
            AMPED if entry == "small" else _plain(DOCS / "from" / "amped" / "config.json")
        ),
        "tables": lambda: _plain(DOCS / "from" / "amped" / "lookup_tables.json"),
        "results": lambda: _result(_RESULTS[entry]),
    }
    if name in _DESCRIBED:
        return _DESCRIBED[name]
    if folder in readers:
        return readers[folder]()
    if tool in ("calculon", "nersc"):
        return _runs(tool)[kind][entry]
    if folder in ("huggingface", "simumax"):
        return _plain(DATA / folder / f"{entry}.json")
    return _plain(CATALOG / folder / f"{entry}.yaml")


def _result(words: list[str]) -> Any:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([*words, "--json"])
    if code > 1:
        raise AssertionError(f"{' '.join(words)}: {err.getvalue()}")
    return json.loads(out.getvalue())


def content(name: str) -> Any:
    """Plain data of a valid file."""
    return json.loads(_stored(name))


@cache
def _stored(name: str) -> str:
    return json.dumps(_content(name))


@cache
def paths_of(name: str) -> list[tuple[Any, ...]]:
    """Paths of all values of a valid file."""
    return places(_content(name))


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values of plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    found = []
    for key, value in items:
        found.append((*path, key))
        if isinstance(value, (dict, list)) and value:
            found += places(value, (*path, key))
    return found


def edited(data: Any, edit: dict[str, Any]) -> None:
    """Apply one edit of a value to plain data, in place; without effect where the path ends."""
    *parents, last = edit["path"]
    holder = data
    try:
        for key in parents:
            holder = holder[key]
        value = holder[last]
        if "delete" in edit:
            del holder[last]
        elif "rename" in edit:
            holder[edit["rename"]] = holder.pop(last)
        elif "nest" in edit:
            holder[last] = {"value": value} if edit["nest"] == "mapping" else [value]
        elif "scale" in edit:
            holder[last] = _scaled(value, edit["scale"])
        elif "repeat" in edit:
            holder[last] = list(value) * edit["repeat"]
        else:
            holder[last] = edit["set"]
    except (KeyError, IndexError, TypeError, AttributeError):
        return


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    scaled = value * factor
    keeps_whole = isinstance(value, int) and math.isfinite(scaled) and abs(scaled) < 1e18
    return round(scaled) if keeps_whole else scaled


def text_of(base: str, edits: list[dict[str, Any]], ending: str) -> bytes:
    """A valid file with edits, in the format of an ending."""
    data = content(base)
    for edit in edits:
        if "path" in edit:
            edited(data, edit)
    plain = ending.removesuffix(".gz")
    if plain == ".json":
        text = json.dumps(data, ensure_ascii=False)
    elif plain == ".toml":
        text = "".join(f"{_toml_key(k)} = {_toml(v)}\n" for k, v in data.items() if v is not None)
    else:
        text = yaml.dump(data, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    raw = text.encode("utf-8", "surrogatepass")
    raw = gzip.compress(raw, mtime=0) if ending.endswith(".gz") else raw
    for edit in edits:
        if "cut" in edit:
            raw = raw[: int(len(raw) * edit["cut"])]
        elif "insert" in edit:
            at = int(len(raw) * edit["at"])
            raw = raw[:at] + edit["insert"].encode("latin-1", "replace") + raw[at:]
    return raw


def _toml_key(key: Any) -> str:
    return json.dumps(str(key))


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inside = (f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value if item is not None)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value) if value is not None else '""'
