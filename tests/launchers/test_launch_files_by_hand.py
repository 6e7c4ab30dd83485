"""Files of DeepSpeed and accelerate for plans small enough to be written by hand."""

import json
from typing import Any

import yaml

from rows import each_row
from shardwise import Model, Strategy, System
from shardwise.launchers import accelerate, deepspeed, megatron, megatron_bridge, torchtitan
from shardwise.launchers.launch import Launcher, LaunchFile, LaunchPlan, LaunchText, nodes_of
from shardwise.launchers.writing import launch_files

PURE = {
    "weight_dtype": "compute",
    "master_dtype": "none",
    "moment_dtype": "bf16",
    "gradient_dtype": "compute",
}
DENSE = Model.load("llama3-8b")
# Without embedding and head of 128,256 x 4,096 each, and the last norm: 32 layers.
WEIGHTS, LAYER = 8_030_261_248, 218_112_128


def files(launcher: Launcher, gpus: int = 16, **fields: Any) -> tuple[LaunchFile, ...]:
    row = {"stack": launcher.stack, "gpus": gpus, "gbs": 64, "mbs": 2, "zero": 3, **fields}
    strategy = Strategy(**row).resolved(DENSE)
    plan = LaunchPlan(model=DENSE, system=System.load("h100-sxm"), strategy=strategy)
    return launch_files(launcher, plan)


def test_deepspeeds_json() -> None:
    """64 sequences in micro-batches of 2 on 16 replicas: 2 micro-batches each."""
    stack = {"base": "deepspeed-2026", "gradient_dtype": "fp32"}
    both = {"offload_weights": True, "offload_optimizer": True}
    config, script = files(deepspeed.LAUNCHER, stack=stack, optimizer="muon", **both)
    on_host = {"device": "cpu", "pin_memory": True}
    assert json.loads(config.text) == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "offload_param": on_host,
            "offload_optimizer": on_host,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
        },
        "optimizer": {"type": "Muon", "params": {}},
    }
    assert "--num_nodes 2 --num_gpus 8" in script.text
    assert "OMP_NUM_THREADS=8" in script.text
    assert '--rdzv-endpoint "$MASTER_ADDR:29500"' in script.text
    one = files(deepspeed.LAUNCHER, 8)[1].text
    assert "--num_nodes 1 --num_gpus 8" in one
    assert "rdzv" not in one


@each_row(
    ("launcher", "types"),
    [
        (deepspeed.LAUNCHER, {"gradient_dtype": "fp32"}),
        (deepspeed.LAUNCHER, {"reduce_dtype": "fp32"}),
        (deepspeed.LAUNCHER, {"master_dtype": "bf16", "moment_dtype": "bf16"}),
        (deepspeed.LAUNCHER, {"master_dtype": "fp16", "dtype": "fp16"}),
        (torchtitan.LAUNCHER, {}),
        (torchtitan.LAUNCHER, PURE),
        (megatron.LAUNCHER, {"gradient_dtype": "fp32"}),
        (megatron.LAUNCHER, {"master_dtype": "fp16", "zero": 1}),
        (megatron.LAUNCHER, {"moment_dtype": "fp16", "zero": 1}),
        (megatron.LAUNCHER, {"moment_dtype": "bf16", "zero": 1}),
        (megatron_bridge.LAUNCHER, {"moment_dtype": "fp16", "master_dtype": "fp16", "zero": 1}),
    ],
)
def test_types_come_back(launcher: Launcher, types: dict[str, Any]) -> None:
    """A plan, written and read again, has the types of weights, masters, moments, gradients."""
    written, *_ = files(launcher, **types)
    text = LaunchText(source=f"p{written.ending}", text=written.text, model=DENSE, gpus=16)
    row = launcher.read(text).strategy
    again = Strategy.validated({name: row[name] for name in row if name in Strategy.model_fields})
    planned = Strategy(**{"stack": launcher.stack, **types})
    for name in ("weight_dtype", "master_dtype", "gradient_dtype", "reduce_dtype"):
        assert again.in_effect(name) == planned.in_effect(name), name
    assert _moments(again) == _moments(planned)


def _moments(strategy: Strategy) -> str:
    """Type of moments, by the name of the optimizer too."""
    named = strategy.optimizer == "adamw-bf16"
    return "bf16" if named else str(strategy.in_effect("moment_dtype"))


