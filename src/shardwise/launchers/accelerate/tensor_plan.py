"""Tensor-parallel plan of a decoder with Llama's modules, as Python for PyTorch.

Plans of transformers have no style that leaves activations split along the sequence; PyTorch's own
styles have, and accelerate prepares any model of DTensors.
"""

from collections.abc import Iterator

from shardwise.config.enums import NormPlacement, Position, QkNorm, TpExchange
from shardwise.config.model import Model, uncommon_fields
from shardwise.config.strategy import Strategy
from shardwise.launchers.python_text import docstring

_COLUMNS, _ROWS = "ColwiseParallel()", "RowwiseParallel()"
_SCATTERED = "RowwiseParallel(output_layouts=Shard(1))"
_SPLIT = """PrepareModuleInput(
        input_layouts=(Replicate(),),
        desired_input_layouts=(Shard(1),),
        use_local_output=True,
    )"""
_NORM = "SequenceParallel(use_local_output=True)"
_HEADS = "SequenceParallel(sequence_dim=2, use_local_output=True)"


def missing_modules(model: Model) -> str:
    """Return what a model has that Llama's modules do not; empty if there is nothing."""
    layers, attentions = model.layers, model.attentions
    blocks = [layer.mlp for layer in layers if layer.mlp is not None]
    beyond = next((one.beyond_transformer for one in layers if one.beyond_transformer), None)
    found = {
        beyond[2] if beyond else "": beyond is not None,
        "experts": model.has_experts,
        "latent attention": any(one.latent is not None for one in attentions),
        "attention sinks": any(one.sinks for one in attentions),
        **dict.fromkeys(uncommon_fields(model), True),
        "norms of queries and keys over their width": any(
            one.qk_norm not in (QkNorm.NONE, QkNorm.HEAD) for one in attentions
        ),
        "parallel layers": any(layer.parallel for layer in layers),
        "norms that are not before the blocks": any(
            layer.norms != NormPlacement.PRE for layer in layers
        ),
        "an MLP without a gate": any(not block.gated for block in blocks),
        f"{model.position} positions": model.position != Position.ROPE,
        "a norm of the embedding": model.embedding_norm,
        "multi-token prediction": model.mtp > 0,
    }
    return next((what for what, is_there in found.items() if is_there), "")


def _inputs(source: str, *, keyword: str = "") -> str:
    """Style that gathers the input of a block once, for all of its first products."""
    if keyword:
        layouts, desired = f'{{"{keyword}": {source}}}', f'{{"{keyword}": Replicate()}}'
        return (
            f"PrepareModuleInput(\n        input_kwarg_layouts={layouts},\n"
            f"        desired_input_kwarg_layouts={desired},\n    )"
        )
    return (
        f"PrepareModuleInput(\n        input_layouts=({source},),\n"
        "        desired_input_layouts=(Replicate(),),\n    )"
    )


def _styles(model: Model, *, splits: bool) -> Iterator[tuple[str, str]]:
    """Modules, by the names that transformers gives them, and their styles."""
    layer, source = "model.layers.*", "Shard(1)" if splits else "Replicate()"
    norm, rows = (_NORM, _SCATTERED) if splits else ("Replicated()", _ROWS)
    yield "model.embed_tokens", "RowwiseParallel(input_layouts=Replicate())"
    if splits:
        yield "model.layers.0", _SPLIT
    yield f"{layer}.input_layernorm", norm
    yield f"{layer}.self_attn", _inputs(source, keyword="hidden_states")
    for name in ("q", "k", "v"):
        yield f"{layer}.self_attn.{name}_proj", _COLUMNS
    if any(one.qk_norm == QkNorm.HEAD for one in model.attentions):
        yield f"{layer}.self_attn.q_norm", _HEADS
        yield f"{layer}.self_attn.k_norm", _HEADS
    yield f"{layer}.self_attn.o_proj", rows
    yield f"{layer}.post_attention_layernorm", norm
    yield f"{layer}.mlp", _inputs(source)
    yield f"{layer}.mlp.gate_proj", _COLUMNS
    yield f"{layer}.mlp.up_proj", _COLUMNS
    yield f"{layer}.mlp.down_proj", rows
    yield "model.norm", norm
    yield "lm_head", f"ColwiseParallel(input_layouts={source}, output_layouts=Replicate())"


_IMPORTS = """from fnmatch import filter as matching

from torch.distributed.tensor import {tensor_names}
from torch.distributed.tensor.parallel import (
{style_names}    parallelize_module,
)
from transformers.integrations import tensor_parallel

# accelerate imports this name before it prepares tensor parallelism; transformers 5 has it no more.
# Below, every parameter becomes a DTensor, so that nothing is left for it to do.
if not hasattr(tensor_parallel, "ReplicateParallel"):
    tensor_parallel.ReplicateParallel = None

"""
_REPLICATED = '''
class Replicated(ParallelStyle):
    """Every rank computes all of a module."""

    def _apply(self, module, device_mesh):
        return distribute_module(
            module,
            device_mesh,
            input_fn=lambda _, inputs, mesh: tuple(
                DTensor.from_local(one, mesh, [Replicate()], run_check=False) for one in inputs
            ),
            output_fn=lambda _, output, mesh: output.to_local(),
        )


'''
_FUNCTION = '''

def parallelize(model, tp_mesh):
    """Split a model, before accelerator.prepare, over accelerator.torch_device_mesh["tp"]."""
    names = [name for name, _ in model.named_modules()]
    if missing := [name for name in TP_PLAN if not matching(names, name)]:
        raise ValueError(f"the model has no modules {', '.join(missing)}")
    parallelize_module(model, tp_mesh, TP_PLAN)
'''
_TENSOR_NAMES = ("DTensor", "Replicate", "Shard", "distribute_module")
_STYLE_NAMES = (
    *("ColwiseParallel", "ParallelStyle", "PrepareModuleInput"),
    *("RowwiseParallel", "SequenceParallel"),
)


def python_plan(model: Model, strategy: Strategy) -> str:
    """Return a Python module with `TP_PLAN` and `parallelize`."""
    splits = strategy.tp_exchange == TpExchange.RS_AG
    entries = "".join(f'    "{name}": {style},\n' for name, style in _styles(model, splits=splits))
    body = f"{'' if splits else _REPLICATED}TP_PLAN = {{\n{entries}}}\n{_FUNCTION}"
    imports = _IMPORTS.format(
        tensor_names=", ".join(name for name in _TENSOR_NAMES if name in body),
        style_names="".join(f"    {name},\n" for name in _STYLE_NAMES if name in body),
    )
    ties = "    model.lm_head.weight = model.model.embed_tokens.weight\n"
    title = f"Tensor-parallel plan of {model.name}: tp {strategy.tp}, {strategy.tp_exchange}."
    return (
        f"{docstring(title)}\n\n"
        f"{imports}{body}{ties if model.tied_embeddings else ''}    return model\n"
    )
