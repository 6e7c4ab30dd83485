"""Rules that readers of fine-tuning trainers share, each on a file or command of a few options."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise import InputError, estimate, read_launch

SFT = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B",
    "dataset_name": "x",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


def file_of(settings: dict[str, Any], name: str = "run.yaml") -> str:
    Path(name).write_text(json.dumps(settings))
    return name


def command(text: str) -> str:
    Path("run.sh").write_text(text + "\n")
    return "run.sh"


def left(launch: Any) -> dict[str, str]:
    return {one.option: one.because for one in launch.not_understood}


def test_the_defaults_of_trl_are_those_of_its_release() -> None:
    """TRL 1.9: weights in fp32 under bf16 autocast, checkpoints, 1,024 tokens, loss in chunks."""
    launch = read_launch(file_of(SFT), gpus=2)
    strategy = launch.strategy
    assert launch.release == "1.9.0"
    assert (strategy["dtype"], strategy["recompute"], strategy["seq_len"]) == ("bf16", "full", 1024)
    assert strategy["loss"] == "chunked_recompute"
    assert strategy["global_batch_size"] == 2 * 4 * 2
    assert "weight_dtype" not in strategy  # that of the stack, fp32
    assert str(launch.origins["loss"]) == "trainer default"
    assert str(launch.origins["zero"]) == "assumed"  # a file alone does not say who starts it
    old = read_launch(file_of(SFT | {"max_seq_length": 512, "bf16": True}), gpus=2)
    assert old.release == "before 1.0"
    assert old.strategy["seq_len"] == 512
    assert "loss" not in old.strategy
    assert "recompute" not in old.strategy


def test_the_world_size_is_asked_for() -> None:
    """Without it the batch is not known either, and the accumulation says what to set."""
    launch = read_launch(file_of(SFT))
    assert launch.missing == ("gpus", "global_batch_size")
    assert "set gpus" in left(launch)["gradient_accumulation_steps"]


def test_trl_with_the_trainers_own_names() -> None:
    """Scripts without TRL have the defaults of the Trainer: 8 samples, no checkpoints, fp32."""
    text = "torchrun --nproc_per_node 4 run_clm.py --model_name_or_path meta-llama/Meta-Llama-3-8B"
    launch = read_launch(
        command(f"{text} --learning_rate 1e-5 --block_size 512 --num_train_epochs 1")
    )
    strategy = launch.strategy
    assert launch.release is None
    assert (strategy["dtype"], strategy["micro_batch_size"], strategy["gpus"]) == ("fp32", 8, 4)
    assert "recompute" not in strategy
    assert strategy["seq_len"] == 512


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("accelerate launch --num_processes 4 sft.py", {"gpus": 4, "zero": 0}),
        (
            "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 4 sft.py",
            {"gpus": 4, "zero": 3, "stack": "accelerate-2026"},
        ),
        (
            "accelerate launch --use_deepspeed --zero_stage 2 --num_processes 4 sft.py",
            {"gpus": 4, "zero": 2, "stack": "deepspeed-2026"},
        ),
        ("accelerate launch --config_file fsdp.yaml sft.py", {"gpus": 8, "zero": 3}),
        ("torchrun --nnodes 2 --nproc_per_node 8 sft.py", {"gpus": 16, "zero": 0}),
        ("deepspeed --include localhost:0,1 sft.py --deepspeed z.json", {"gpus": 2, "zero": 3}),
        ("trl sft --accelerate_config zero3 --num_processes 2", {"zero": 3}),
        ("CUDA_VISIBLE_DEVICES=0 python sft.py", {"gpus": 1, "zero": 0}),
    ],
)
def test_launchers_of_a_command(words: str, fields: dict[str, Any]) -> None:
    """Who starts the ranks says how many there are, and who shards."""
    Path("fsdp.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 2,"
        " fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n"
    )
    Path("z.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}')
    options = " ".join(f"--{name} {value}" for name, value in SFT.items())
    strategy = read_launch(command(f"{words} {options}")).strategy
    assert {name: strategy.get(name) for name in fields} == fields


def test_auto_values_of_deepspeed_are_the_trainers() -> None:
    """Types and sizes; another size than the trainer's is refused, as DeepSpeed does."""
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    auto = {"enabled": "auto"}
    Path("z.json").write_text(json.dumps({"zero_optimization": zero, "bf16": auto, "fp16": auto}))
    launch = read_launch(file_of(SFT | {"deepspeed": "z.json", "fp16": True}), gpus=2)
    assert launch.strategy["dtype"] == "fp16"
    assert launch.strategy["offload_optimizer"] is True
    own = {"zero_optimization": zero, "optimizer": {"type": "Adafactor"}}
    launch = read_launch(file_of(SFT | {"deepspeed": own, "optim": "adamw_torch"}), gpus=2)
    assert launch.strategy["optimizer"] == "adafactor"
    size = {"train_micro_batch_size_per_gpu": 3}
    with pytest.raises(InputError, match="must be the 2 of the trainer, or auto"):
        read_launch(file_of(SFT | {"deepspeed": {"zero_optimization": zero} | size}), gpus=2)


