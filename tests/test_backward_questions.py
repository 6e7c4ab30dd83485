"""Questions asked backwards: the largest value that fits, what makes a plan fit, fewest GPUs."""

import json
import shlex
from types import SimpleNamespace
from typing import Any

import pytest

from rows import each_row
from shardwise import InputError, Model, Space, Strategy, System, estimate, search
from shardwise.analysis.fit_probability import SURE
from shardwise.planning import methods
from shardwise.planning.largest_value import largest_in_search, largest_value
from shardwise.planning.methods import compare_methods
from shardwise.planning.ways import ways_to_fit

SMALL = {"finetune": "lora", "stack": "huggingface-2024", "zero": 0}


def probability(**fields: Any) -> float:
    """Of Llama 3.2 1B to fit on one RTX 4090."""
    found = estimate("llama3.2-1b", "rtx-4090", SMALL | fields).fits_probability
    assert found is not None
    return found


@each_row(
    ("question", "field", "fields"),
    [
        ("seq-len", "seq_len", {}),
        ("mbs", "micro_batch_size", {"seq_len": 1024}),
        ("lora-rank", "lora_rank", {"seq_len": 1024, "finetune": "qlora"}),
    ],
)
def test_the_largest_value_is_the_last_that_surely_fits(
    question: str, field: str, fields: dict[str, Any]
) -> None:
    """One step more does not; the changes that raise it do so by as much as they say."""
    found = largest_value("llama3.2-1b", "rtx-4090", Strategy(**SMALL | fields), question)
    assert found.value is not None
    assert found.likely is not None
    assert found.value <= found.likely

    def at(value: int) -> float:
        batch = {"gbs": value} if field == "micro_batch_size" else {}
        return probability(**fields | {field: value} | batch)

    assert at(found.value) == pytest.approx(found.fits_probability)
    assert at(found.value) >= SURE > at(found.value + found.step)
    assert all(one.value is not None and one.value > found.value for one in found.raised_by)


def test_what_limits_the_largest_value_grows_with_it() -> None:
    """Full logits limit the sequence; a loss without them raises it."""
    found = largest_value("llama3.2-1b", "rtx-4090", Strategy(**SMALL), "seq-len")
    assert found.limited_by == "transient tensors of loss"
    assert found.raised_by[0].name == "loss"


@each_row(
    ("question", "fields", "words"),
    [
        ("tp", {}, "allowed: seq-len, mbs, lora-rank"),
        ("lora-rank", {"finetune": "full"}, "needs adapters"),
    ],
)
def test_other_questions_are_refused(question: str, fields: dict[str, Any], words: str) -> None:
    """One line names what is allowed."""
    with pytest.raises(InputError, match=words):
        largest_value("llama3.2-1b", "rtx-4090", Strategy(**SMALL | fields), question)


STUDENT = ["qwen3-1.7b", "rtx-4090", "--gpus", "1", "--gbs", "8", "--seq-len", "2048"]


@pytest.mark.parametrize("model", ["qwen3-1.7b", "llama3-8b"])
def test_one_card_is_answered_with_a_plan_on_one_card(model: str, shardwise: Any) -> None:
    """The command that is printed fits: full training with a smaller state, or adapters."""
    words = [model, *STUDENT[1:]]
    code, text, _ = shardwise("estimate", *words, "--json")
    change = json.loads(text)["change_to_fit"]
    assert code == 1
    assert change["flags"]
    code, text, _ = shardwise("estimate", *words, *shlex.split(change["flags"]), "--json")
    assert (code, json.loads(text)["verdict"]) == (0, "fits")
    assert json.loads(text)["strategy"]["gpus"] == 1
    _, text, _ = shardwise("estimate", *words)
    assert f"shardwise estimate {' '.join(words)} {change['flags']}" in " ".join(text.split())


def test_ways_that_keep_the_result_come_before_others() -> None:
    """A plan that lacks little is not sent to another optimizer or method."""
    model, system = Model.load("llama3.2-1b"), System.load("rtx-4090")
    plan = Strategy(**SMALL | {"gbs": 16, "mbs": 16, "seq_len": 2048, "recompute": "none"})
    found = ways_to_fit(model, system, plan)
    assert found is not None
    assert {one.field for one in found.changes} <= {
        *("loss", "micro_batch_size", "recompute", "checkpoint_place"),
    }
    assert found.fits_probability is not None
    assert found.fits_probability >= SURE


def test_the_fewest_accelerators_of_a_table() -> None:
    """On half as many it does not surely fit, whole or sharded; methods need less in turn."""
    found = compare_methods(["qwen3-4b"], ["rtx-4090"], finetune=["full", "qlora"])
    full, qlora = found.plans
    assert full.gpus is not None
    assert qlora.gpus == 1
    assert full.gpus > 1
    for zero in (0, 3):
        less = estimate(
            *("qwen3-4b", "rtx-4090"),
            finetune="full",
            gpus=full.gpus // 2,
            zero=zero,
            seq_len=2048,
        )
        assert less.fits_probability is not None
        assert less.fits_probability < SURE
    assert found.cheapest() is None  # no price


