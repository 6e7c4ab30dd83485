"""Configuration files of fine-tuning trainers: 55 real ones, as facts, and what each means."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwise import Strategy, read_launch
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
def test_no_option_is_ignored_in_silence(file: str) -> None:
    """One that no reader knows is listed."""
    options = [one.option for one in read(FILES[file], attention_depth_knob=7).not_understood]
    assert "attention_depth_knob" in options


def test_every_reader_has_real_files() -> None:
    """At least two of each that is not written, and forty in all."""
    counts = Counter(one["trainer"] for one in FILES.values())
    assert all(counts[one.name] >= 2 for one in READERS)
    assert counts.total() >= 40
