"""Options of public launch files of forks, with the size and the plan that their authors name."""

from functools import cache
from pathlib import Path

import pytest
import yaml

from shardwise import read_launch
from shardwise.ops.param_count import count_parameters

FACTS = Path(__file__).parents[1] / "data/public_launch_files.yaml"
HEADS = {"MindSpeed-LLM": "# mindspeed_llm\n"}


@cache
def facts() -> list[dict]:
    return yaml.safe_load(FACTS.read_text(encoding="utf-8"))


def script(one: dict) -> str:
    """A script of our own with the options of a public one."""
    gpus = one["strategy"].get("gpus")
    options = one["options"].replace("|", "\\|")
    start = "deepspeed" if gpus is None else f"torchrun --nnodes {gpus // 8} --nproc-per-node 8"
    return f"{HEADS.get(one['fork'], '')}{start} pretrain_gpt.py {options}\n"


def name(one: dict) -> str:
    return one["source"].rpartition("/")[2]


@pytest.mark.parametrize("one", facts(), ids=name)
def test_public_files(tmp_path: Path, one: dict) -> None:
    """The number of parameters is that of the name within 6 %, and every field is as written."""
    (tmp_path / "train.sh").write_text(script(one))
    launch = read_launch(tmp_path / "train.sh", variables={"vocab_size": "50257"})
    assert launch.fork == one["fork"]
    assert {key: launch.strategy[key] for key in one["strategy"]} == one["strategy"]
    parameters = count_parameters(launch.model).total / 1e9
    assert parameters == pytest.approx(one["parameters"], rel=0.06)