def test_tables_of_the_command_line(shardwise: Any) -> None:
    """One call each; nothing that fits is exit code 1."""
    flags = ["--models", "llama3.2-1b", "--systems", "rtx-4090,a100-80gb-sxm"]
    code, text, _ = shardwise("compare", *flags, "--finetune", "lora,qlora", "--json")
    assert code == 0
    assert len(json.loads(text)["plans"]) == 4
    _, text, _ = shardwise("compare", *flags)
    assert "a100-80gb-sxm" in text
    assert "cheapest: 1 x a100-80gb-sxm, lora" in text
    code, _, errors = shardwise("compare")
    assert code == 2
    assert "--models" in errors
    code, _, errors = shardwise("systems", "--finetune", "lora")
    assert code == 2
    assert "needs --smallest-for MODEL" in errors
    code, text, _ = shardwise("estimate", *STUDENT[:2], "--finetune", "qlora", "--largest", "mbs",
                              "--seq-len", "512")  # fmt: skip
    assert code == 0
    assert "largest micro-batch of qwen3-1.7b that fits on 1 GPU of rtx-4090: " in text


def test_changes_that_lower_the_memory_of_the_smallest_system(
    monkeypatch: pytest.MonkeyPatch, shardwise: Any
) -> None:
    """Two of different kinds, each with its flags and what an estimate with them needs."""
    few = SimpleNamespace(names=lambda _: ["l40s", "rtx-4090"])
    monkeypatch.setattr(methods, "catalog", few)
    code, text, _ = shardwise("systems", "--smallest-for", "qwen3-4b", "--json")
    assert code == 0
    found = json.loads(text)
    first, changes = found["plans"][0], found["lowered_by"]
    assert [one["flags"] for one in changes] == ["--base-weights nf4", "--base-weights int8"]
    assert changes[0]["reserved_bytes"] < changes[1]["reserved_bytes"] < first["reserved_bytes"]
    one = estimate("qwen3-4b", first["system"], finetune="lora", seq_len=2048, base_weights="nf4")
    assert changes[0]["reserved_bytes"] == pytest.approx(one.memory_bytes.reserved)
    code, text, _ = shardwise("systems", "--smallest-for", "qwen3-4b")
    assert "with nf4 base (--base-weights nf4): " in text


def test_described_software_is_a_mixture_in_every_question() -> None:
    """TRL alone may run DDP or FSDP: all questions have the probability of an estimate."""
    own = {"finetune": "lora", "gpus": 1, "gbs": 1}
    found = largest_value("llama3.2-1b", "rtx-4090", Strategy(**own), "seq-len")
    assert found.value is not None
    found_at, beyond = (
        estimate("llama3.2-1b", "rtx-4090", **own, seq_len=found.value + more).fits_probability
        for more in (0, found.step)
    )
    assert found_at == pytest.approx(found.fits_probability)
    assert beyond is not None
    assert found_at >= SURE > beyond
    (plan,) = compare_methods(["llama3-8b"], ["rtx-4090"], finetune=["qlora"]).plans
    one = estimate("llama3-8b", "rtx-4090", finetune="qlora", gpus=1, seq_len=2048)
    assert plan.fits_probability == pytest.approx(one.fits_probability)


ON_DEVICE: dict[str, Any] = {f"offload_{what}": False for what in ("weights", "optimizer")}


def test_the_largest_value_of_a_search() -> None:
    """No strategy of the space fits with an eighth more, and the plan that is named does."""
    space = Space(gpus=2, global_batch_size=2, stack="accelerate-2026", zero=(1, 3), **ON_DEVICE)
    found = largest_in_search("llama3-8b", "h100-sxm", space, "seq-len")
    assert found is not None
    assert found.value is not None
    case = ("llama3-8b", "h100-sxm")
    one = estimate(*case, found.strategy).fits_probability
    assert one is not None
    assert one >= SURE
    length = found.value * 9 // 8 // 256 * 256
    assert search(*case, space, seq_len=length, fits=SURE, top=1).best == ()
    assert largest_in_search("llama3-70b", "rtx-4090", Space(gpus=1, gbs=1), "mbs") is None


def test_micro_batches_of_a_search_divide_its_batch(shardwise: Any) -> None:
    """The global batch stays."""
    words = ["llama3.2-1b", "rtx-4090", "--gpus", "1", "--gbs", "12", "--seq-len", "4096"]
    code, text, _ = shardwise("search", *words, "--largest", "mbs", "--finetune", "lora", "--json")
    found = json.loads(text)
    assert code == 0
    assert 12 % found["value"] == 0
    assert found["strategy"]["global_batch_size"] == 12
    assert found["fits_probability"] >= SURE
    code, _, errors = shardwise("search", *words, "--largest", "mbs", "--top", "3")
    assert code == 2
    assert "has no effect with --largest" in errors


def test_the_next_command_of_a_search_is_the_plan(shardwise: Any) -> None:
    """With the software that the search describes."""
    words = ["qwen3-0.6b", "h100-sxm", "--gpus", "2", "--gbs", "8", "--seq-len", "1024"]
    code, text, _ = shardwise("search", *words, "--finetune", "lora", "--json")
    assert code == 0
    plan = json.loads(text)["recommended"]
    command = shlex.split(plan["commands"]["estimate"])
    assert command[-2:] == ["--stack", "trl"]
    found = json.loads(shardwise(*command[1:], "--json")[1])
    assert found["step_time_s"] == pytest.approx(plan["step_time_s"])
    assert found["fits_probability"] == pytest.approx(plan["fits_probability"])
