"""Plans as files of TRL, LLaMA-Factory, axolotl and NeMo AutoModel, and read again."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwise import Model, Strategy, System, estimate, export, read_launch
from shardwise.errors import Fault, InputError
from shardwise.launchers.registry import launcher_of

FULL = {"gpus": 8, "gbs": 64, "zero": 3, "recompute": "full", "seq_len": 4096}
LORA = {
    "gpus": 1,
    "gbs": 8,
    "zero": 0,
    "recompute": "full",
    "lora_rank": 16,
    "lora_targets": "all-linear",
    "seq_len": 2048,
    "task": "sft",
}
QLORA = LORA | {"base_weights": "nf4", "optimizer": "adamw-8bit"}
PAIRS = LORA | {"gpus": 2, "task": "dpo", "lora_targets": "qv", "attention_kernel": "flash2"}
TRAINERS = ("trl", "llama-factory", "axolotl")
SAME = 1e-9


def settings(trainer: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The options that are written for a plan, which read back is the plan."""
    made = export(trainer, "llama3-8b", "h100-sxm", fields)
    own = [one for one in made.read_back.differences if one.field != "stack.fp32_log_probabilities"]
    assert own == []
    assert made.read_back.estimate is not None
    found: dict[str, Any] = yaml.safe_load(made.files[0].text)
    return found


@pytest.mark.parametrize("trainer", [*TRAINERS, "automodel"])
@pytest.mark.parametrize(
    "fields",
    [
        FULL,
        FULL | {"fsdp_reshard": False, "micro_batch_size": 2},
        LORA,
        QLORA,
        LORA | {"gpus": 2, "zero": 3, "adapter": "dora"},
    ],
)
def test_what_is_written_is_read_as_the_plan(trainer: str, fields: dict[str, Any]) -> None:
    """With the same step time and memory."""
    settings(trainer, fields)


DEEPSPEED = FULL | {"stack": "deepspeed-2026"}


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    "fields",
    [
        {"zero": 0, "lora_rank": 16, "lora_targets": "qv"},
        {"zero": 1, "dtype": "fp16"},
        {"zero": 2, "micro_batch_size": 2, "gradient_dtype": "fp32", "dp_overlap": False},
        {"zero": 3, "fsdp_reshard": False},
        {"zero": 3, "offload_optimizer": True, "offload_weights": True},
        {"zero": 3, "offload_optimizer": True, "cpu_optimizer": "superoffload"},
        {"zero": 3, "lora_rank": 16, "lora_targets": "all-linear", "optimizer": "adamw-8bit"},
    ],
)
def test_plans_of_deepspeed_have_its_configuration(trainer: str, fields: dict[str, Any]) -> None:
    """In place of FSDP, with sizes and optimizer of the trainer, which has no other engine then."""
    options = settings(trainer, DEEPSPEED | fields)
    config = options["deepspeed"]
    assert config["zero_optimization"]["stage"] == fields["zero"]
    assert config["train_micro_batch_size_per_gpu"] == "auto"
    assert ("optimizer" in config) == fields.get("offload_optimizer", False)
    assert not {"fsdp", "fsdp_config", "pure_bf16", "accelerator_config"} & options.keys()


def test_described_trainers_run_with_deepspeed() -> None:
    """Most LLaMA-Factory runs do, so that its plan and its file are of the same engine."""
    fields = FULL | {"stack": "llama-factory"}
    made = export("llama-factory", "llama3-8b", "h100-sxm", fields)
    assert "deepspeed" in yaml.safe_load(made.files[0].text)
    assert made.read_back.estimate is not None
    own = estimate("llama3-8b", "h100-sxm", fields)
    assert made.read_back.estimate.step_time_s == pytest.approx(own.step_time_s, rel=SAME)


def test_axolotl_splits_the_context_with_deepspeed_too() -> None:
    """By ring attention, whose degree is an option of its own."""
    stack = {"base": "deepspeed-2026", "capabilities": {"fields": {"cp_exchange": ["ring"]}}}
    made = export("axolotl", "llama3-8b", "h100-sxm", DEEPSPEED | {"cp": 2, "stack": stack})
    assert yaml.safe_load(made.files[0].text)["context_parallel_size"] == 2


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    "field", [{"tp": 2}, {"zero": 1, "compile": "whole"}, {"optimizer": "muon"}]
)
def test_what_trainers_do_not_set_of_deepspeed_is_refused(
    trainer: str, field: dict[str, Any]
) -> None:
    """Degrees that need code of its own."""
    with pytest.raises(InputError) as refused:
        export(trainer, "llama3-8b", "h100-sxm", DEEPSPEED | field)
    assert [*field][-1] in {fault.field for fault in refused.value.faults}


