"""Answers of the command line to fixed questions, before and after a change.

    python scripts/golden.py write OUT [--like OTHER]   # answers of now, to the questions of OTHER
    python scripts/golden.py compare OLD NEW            # bit for bit; exit code 1 if anything moved
    python scripts/golden.py compare --against GITREV   # this tree with another revision
    python scripts/golden.py gate                       # predictions with those in tests/data
    python scripts/golden.py accept                     # store the predictions of now

Questions are 400 drawn estimates, 24 searches, 6 sweeps, 120 exports, the other models' statistics
of their own runs, and `--help-all` of every verb. The output of documented commands is stored in
the documentation itself, where `tests/test_docs.py` compares it.
"""

import argparse
import contextlib
import gzip
import io
import json
import os
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
SEARCHES = [
    "llama3.2-1b h100-sxm --gpus 8 --gbs 64",
    "llama3.2-1b h100-sxm --gpus 8 --gbs 64 --space full --fix pp=1 --fix mbs=1",
    "llama3-8b h100-sxm --gpus 16 --gbs 64 --fix tp=2",
    "llama3-8b a100-80gb-sxm --gpus 64 --gbs 128 --fix pp=2 --pareto",
    "llama3-8b mi300x --gpus 8 --gbs 32",
    "llama3-8b tpu-v5e --gpus 64 --gbs 128 --fix mbs=1",
    "llama3-8b gb200-nvl72 --gpus 72 --gbs 144 --fix tp=1",
    "llama3-8b h100-sxm --gpus 4 --gbs 16 --fix offload_optimizer=true --fix tp=4",
    "llama3-8b h100-sxm --gpus 2 --gbs 8 --fix mbs=1",
    "llama3-8b h100-sxm --gpus 16 --gbs 64 --for torchtitan --fix mbs=1",
    "llama3-8b h100-sxm --gpus 16 --gbs 64 --for megatron --fix tp=2",
    "llama3-8b h100-sxm --gpus 16 --gbs 64 --any-software --fix tp=2 --fix pp=2",
    "llama3-8b h100-sxm --gpus 16 --gbs 64 --quantization fp8_tensor --fix tp=1",
    "llama3-8b h100-sxm --gpus 16 --gbs 64 --objective tokens_per_dollar --fix tp=2",
    "llama3-70b h100-sxm --gpus 64 --gbs 128 --fix tp=8 --fix mbs=1",
    "llama3-70b b200-sxm --gpus 64 --gbs 128 --fix tp=4 --fix mbs=1",
    "qwen3-30b-a3b h100-sxm --gpus 16 --gbs 64 --fix tp=1 --fix mbs=1",
    "mixtral-8x7b h100-sxm --gpus 32 --gbs 64 --fix tp=2 --fix mbs=1",
    "deepseek-v2-lite h800-sxm --gpus 16 --gbs 64 --fix tp=1 --fix mbs=1",
    "gpt-oss-20b h200-sxm --gpus 8 --gbs 32 --fix mbs=1",
    "gemma2-9b a100-40gb-sxm --gpus 16 --gbs 32 --fix tp=4",
    "megatron-126m v100-sxm-16gb --gpus 8 --gbs 64 --dtype fp16",
    "calculon-megatron-22b calculon-a100-80g --gpus 8 --gbs 8 --dtype fp16 --fix tp=8",
    "nersc-gpt3-175b nersc-b200 --gpus 64 --gbs 64 --dtype fp16 --fix tp=8 --fix mbs=1",
]
SWEEPS = [
    "llama3-8b h100-sxm --gpus 16 --gbs 64 --fix tp=2 --vary seq_len=2048,4096,8192",
    "llama3-8b h100-sxm --gpus 16 --gbs 64 --fix pp=1 --vary fabric.bandwidth=0.5x,1x,2x",
    "llama3-8b h100-sxm --gbs 128 --fix mbs=1 --vary gpus=16,32,64",
    "qwen3-30b-a3b h100-sxm --gpus 16 --gbs 32 --fix tp=1 --fix mbs=1 --vary ep=1,2,4,8",
    "llama3-8b h100-sxm --gpus 16 --gbs 64 --fix tp=2 --fix pp=2 --sensitivity",
    "llama3.2-1b a100-80gb-sxm --gpus 8 --gbs 64 --fix pp=1 --vary hbm.bandwidth=0.5x,1x,2x",
]
EXPORTED = [
    *(("llama3-8b", "h100-sxm"), ("qwen3-30b-a3b", "h200-sxm"), ("llama3.2-1b", "a100-80gb-sxm")),
    *(("mixtral-8x7b", "b200-sxm"), ("gpt3-13b", "h100-sxm")),
]

