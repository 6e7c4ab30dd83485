"""Exported YAML loads in accelerate's own classes, with the values of the plan."""

from pathlib import Path
from typing import Any

import pytest

from launch_plans import legal_plans
from shardwise.launchers.accelerate import LAUNCHER
from shardwise.launchers.writing import launch_files

args = pytest.importorskip("accelerate.commands.config.config_args")
parallelism = pytest.importorskip("accelerate.parallelism_config")
dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
launching = pytest.importorskip("accelerate.commands.launch")


def flags(config: Any) -> set[str]:
    """Keys that `accelerate launch` takes as its own options."""
    keys = {*config.fsdp_config, *config.parallelism_config}
    return keys | {f"fp8_{key}" for key in config.fp8_config}


def mesh_of(config: Any) -> Any:
    """`ParallelismConfig` of the file's degrees."""
    own = dict(config.parallelism_config)
    strategy = own.pop("parallelism_config_cp_comm_strategy", None)
    degrees = {key.removeprefix("parallelism_config_"): value for key, value in own.items()}
    if strategy is not None:
        handler = dataclasses.TorchContextParallelConfig(cp_comm_strategy=strategy)
        degrees["cp_handler"] = handler
    return parallelism.ParallelismConfig(**degrees)


def test_accelerate_reads_what_is_exported(tmp_path: Path) -> None:
    """60 random plans; what is wrong, its classes raise."""
    known = {action.dest for action in launching.launch_command_parser()._actions}  # noqa: SLF001
    sharded = 0
    for plan in legal_plans(LAUNCHER, 60, pipelines=False):
        path, strategy = tmp_path / "plan.yaml", plan.strategy
        path.write_text(launch_files(LAUNCHER, plan)[0].text)
        config = args.load_config_from_file(str(path))
        assert config.num_processes == strategy.gpus
        assert flags(config) <= known
        dp = strategy.dp or 1
        if config.parallelism_config:
            mesh = mesh_of(config)
            assert mesh.total_size == strategy.gpus
            assert (mesh.tp_size, mesh.cp_size) == (strategy.tp, strategy.cp)
            assert mesh.data_parallel_size == dp
            if strategy.zero:
                assert mesh.dp_shard_size == (strategy.dp_shard or dp)
        if not config.fsdp_config:
            assert strategy.zero == 0 or dp * strategy.cp == 1
            continue
        sharded += 1
        own = config.fsdp_config
        plugin = dataclasses.FullyShardedDataParallelPlugin(
            fsdp_version=own["fsdp_version"],
            reshard_after_forward=own["fsdp_reshard_after_forward"],
            cpu_offload=own["fsdp_offload_params"],
            activation_checkpointing=own["fsdp_activation_checkpointing"],
            auto_wrap_policy=own["fsdp_auto_wrap_policy"],
            state_dict_type=own["fsdp_state_dict_type"],
            cpu_ram_efficient_loading=own["fsdp_cpu_ram_efficient_loading"],
        )
        assert plugin.reshard_after_forward == (strategy.zero == 3 and strategy.fsdp_reshard)
        offloads = type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
        assert offloads == strategy.offload_weights
        assert plugin.activation_checkpointing == (strategy.recompute == "full")
    assert sharded


def test_accelerate_refuses_other_files(tmp_path: Path) -> None:
    """The check above can fail: a key that accelerate does not know, replicas alone with tp."""
    plan = next(legal_plans(LAUNCHER, 1, pipelines=False))
    path = tmp_path / "plan.yaml"
    path.write_text(launch_files(LAUNCHER, plan)[0].text + "pipeline_config: {}\n")
    with pytest.raises(ValueError, match="pipeline_config"):
        args.load_config_from_file(str(path))
    with pytest.raises(ValueError, match="pure data parallelism"):
        parallelism.ParallelismConfig(tp_size=2, dp_replicate_size=2)
