"""Files of DeepSpeed and accelerate with odd values are read, or refused by name."""

import json
from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from typing import Any

import yaml

from profiles import sampled
from rows import each_row
from shardwise import InputError, Model, Strategy
from shardwise.launchers import accelerate, deepspeed
from shardwise.launchers.launch import Launcher, LaunchText
from test_accelerate_reading import ALST, FP8, MEGATRON, QLORA, TP_HSDP, USUAL, ZERO3
from test_deepspeed_reading import AUTOEP, FACTORY, INTEGRATION, TRANSFORMERS

MODEL = Model.load("qwen3-30b-a3b")
ODD: list[Any] = [None, True, -1, 0, 3, 0.5, 1e300, 10**30, "x", "auto", [1], {}, {"a": 1}]
PLUGIN = USUAL | {"distributed_type": "MEGATRON_LM", "megatron_lm_config": MEGATRON}


def places(data: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Keys that lead to every value, those of mappings included."""
    for key, value in data.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *rest) for rest in places(value))


def changed(data: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    found = deepcopy(data)
    section = found
    for key in place[:-1]:
        section = section[key]
    section[place[-1]] = value
    return found


def configurations() -> list[tuple[Launcher, dict[str, Any]]]:
    of_deepspeed = [AUTOEP, FACTORY, INTEGRATION, TRANSFORMERS]
    of_accelerate = [ALST, FP8, QLORA, TP_HSDP, ZERO3, PLUGIN]
    return [(deepspeed.LAUNCHER, one) for one in of_deepspeed] + [
        (accelerate.LAUNCHER, one) for one in of_accelerate
    ]


def messages(launcher: Launcher, text: str) -> list[str]:
    """What is wrong with a file, and a strategy of what is not."""
    try:
        launch = launcher.read(LaunchText(source="odd", text=text, model=MODEL, gpus=16))
        Strategy(**launch.strategy)  # type: ignore[arg-type]
    except InputError as error:
        return [str(fault) for fault in error.faults]
    return []


@each_row(("launcher", "config"), configurations())
def test_odd_values(launcher: Launcher, config: dict[str, Any]) -> None:
    """Every value of published files replaced by every odd one."""
    refused = 0
    for place, value in sampled(product(places(config), ODD)):  # in turn all values
        data = changed(config, place, value)
        text = json.dumps(data) if launcher is deepspeed.LAUNCHER else yaml.safe_dump(data)
        found = messages(launcher, text)
        assert all(one.startswith("odd: ") for one in found), (place, value, found)
        refused += bool(found)
    assert refused


@each_row("text", ["[1]", "- 1\n", "", "{", "a: [\n"])
def test_files_that_are_no_mappings(text: str) -> None:
    for launcher in (deepspeed.LAUNCHER, accelerate.LAUNCHER):
        (message,) = messages(launcher, text)
        assert message.startswith("odd")