@each_row(
    ("live", "reuse", "reshards"),
    [
        (2 * WEIGHTS, 2 * WEIGHTS, False),
        (2 * WEIGHTS - 1, 2 * WEIGHTS, True),
        (2 * WEIGHTS, 2 * WEIGHTS - 1, True),
        (10**9, 10**9, True),
    ],
)
def test_weights_stay_gathered_where_both_limits_allow(
    live: int, reuse: int, reshards: bool
) -> None:
    """Between the uses of the first weight, forward and backward pass all weights."""
    limits = {"stage3_max_live_parameters": live, "stage3_max_reuse_distance": reuse}
    text = json.dumps({"zero_optimization": {"stage": 3, **limits}})
    launch = deepspeed.LAUNCHER.read(LaunchText(source="ds.json", text=text, model=DENSE))
    assert launch.strategy["fsdp_reshard"] is reshards


@each_row(
    ("software", "layers", "written", "again"),
    [
        ({}, 0, 0, {}),
        ({}, 1, None, {}),
        ({}, 2, 2 * LAYER, {}),
        ({"prefetch_bucket_size": 10**7}, 1, 10**7, {"prefetch_bucket_size": 10**7}),
        (
            {"buckets_by_width": True},
            1,
            "auto",
            {
                "reduce_bucket_size": 4096**2,
                "prefetch_bucket_size": int(0.9 * 4096**2),
                "persistence_threshold": 40960,
            },
        ),
    ],
)
def test_buckets_of_prefetch_come_back(
    software: dict[str, Any], layers: int, written: Any, again: dict[str, Any]
) -> None:
    """Elements of a bucket, layers where a strategy sets none or several, and what auto is."""
    stack = {"base": "deepspeed-2026", **software}
    config, _ = files(deepspeed.LAUNCHER, stack=stack, fsdp_prefetch=layers)
    zero = json.loads(config.text)["zero_optimization"]
    assert zero.get("stage3_prefetch_bucket_size") == written
    text = LaunchText(source="ds.json", text=config.text, model=DENSE, gpus=16)
    launch = deepspeed.LAUNCHER.read(text)
    assert launch.strategy.get("fsdp_prefetch", 1) == layers
    known = {"base": "deepspeed-2026", **again} if again else "deepspeed-2026"
    assert launch.strategy["stack"] == known


def test_accelerates_yaml() -> None:
    """16 GPUs: 2 replicas of 2 shards, each of 4 GPUs."""
    config, plan, script = files(accelerate.LAUNCHER, tp=4, dp_shard=2, recompute="full")
    data = yaml.safe_load(config.text)
    assert data["fsdp_config"]["fsdp_activation_checkpointing"] is True
    sizes = {"dp_replicate": 2, "dp_shard": 2, "tp": 4, "cp": 1}
    named = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
    assert data["parallelism_config"] == named
    assert (data["num_machines"], data["num_processes"]) == (2, 16)
    assert plan.ending == ".py"
    assert "lm_head.weight = " not in plan.text
    assert '--machine_rank "${NODE_RANK:-' in script.text
    assert "--gradient_accumulation_steps 8" in script.text
    assert "--gradient_checkpointing" not in script.text  # FSDP's own is on
    single = files(accelerate.LAUNCHER, 8, zero=0, recompute="full")
    assert yaml.safe_load(single[0].text)["distributed_type"] == "MULTI_GPU"
    assert "fsdp_config" not in single[0].text
    assert "--gradient_checkpointing true" in single[1].text
    assert "machine_rank" not in single[1].text
    split = yaml.safe_load(files(accelerate.LAUNCHER, 4, tp=4)[0].text)
    assert split["distributed_type"] == "MULTI_GPU"
    assert split["parallelism_config"]["parallelism_config_tp_size"] == 4


@each_row(
    ("system", "gpus", "nodes"),
    [
        ("h100-sxm", 16, (2, 8)),
        ("h100-sxm", 4, (1, 4)),
        ("h100-sxm", 12, (2, 6)),
        ("gb200-nvl72", 8, (2, 4)),
    ],
)
def test_nodes_of_a_plan(system: str, gpus: int, nodes: tuple[int, int]) -> None:
    assert nodes_of(System.load(system), gpus) == nodes