@pytest.mark.parametrize(
    ("trainer", "options"),
    [
        ("trl", {"loss_type": ["sigmoid"], "lora_target_modules": ["q_proj", "v_proj"]}),
        ("llama-factory", {"stage": "dpo", "lora_target": "q_proj,v_proj", "flash_attn": "fa2"}),
        ("axolotl", {"rl": "dpo", "attn_implementation": "flash_attention_2"}),
    ],
)
def test_pairs_of_answers_have_the_options_of_each_trainer(
    trainer: str, options: dict[str, Any]
) -> None:
    """Which say the task, modules and kernels."""
    assert options.items() <= settings(trainer, PAIRS).items()


@pytest.mark.parametrize(
    ("trainer", "fields", "options"),
    [
        ("trl", {"loss": "chunked_recompute"}, {"loss_type": "chunked_nll"}),
        ("trl", {"loss": "fused_linear"}, {"use_liger_kernel": True}),
        ("trl", {"batching": "packed"}, {"packing": True, "packing_strategy": "bfd"}),
        ("trl", {"batching": "padding_free"}, {"packing": False, "padding_free": True}),
        ("axolotl", {"batching": "packed"}, {"sample_packing": True}),
        ("axolotl", {"batching": "padding_free"}, {"batch_flattening": True}),
        ("llama-factory", {"batching": "packed"}, {"packing": True, "neat_packing": True}),
        ("trl", {"base_weights": "nf4_single"}, {"use_bnb_nested_quant": None}),
        ("llama-factory", {"base_weights": "nf4_single"}, {"double_quantization": False}),
        ("llama-factory", {"checkpoint_place": "host"}, {"use_unsloth_gc": True}),
        ("axolotl", {"checkpoint_place": "host"}, {"gradient_checkpointing": "offload"}),
        ("axolotl", {"loss": "chunked"}, {"chunked_cross_entropy": True}),
        ("axolotl", {"base_weights": "int8"}, {"load_in_8bit": True}),
    ],
)
def test_options_of_a_field(trainer: str, fields: dict[str, Any], options: dict[str, Any]) -> None:
    """As each trainer names them."""
    found = settings(trainer, LORA | fields)
    assert {name: found.get(name) for name in options} == options


def test_an_optimizer_in_8_bits_is_that_of_torchao_on_shards() -> None:
    """FSDP2 does not run that of bitsandbytes (axolotl's schema refuses it)."""
    assert settings("axolotl", QLORA)["optimizer"] == "adamw_bnb_8bit"
    sharded = settings("axolotl", QLORA | {"gpus": 2, "zero": 3})
    assert sharded["optimizer"] == "adamw_torch_8bit"


def test_degrees_of_axolotl_and_automodel() -> None:
    """Tensor and context parallelism with FSDP2; pipelines of AutoModel."""
    mesh = {"tp": 2, "cp": 2, "tp_exchange": "all_reduce", "cp_exchange": "ring"}
    found = settings("axolotl", FULL | mesh | {"gpus": 16})
    assert (found["tensor_parallel_size"], found["context_parallel_size"]) == (2, 2)
    staged = settings("automodel", FULL | {"gpus": 16, "tp": 2, "pp": 2})
    assert staged["distributed"]["pp_size"] == 2
    steps = staged["step_scheduler"]
    assert steps["local_batch_size"] == 64 // 4  # all micro-batches of a pipeline


@pytest.mark.parametrize(("recipe", "word"), [("fp8_tensor", "tensorwise"), ("fp8_row", "rowwise")])
def test_scales_of_fp8_in_automodel(recipe: str, word: str) -> None:
    found = settings("automodel", FULL | {"quantization": recipe})
    assert found["fp8"]["recipe_name"] == word
    row = FULL | {"quantization": recipe, "quantized_weights": True, "stack": "automodel-2025"}
    plan = Strategy.validated(row)
    if recipe == "fp8_tensor":
        assert estimate("llama3-8b", "h100-sxm", plan).step_time_s > 0
    else:
        with pytest.raises(InputError, match="FSDP gathers fp8 with scales per tensor"):
            estimate("llama3-8b", "h100-sxm", plan)