def test_a_configuration_that_is_not_there_is_known_by_its_name() -> None:
    """With a stage in it, and that is said; else it is refused."""
    name = "configs/ds_z2_offload_config.json"
    launch = read_launch(file_of(SFT | {"deepspeed": name}), gpus=2)
    assert (launch.strategy["zero"], launch.strategy["offload_optimizer"]) == (2, True)
    assert str(launch.origins["zero"]) == "assumed"
    assert "by its name ZeRO 2" in left(launch)["deepspeed"]
    with pytest.raises(InputError, match="no such file"):
        read_launch(file_of(SFT | {"deepspeed": "mine.json"}), gpus=2)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"fsdp": "full_shard auto_wrap"}, {"zero": 3, "stack": "accelerate-2026"}),
        ({"fsdp": "shard_grad_op auto_wrap"}, {"zero": 2}),
        ({"fsdp": True, "fsdp_config": {"reshard_after_forward": False}}, {"zero": 2}),
        ({"fsdp": "full_shard", "fsdp_config": {"version": 1}}, {"stack": "huggingface-2024"}),
        ({"fsdp": "full_shard", "max_seq_length": 512}, {"stack": "huggingface-2024"}),
        ({"fsdp": "full_shard offload"}, {"offload_weights": True, "offload_optimizer": True}),
        (
            {"fsdp": "full_shard", "fsdp_config": {"activation_checkpointing": True}},
            {"recompute": "full"},
        ),
    ],
)
def test_fsdp_of_the_trainer(options: dict[str, Any], fields: dict[str, Any]) -> None:
    """As words or as true, with or without the prefix of accelerate."""
    strategy = read_launch(file_of(SFT | options), gpus=4).strategy
    assert {name: strategy.get(name) for name in fields} == fields


def test_types_of_trained_weights() -> None:
    """Loaded in 16 bits: pure with DDP, fp32 with FSDP, which accelerate makes of trained ones."""
    half = SFT | {"dtype": "bfloat16"}
    alone = read_launch(file_of(half), gpus=1).strategy
    pure = {"weight_dtype": "compute", "master_dtype": "none", "moment_dtype": "bf16"}
    assert pure.items() <= alone.items()
    assert "weight_dtype" not in read_launch(file_of(half | {"fsdp": True}), gpus=2).strategy
    lora = {"use_peft": True, "load_in_4bit": True}
    adapters = read_launch(file_of(half | lora), gpus=1).strategy
    assert adapters["base_weights"] == "nf4_single"  # TRL does not quantize scales again
    assert adapters["lora_targets"] == ("q_proj", "v_proj")  # PEFT's
    assert "weight_dtype" not in adapters
    wide = read_launch(file_of(SFT | {"use_peft": True}), gpus=1).strategy
    assert wide["base_weights"] == "fp32"  # TRL loads fp32 unless a type is named
    nested = {"use_bnb_nested_quant": True, "lora_modules_to_save": ["lm_head"]}
    both = read_launch(file_of(half | lora | nested), gpus=1).strategy
    assert both["base_weights"] == "nf4"
    assert both["lora_targets"] == ("q_proj", "v_proj", "head")


