"""Options of public launch files, with the size and the plan that their authors name."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from shardwise import InputError, read_launch
from shardwise.config.launch import Launch
from shardwise.ops.param_count import count_parameters

FACTS = Path(__file__).parents[1] / "data/public_launch_files.yaml"
FORMS = {"primus": "Primus", "neox": "GPT-NeoX"}
GPUS = 64
"""Of files that leave it to who launches them."""
HEADS = {"MindSpeed-LLM": "# mindspeed_llm\n"}


@cache
def facts() -> list[dict]:
    return yaml.safe_load(FACTS.read_text(encoding="utf-8"))


def text_of(one: dict) -> tuple[str, str]:
    """A file of our own with the options of a public one, and its name."""
    form, options = one.get("form"), one["options"]
    match form:
        case "primus":
            trainer = {"framework": "megatron", "model": one["model"], "overrides": options}
            return "job.yaml", yaml.safe_dump({"modules": {"pre_trainer": trainer}})
        case "neox" | "yaml" | "json":
            text = json.dumps(options) if form == "json" else yaml.safe_dump(options)
            return f"job.{form.replace('neox', 'yml')}", text
        case "toml":
            lines = [
                line
                for section, values in options.items()
                for line in (f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items()))
            ]
            return "job.toml", "\n".join(lines)
        case "shell":
            return one.get("file", "train.sh"), f"{options}\n"
    gpus, words = one["strategy"].get("gpus"), options.replace("|", "\\|")
    start = "deepspeed" if gpus is None else f"torchrun --nnodes {gpus // 8} --nproc-per-node 8"
    return "train.sh", f"{HEADS.get(one.get('fork'), '')}{start} pretrain_gpt.py {words}\n"


def name(one: dict) -> str:
    return one["source"].rpartition("/")[2]


def read(tmp_path: Path, one: dict) -> Launch:
    file, text = text_of(one)
    (tmp_path / file).write_text(text)
    gpus = GPUS if one.get("form") in FORMS else None
    vocabulary = str(one.get("vocabulary", 50257))
    variables = {"vocab_size": vocabulary}
    return read_launch(tmp_path / file, gpus=one.get("gpus", gpus), variables=variables)


@pytest.mark.parametrize("one", [one for one in facts() if "strategy" in one], ids=name)
def test_public_files(tmp_path: Path, one: dict) -> None:
    """Parameters are those that the authors name, 6 % apart at most; fields are as written."""
    launch = read(tmp_path, one)
    assert launch.launcher == one.get("launcher", "megatron")
    assert launch.fork == one.get("fork", FORMS.get(one.get("form"), ""))
    assert {key: launch.strategy[key] for key in one["strategy"]} == one["strategy"]
    if "parameters" in one:
        parameters = count_parameters(launch.model).total / 1e9
        assert parameters == pytest.approx(one["parameters"], rel=one.get("within", 0.06))
    assert all(option.option for option in launch.not_understood)


@pytest.mark.parametrize("one", [one for one in facts() if "refused" in one], ids=name)
def test_public_files_that_are_not_read(tmp_path: Path, one: dict) -> None:
    """The reason is the true one, in text that people can read."""
    with pytest.raises(InputError) as refusal:
        read(tmp_path, one)
    reasons = [str(fault) for fault in refusal.value.faults]
    assert any(re.search(one["refused"], reason) for reason in reasons), reasons
    assert all(reason.isprintable() for reason in reasons)


def test_public_files_are_of_many_repositories() -> None:
    """Sixty files of twenty repositories at least."""
    repositories = {"/".join(one["source"].split("/")[3:5]) for one in facts()}
    assert len(facts()) >= 60
    assert len(repositories) >= 20
