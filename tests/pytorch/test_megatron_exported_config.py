"""Options of exported scripts are configurations that megatron-core itself accepts.

It needs the package `megatron-core` and PyTorch, but no GPU.
"""

import dataclasses
import sys
from unittest.mock import patch

import pytest

from megatron_plans import legal_plans
from profiles import drawn
from shardwise.config.strategy_table import Table
from shardwise.launchers import megatron
from shardwise.launchers.megatron.arguments import read_arguments, written_options
from shardwise.launchers.megatron.options import DEFAULTS
from shardwise.launchers.ranks import parse_job
from shardwise.parallel.pipeline_layout import layers_on_ranks

launched_configs = pytest.importorskip("launched_configs")
import torch  # noqa: E402 - after importorskip
from megatron.core.activations import quick_gelu, squared_relu  # noqa: E402
from megatron.core.distributed import DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import optimizer_config  # noqa: E402
from megatron.core.transformer import transformer_config  # noqa: E402

LAUNCHER = megatron.LAUNCHER
ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "squared_relu": squared_relu,
    "quick_gelu": quick_gelu,
}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}
LATER = {"deepep": "moe_deepep_num_sms", "hybridep": "moe_hybridep_num_sms"}
"""Names of 0.16.1 for moe_flex_dispatcher_num_sms of 0.19."""


def exported_fields(plan):
    """Fields that the options of an exported script set, those of megatron-core 0.16.1."""
    words = parse_job(LAUNCHER.write(plan, "0.19.0", ".sh")[0].text, {}).commands[-1]
    at = next(at for at, word in enumerate(words) if word.endswith("pretrain_gpt.py"))
    arguments = read_arguments(written_options(words[at + 1 :]), "run.sh")
    assert arguments.faults == []
    fields = {**DEFAULTS, **arguments.fields}
    fields["activation_func"] = ACTIVATIONS[fields["activation_func"]]
    dtype = "bf16" if fields.get("bf16") else "fp16" if fields.get("fp16") else "fp32"
    fields["params_dtype"] = fields["pipeline_dtype"] = TYPES[dtype]
    for name in ("exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype", "main_params_dtype"):
        fields[name] = TYPES[fields[name]]
    if (sms := fields.pop("moe_flex_dispatcher_num_sms", None)) is not None:
        fields[LATER[fields["moe_flex_dispatcher_backend"]]] = sms
    if "cp_comm_type" in fields:  # as Megatron-LM unpacks a list of one
        (fields["cp_comm_type"],) = fields["cp_comm_type"]
    fields["fp8_param_gather"] = bool(fields.get("fp8_param"))  # its name among replicas
    del fields["attention_backend"]  # an enumeration; auto is its default
    fields.pop("moe_permute_fusion", None)  # looks for kernels of Transformer Engine
    return {
        name: list(value) if isinstance(value, tuple) and name != "window_size" else value
        for name, value in fields.items()
    }


def of_class(config, fields):
    known = {one.name for one in dataclasses.fields(config) if one.init}
    return config(**{name: value for name, value in fields.items() if name in known})


def test_exported_options_make_configurations_of_megatron_core():
    """Model, replicas and optimizer; layers are on the stages where the plan has them."""
    core = transformer_config
    stands_in = patch.object(core, "is_te_min_version", launched_configs.any_te_version)
    newest = patch.object(optimizer_config, "is_te_min_version", launched_configs.any_te_version)
    modules = patch.dict(sys.modules, launched_configs.te_modules())
    for plan in legal_plans(LAUNCHER.stack, drawn(120), 5, LAUNCHER.faults):
        fields = exported_fields(plan)
        latent = fields.get("multi_latent_attention", False)
        # OptimizerConfig knows Transformer Engine by a stand-in, which models must not see.
        with launched_configs.quiet(), stands_in:
            config = of_class(
                core.MLATransformerConfig if latent else core.TransformerConfig, fields
            )
        with launched_configs.quiet(), newest, modules:
            optimizer = of_class(optimizer_config.OptimizerConfig, fields)
        replicas = of_class(DistributedDataParallelConfig, fields)
        strategy = plan.strategy
        assert launched_configs.megatron_stages(config) == layers_on_ranks(
            plan.model.depth, Table.of(plan.model, [strategy]), 0
        )
        assert config.sequence_parallel == (strategy.tp > 1 and strategy.tp_exchange == "rs_ag")
        assert replicas.grad_reduce_in_fp32 == (
            strategy.dtype == "bf16" and strategy.loaded_stack().gradient_dtype == "fp32"
        )
        assert optimizer.optimizer_cpu_offload == strategy.offload_optimizer
        assert config.num_moe_experts == (
            next((one.moe.experts for one in plan.model.layers if one.moe), None)
        )
