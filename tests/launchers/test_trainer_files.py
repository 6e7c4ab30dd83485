"""Configuration files of fine-tuning trainers: 55 real ones, as facts, and what each means."""

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwise import InputError, Strategy, estimate, read_launch
from shardwise.config.plain import plain
from shardwise.launchers.registry import READERS

FACTS = yaml.safe_load((Path(__file__).parents[1] / "data" / "trainer_files.yaml").read_text())
FILES = {one["file"]: one for one in FACTS["files"]}


def written(one: dict[str, Any], **more: object) -> Path:
    """The file of an entry, with more options."""
    path = Path(one["name"])
    if "settings" in one:
        path.write_text(yaml.safe_dump(one["settings"] | more))
        return path
    sign, between = ("", "=") if one["trainer"] == "verl" else ("--", " ")
    words = [f"{sign}{key}{between}{value}" for key, value in more.items()]
    path.write_text(" ".join([one["command"], *words, "\n"]))
    return path


@pytest.fixture(autouse=True)
def companions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with the files that entries name."""
    monkeypatch.chdir(tmp_path)
    for name, data in FACTS["companions"].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(json.dumps(data))


def read(one: dict[str, Any], **more: object) -> Any:
    path = written(one, **more)
    model = None if one.get("named", True) else one["model"]
    return read_launch(path, gpus=one.get("gpus"), model=model)


@pytest.mark.parametrize("file", FILES)
def test_a_real_file_means_what_its_trainer_does(file: str) -> None:
    """Strategy, model, what is not predicted, and what is missing."""
    one = FILES[file]
    launch = read(one)
    assert launch.launcher == one["trainer"]
    assert launch.model.name == one["model"]
    assert plain(dict(launch.strategy)) == one["expected"]
    assert [option.option for option in launch.not_understood] == one["left"]
    assert list(launch.missing) == one.get("missing", [])
    assert set(launch.origins) >= set(launch.strategy)
    Strategy.validated(launch.strategy)


@pytest.mark.parametrize("file", FILES)
def test_a_real_file_is_estimated(file: str) -> None:
    """What is read is a legal plan of its stack; a length that is missing is set."""
    launch = read(FILES[file])
    fields = {"seq_len": 2048} | dict(launch.strategy)
    assert estimate(launch.model, "h100-sxm", fields).step_time_s > 0


@pytest.mark.parametrize("file", FILES)
def test_no_option_is_ignored_in_silence(file: str) -> None:
    """One that no reader knows is listed."""
    options = [one.option for one in read(FILES[file], attention_depth_knob=7).not_understood]
    assert "attention_depth_knob" in options


ODD = (
    None,
    [],
    {},
    "x",
    -1,
    0,
    1.5,
    float("inf"),
    True,
    "auto",
    [1],
    {"a": 1},
    ["x", None],
    10**20,
)


def paths(settings: dict[str, Any], start: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all options."""
    for key, value in settings.items():
        yield (*start, key)
        if isinstance(value, dict):
            yield from paths(value, (*start, key))


def test_odd_values_of_every_option_are_read_or_refused() -> None:
    """One for each option of each trainer; never another exception than a fault."""
    drawn = random.Random(1)  # noqa: S311 - of tests
    every = {
        (one["trainer"], path): one
        for one in FILES.values()
        for path in paths(one.get("settings", {}))
    }
    verdicts: Counter[str] = Counter()
    for (_, (*sections, key)), one in every.items():
        changed = copy.deepcopy(one)
        inner = changed["settings"]
        for section in sections:
            inner = inner[section]
        inner[key] = drawn.choice(ODD)
        try:
            launch = read_launch(written(changed), gpus=one.get("gpus", 8), model="llama3-8b")
        except InputError:
            verdicts["refused"] += 1
            continue
        Strategy.validated(launch.strategy)
        verdicts["read"] += 1
    assert min(verdicts.values()) > 50


def test_every_reader_has_real_files() -> None:
    """At least two of each that is not written, and forty in all."""
    counts = Counter(one["trainer"] for one in FILES.values())
    assert all(counts[one.name] >= 2 for one in READERS)
    assert counts.total() >= 40