@pytest.mark.parametrize(
    ("name", "optimizer", "is_listed"),
    [
        ("adamw_torch", "adamw", False),
        ("adamw_bnb_8bit", "adamw-8bit", False),
        ("paged_adamw_8bit", "adamw-8bit", True),
        ("adamw_torch_4bit", "adamw-8bit", True),
        ("adafactor", "adafactor", False),
        ("lion_32bit", "sgd-momentum", True),
        ("galore_adamw", "adamw", True),
    ],
)
def test_optimizers(name: str, optimizer: str, is_listed: bool) -> None:
    """Those that are predicted as another one are listed."""
    launch = read_launch(file_of(SFT | {"optim": name}), gpus=1)
    assert launch.strategy["optimizer"] == optimizer
    assert ("optim" in left(launch)) == is_listed


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            SFT | {"finetuning_type": "freeze", "stage": "sft"},
            "is not modeled; allowed: full, lora",
        ),
        (SFT | {"per_device_train_batch_size": 0}, "must be a whole number of at least 1"),
        (SFT | {"bf16": True, "fp16": True}, "bf16 and fp16 exclude each other"),
        (SFT | {"load_in_4bit": True}, "needs adapters: set use_peft"),
        (SFT | {"torch_dtype": "int7"}, "allowed: auto, bf16"),
        (
            {"base_model": "x", "micro_batch_size": 1, "adapter": "lora"},
            "is required with an adapter",
        ),
        ({"base_model": "x", "micro_batch_size": 1, "adapter": "vera"}, "allowed: lora, qlora"),
        ({"base_model": "x", "micro_batch_size": 1, "rl": "no"}, "allowed: dpo"),
        ({"base_model": "x", "micro_batch_size": 4, "batch_size": 6}, "must be a multiple of"),
        ({"model": "x", "tuner_type": "vera"}, "is not modeled; allowed: full, lora"),
    ],
)
def test_wrong_values_get_a_clear_line(settings: dict[str, Any], problem: str) -> None:
    """With file, option and what is allowed."""
    with pytest.raises(InputError) as caught:
        read_launch(file_of(settings), gpus=1, model="llama3-8b")
    assert str(caught.value).startswith("run.yaml: ")
    assert problem in str(caught.value)


def test_commands_are_read_with_their_variables() -> None:
    """Arithmetic of expr, here-documents of read, and variables that are set elsewhere."""
    swift = "NPROC_PER_NODE=$n swift sft --model meta-llama/Meta-Llama-3-8B --max_length 512"
    swift = f"n=4\n{swift}"
    steps = "--gradient_accumulation_steps $(expr 16 / $n)"
    assert read_launch(command(f"{swift} {steps}")).strategy["global_batch_size"] == 16
    words = "openrlhf.cli.train_sft \\\n --model.model_name_or_path meta-llama/Meta-Llama-3-8B \\\n"
    text = f"read -r -d '' words <<EOF\n{words} --train.micro_batch_size 2\nEOF\n"
    launch = read_launch(command(f"{text}deepspeed --module $words"), gpus=8)
    assert (launch.launcher, launch.strategy["micro_batch_size"]) == ("openrlhf", 2)
    open_ = f"{swift} --per_device_train_batch_size $SIZE --output_dir $HERE"
    with pytest.raises(InputError, match="--set SIZE=VALUE"):
        read_launch(command(open_))
    strategy = read_launch(command(open_), variables={"SIZE": "3"}).strategy
    assert strategy["micro_batch_size"] == 3


