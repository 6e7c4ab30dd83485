"""Input files for fuzzing: valid ones by name, and edits that damage them.

An edit is a mapping with `path` (keys and positions) and one of `set`, `delete`, `nest`, `scale`,
`rename`, `repeat`; or without a path `cut` (drops the end of the text), `insert` with `at`,
`line` (of that place) with `becomes`, or `content` (of `CONTENTS`, in place of all).
Positions in the text are shares of its length. So a damaged file is a few words, and can be stored.
Launch files, logs and traces are texts: they have no paths, and an ending of their own.
"""

import gzip
import io
import json
import math
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

import shardwise
from amped_samples import SMALL as AMPED
from fsdp_ilp_samples import GOLDEN, flat, nested
from shardwise.cli import run
from shardwise.launchers.registry import LAUNCHERS
from written_logs import WRITERS, Run
from written_traces import Step, write_trace

DATA = Path(__file__).parent / "data"
DOCS = DATA.parent.parent / "docs"
EXAMPLES = DOCS / "examples"
CATALOG = Path(shardwise.__file__).parent / "catalog"

# Safe ones; in C where they are.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_ESTIMATE = ["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--gbs", "64", "--tp", "2"]
_SMALL_SEARCH = ["--gpus", "4", "--gbs", "8", "--fix", "tp=2", "--fix", "mbs=1"]
_LAUNCHED = ["llama3-8b", "h100-sxm", "--gpus", "32", "--gbs", "64", "--tp", "4", "--pp", "2"]
_LAUNCHES = {f"launch/{one.name}{end}": one.name for one in LAUNCHERS for end in one.endings}
_LOGS = {f"log/{name.replace(' ', '-')}.log": writer for name, writer in WRITERS.items()}
CONTENTS = {
    "empty": b"",
    "blank": b" \n\t\n",
    "zeros": bytes(64),
    "binary": bytes(range(256)),
    "image": b"\x89PNG\r\n\x1a\n" + bytes(32),
    "packed": gzip.compress(b"a: 1\n", mtime=0),
    "utf16": "a: 1\n".encode("utf-16"),
    "latin": "name: \u00fcn\u00ef\n".encode("latin-1"),
    "deep": b"[" * 100_000,
    "nested": b'{"a": ' * 2_000 + b"1" + b"}" * 2_000,
    "indented": b"".join(b" " * n + b"a:\n" for n in range(300)),
    "digits": b'{"gpus": ' + b"9" * 5_000 + b"}",
    "huge": b'{"gpus": 1e400, "hidden": -1e400, "tp": NaN, "pp": Infinity}',
    "line": b"x" * 300_000,
    "lines": b"- a\n" * 50_000,
    "repeated": b"tp: 2\n" * 3,
    "alias": b"a: &a [1]\nb: *a\n",
    "windows": b"gpus: 8\r\ntp: 2\r\n",
}
"""What stands in place of a file."""
# Results are what the command line prints with --json.
_RESULTS = {
    "estimate": [*_ESTIMATE, "--ops"],
    "search": ["search", "megatron-126m", "h100-sxm", *_SMALL_SEARCH],
    "sweep": ["sweep", *_ESTIMATE[1:], "--fixed", "--vary", "inner.bandwidth=0.5x,1x"],
    "fsdp": ["fsdp", "megatron-126m", "--gpus", "8"],
    "trace": ["trace", "megatron-126m", "h100-sxm", "--gpus", "4", "--pp", "2", "--gbs", "8"],
    "peers": ["peers", *_ESTIMATE[1:]],
    "recipe": ["estimate", "--recipe", "llama3-405b-h100-1024-bf16"],
    "explain": ["search", "megatron-126m", "h100-sxm", *_SMALL_SEARCH, "--explain", "tp=4"],
    "recipes": ["recipes", "llama3-405b-h100-1024-bf16"],
    "cluster": [
        *("search", "megatron-126m", "--systems", "h100-sxm", *_SMALL_SEARCH, "--tokens", "1B"),
    ],
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
        for folder in ("models", "systems", "stacks", "recipes")
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
    others += ["rows/measured", *_DESCRIBED, *_LAUNCHES, *_LOGS, "trace/pytorch.json"]
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
        "rows": lambda: _plain(CATALOG / "measured" / "pythia.json"),
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
    """Paths of all values of a valid file; of a text none."""
    return [] if is_text(name) else places(_content(name))


def is_text(name: str) -> bool:
    """Whether a file is a text, with an ending of its own."""
    return name.startswith(("launch/", "log/", "trace/"))


@cache
def _text(name: str) -> str:
    """A launch file, a log or a trace, as trainers write them."""
    folder, _, entry = name.partition("/")
    if folder == "launch":
        ending = entry.removeprefix(_LAUNCHES[name])
        fields = {"gpus": 32, "gbs": 64, "tp": 4, "pp": 2}
        case = (_LAUNCHES[name], "llama3-8b", "h100-sxm", fields)
        return shardwise.export(*case, nearest=True, ending=ending).files[0].text
    if folder == "log":
        lines = _LOGS[name](Run(seconds=(9.0, 2.5, 2.4, 2.6, 2.5)))
        return "".join(f"{line}\n" for line in lines)
    with TemporaryDirectory() as place:
        step = Step(products=1.0, attention=0.2, other=0.3, exposed={"tp": 0.1}, idle=0.1)
        return write_trace(Path(place, entry), step, steps=2, rounds=2).read_text("utf-8")


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


def _written(base: str, edits: list[dict[str, Any]], ending: str) -> str:
    """Data with edits of its values, in the format of an ending."""
    data = content(base)
    for edit in edits:
        if "path" in edit:
            edited(data, edit)
    if ending == ".json":
        return json.dumps(data, ensure_ascii=False)
    if ending == ".toml":
        return "".join(f"{_toml_key(k)} = {_toml(v)}\n" for k, v in data.items() if v is not None)
    return yaml.dump(data, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)


def text_of(base: str, edits: list[dict[str, Any]], ending: str) -> bytes:
    """A valid file with edits, in the format of an ending; a text as it is."""
    text = _text(base) if is_text(base) else _written(base, edits, ending.removesuffix(".gz"))
    for edit in edits:
        if "line" in edit:
            lines = text.splitlines(keepends=True) or [""]
            at = min(int(len(lines) * edit["line"]), len(lines) - 1)  # a share may round to 1
            lines[at] = edit["becomes"].replace("LINE", lines[at])
            text = "".join(lines)
    raw = text.encode("utf-8", "surrogatepass")
    raw = gzip.compress(raw, mtime=0) if ending.endswith(".gz") else raw
    for edit in edits:
        raw = CONTENTS.get(edit.get("content", ""), raw)
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
