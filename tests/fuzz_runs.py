"""Run cases of `fuzz`, here or in a process of their own, and list what they must not do."""

import contextlib
import io
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import fuzz
import shardwise
from shardwise.cli import run, streams

_CODES = (0, 1, 2, 130)
_NOTE = re.compile(r"nearest plan that |note: |\S+: (not used|is of stack|.* also has )")
"""Lines of stderr before those of faults: what was read, and what would do."""
_UNEXPECTED = re.compile(r"unexpected (\w+): (.*?)(?: \((\S+?):\d+\))?; a fault of shardwise")
"""What a command prints of an exception that nothing expected."""
_LONGEST = 1500
"""Characters of a line of stderr: a source, a field, a value and all allowed words."""
_NOT_FINITE = re.compile(r"(?<![\w.\-/'\"])-?(?:nan|NaN|inf|Infinity)(?![\w.\-/'\"]| Fabric)")
_NAMES = {name: getattr(shardwise, name) for name in shardwise.__all__}
_NAMES |= {"np": np, "Path": Path, "Decimal": Decimal, "Fraction": Fraction}
_NAMES |= {"nan": math.nan, "inf": math.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a case did."""

    code: int | None
    """Exit code; of a call 0, and 2 where it was refused; None if it raised anything else."""
    cpu_s: float
    faults: tuple[str, ...]
    """What it must not do, each with where; empty if all is well."""

    @property
    def legal(self) -> bool:
        """Whether the input was accepted."""
        return self.code in (0, 1)


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """Change to an empty folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def outcome(case: fuzz.Case, *, process: bool = False) -> Outcome:
    """Run one case in an empty folder.

    Parameters
    ----------
    process
        Whether a command runs as a process of its own.
    """
    with empty_folder() as folder:
        start = _cpu_s()
        if "call" in case:
            code, faults = _called(case["call"])
            return Outcome(code=code, cpu_s=_cpu_s() - start, faults=tuple(faults))
        inputs = fuzz.contents(case)
        for name, raw in inputs.items():
            (folder / name).write_bytes(raw)
        start = _cpu_s()
        as_process = process and not any("\0" in word for word in case["words"])  # no shell has it
        run_case = _as_process if as_process else _in_process
        code, out, err, faults = run_case(case["words"], case.get("environment", {}))
        cpu_s = _cpu_s() - start
        if code not in _CODES and not faults:
            faults.append(f"exit code {code}: {err.strip().splitlines()[-1:]}")
        faults += _of_texts(case, code, out, err)
        faults += [
            f"changed its input {name}"
            for name, raw in inputs.items()
            if not (folder / name).is_file() or (folder / name).read_bytes() != raw
        ]
        if code in (0, 1):
            faults += _of_outputs(case, out, folder)
        return Outcome(code=code, cpu_s=cpu_s, faults=tuple(faults))


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class _Output(io.TextIOWrapper):
    """A stream in an encoding, as Python opens it, whose text can be read."""

    def getvalue(self) -> str:
        self.flush()
        raw: io.BytesIO = self.buffer  # type: ignore[assignment]
        return raw.getvalue().decode(self.encoding, "replace")


def _in_process(
    words: list[str], environment: dict[str, str]
) -> tuple[int | None, str, str, list[str]]:
    encoding, _, errors = environment.get("PYTHONIOENCODING", "utf-8").partition(":")
    out = _Output(io.BytesIO(), encoding=encoding, errors=errors or "strict")
    err = _Output(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    faults: list[str] = []
    code = None
    with (
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        streams.prepare()
        try:
            code = run(words)
        except Exception as error:  # noqa: BLE001 - what is looked for
            faults.append(_raised(error))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
    faults += [f"warning {one.category.__name__}: {one.message}" for one in warned]
    return code, out.getvalue(), err.getvalue(), faults


def _as_process(
    words: list[str], environment: dict[str, str]
) -> tuple[int | None, str, str, list[str]]:
    program = "import sys; from shardwise.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *(os.fsencode(word) for word in words)],
        capture_output=True,
        check=False,
        env=os.environ | (environment or {"PYTHONUTF8": "1"}),
    )
    encoding = environment.get("PYTHONIOENCODING", "utf-8").partition(":")[0]
    out, err = (text.decode(encoding, "replace") for text in (done.stdout, done.stderr))
    return done.returncode, out, err, []


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if "/shardwise/" in frame.filename]


def _raised(error: BaseException) -> str:
    """An exception and the innermost line of shardwise that it passed through."""
    inside = _frames(error)
    place = f" at {Path(inside[-1].filename).name}.{inside[-1].name}" if inside else ""
    return f"raised {type(error).__name__}{place}: {' '.join(str(error).split())[:200]}"


def _of_texts(case: fuzz.Case, code: int | None, out: str, err: str) -> list[str]:
    faults = []
    if "Traceback (most recent call last)" in err + out:
        faults.append(f"traceback: {err.strip().splitlines()[-1:]}")
    elif found := _UNEXPECTED.search(err):
        faults.append(f"raised {found[1]} at {found[3]}: {found[2][:200]}")
    elif "Warning:" in err:
        faults.append(f"warning: {err.strip()[:200]}")
    log_lines = "--verbose" in case["words"]
    if code == 2 and not log_lines:
        lines = [line for line in err.splitlines() if not _NOTE.match(line)]
        if not lines or not all(line.startswith("error: ") for line in lines):
            faults.append(f"exit code 2 without clear lines: {err[:200]!r}")
        elif long := [line for line in lines if len(line) > _LONGEST or not line.isprintable()]:
            faults.append(f"a line of stderr that nobody can read: {long[0][:200]!r}")
    return faults


def _of_outputs(case: fuzz.Case, out: str, folder: Path) -> list[str]:
    """NaN and infinities in what was printed and written."""
    texts = {"stdout": out}
    inputs = case.get("files", {})
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in inputs and path.suffix not in (".parquet", ".png"):
            try:
                texts[path.name] = fuzz.unpacked(path.read_bytes(), path.name)
            except OSError as error:
                return [f"{path.name} cannot be read: {error}"]
    said = json.dumps(case, ensure_ascii=False).lower()
    echoes = "nan" in said or "inf" in said.replace("--inf", "")
    faults = []
    for name, text in texts.items():
        is_json = name.removesuffix(".gz").endswith(".json") or (
            name == "stdout" and "--json" in case["words"] and text.startswith("{")
        )
        if is_json:
            faults += _of_json(name, text)
        elif echoes or name.endswith((".html", ".svg")):
            continue
        elif hit := _NOT_FINITE.search(text):
            around = text[max(0, hit.start() - 60) : hit.end() + 20]
            faults.append(f"{hit[0]} in {name}: {' '.join(around.split())}")
    return faults


def _of_json(name: str, text: str) -> list[str]:
    found: list[str] = []
    try:
        json.loads(text, parse_constant=found.append)
    except ValueError as error:
        return [f"{name} is not JSON: {error}"]
    return [f"{found[0]} in {name}"] if found else []


def _called(source: str) -> tuple[int | None, list[str]]:
    """Evaluate a call of Python, and make plain data of its result."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        code, faults = None, []
        try:
            arguments = compile(source, "<call>", "eval")
            result = eval(arguments, dict(_NAMES))  # noqa: S307 - made here
            code = 0
            if not isinstance(result, shardwise.EstimateTable) and hasattr(result, "to_dict"):
                faults += _of_data(result.to_dict())
        except shardwise.ShardwiseError as error:
            code = 2
            if not str(error).strip():
                faults.append("refused without a word")
        except Exception as error:  # noqa: BLE001 - what is looked for
            code = None if _frames(error) else 2  # else Python itself refused it, as a set of lists
            faults += [_raised(error)] if _frames(error) else []
    return code, faults + [f"warning {one.category.__name__}: {one.message}" for one in warned]


def _of_data(data: Any, place: str = "") -> list[str]:
    """The first number of plain data that is not finite."""
    if isinstance(data, float) and not math.isfinite(data):
        return [f"{data} in the result at {place}"]
    items = data.items() if isinstance(data, dict) else ()
    items = enumerate(data) if isinstance(data, (list, tuple)) else items
    for key, value in items:
        if found := _of_data(value, f"{place}.{key}"):
            return found
    return []


def minimal(case: fuzz.Case) -> fuzz.Case:
    """A smaller case with the same first fault: fewer options, fewer edits."""

    def kind_of(one: fuzz.Case) -> str:
        faults = outcome(one).faults
        return faults[0].split(":")[0] if faults else ""

    wanted = kind_of(case)
    if not wanted or "call" in case:
        return case
    smaller = True
    while smaller:
        smaller = False
        for attempt in _reduced(case):
            if kind_of(attempt) == wanted:
                case, smaller = attempt, True
                break
    return case


def _reduced(case: fuzz.Case) -> Iterator[fuzz.Case]:
    words, files = case["words"], case.get("files", {})
    for name in case.get("environment", {}):
        left = {k: v for k, v in case["environment"].items() if k != name}
        yield {k: v for k, v in case.items() if k != "environment"} | (
            {"environment": left} if left else {}
        )
    for width in (2, 1):
        for at in range(3, len(words) - width + 1):
            fewer = words[:at] + words[at + width :]
            yield {**case, "words": fewer}
    for name, file in files.items():
        for at in range(len(file["edits"])):
            edits = file["edits"][:at] + file["edits"][at + 1 :]
            yield {**case, "files": files | {name: {**file, "edits": edits}}}
        if not any(name in word for word in words):
            yield {**case, "files": {k: v for k, v in files.items() if k != name}}
