"""What users come for, each answered by one command of the shell: a plan, how sure, a safer one."""

import json
import shlex
from typing import Any

import pytest

from shardwise import estimate
from shardwise.analysis.fit_probability import SURE


def test_a_full_fine_tune_on_eight_cards_of_40_gb(shardwise: Any) -> None:
    """One plan that surely fits, next to measured runs and to the command that shows it."""
    words = "search llama3-8b a100-40gb-sxm --gpus 8 --gbs 8 --finetune full --seq-len 8192 --json"
    code, text, _ = shardwise(*words.split())
    found = json.loads(text)
    plan = found["recommended"]
    assert code == 0
    assert plan["fits_probability"] >= SURE
    assert plan["memory_bytes"]["reserved"] < 40 * 2**30
    assert plan["strategy"]["task"] == "sft"
    assert found["safer"] is None or found["safer"]["fits_probability"] > plan["fits_probability"]
    assert found["nearest_measured"] is not None
    again = json.loads(shardwise(*shlex.split(plan["commands"]["estimate"])[1:], "--json")[1])
    assert again["step_time_s"] == pytest.approx(plan["step_time_s"])


def test_a_safer_plan_stands_next_to_one_that_nearly_fills_the_memory(shardwise: Any) -> None:
    """With its probability; more than a third of these cards' plans have one."""
    words = "search llama3-8b h100-sxm --gpus 4 --gbs 64 --finetune lora --seq-len 4096 --json"
    found = json.loads(shardwise(*words.split())[1])
    plan, safer = found["recommended"], found["safer"]
    assert SURE <= plan["fits_probability"] < safer["fits_probability"]
    text = shardwise(*words.split()[:-1])[1]
    assert "safer:" in text
    assert "sure:" in text


def test_adapters_of_a_70b_on_two_cards_of_24_gb(shardwise: Any) -> None:
    """It does not fit as asked, which one line says with the command that does; nor crashes."""
    words = "llama3-70b rtx-4090 --gpus 2 --finetune qlora --seq-len 2048 --json"
    code, text, _ = shardwise("estimate", *words.split())
    found = json.loads(text)
    assert code == 1
    assert found["fits_probability"] < 0.5
    change = found["change_to_fit"]
    flags = shlex.split(change["flags"])
    code, text, _ = shardwise("estimate", *words.split(), *flags)
    assert code == 0
    assert json.loads(text)["fits_probability"] >= SURE
    code, text, _ = shardwise("search", *words.split(), "--gbs", "2")
    plan = json.loads(text)["recommended"]
    assert code == 0
    assert plan["fits_probability"] >= SURE
    assert plan["strategy"]["base_weights"] == "nf4"


def test_how_long_a_context_fits_on_eight_gpus(shardwise: Any) -> None:
    """The longest of all strategies, what limits it, and what raises it."""
    words = "search llama3-8b h100-sxm --gpus 8 --gbs 8 --finetune full --largest seq-len"
    code, text, _ = shardwise(*words.split(), "--json")
    found = json.loads(text)
    assert code == 0
    one = estimate("llama3-8b", "h100-sxm", found["strategy"])
    assert one.strategy["seq_len"] == found["value"] > 100_000
    assert one.fits_probability is not None
    assert one.fits_probability >= SURE
    assert found["limited_by"]
