"""Exported JSON loads in DeepSpeed's own parser, with the values of the plan."""

import json
import os
import warnings
from typing import Any

import pytest

from launch_plans import legal_plans
from shardwise.launchers.deepspeed import LAUNCHER
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.writing import launch_files

os.environ["DS_ACCELERATOR"] = "cpu"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    config_module = pytest.importorskip("deepspeed.runtime.config", exc_type=ImportError)
    auto_ep = pytest.importorskip("deepspeed.module_inject.auto_ep_config")

TYPES = {"adamw": "adamw", "adamw-bf16": "adamw", "muon": "muon", "sgd": "SGD"}


class Replicas:
    """Model-parallel unit that knows the replicas of a plan."""

    def __init__(self, dp: int) -> None:
        self.dp = dp

    def get_data_parallel_world_size(self) -> int:
        """As DeepSpeed calls it."""
        return self.dp


def check(plan: LaunchPlan, config: Any) -> None:
    """What DeepSpeed understood is the plan."""
    strategy = plan.strategy
    dp, batch = strategy.dp or 1, strategy.global_batch_size or 1
    assert config.train_batch_size == batch
    assert config.train_micro_batch_size_per_gpu == strategy.micro_batch_size
    steps = config.gradient_accumulation_steps
    assert steps * strategy.micro_batch_size * dp == batch
    zero = config.zero_config
    assert (zero.offload_param is not None) == strategy.offload_weights
    assert (zero.offload_optimizer is not None) == strategy.offload_optimizer
    if dp > 1:
        assert zero.stage == strategy.zero
    assert zero.overlap_comm == strategy.dp_overlap
    assert zero.mics_shard_size == (strategy.dp_shard or -1)
    assert config.bfloat16_config.enabled == (strategy.dtype == "bf16")
    assert config.float16_config.enabled == (strategy.dtype == "fp16")
    assert max(1, config.tensor_parallel_config.autotp_size) == strategy.tp
    overlaps = strategy.tp_overlap == "pipe" and strategy.tp > 1
    assert config.tensor_parallel_config.tp_overlap_comm == overlaps
    on_host = config.activation_checkpointing_config.cpu_checkpointing
    assert on_host == strategy.offload_activations
    if strategy.optimizer in TYPES:
        assert config.optimizer_name == TYPES[strategy.optimizer]
    if strategy.pp > 1:
        assert config.pipeline["stages"] == strategy.pp
    check_experts(plan, config)


def check_experts(plan: LaunchPlan, config: Any) -> None:
    """DeepSpeed's own check of expert parallelism."""
    strategy, experts = plan.strategy, config.expert_parallel_config
    if not plan.model.has_experts or strategy.ep == 1:
        assert experts is None or not experts.enabled
        return
    assert experts.autoep_size == strategy.ep
    auto_ep.validate_autoep_config(
        experts,
        world_size=strategy.gpus,
        pp_size=strategy.pp,
        tp_size=strategy.tp,
        sp_size=strategy.cp,
        zero_stage=int(config.zero_config.stage),
        zero_offload_optimizer=strategy.offload_optimizer,
        zero_offload_param=strategy.offload_weights,
    )


def test_deepspeed_reads_what_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 random plans; what is wrong, its configuration raises."""
    monkeypatch.setattr(config_module.dist, "get_rank", lambda: 0)
    experts = 0
    for plan in legal_plans(LAUNCHER, 60):
        data = json.loads(launch_files(LAUNCHER, plan)[0].text)
        config = config_module.DeepSpeedConfig(data, mpu=Replicas(plan.strategy.dp or 1))
        check(plan, config)
        experts += config.expert_parallel_config is not None
    assert experts


def test_deepspeed_refuses_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail: another batch is refused by DeepSpeed."""
    monkeypatch.setattr(config_module.dist, "get_rank", lambda: 0)
    plan = next(legal_plans(LAUNCHER, 1))
    data = json.loads(launch_files(LAUNCHER, plan)[0].text)
    data["train_batch_size"] += 1
    with pytest.raises(AssertionError, match="batch"):
        config_module.DeepSpeedConfig(data, mpu=Replicas(plan.strategy.dp or 1))