Question = dict[str, Any]
"""`name`, `words` of a command, `files` by name, and for a report its `settings`."""


def question(name: str, words: str, files: Mapping[str, Any], **settings: Any) -> Question:
    """Make a question; files are text, or what to write as JSON."""
    texts = {file: one if isinstance(one, str) else json.dumps(one) for file, one in files.items()}
    return {"name": name, "words": words.split(), "files": texts, "settings": settings}


def _strategies(models: list[tuple[str, str]], answered: int, refused: int) -> Iterator[Any]:
    """Drawn strategies of each model and system: first those that are answered."""
    from drawn_questions import Drawing  # noqa: PLC0415 - it reads fields of this source tree

    for model, system in models:
        drawing = Drawing(model=model, system=system)
        for row in drawing.selected(answered=answered, refused=refused):
            yield model, system, row


def _estimates() -> Iterator[Question]:
    from drawn_questions import pairs  # noqa: PLC0415

    for model, system, row in islice(_strategies(pairs(2), 3, 2), 400):
        words = f"{model} {system} --strategy strategy.json --json"
        name = f"estimate {model} {system}"
        yield question(name, f"estimate {words}", {"strategy.json": row}, **row)


def _exports() -> Iterator[Question]:
    from shardwise.interop.launchers import LAUNCHERS  # noqa: PLC0415

    endings = {one.name: [ending.lstrip(".") for ending in one.endings] for one in LAUNCHERS}
    forms = cycle((what, end) for what, ends in (FORMS | endings).items() for end in ends)
    for model, system, row in islice(_strategies(EXPORTED, 24, 0), 120):
        what, ending = next(forms)
        nearest, left_out = (" --nearest", SOFTWARE) if what in endings else ("", ())
        plain = {field: value for field, value in row.items() if field not in left_out}
        words = f"export {what} {model} {system} --strategy strategy.json{nearest} -o plan.{ending}"
        name = f"export {what} .{ending} {model} {system}"
        yield question(name, words, {"strategy.json": plain}, **plain)


def _other_models() -> Iterator[Question]:
    """Calculon's, NERSC's, SimuMax's, AMPeD's and fsdp_ilp's own runs, in our golden inputs."""
    from fsdp_ilp_samples import CASES, flat  # noqa: PLC0415

    runs = json.loads(gzip.decompress((TESTS / "data/calculon/runs.json.gz").read_bytes()))
    words = "estimate model.json system.json --strategy run.json --json --reference calculon"
    for case in runs["cases"]:
        system = json.loads(json.dumps(runs["systems"][case["system"]]))
        for path, value in case.get("overrides", {}).items():
            *parents, last = path.split(".")
            at = system
            for key in parents:
                at = at[key]
            at[last] = value
        files = {"model.json": runs["models"][case["model"]], "system.json": system}
        yield question(f"Calculon {case['id']}", words, files | {"run.json": case["execution"]})
    runs = json.loads(gzip.decompress((TESTS / "data/nersc/runs.json.gz").read_bytes()))
    names = {"gpt3_1T": "nersc-gpt3-1t", "vit_era5": "vit-era5"}
    for model, method, system, domain, gpus, _ in runs["points"][::13]:
        yield question(
            f"NERSC {model} {method} {system} {domain} {gpus}",
            f"search {names[model]} nersc-{system.lower()} --reference nersc --method {method} "
            f"--domain {domain} --gpus {gpus} --gbs 4096 --json",
            {},
        )
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

    yield from _estimates()
    for words in SEARCHES:
        yield question(f"search {words}", f"search {words} --jobs 1 --json", {})
    for words in SWEEPS:
        yield question(f"sweep {words}", f"sweep {words} --json", {})
    yield from _exports()
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

    text = text.replace(__version__, "VERSION")
    with contextlib.suppress(json.JSONDecodeError):
        return _without_times(json.loads(text))
    return text


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(one) for key, one in value.items() if key not in VOLATILE}
    return [_without_times(one) for one in value] if isinstance(value, list) else value


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

    before = {json.dumps([one["name"], one["words"], one["files"]]): one for one in read(old)}
    now = {json.dumps([one["name"], one["words"], one["files"]]): one for one in read(new)}
    cases = [
        Case(name=one["name"], settings=one["settings"], old=one["answer"], new=now[key]["answer"])
        for key, one in before.items()
        if key in now
    ]
    lines = report(cases)
    if only := len(before.keys() ^ now.keys()):
        lines.append(f"{only} questions are in one file only: write one --like the other")
    return lines


def against(revision: str) -> list[str]:
    """Compare this tree with another revision, on the questions of this tree."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree, old, new = folder / "tree", folder / "old.gz", folder / "new.gz"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), revision], check=True)  # noqa: S603 - a fixed program
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
