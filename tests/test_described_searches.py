"""Searches with software that is described: the facts of an estimate, and what trainers can do."""

import shlex

import pytest

from rows import each_row
from shardwise import InputError, Model, Space, System, estimate, search
from shardwise.planning.search.results import SearchResult

H100 = System.load("h100-sxm")
DENSE, EXPERTS = "llama3-8b", "qwen3-30b-a3b"


def searched(model: str, stack: str, **fields: object) -> SearchResult:
    """A search of 16 GPUs for fine-tuning."""
    space = {"gpus": 16, "gbs": 64, "seq_len": 4096, "task": "sft", "stack": stack, **fields}
    return search(model, H100, space)


@each_row(
    ("model", "stack"),
    [(EXPERTS, "unsloth"), (EXPERTS, "HF Trainer, DeepSpeed ZeRO-3"), (DENSE, "trl")],
)
def test_a_plan_is_estimated_as_it_was_found(model: str, stack: str) -> None:
    """Facts that depend on the model, such as kernels of experts, hold in a search too."""
    best = searched(model, stack, zero=3).best[0]
    own = {name: value for name, value in best.strategy.items() if name != "stack"}
    again = estimate(model, H100, own | {"stack": stack})
    assert again.step_time_s == pytest.approx(best.step_time_s, rel=1e-9)
    assert again.fits_probability == pytest.approx(best.fits_probability, abs=1e-6)


@each_row("stack", ["llama-factory", "axolotl", "HF Trainer, DeepSpeed ZeRO-1"])
def test_the_trainer_of_transformers_has_no_pipelines(stack: str) -> None:
    """DeepSpeed has, for its own modules: its engine can do more than what calls it."""
    fields = {"gpus": 16, "gbs": 64, "seq_len": 4096, "pp": 2, "zero": 1}
    with pytest.raises(InputError, match="supports pp 1 only"):
        estimate(DENSE, H100, stack=stack, **fields)
    assert estimate(DENSE, H100, stack="deepspeed", **fields).micro_batches == 8
    found = searched(DENSE, stack)
    assert {plan.strategy["pp"] for plan in found.best} == {1}


@each_row("stack", ["ms-swift", "megatron-swift", "pytorch fsdp", "mindspeed"])
def test_trainers_fine_tune_on_stacks_for_pretraining(stack: str) -> None:
    fields = {"gpus": 8, "gbs": 64, "seq_len": 2048, "task": "sft", "lora_rank": 16}
    assert estimate(DENSE, H100, stack=stack, **fields).trainable_parameters < 1e9


def test_what_no_stack_of_a_space_can_run_is_named() -> None:
    found = searched(DENSE, "megatron-lm-2026", lora_rank=16)
    assert not found.best
    assert found.smallest is not None
    problem = "megatron-lm-2026 cannot run task sft, lora_rank 16; --any-software lifts this"
    assert found.smallest.problem == problem
    lifted = Space.validated({"task": "sft", "stack": "megatron-lm-2026", "any_software": True})
    assert lifted.never_run(H100) == {}


def test_software_of_another_accelerator_is_searched_and_said() -> None:
    found = search("llama3.2-1b", "rtx-4090", gpus=8, gbs=64, seq_len=4096, stack="gaudi")
    assert found.best
    assert "  gaudi does not run on rtx-4090, as far as is known" in found.software


def test_no_row_is_left_with_software_that_may_be_several() -> None:
    """Experts on few GPUs: of some layouts none is left when memory is compared."""
    fields = {"seq_len": 4096, "task": "sft", "stack": "trl"}
    found = search(EXPERTS, H100, gpus=8, gbs=64, grad_sync="stack", **fields)
    assert found.best


@each_row(
    ("stack", "fields", "tried"),
    [
        ("huggingface-2024", {}, ("stack", "micro_batch")),
        ("automodel-2025", {}, ("stack", "micro_batch")),
        ("huggingface-2024", {"grad_sync": "step"}, ("step",)),
        ("huggingface-2024", {"lora_rank": 16}, ("stack",)),
        ("huggingface-2024", {"training": False}, ("stack",)),
        ("torchtitan-2025", {}, ("stack",)),
        ("meta-2024", {}, ("stack",)),
    ],
)
def test_when_gradients_are_reduced(stack: str, fields: dict[str, object], tried: object) -> None:
    """Both where the software does it once per step unless an option is set."""
    space = Space.validated({"stack": stack, **fields})
    assert space.settled(Model.load(DENSE), H100).values("grad_sync", H100) == tried


def test_reducing_more_often_saves_what_offload_would() -> None:
    """Llama 3 8B in full on A100s of 40 GB: ZeRO-3 without unsharded gradients in fp32."""
    space = {"gpus": 8, "gbs": 64, "seq_len": 8192, "task": "sft", "stack": "trl"}
    found = search(DENSE, "a100-40gb-sxm", space)
    best = found.best[0].strategy
    assert (best["zero"], best["grad_sync"], found.widened) == (3, "micro_batch", ())
    once = search(DENSE, "a100-40gb-sxm", space | {"grad_sync": "stack"})
    assert "offload_optimizer" in once.widened
    assert found.best[0].step_time_s < once.best[0].step_time_s
    words = shlex.split(found.recommended.commands["estimate"]) if found.recommended else []
    assert words[words.index("--grad-sync") + 1] == "micro_batch"


@each_row(
    ("stack", "fields", "why"),
    [
        ("deepspeed", {"zero": 0, "offload_optimizer": True}, "ZeRO 1 to 3"),
        ("trl", {"zero": 0, "offload_weights": True, "offload_optimizer": True}, "moves both"),
        ("llama-factory", {"zero": 3, "cp": 2}, "cp 1 only"),
        ("axolotl", {"zero": 3, "cp": 2, "cp_exchange": "all_to_all"}, "cp_exchange ring only"),
    ],
)
def test_what_a_trainer_does_by_default_allows_nothing_else(
    stack: str, fields: dict[str, object], why: str
) -> None:
    """A default stage without shards is none that offload runs with."""
    with pytest.raises(InputError, match=why):
        estimate(DENSE, H100, gpus=8, gbs=64, stack=stack, **fields)


@each_row(
    ("stack", "zero", "engine"),
    [("llama-factory", 0, "ddp"), ("axolotl", 2, "fsdp1"), ("axolotl", 3, "deepspeed3")],
)
def test_fields_with_one_value_decide_on_the_software(stack: str, zero: int, engine: str) -> None:
    """As in an estimate that sets them: without ZeRO, LLaMA-Factory runs with DDP."""
    plan = searched(DENSE, stack, zero=zero, lora_rank=16, lora_targets=["all-linear"]).recommended
    assert plan is not None
    own = estimate(DENSE, H100, {**plan.strategy, "stack": stack})
    assert own.step_time_s == pytest.approx(plan.step_time_s, rel=1e-9)
    assert own.software.engine == engine
