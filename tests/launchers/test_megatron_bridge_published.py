"""Published launch files of Megatron-Bridge and NeMo import with nothing left over but a list."""

import json
from typing import Any

import published_bridge_runs as runs
from shardwise import Strategy
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.megatron_bridge import LAUNCHER
from shardwise.launchers.registry import read_launch, recognised_launcher


def launch_of(tmp_path: Any, name: str, content: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A launch, its strategy and what was not understood."""
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else runs.as_text(content))
    launch = read_launch(path)
    left = {one.option: one.value for one in launch.not_understood}
    return launch, dict(launch.strategy), left


def picked(strategy: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(strategy[name] for name in names)


def test_deepseek_v3_of_megatron_bridge(tmp_path: Any) -> None:
    """A dumped configuration: block-scaled fp8, HybridEP, a layout of 32 chunks."""
    launch, strategy, left = launch_of(tmp_path, "deepseek_v3_dump.yaml", runs.DEEPSEEK_V3)
    assert left == {}
    assert launch.model.name == "deepseek-v3"
    assert picked(strategy, "tp", "pp", "vpp", "cp", "ep", "etp") == (2, 8, 4, 1, 64, 1)
    assert strategy["stage_layers"] == (1, *[2] * 30, 0)
    assert picked(strategy, "global_batch_size", "micro_batch_size", "seq_len") == (8192, 1, 4096)
    assert picked(strategy, "quantization", "optimizer", "zero") == ("fp8_block", "adamw-bf16", 1)
    assert strategy["recompute_parts"] == ("mla_up", "mlp")
    assert picked(strategy, "dispatcher", "dp_overlap") == ("hybridep", False)
    changed = {"vocab_multiple": 1, "tp_hidden": 0.0}
    assert strategy["stack"] == {"base": "megatron-bridge-2026"} | changed
    loaded = Strategy(**strategy, gpus=1024).resolved(launch.model)
    assert (loaded.dp, loaded.loaded_stack().gradient_dtype) == (64, "compute")


def test_gpt3_175b_of_nemo_1(tmp_path: Any) -> None:
    """1,024 GPUs, interleaved, selective recompute; the vocabulary is that of its tokenizer."""
    launch, strategy, left = launch_of(tmp_path, "175b.yaml", runs.GPT3_175B)
    assert left == {}
    assert launch.model.name == "gpt3-175b"
    assert picked(strategy, "gpus", "tp", "pp", "vpp") == (1024, 4, 8, 12)
    assert picked(strategy, "global_batch_size", "micro_batch_size", "seq_len") == (2048, 1, 2048)
    assert picked(strategy, "recompute", "recompute_parts") == ("selective", ("core_attention",))
    assert picked(strategy, "tp_exchange", "dtype", "zero") == ("rs_ag", "bf16", 1)
    assert strategy["dp_overlap"] is True
    assert strategy["stack"]["base"] == "nemo-2025"


def test_llama3_405b_of_nemo_1(tmp_path: Any) -> None:
    """576 nodes with context parallelism; one option has no word in a strategy."""
    launch, strategy, left = launch_of(tmp_path, "llama3_1_405b.yaml", runs.LLAMA3_405B)
    assert left == {"model.defer_embedding_wgrad_compute": True}
    assert (launch.model.name, launch.model.vocab) == ("llama3-1-405b", 128256)
    assert launch.model.layers[0].attention.kv_heads == 16  # 8 in Llama's own configuration
    assert picked(strategy, "gpus", "tp", "pp", "vpp", "cp") == (4608, 8, 9, 7, 2)
    assert picked(strategy, "global_batch_size", "seq_len", "cp_exchange") == (2016, 8192, "ring")


def test_llama3_70b_with_overrides_of_a_recipe(tmp_path: Any) -> None:
    """What only the recipe has is asked for, not guessed."""
    launch, strategy, left = launch_of(tmp_path, "run.sh", runs.LLAMA3_70B)
    assert launch.model.name == "llama3-70b"
    assert picked(strategy, "gpus", "tp", "pp", "seq_len") == (32, 8, 2, 8192)
    assert "global_batch_size" not in strategy
    assert left == {"--recipe": "llama31_70b_pretrain_32gpu_h100_bf16_config"}
    told = str(launch.not_understood[0])
    assert "train.global_batch_size" in told
    assert "tensor_model" not in told


PERFORMANCE = """#!/bin/bash
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
TP=${TP:-4}
python scripts/performance/run_script.py --model_family_name llama \\
  --model_recipe_name llama3_70b --task pretrain --gpu gb200 --num_gpus 64 \\
  --compute_dtype fp8_mx -tp $TP -pp 4 -vp -1 -cp 1 -gb 128 -mb 1 --recompute_num_layers 5 \\
  --use_megatron_fsdp --max_steps 10 ddp.nccl_ub=true model.cuda_graph_impl=none
"""


def test_options_of_the_performance_runner(tmp_path: Any) -> None:
    """Each sets what it means; -1 leaves the chunks to the recipe."""
    launch, strategy, left = launch_of(tmp_path, "perf.sh", PERFORMANCE)
    assert launch.model.name == "llama3-70b"
    assert picked(strategy, "gpus", "tp", "pp", "global_batch_size") == (64, 4, 4, 128)
    assert "vpp" not in strategy
    assert picked(strategy, "recompute", "recompute_layers") == ("full", 5)
    assert picked(strategy, "quantization", "quantized_weights", "zero") == ("mxfp8", True, 3)
    stack = strategy["stack"]
    assert (stack if isinstance(stack, str) else stack["base"]) == "megatron-bridge-nvl72"
    assert left == {"ddp.nccl_ub": True}


RUNNER = (
    "python scripts/performance/run_script.py --model_family_name {family} --model_recipe_name "
    "{model} --task pretrain --gpu {gpu} --num_gpus {gpus} --compute_dtype {dtype}\n"
)


def test_performance_recipes_have_their_published_values(tmp_path: Any) -> None:
    """By options or by name; the batch grows with the accelerators, options change values."""
    words = {"family": "llama", "model": "llama3_70b", "gpu": "h100", "dtype": "bf16"}
    text = RUNNER.format(**words, gpus=128)
    launch, strategy, left = launch_of(tmp_path, "perf.sh", text)
    assert (left, launch.model.name) == ({}, "llama3-70b")
    assert picked(strategy, "gpus", "tp", "pp", "vpp", "cp") == (128, 4, 4, 5, 2)
    assert picked(strategy, "global_batch_size", "tp_exchange") == (512, "rs_ag")
    assert strategy["stack"] == "megatron-bridge-2026"
    changed = f"{text.rstrip()} -cp 1 model.pipeline_model_parallel_size=2\n"
    assert picked(launch_of(tmp_path, "c.sh", changed)[1], "cp", "pp", "vpp") == (1, 2, 5)
    words = {"family": "deepseek", "model": "deepseek_v3", "gpu": "gb200", "dtype": "bf16"}
    launch, strategy, left = launch_of(tmp_path, "moe.sh", RUNNER.format(**words, gpus=256))
    assert (left, launch.model.name) == ({}, "deepseek-v3")
    assert picked(strategy, "pp", "vpp", "ep", "dispatcher") == (4, 4, 64, "hybridep")
    assert strategy["recompute_parts"] == ("mla_up",)
    assert (strategy["cuda_graphs"], strategy["stack"]) == ("partial", "megatron-bridge-nvl72")
    name = "llama3_8b_pretrain_8gpu_h100_fp8cs_config"
    named = f"torchrun --nproc-per-node=8 run_recipe.py --recipe {name}\n"
    launch, strategy, left = launch_of(tmp_path, "name.sh", named)
    assert picked(strategy, "gpus", "recompute", "recompute_layers") == (8, "full", 5)
    assert picked(strategy, "quantization", "global_batch_size") == ("fp8_tensor", 128)
    unknown = RUNNER.format(family="q", model="qwen3_8b", gpu="h100", gpus=8, dtype="bf16")
    assert set(launch_of(tmp_path, "other.sh", unknown)[2]) == {"--recipe"}


NEMO_2 = """
_partial_: true
_target_: nemo.collections.llm.api.pretrain
data:
  _target_: nemo.collections.llm.gpt.data.pre_training.PreTrainingDataModule
  global_batch_size: 128
  micro_batch_size: 1
  paths: &id001
  - train
  seq_length: 8192
log: {_target_: nemo.lightning.nemo_logger.NeMoLogger, paths: *id001}
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config:
    _target_: nemo.collections.llm.gpt.model.llama.Llama3Config8B
    cross_entropy_fusion_impl: te
    enable_cuda_graph: false
optim:
  _target_: nemo.lightning.pytorch.optim.megatron.MegatronOptimizerModule
  config:
    _target_: megatron.core.optimizer.optimizer_config.OptimizerConfig
    adam_eps: 1.0e-05
    bf16: true
    optimizer: adam
    use_distributed_optimizer: true
trainer:
  _target_: nemo.lightning.pytorch.trainer.Trainer
  callbacks:
  - _target_: nemo.lightning.pytorch.callbacks.megatron_comm_overlap.MegatronCommOverlapCallback
    overlap_param_gather_with_optimizer_step: false
    tp_comm_overlap: false
  - _target_: nemo.lightning.pytorch.callbacks.nsys.NsysCallback
    end_step: 6
  devices: 8
  max_steps: 10000
  num_nodes: 1
  plugins:
    _target_: nemo.lightning.pytorch.plugins.mixed_precision.MegatronMixedPrecision
    autocast_enabled: false
    first_last_layers_bf16: true
    fp8: hybrid
    fp8_param_gather: true
    fp8_recipe: tensorwise
    grad_reduce_in_fp32: false
    params_dtype: {_call_: false, _target_: torch.bfloat16}
    precision: bf16-mixed
  strategy:
    _target_: nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy
    ckpt_async_save: true
    context_parallel_size: 2
    ddp:
      _target_: megatron.core.distributed.DistributedDataParallelConfig
      check_for_nan_in_grad: true
      data_parallel_sharding_strategy: optim_grads_params
      grad_reduce_in_fp32: true
      overlap_grad_reduce: true
      overlap_param_gather: true
    expert_model_parallel_size: 1
    expert_tensor_parallel_size: null
    fsdp: null
    gradient_as_bucket_view: true
    pipeline_dtype: null
    pipeline_model_parallel_size: 1
    sequence_parallel: false
    tensor_model_parallel_size: 1
    virtual_pipeline_model_parallel_size: null
"""


def test_a_tree_of_nemo_2(tmp_path: Any) -> None:
    """As NeMo-Run writes it, with anchors; mixed precision has the last word on gradients."""
    launch, strategy, left = launch_of(tmp_path, "llama3_8b_nemo2.yaml", NEMO_2)
    assert launch.model.name == "llama3-8b"
    assert picked(strategy, "gpus", "tp", "pp", "cp") == (8, 1, 1, 2)
    assert picked(strategy, "global_batch_size", "micro_batch_size", "seq_len") == (128, 1, 8192)
    assert picked(strategy, "quantization", "quantized_weights", "zero") == ("fp8_tensor", True, 1)
    assert Strategy(**strategy).loaded_stack().gradient_dtype == "compute"
    assert not left
    assert all(layer.quantized for layer in launch.model.layers)  # of 0 layers at each end


def test_files_of_other_programs_are_not_recognised() -> None:
    """Models and strategies of shardwise, Hugging Face, accelerate and torchtitan."""
    others = {
        "a.json": json.dumps({"model_type": "llama", "hidden_size": 4096}),
        "b.yaml": "tp: 8\nglobal_batch_size: 128\n",
        "c.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n",
        "d.toml": "[model]\nname = 'llama3'\n",
        "e.sh": "torchrun pretrain_gpt.py --tensor-model-parallel-size 8\n",
        "f.sh": "torchrun train.py --training.local_batch_size=2 --model.name=llama3\n",
    }
    for source, text in others.items():
        assert not LAUNCHER.recognise(text, source), source
    assert recognised_launcher(runs.LLAMA3_70B, "job") is LAUNCHER
    read = LAUNCHER.read(LaunchText(source="job", text=runs.LLAMA3_70B, gpus=64))
    assert read.strategy["gpus"] == 64
