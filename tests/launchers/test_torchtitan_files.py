"""Configurations of torchtitan that others wrote: TOML, scripts and Python, and their faults."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from shardwise import Model, Strategy
from shardwise.config.launch import Launch
from shardwise.errors import InputError
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.torchtitan import LAUNCHER
from torchtitan_plans import imported, made

PLAIN = """
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 2
seq_len = 8192

[parallelism]
data_parallel_shard_degree = 8
"""
# Facts of torchtitan/models/llama3/train_configs/llama3_405b.toml, pytorch/torchtitan 01424cb
# (v0.1): "a preset for 128 H100 GPUs".
LLAMA_405B = """
[job]
description = "Llama 3 405B training"
[profiling]
enable_profiling = true
profile_freq = 100
[metrics]
enable_tensorboard = true
[model]
name = "llama3"
flavor = "405B"
tokenizer_path = "./assets/tokenizer/original/tokenizer.model"
converters = "float8"
[optimizer]
name = "AdamW"
lr = 8e-5
[lr_scheduler]
warmup_steps = 600
[training]
batch_size = 2
seq_len = 8192
max_norm = 1.0
steps = 3000
compile = true
dataset = "c4"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
enable_async_tensor_parallel = true
pipeline_parallel_degree = 1
context_parallel_degree = 1
[checkpoint]
enable_checkpoint = false
interval = 500
model_weights_only = false
[activation_checkpoint]
mode = 'full'
[float8]
enable_fsdp_float8_all_gather = true
precompute_float8_dynamic_scale_for_fsdp = true
filter_fqns = "output"
"""
# Facts of torchtitan/models/deepseek_v3/train_configs/deepseek_v3_671b.toml, pytorch/torchtitan
# 0a8d2b0 (between v0.1 and v0.2).
DEEPSEEK_671B = """
[job]
print_args = false
[profiling]
enable_memory_snapshot = false
[metrics]
log_freq = 10
[model]
name = "deepseek_v3"
flavor = "671B"
hf_assets_path = "./assets/hf/DeepSeek-V3.1-Base"
[optimizer]
name = "AdamW"
lr = 2.2e-4
[lr_scheduler]
warmup_steps = 2_000
decay_type = "cosine"
[training]
local_batch_size = 4
seq_len = 4096
steps = 10_000
dataset = "c4"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "default"
tensor_parallel_degree = 1
enable_async_tensor_parallel = false
pipeline_parallel_degree = 1
pipeline_parallel_schedule = "Interleaved1F1B"
expert_parallel_degree = 1
expert_tensor_parallel_degree = 1
[checkpoint]
enable = true
initial_load_in_hf = true
[activation_checkpoint]
mode = "selective"
selective_ac_option = 'op'
[compile]
enable = true
components = ["loss"]
[quantize.dense.float8]
enable_fsdp_float8_all_gather = false
filter_fqns = ["output", "router.gate"]
[quantize.moe.float8]
fqns = ["experts"]
"""


def read(text: str, name: str = "run.toml", **known: object) -> Launch:
    assert LAUNCHER.recognise(text, name)
    return LAUNCHER.read(LaunchText(source=name, text=text, **known))  # type: ignore[arg-type]


def options_left(launch: Launch) -> list[str]:
    return [one.option for one in launch.not_understood]


def with_lines(section: str, *lines: str) -> str:
    """The plain file with more lines in a section."""
    added = "\n".join([f"[{section}]", *lines])
    known = f"[{section}]"
    return PLAIN.replace(known, added) if known in PLAIN else f"{PLAIN}\n{added}\n"


def test_a_published_toml_of_release_0_1_is_understood() -> None:
    """128 GPUs, FSDP over 16 x tensor parallelism over 8, fp8 with fp8 gathers, full recompute."""
    launch = read(LLAMA_405B, gpus=128)
    model, strategy = imported(launch)

    assert (model.name, launch.not_understood) == ("llama3-405b", ())
    resolved = strategy.resolved(model)
    assert (resolved.tp, resolved.dp, resolved.global_batch_size) == (8, 16, 32)
    assert (resolved.micro_batch_size, resolved.seq_len) == (2, 8192)
    assert (resolved.quantization, resolved.quantized_weights) == ("fp8_tensor", True)
    assert (resolved.recompute, resolved.tp_overlap, resolved.zero) == ("full", "ring", 3)
    assert launch.strategy["stack"] == "torchtitan-2025"


def test_a_published_toml_of_deepseek_is_understood() -> None:
    """Of which the loss alone is compiled: eager layers, and no fp32 copies of logits."""
    launch = read(DEEPSEEK_671B, gpus=512)
    model, strategy = imported(launch)

    assert (model.hidden, model.mtp, strategy.dp) == (7168, 0, 512)
    assert strategy.recompute_parts == ("every_other",)
    assert strategy.loaded_stack().name == "torchtitan-eager"
    assert strategy.loss == "compiled"
    assert options_left(launch) == []


def test_the_rest_of_the_ranks_needs_their_number() -> None:
    text = PLAIN.replace("shard_degree = 8", "shard_degree = -1")
    with pytest.raises(InputError, match=r"data_parallel_shard_degree: -1: .*--gpus"):
        read(text)
    assert read(text, gpus=32).strategy["dp"] == 32


def test_defaults_are_those_of_torchtitan() -> None:
    """Micro-batches of 2 without accumulation, every second layer recomputed, no compile."""
    launch = read(PLAIN)
    assert launch.strategy["global_batch_size"] == 16
    assert launch.strategy["recompute_layers"] == 16
    assert options_left(launch) == ["activation_checkpoint.selective_ac_option"]
    stack = launch.strategy["stack"]
    assert isinstance(stack, Mapping)
    assert stack["base"] == "torchtitan-eager"
    model, strategy = imported(launch)
    assert strategy.resolved(model).fsdp_reshard is True


@pytest.mark.parametrize(
    ("section", "line", "message"),
    [
        ("parallelism", "tensor_parallel_degree = 0", "tensor_parallel_degree: 0: must be a whole"),
        ("parallelism", "tensor_parallel_degree = true", "true: must be a whole number"),
        ("parallelism", 'fsdp_reshard_after_forward = "no"', "allowed: default, always, never"),
        ("parallelism", 'context_parallel_rotate_method = "ring"', "allowed: allgather, alltoall"),
        ("activation_checkpoint", 'mode = "fulll"', "did you mean 'full'"),
        ("activation_checkpoint", 'selective_ac_option = "ops"', "allowed: op, or a whole"),
        ("training", "global_batch_size = 24", "must be a multiple of local_batch_size x repl"),
        ("training", 'mixed_precision_param = "float16"', "allowed: bfloat16, float32"),
        ("optimizer", 'name = "SGD"', "allowed: AdamW"),
        ("model", "converters = 3", "must be a list of names"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(section: str, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(with_lines(section, line))
    assert all(fault.source == "run.toml" for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["pipeline_parallel_degree = 4", 'pipeline_parallel_schedule = "1f1"'],
            "allowed: 1F1B, GPipe, I",
        ),
        (
            ["pipeline_parallel_degree = 4", "pipeline_parallel_layers_per_stage = 3"],
            "makes 12 stages on 4 ranks; 1f1b needs 1 on each",
        ),
        (
            ["pipeline_parallel_degree = 2", "pipeline_parallel_microbatch_size = 3"],
            "must divide training.local_batch_size 2",
        ),
        (
            ["pipeline_parallel_degree = 2", 'module_fqns_per_model_part = [["layers.0"], []]'],
            "must name each of layers.0 to layers.31 once, in order",
        ),
        (
            ["pipeline_parallel_degree = 2", 'pipeline_parallel_split_points = ["norm"]'],
            "must be a layer, such as layers.4",
        ),
    ],
)
def test_stages_that_cannot_be_are_named(lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(with_lines("parallelism", *lines))


def test_degrees_must_multiply_to_the_accelerators() -> None:
    with pytest.raises(InputError, match="gpus: 12: must be the product"):
        read(PLAIN, gpus=12)
    text = PLAIN.replace("shard_degree = 8", "shard_degree = -1\ntensor_parallel_degree = 8")
    with pytest.raises(InputError, match="gpus: 12: must be a multiple"):
        read(text, gpus=12)


def test_stages_by_points_and_by_counts() -> None:
    """Points 8, 16 and 20 make stages of 8, 8, 4 and 12; a count of 17 makes two of 16."""
    points = with_lines(
        "parallelism",
        "pipeline_parallel_degree = 4",
        'pipeline_parallel_split_points = ["layers.8", "layers.16", "layers.20"]',
    )
    assert read(points).strategy["stage_layers"] == (8, 8, 4, 12)
    counts = with_lines(
        "parallelism", "pipeline_parallel_degree = 2", "pipeline_parallel_layers_per_stage = 17"
    )
    _, strategy = imported(read(counts))
    assert strategy.fsdp_reshard is False  # the default of pipelines
    assert (strategy.embedding_as_layer, strategy.loss_as_layer) == (True, True)
    assert strategy.vpp == 1


def test_what_is_unknown_is_listed() -> None:
    launch = read(
        with_lines(
            "parallelism", "tensor_parallel_degre = 2", "data_parallel_shard_degree = 8"
        ).replace("data_parallel_shard_degree = 8\n", "", 1)
    )
    assert "parallelism.tensor_parallel_degre" in options_left(launch)
    left = {one.option: str(one) for one in launch.not_understood}
    assert "tensor_parallel_degree" in left["parallelism.tensor_parallel_degre"]


@pytest.mark.parametrize(
    ("section", "line", "option"),
    [
        (
            "parallelism",
            'pipeline_parallel_schedule_csv = "a.csv"',
            "parallelism.pipeline_parallel",
        ),
        ("model", 'converters = ["mine"]', "model.converters"),
        ("parallelism", "enable_async_tensor_parallel = true", "parallelism.enable_async_tensor"),
        ("optimizer", "early_step_in_backward = true", "optimizer.early_step_in_backward"),
        ("debug", "deterministic = true", "debug.deterministic"),
    ],
)
def test_values_that_the_prediction_does_not_use_are_listed(
    section: str, line: str, option: str
) -> None:
    assert any(left.startswith(option) for left in options_left(read(with_lines(section, line))))


def test_schedules_without_a_word_have_the_nearest() -> None:
    text = with_lines(
        "parallelism",
        "pipeline_parallel_degree = 2",
        'pipeline_parallel_schedule = "InterleavedZeroBubble"',
    )
    launch = read(text)
    assert launch.strategy["schedule"] == "interleaved"
    assert "parallelism.pipeline_parallel_schedule" in options_left(launch)


def test_no_toml_and_unknown_models_are_faults() -> None:
    with pytest.raises(InputError, match="not TOML"):
        read(PLAIN + "\nx = \n")
    with pytest.raises(InputError, match=r"model\.flavor: '8b': shardwise knows 8B"):
        read(PLAIN.replace("8B", "8b"))
    with pytest.raises(InputError, match=r"model\.name: 'lama3'.*did you mean 'llama3'"):
        read(PLAIN.replace('"llama3"', '"lama3"'))
    own = read(PLAIN.replace("8B", "9B"), model=Model.load("llama3-70b"))
    assert own.model == Model.load("llama3-70b")


# --- Scripts --------------------------------------------------------------------------------------

# As run_train.sh of v0.2.2 launches, with options in its command.
SCRIPT = """#!/usr/bin/bash
set -ex
NGPU=${NGPU:-"16"}
export LOG_RANK=${LOG_RANK:-0}
CONFIG_FILE=${CONFIG_FILE:-"./configs/run.toml"}
TRAIN_FILE=${TRAIN_FILE:-"torchtitan.train"}
PYTORCH_ALLOC_CONF="expandable_segments:True" \\
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0" \\
--local-ranks-filter ${LOG_RANK} --role rank --tee 3 \\
-m torchtitan.train --job.config_file ${CONFIG_FILE} --parallelism.tensor_parallel_degree 2 \\
--training.seq-len=4096 --compile.enable "$@"
"""


def _script(folder: Path, text: str, **known: object) -> Launch:
    (folder / "configs").mkdir()
    (folder / "configs" / "run.toml").write_text(PLAIN)
    return read(text, str(folder / "run.sh"), **known)


def test_a_script_overrides_its_toml(tmp_path: Path) -> None:
    launch = _script(tmp_path, SCRIPT)
    assert (launch.strategy["tp"], launch.strategy["gpus"], launch.strategy["dp"]) == (2, 16, 8)
    assert launch.strategy["seq_len"] == 4096
    stack = launch.strategy["stack"]
    assert isinstance(stack, Mapping)
    assert stack["base"] == "torchtitan-2025"


def test_a_line_that_names_the_toml_is_a_script(tmp_path: Path) -> None:
    line = 'CONFIG_FILE="configs/run.toml" ./run_train.sh --model.flavor 70B --compile.no-enable\n'
    launch = _script(tmp_path, line)
    assert launch.model == Model.load("llama3-70b")
    stack = launch.strategy["stack"]
    assert isinstance(stack, Mapping)
    assert stack["base"] == "torchtitan-eager"


def test_nodes_of_slurm_and_ranks_of_run_train(tmp_path: Path) -> None:
    """Two nodes of 8 by srun, and 16 ranks by NGPU; no ranks are a fault where they count."""
    folders = [tmp_path / name for name in ("slurm", "ngpu", "none")]
    for folder in folders:
        folder.mkdir()
    slurm = (
        "#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun --nnodes 2 --nproc_per_node 8 "
        "-m torchtitan.train --job.config_file configs/run.toml "
        "--parallelism.data_parallel_shard_degree -1\n"
    )
    assert _script(folders[0], slurm).strategy["gpus"] == 16
    line = "CONFIG_FILE=configs/run.toml ./run_train.sh --parallelism.data_parallel_shard_degree -1"
    assert _script(folders[1], f"NGPU=16 {line}\n").strategy["gpus"] == 16
    with pytest.raises(InputError, match="--gpus"):
        _script(folders[2], f"{line}\n")
    with pytest.raises(InputError, match="NGPU: 'all': must be a whole number"):
        read(f"NGPU=all {line}\n", str(folders[2] / "run.sh"))


def test_a_variable_without_value_is_asked_for(tmp_path: Path) -> None:
    text = SCRIPT.replace("tensor_parallel_degree 2", "tensor_parallel_degree $TP")
    with pytest.raises(InputError, match=r"TP: '\$TP': .*--set TP=VALUE"):
        _script(tmp_path, text)


def test_a_variable_that_the_user_sets(tmp_path: Path) -> None:
    text = SCRIPT.replace("tensor_parallel_degree 2", "tensor_parallel_degree $TP")
    assert _script(tmp_path, text, variables={"TP": "2"}).strategy["tp"] == 2


def test_a_script_whose_toml_is_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.toml"):
        read(SCRIPT, str(tmp_path / "run.sh"))


# --- Python ---------------------------------------------------------------------------------------

# As torchtitan/models/llama3/config_registry.py of v0.3.0 has its configurations.
PYTHON = """
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

