"""Performance recipes of Megatron-Bridge: what they set.

Of src/megatron/bridge/perf_recipes (067f987d of 2026-08-22), for recipes of which nothing is left
to a base recipe that matters to a step.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from shardwise.launchers.megatron_bridge.trees import Leaf, Tree, put
from shardwise.units import read_whole

_NAME = re.compile(
    r"(?P<model>\w+?)_pretrain(?:_v\d+)?_(?P<gpus>\d+)gpu_(?P<gpu>[a-z]+\d+)_(?P<dtype>\w+?)_config"
)
PRESETS: Mapping[str, str] = {
    "bf16": "bf16_mixed",
    "fp8cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8ds": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "fp8mx": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""Presets of mixed precision by the words of recipes and runners."""
_PRECISION = "megatron.bridge.training.mixed_precision"
_GRAPHS: Tree = {
    "cuda_graph_impl": "transformer_engine",
    "cuda_graph_modules": ["attn", "moe_router", "moe_preprocess"],
}
_FULL_GRAPH: Tree = {"cuda_graph_impl": "full_iteration"}
_HYBRIDEP: Tree = {
    "moe_token_dispatcher_type": "flex",
    "moe_flex_dispatcher_backend": "hybridep",
    "moe_flex_dispatcher_num_sms": 32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """One line of the published configurations; None: off, or one."""

    gpus: int
    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    cp: int = 1
    ep: int = 1
    batch: tuple[int, int]
    """Micro-batch, global batch."""
    seq_length: int
    tp_overlap: bool = False
    expert_overlap: bool = False
    reduces_behind: bool = True
    recompute: tuple[str, ...] | int | None = None
    """Modules, or layers of each chunk that are recomputed in full."""
    layout: str | None = None
    model: Tree | None = None


_dense = partial(_Recipe, seq_length=8192)
_sparse = partial(_Recipe, seq_length=4096)
_KNOWN: Mapping[tuple[str, str, str], _Recipe] = {
    ("llama3_8b", "h100", "bf16"): _dense(gpus=8, batch=(1, 128), cp=2),
    ("llama3_8b", "h100", "fp8cs"): _dense(gpus=8, batch=(1, 128), recompute=5),
    ("llama3_8b", "b200", "bf16"): _dense(gpus=8, batch=(2, 128), model=_FULL_GRAPH),
    ("llama3_8b", "b200", "fp8mx"): _dense(gpus=8, batch=(2, 128), model=_FULL_GRAPH),
    ("llama3_8b", "b200", "nvfp4"): _dense(gpus=8, batch=(4, 128)),
    ("llama3_70b", "h100", "bf16"): _dense(
        gpus=64, batch=(1, 256), tp=4, pp=4, vpp=5, cp=2, tp_overlap=True
    ),
    ("llama3_70b", "b200", "bf16"): _dense(
        gpus=64, batch=(1, 256), tp=2, pp=4, vpp=5, cp=2, tp_overlap=True, model=_FULL_GRAPH
    ),
    ("llama3_70b", "b200", "fp8mx"): _dense(
        gpus=64, batch=(1, 256), tp=2, pp=4, vpp=5, tp_overlap=True
    ),
    ("llama3_70b", "b200", "nvfp4"): _dense(gpus=64, batch=(1, 256), tp=2, pp=4, vpp=5),
    ("llama31_405b", "h100", "bf16"): _dense(
        gpus=1024, batch=(1, 1536), tp=8, pp=8, vpp=8, cp=2, tp_overlap=True
    ),
    ("llama31_405b", "b200", "bf16"): _dense(
        gpus=128, batch=(1, 768), tp=4, pp=16, vpp=8, tp_overlap=True
    ),
    ("llama31_405b", "b200", "fp8mx"): _dense(
        gpus=128, batch=(1, 768), tp=4, pp=16, vpp=8, tp_overlap=True
    ),
    ("llama31_405b", "b200", "nvfp4"): _dense(gpus=128, batch=(1, 768), tp=4, pp=16, vpp=8),
    ("qwen3_235b_a22b", "h100", "bf16"): _sparse(
        gpus=256, batch=(1, 8192), tp=2, pp=8, vpp=4, ep=32, expert_overlap=True
    ),
    ("qwen3_30b_a3b", "b200", "bf16"): _sparse(
        gpus=8, batch=(4, 512), ep=8, model=_HYBRIDEP | _GRAPHS
    ),
    ("deepseek_v3", "h100", "bf16"): _sparse(
        gpus=1024,
        batch=(1, 16384),
        tp=2,
        pp=8,
        vpp=4,
        ep=64,
        recompute=("mla_up_proj", "mlp"),
        reduces_behind=False,
        layout="Et|(tt|)*30mL",
        model=_HYBRIDEP,
    ),
    ("deepseek_v3", "gb200", "bf16"): _sparse(
        gpus=256,
        batch=(1, 4096),
        pp=4,
        vpp=4,
        ep=64,
        recompute=("mla_up_proj",),
        model=_HYBRIDEP | _GRAPHS,
    ),
}
"""Recipes by model, accelerator and precision."""


def performance_name(named: Mapping[str, list[str]]) -> str | None:
    """Return the name of the recipe that options of the performance runner choose."""
    words = {name: values[0].lower() for name, values in named.items() if values}
    model, gpu, gpus = (words.get(name) for name in ("model_recipe_name", "gpu", "num_gpus"))
    if not model or not gpu or not gpus or words.get("task", "pretrain") != "pretrain":
        return None
    dtype = words.get("compute_dtype", "bf16").replace("_", "")
    return f"{model}_pretrain_{gpus}gpu_{gpu}_{dtype}_config"


def performance_tree(name: str, gpus: int | None) -> Tree | None:
    """Return what a performance recipe sets; None if it is not known.

    Parameters
    ----------
    gpus
        Accelerators of the run; the global batch grows with them.
    """
    found = _NAME.fullmatch(name)
    recipe = _KNOWN.get((found["model"], found["gpu"], found["dtype"])) if found else None
    if found is None or recipe is None:
        return None
    used = gpus or read_whole(found["gpus"]) or 0
    if not used or recipe.batch[1] * used % recipe.gpus:
        return None
    tree: Tree = {}
    for path, value in _paths(
        recipe, found["dtype"], recipe.batch[1] * used // recipe.gpus
    ).items():
        put(tree, path, value)
    for field, value in (recipe.model or {}).items():
        put(tree, f"model.{field}", value)
    return tree


def _paths(recipe: _Recipe, dtype: str, batch: int) -> dict[str, Leaf]:
    """Fields of a recipe, by their paths."""
    preset: Tree = {
        "_target_": f"{_PRECISION}.{PRESETS[dtype]}",
        "grad_reduce_in_fp32": False,
        "first_last_layers_bf16": False,
    }
    paths: dict[str, Leaf] = {
        "model.tensor_model_parallel_size": recipe.tp,
        "model.pipeline_model_parallel_size": recipe.pp,
        "model.virtual_pipeline_model_parallel_size": recipe.vpp,
        "model.context_parallel_size": recipe.cp,
        "model.expert_model_parallel_size": recipe.ep,
        "model.sequence_parallel": recipe.tp > 1,
        "model.seq_length": recipe.seq_length,
        "model.pipeline_model_parallel_layout": recipe.layout,
        "train.micro_batch_size": recipe.batch[0],
        "train.global_batch_size": batch,
        "mixed_precision": preset,
        "comm_overlap.tp_comm_overlap": recipe.tp_overlap,
        "comm_overlap.overlap_grad_reduce": recipe.reduces_behind,
        "comm_overlap.overlap_moe_expert_parallel_comm": recipe.expert_overlap,
        "model.cross_entropy_fusion_impl": "te",
        "model.moe_router_force_load_balancing": recipe.ep > 1,
    }
    if isinstance(recipe.recompute, int):
        full: Tree = {"granularity": "full", "method": "block", "num_layers": recipe.recompute}
        paths |= {f"model.recompute_{name}": value for name, value in full.items()}
    elif recipe.recompute:
        paths["model.recompute_granularity"] = "selective"
        paths["model.recompute_modules"] = [*recipe.recompute]
    return paths
