"""Answers of the command line to fixed questions, before and after a change.

    python scripts/golden.py write OUT [--like OTHER]   # answers of now, to the questions of OTHER
    python scripts/golden.py compare OLD NEW            # bit for bit; exit code 1 if anything moved
    python scripts/golden.py compare --against GITREV   # this tree with another revision
    python scripts/golden.py gate                       # predictions with those in tests/data
    python scripts/golden.py accept                     # store the predictions of now

Questions are 400 drawn estimates, 24 searches, 6 sweeps, 120 exports, the other models' statistics
of their own runs, and `--help-all` of every verb. The output of documented commands is stored in
the documentation itself, where `tests/together/test_docs.py` compares it.
"""

import argparse
import contextlib
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
sys.path.insert(0, str(TESTS))

VOLATILE = ("elapsed_s", "profile_s")
"""Keys of JSON that differ from run to run."""
FORMS = {"gemms": ("csv", "json"), "graph": ("json", "dot", "mmd"), "deepflow": ("txt",)}
SOFTWARE = ("stack", "any_software")
"""Fields that exports to a launcher leave to it."""
RUNS = [
    "llama3.2-1b h100-sxm --gpus 8 --gbs 32",
    "llama3-8b a100-80gb-sxm --gpus 16 --gbs 64",
    "llama3-70b b200-sxm --gpus 64 --gbs 128",
    "qwen3-30b-a3b mi300x --gpus 16 --gbs 64",
    "deepseek-v2-lite gb200-nvl72 --gpus 72 --gbs 144",
    "calculon-megatron-22b calculon-a100-80g --gpus 8 --gbs 8 --dtype fp16",
]
SEARCHES = ["", "--space full --fix tp=1 --fix pp=1", "--pareto --seq-len 2048 --fix tp=2"]
SEARCHES += ["--any-software --fix tp=2 --fix offload_activations=true --top 3"]
SWEEPS = ["--fix tp=2 --vary seq_len=2048,4096,8192", "--fix pp=1 --vary domain=4,8"]
SWEEPS += ["--fix tp=2 --fix pp=2 --sensitivity"]
EXPORTED = re.compile("(llama|qwen|mistral|mixtral|deepseek-v|gpt3-1).*")
"""Models of exported plans, which most launchers can run."""

Question = dict[str, Any]
"""`name`, `words` of a command, `files` by name, and for a report its `settings`."""


def question(name: str, words: str, files: Mapping[str, Any], **settings: Any) -> Question:
    """Make a question; files are text, or what to write as JSON."""
    texts = {file: one if isinstance(one, str) else json.dumps(one) for file, one in files.items()}
    return {"name": name, "words": words.split(), "files": texts, "settings": settings}


def _estimates_and_exports() -> Iterator[Question]:
    """Of strategies of the stored predictions, whose first 150 of each pair are answered."""
    from prediction_gate import stored  # noqa: PLC0415 - found by the path above
    from shardwise.launchers.registry import LAUNCHERS  # noqa: PLC0415 - of the source tree in use

    parts = stored()
    every = ((part, row) for part in parts for row in (*part["rows"][:3], *part["rows"][-2:]))
    for part, row in islice(every, 400):
        words = f"estimate {part['model']} {part['system']}"
        yield question(words, f"{words} --strategy plan.json --json", {"plan.json": row}, **row)
    endings = {one.name: [ending.lstrip(".") for ending in one.endings] for one in LAUNCHERS}
    forms = cycle((what, end) for what, ends in (FORMS | endings).items() for end in ends)
    used = [part for part in parts if EXPORTED.fullmatch(part["model"])]
    every = ((part, part["rows"][at]) for at in range(3, 150) for part in used)
    for (what, ending), (part, row) in islice(zip(forms, every, strict=False), 120):
        nearest, left_out = (" --nearest", SOFTWARE) if what in endings else ("", ())
        plain = {field: value for field, value in row.items() if field not in left_out}
        words = f"export {what} {part['model']} {part['system']}{nearest} -o out.{ending}"
        yield question(words, f"{words} --strategy plan.json", {"plan.json": plain}, **plain)