STEPS = 1000

def _base() -> Trainer.Config:
    model_spec = model_registry("70B")
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=1)),
        hf_assets_path="./assets/hf/Llama-3.1-70B",
        model_spec=model_spec,
        optimizer=default_adamw(lr=1.5e-4),
        training=TrainingConfig(local_batch_size=8, seq_len=8192, steps=STEPS),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        checkpoint=CheckpointManager.Config(interval=500),
        activation_checkpoint=FullAC.Config(),
    )

def mine() -> Trainer.Config:
    config = _base()
    config.training.local_batch_size = 4
    config.compile = CompileConfig(enable=True, components=["model"])
    return config
"""


def test_a_configuration_is_parsed_with_what_it_derives_from() -> None:
    """Its loss in chunks, which v0.2.2 does not have, is a loss of the strategy."""
    launch = read(PYTHON, "config.py", gpus=64)
    assert launch.model == Model.load("llama3-70b")
    assert (launch.strategy["tp"], launch.strategy["micro_batch_size"]) == (8, 4)
    assert Strategy.load(dict(launch.strategy)).loss == "chunked"
    assert (launch.strategy["recompute"], launch.strategy["dp"]) == ("full", 8)
    assert launch.strategy["cuda_graphs"] == "full"
    assert options_left(launch) == []


def test_what_is_no_literal_is_asked_for_by_name() -> None:
    text = PYTHON.replace("local_batch_size = 4", "local_batch_size = BATCH")
    with pytest.raises(InputError, match=r"training\.local_batch_size: 'BATCH': .*--set BATCH="):
        read(text, "config.py", gpus=64)
    launch = read(text, "config.py", gpus=64, variables={"BATCH": "2"})
    assert launch.strategy["micro_batch_size"] == 2
    text = PYTHON.replace("local_batch_size = 4", "local_batch_size = len(open('x').read())")
    with pytest.raises(InputError, match="write its value"):
        read(text, "config.py", gpus=64)


def test_nothing_is_run(tmp_path: Path) -> None:
    """A configuration that would write a file if it ran."""
    path = tmp_path / "ran"
    text = PYTHON.replace("STEPS = 1000", f"STEPS = open({str(path)!r}, 'w').write('x')")
    read(text, "config.py", gpus=64)
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PYTHON + "\ndef = 3", "is no Python"),
        (PYTHON.replace("def mine", "def _mine"), "has no function"),
        (PYTHON.replace("def _base", "def base").replace("= _base", "= base"), "several"),
        (PYTHON.replace("model_spec=model_spec,", ""), "set a model"),
    ],
)
def test_files_without_one_configuration_are_faults(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text, "config.py", gpus=64)


def test_batches_by_tokens() -> None:
    """As main counts them: 2 sequences of 8192 a pass, 8 passes, 256 in a step."""
    text = (
        PYTHON.replace(
            "local_batch_size=8, seq_len=8192",
            "num_tokens_per_microbatch_per_dp_rank=16384, num_tokens_per_train_step=2097152, "
            "max_context_length=8192",
        )
        .replace("    config.training.local_batch_size = 4\n", "")
        .replace(
            "tensor_parallel_degree=8",
            "tensor_parallel_degree=8, pipeline_parallel_degree=2, num_pp_microbatches=8, "
            "data_parallel_shard_degree=4",
        )
    )
    launch = read(text, "config.py")
    assert launch.strategy["micro_batch_size"] == 2
    assert launch.strategy["global_batch_size"] == 256
    assert launch.strategy["gpus"] == 64


def test_exports_name_the_launch_for_all_nodes() -> None:
    plan = made(Model.load("llama3-8b"), tp=2)
    (file,) = LAUNCHER.write(plan, "0.2.2", ".toml")
    assert "# llama3-8b on 64 x b200-sxm, for torchtitan 0.2.2\n" in file.text
    assert read(file.text).release == "0.2.2"
    assert read(PLAIN).release is None
    assert "torchrun --nnodes=8 --nproc_per_node=8" in file.text
    assert "srun --nodes=8" in file.text