def faults(trainer: str, fields: dict[str, Any]) -> list[Fault]:
    """What a trainer has no option for."""
    launcher, model = launcher_of(trainer), Model.load("llama3-8b")
    strategy = Strategy.validated(LORA | fields | {"stack": launcher.stack})
    return list(launcher.faults(model, strategy.resolved(model, System.load("h100-sxm"))))


@pytest.mark.parametrize(
    ("trainer", "fields", "problem"),
    [
        ("trl", {"loss": "cut"}, "loss: 'cut': no option sets it"),
        ("trl", {"checkpoint_place": "host"}, "checkpoint_place: 'host'"),
        ("trl", {"task": "orpo"}, "task: 'orpo'"),
        ("trl", {"lora_targets": None}, "lora_targets: null: adapters are of modules"),
        ("llama-factory", {"loss": "chunked"}, "loss: 'chunked'"),
        ("axolotl", {"base_weights": "fp32"}, "base_weights: 'fp32'"),
        ("automodel", {"optimizer": "adafactor"}, "optimizer: 'adafactor'"),
        ("llama-factory", {"batching": "padding_free"}, "batching: 'padding_free'"),
        ("trl", {"batching": "packed", "task": "dpo"}, "batching: 'packed'"),
    ],
)
def test_what_has_no_option_is_refused(trainer: str, fields: dict[str, Any], problem: str) -> None:
    """By its field, with what is allowed."""
    assert any(str(fault).startswith(f"strategy: {problem}") for fault in faults(trainer, fields))


def test_weights_of_axolotl_are_trained_in_16_bits_without_fsdp() -> None:
    """It loads them so; a plan has to say it."""
    alone = {"lora_rank": None, "lora_targets": None}
    pure = {"weight_dtype": "compute", "master_dtype": "none", "gradient_dtype": "compute"}
    pure |= {"moment_dtype": "bf16"}
    assert [one.field for one in faults("axolotl", alone)] == ["weight_dtype"]
    assert faults("axolotl", alone | pure) == []
    sharded = {"gpus": 2, "zero": 3}
    assert [one.field for one in faults("axolotl", alone | pure | sharded)] == ["weight_dtype"]
    assert faults("axolotl", alone | sharded) == []


@pytest.mark.parametrize("trainer", [*TRAINERS, "automodel"])
def test_the_script_starts_the_file_on_as_many_gpus(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read with its file next to it, it is the plan with its number of GPUs."""
    monkeypatch.chdir(tmp_path)
    made = export(trainer, "llama3-8b", "h100-sxm", FULL)
    config, script = made.files
    Path("plan.yaml").write_text(config.text)
    Path("plan.sh").write_text(script.text)
    launch = read_launch("plan.sh", variables={"CONFIG": "plan.yaml"})
    assert launch.strategy["gpus"] == 8
    found = estimate("llama3-8b", "h100-sxm", launch.strategy)
    assert found.step_time_s == pytest.approx(made.estimate.step_time_s, rel=SAME)


@pytest.mark.parametrize(
    ("trainer", "options"),
    [
        ("trl", {"packing": False}),
        ("llama-factory", {"packing": False}),
        ("axolotl", {"sample_packing": False}),
        ("automodel", {"packed_sequence": {"packed_sequence_size": 0}}),
    ],
)
def test_padded_sequences_of_several_lengths_are_not_packed(
    trainer: str, options: dict[str, Any]
) -> None:
    """Plans without lengths have full rows, those with lengths are padded unless they say more."""
    fields = LORA | {"data_lengths": (300, 900, 2048)}
    made = export(trainer, "llama3-8b", "h100-sxm", fields)
    assert options.items() <= yaml.safe_load(made.files[0].text).items()


def test_stages_of_automodel_differ_by_one_layer() -> None:
    """27 layers on 2 x 7 stages: 2 on each but the last, by the layers of the longest."""
    fields = {"gpus": 16, "gbs": 64, "pp": 2, "vpp": 7, "ep": 8, "zero": 3, "seq_len": 4096}
    made = export("automodel", "deepseek-v2-lite", "h100-sxm", fields)
    pipeline = yaml.safe_load(made.files[0].text)["distributed"]["pipeline"]
    assert pipeline["layers_per_stage"] == 2
    assert made.read_back.differences == ()
    with pytest.raises(InputError, match="no layers_per_stage cuts 32 layers"):
        export("automodel", "llama3-8b", "h100-sxm", gpus=24, gbs=96, pp=3, vpp=11, zero=3)