def _other_models() -> Iterator[Question]:
    """Calculon's, NERSC's, SimuMax's, AMPeD's and fsdp_ilp's own runs, in our golden inputs."""
    import calculon_runs  # noqa: PLC0415 - as above
    import nersc_runs  # noqa: PLC0415
    from fsdp_ilp_samples import CASES, flat  # noqa: PLC0415

    words = "estimate model.json system.json --strategy run.json --json --reference calculon"
    for case in calculon_runs.RUNS["cases"]:
        model, system = calculon_runs.RUNS["models"][case["model"]], calculon_runs.system_of(case)
        files = {"model.json": model, "system.json": system, "run.json": case["execution"]}
        yield question(f"Calculon {case['id']}", words, files)
    names = {"gpt3_1T": "nersc-gpt3-1t", "vit_era5": "vit-era5"}
    for model, method, system, domain, gpus, _ in nersc_runs.RUNS["points"][::13]:
        run = f"{names[model]} nersc-{system.lower()} --domain {domain} --gpus {gpus} --gbs 4096"
        words = f"search {run} --reference nersc --method {method}"
        yield question(words, f"{words} --json", {})
    for case in json.loads((TESTS / "data/simumax/runs.json").read_text(encoding="utf-8")):
        system = "simumax-b200" if case["id"].startswith("b200") else "simumax-a100-pcie"
        files = {"model.json": case["model"], "strategy.json": case["strategy"]}
        words = f"estimate model.json {system} --strategy strategy.json --json"
        yield question(f"SimuMax {case['id']}", words, files)
    folder = ROOT / "docs/from/amped"
    files = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.*")}
    yield question("AMPeD", "estimate config.json --reference amped --json", files)
    for suite in ("seqsel", "simumax", "nersc-collectives", "amped"):
        yield question(f"suite {suite}", f"validate {suite} --rows --json", {})
    for name, case in CASES.items():
        files = {"statistics.json": flat(case["module_info"]), "comm.json": case["comm"]}
        budget = case["results"][-1]["budget_gib"]
        words = f"--gpus {case['world_size']} --memory-budget {budget}GiB --comm comm.json --json"
        start = "fsdp statistics.json --reference fsdp-ilp --solver exact "
        yield question(f"fsdp_ilp {name}", start + words, files)


def questions() -> Iterator[Question]:
    """Draw every question, the same ones in every run."""
    from shardwise.cli import VERBS  # noqa: PLC0415

    yield from _estimates_and_exports()
    for words in (f"search {run} --fix mbs=1 {more}" for run in RUNS for more in SEARCHES):
        yield question(words, f"{words} --jobs 1 --json", {})
    for words in (f"sweep {run} --fix mbs=1 {more}" for run in RUNS[:2] for more in SWEEPS):
        yield question(words, f"{words} --json", {})
    yield from _other_models()
    for verb in sorted(VERBS):
        yield question(f"help of {verb}", f"{verb} --help-all", {})


def answer(entry: Question) -> dict[str, Any]:
    """Run a command in an empty folder: exit code, output, files, and why it was refused."""
    from shardwise.cli import run  # noqa: PLC0415

    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in entry["files"].items():
            Path(name).write_text(text, encoding="utf-8")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(entry["words"])
        written = [path for path in sorted(Path().iterdir()) if path.name not in entry["files"]]
        files = {path.name: _stable(path.read_text(encoding="utf-8")) for path in written}
    text = _stable(err.getvalue()) if code == 2 else ""  # noqa: PLR2004 - else only progress
    return {"code": code, "out": _stable(out.getvalue()), "err": text, "files": files}


def _stable(text: str) -> Any:
    """JSON or text without what differs from run to run or from release to release."""
    from shardwise import __version__  # noqa: PLC0415

    def timeless(record: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in record.items() if key not in VOLATILE}

    text = text.replace(__version__, "VERSION")
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(text, object_hook=timeless)
    return text


def write(out: Path, like: Path | None = None) -> None:
    """Answer all questions, drawn or those of another file; write both."""
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    every = read(like) if like else questions()
    store(out, [entry | {"answer": answer(entry)} for entry in every])


def store(out: Path, records: list[Question]) -> Path:
    """Store questions, with answers or without."""
    out.write_bytes(gzip.compress(json.dumps(records).encode(), mtime=0))
    return out


def read(path: Path) -> list[Question]:
    """Read questions with their answers."""
    records: list[Question] = json.loads(gzip.decompress(path.read_bytes()))
    return records


def compare(old: Path, new: Path) -> list[str]:
    """Lines on what moved between two files of answers; none if nothing did."""
    from moved import Case, report  # noqa: PLC0415

    before, now = read(old), read(new)
    if [one | {"answer": {}} for one in before] != [one | {"answer": {}} for one in now]:
        raise SystemExit("the questions differ: write one --like the other")
    return report(
        [
            Case(name=one["name"], settings=one["settings"], old=one["answer"], new=other["answer"])
            for one, other in zip(before, now, strict=True)
        ]
    )


def against(revision: str) -> list[str]:
    """Compare this tree with another revision, on the questions of this tree."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree, old, new = folder / "tree", folder / "old.gz", folder / "new.gz"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)  # noqa: S603 - a fixed program
        try:
            write(new)
            subprocess.run(  # noqa: S603 - this script itself
                [sys.executable, __file__, "write", str(old), "--like", str(new)],
                env=os.environ | {"PYTHONPATH": str(tree / "src")},
                check=True,
            )
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)  # noqa: S603 - as above
        return compare(old, new)


def main() -> int:
    """Run one of the commands above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("write", "compare", "gate", "accept"))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--like", type=Path)
    parser.add_argument("--against")
    options = parser.parse_args()
    if options.command == "write":
        write(*options.paths, options.like)
        return 0
    if options.command == "compare":
        lines = against(options.against) if options.against else compare(*options.paths)
    else:
        import prediction_gate  # noqa: PLC0415 - found by the path above

        if options.command == "accept":
            prediction_gate.accept()
            return 0
        lines = prediction_gate.moved(prediction_gate.stored())
    print("\n".join(lines) or "nothing moved")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
