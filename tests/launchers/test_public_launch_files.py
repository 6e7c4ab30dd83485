"""Options of public launch files of forks, with the size and the plan that their authors name."""

from functools import cache
from pathlib import Path

import pytest
import yaml

from shardwise import read_launch
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
    if form == "primus":
        trainer = {"framework": "megatron", "model": one["model"], "overrides": options}
        return "job.yaml", yaml.safe_dump({"modules": {"pre_trainer": trainer}})
    if form == "neox":
        return "job.yml", yaml.safe_dump(options)
    gpus, words = one["strategy"].get("gpus"), options.replace("|", "\\|")
    start = "deepspeed" if gpus is None else f"torchrun --nnodes {gpus // 8} --nproc-per-node 8"
    return "train.sh", f"{HEADS.get(one['fork'], '')}{start} pretrain_gpt.py {words}\n"


def name(one: dict) -> str:
    return one["source"].rpartition("/")[2]


@pytest.mark.parametrize("one", facts(), ids=name)
def test_public_files(tmp_path: Path, one: dict) -> None:
    """The number of parameters is that of the name within 6 %, and every field is as written."""
    file, text = text_of(one)
    (tmp_path / file).write_text(text)
    gpus = GPUS if "form" in one else None
    launch = read_launch(tmp_path / file, gpus=gpus, variables={"vocab_size": "50257"})
    assert launch.fork == one.get("fork", FORMS.get(one.get("form")))
    assert {key: launch.strategy[key] for key in one["strategy"]} == one["strategy"]
    parameters = count_parameters(launch.model).total / 1e9
    assert parameters == pytest.approx(one["parameters"], rel=0.06)