def test_variables_of_nested_options_are_named() -> None:
    """Of a number, and of the model, which the user may name."""
    text = "python3 -m verl.trainer.main_ppo data.train_files=$HERE"
    text += " actor_rollout_ref.model.path=$PATH_"
    launch = read_launch(command(text), gpus=8)
    assert launch.model is None
    assert "the variable PATH_" in left(launch)["actor_rollout_ref.model.path"]
    with pytest.raises(InputError, match="--set N=VALUE"):
        read_launch(command(f"{text} actor_rollout_ref.rollout.n=$N"), gpus=8)


def test_a_json_of_the_trainer_is_none_of_deepspeed() -> None:
    """Though both have bf16 and gradient_accumulation_steps."""
    assert read_launch(file_of(SFT | {"bf16": True}, "run.json"), gpus=1).launcher == "trl"


def test_weights_in_16_bits_are_trained_with_all_that_belongs_to_them() -> None:
    """AdamW of torch on 16-bit weights: no masters, gradients and moments in their type."""
    half = read_launch(file_of(SFT | {"dtype": "bfloat16"}), gpus=1).strategy
    assert estimate("llama3-8b", "h100-sxm", half).step_time_s > 0
    for name in ("master_dtype", "gradient_dtype", "moment_dtype"):
        with pytest.raises(InputError):
            estimate("llama3-8b", "h100-sxm", {k: v for k, v in half.items() if k != name})


def test_what_another_trainer_reads_is_refused() -> None:
    """Megatron-SWIFT, and LLaMA-Factory with Megatron-LM inside."""
    with pytest.raises(InputError, match="Megatron-SWIFT"):
        read_launch(command("megatron sft --model x --tensor_model_parallel_size 2"))
    factory = {
        "model_name_or_path": "x",
        "stage": "sft",
        "finetuning_type": "full",
        "use_mca": True,
    }
    with pytest.raises(InputError, match="runs Megatron-LM inside"):
        read_launch(file_of(factory))


def test_the_first_of_several_commands_is_read() -> None:
    """And that is said."""
    one = "swift sft --model meta-llama/Meta-Llama-3-8B --max_length 512"
    launch = read_launch(command(f"{one}\nswift rlhf --model y"), gpus=1)
    assert "the first of 2 training commands" in left(launch)["command"]
    assert launch.strategy["task"] == "sft"


def test_models_by_folder_catalog_or_name() -> None:
    """A name that is none of these asks for the model; the strategy is read."""
    launch = read_launch(file_of(SFT | {"model_name_or_path": "/models/mine"}), gpus=1)
    assert launch.model is None
    assert "name the model" in left(launch)["model_name_or_path"]
    copied = read_launch(
        file_of(SFT | {"model_name_or_path": "unsloth/Meta-Llama-3.1-8B-bnb-4bit"})
    )
    assert copied.model is not None
    assert copied.model.name == "llama3-8b"


def test_a_file_is_estimated_as_its_method() -> None:
    """The same as the fields by hand: QLoRA of LLaMA-Factory on one GPU."""
    qlora = {
        "model_name_or_path": "meta-llama/Meta-Llama-3-8B",
        "stage": "sft",
        "finetuning_type": "lora",
        "quantization_bit": 4,
        "cutoff_len": 2048,
        "per_device_train_batch_size": 1,
        "bf16": True,
    }
    launch = read_launch(file_of(qlora), gpus=1)
    found = estimate("llama3-8b", "rtx-4090", launch.strategy)
    by_hand = estimate(
        "llama3-8b",
        "rtx-4090",
        finetune="qlora",
        lora_rank=8,
        seq_len=2048,
        zero=0,
        stack="accelerate-2026",
    )
    assert found.step_time_s == pytest.approx(by_hand.step_time_s)
    assert found.memory_bytes.reserved == pytest.approx(by_hand.memory_bytes.reserved)
