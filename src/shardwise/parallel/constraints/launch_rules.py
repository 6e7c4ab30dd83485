"""Conditions of launchers that stacks switch on by name (`config.enums.LaunchRule`).

References are files and lines of Megatron-LM (A arguments.py, T transformer_config.py, P
parallel_state.py, S schedules.py; commit d98e8a64 of 2026-08-22), torchtitan (b5bcd76c of
2026-08-21), DeepSpeed (edaa7221 of 2026-08-22) and Transformer Engine (d0067d0d of 2026-08-22).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.arrays import Bools, Ints
from shardwise.config.enums import (
    PLACEMENTS,
    ZERO_OPTIMIZER,
    ZERO_WEIGHTS,
    AttentionKind,
    CpExchange,
    Dispatcher,
    LaunchRule,
    OffloadPart,
    Recompute,
    RecomputePart,
    TpExchange,
)
from shardwise.config.model import Attention, Model
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints.constraint import any_of, one
from shardwise.parallel.constraints.options import is_recomputable

_NORMS = RecomputePart.bits(("attention_norm", "mlp_norm"))
_GROUPED = RecomputePart.bits(("activation",))
_MOE = RecomputePart.bits(("moe",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition that data switches on."""

    field: str
    """The field to blame."""
    violated: Callable[[Model, Table], Bools]
    problem: Callable[[Model, Table], str]
    """What the release needs, as the end of a sentence, for a table of one row."""
    reads: tuple[str, ...]
    """Fields that decide it."""


def _chunked_micro_batches(_: Model, table: Table) -> Bools:
    return (table.vpp > 1) & (table.pp > 1) & (table.micro_batches % table.pp != 0)


def _staged_micro_batches(_: Model, table: Table) -> Bools:
    return (table.pp > 1) & (table.micro_batches % table.pp != 0)


def _even_stages(model: Model, table: Table) -> Bools:
    """Layers that the stages between first and last, and their chunks, do not share evenly."""
    first, last, pp, vpp = (
        table.first_stage_layers,
        table.last_stage_layers,
        table.pp,
        table.vpp,
    )
    counted = table.embedding_as_layer.astype(np.int64) + table.loss_as_layer
    stages = pp - (first > 0) - (last > 0)
    layers = model.depth + counted - first - last
    uneven = layers % np.maximum(stages, 1) != 0
    uneven |= layers // np.maximum(stages, 1) % vpp != 0
    wrong = np.where(stages > 0, uneven | (layers <= 0), layers != 0)
    wrong |= (first % vpp != 0) | (last % vpp != 0)
    return wrong & (pp > 1) & (table.stage_layers < 0)


def _recomputed_chunks(model: Model, table: Table) -> Bools:
    layers = table.recompute_layers
    beyond = (layers > -(-model.depth // table.pp)) | (layers % table.vpp != 0)
    return (table.recompute == Recompute.FULL.code) & (layers > 0) & beyond


def _kv_heads(attention: Attention, table: Table) -> Ints:
    """Key-value heads of each row; shape (rows,)."""
    by_kind = {
        AttentionKind.MODEL: attention.kv_heads,
        AttentionKind.MULTIHEAD: attention.heads,
        AttentionKind.MULTIQUERY: 1,
    }
    return np.array([by_kind[kind] for kind in AttentionKind])[table.attention]


def _key_value_heads(model: Model, table: Table) -> Bools:
    plain = [layer.attention for layer in model.layers if layer.attention.latent is None]
    return any_of(table, (_kv_heads(one_of, table) % table.tp != 0 for one_of in plain))


def _all_to_all_heads(model: Model, table: Table) -> Bools:
    swaps = (table.cp > 1) & (table.cp_exchange == CpExchange.ALL_TO_ALL.code)
    wrong = (
        np.maximum(_kv_heads(layer.attention, table) // table.tp, 1) % table.cp != 0
        for layer in model.layers
    )
    return swaps & any_of(table, wrong)


def _split_tokens(_: Model, table: Table) -> Bools:
    pieces = np.where(table.sequence_parallel, table.tp, 1) * np.where(
        table.cp > 1, 2 * table.cp, 1
    )
    return table.micro_batch_size * table.seq_len % pieces != 0


def _tied_stages(model: Model, table: Table) -> Bools:
    return (table.pp > 1) & model.tied_embeddings


def _expert_grid(model: Model, table: Table) -> Bools:
    """Rows with pipeline stages inside data parallelism whose experts have other replicas."""
    inside = np.array([p.index("pp") < p.index("dp") for p in PLACEMENTS])[table.placement]
    split = table.etp * table.ep if model.has_experts else table.tp
    return inside & (table.pp > 1) & (table.dp > 1) & (split != table.tp * table.cp)


def _shards(table: Table) -> Ints:
    """Replicas that share one set of shards."""
    hybrid = np.where(table.dp_shard > 0, table.dp_shard, table.dp)
    return np.where(table.zero >= ZERO_OPTIMIZER, hybrid, 1)


def _expert_shards(model: Model, table: Table) -> Bools:
    ranks = _shards(table) * table.cp * table.tp
    return (ranks % (table.ep * table.etp) != 0) & (table.ep > 1) & model.has_experts


def _expert_replicas(model: Model, table: Table) -> Bools:
    return (table.dp % table.ep != 0) & model.has_experts


def _expert_tensors(model: Model, table: Table) -> Bools:
    return (table.etp != 1) & (table.etp != table.tp) & model.has_experts


def _dispatched_ranks(model: Model, table: Table) -> Bools:
    once = np.array([word.sends_once for word in Dispatcher])[table.dispatcher]
    return once & (table.ep * table.etp == 1) & model.has_experts


def _expert_sequence(model: Model, table: Table) -> Bools:
    split = table.tp_exchange == TpExchange.RS_AG.code
    return (table.tp > 1) & ~split & table.training & model.has_experts


def _expert_biases(model: Model, table: Table) -> Bools:
    biased = any(layer.moe is not None and layer.moe.bias for layer in model.layers)
    return (table.etp > 1) & biased


def _is_latent(model: Model) -> bool:
    return any(layer.attention.latent is not None for layer in model.layers)


def _recomputes(table: Table, parts: int) -> Bools:
    selective = (table.recompute == Recompute.SELECTIVE.code) & table.training
    return selective & (table.recompute_parts & parts > 0)


def _fused_norms(model: Model, table: Table) -> Bools:
    apart = _is_latent(model) or model.has_experts
    return _recomputes(table, _NORMS) & (not apart)


def _grouped_activation(model: Model, table: Table) -> Bools:
    return _recomputes(table, _GROUPED) & (not model.has_experts)


def _fused_norm_offload(model: Model, table: Table) -> Bools:
    named = 0 if _is_latent(model) else OffloadPart.bits(("attention_norm",))
    if not model.has_experts:
        named |= OffloadPart.bits(("mlp_norm", "expert_up", "activation", "expert_down"))
    return table.offload_activations & (table.offload_parts & named > 0)


def _absent_parts(model: Model) -> int:
    """Parts of recompute that no layer of a model has, as bits."""
    return RecomputePart.bits([part for part in RecomputePart if not is_recomputable(model, part)])


def _recomputes_absent(model: Model, table: Table) -> Bools:
    return _recomputes(table, _absent_parts(model))


def _tied_shards(model: Model, table: Table) -> Bools:
    return ~table.fsdp_reshard & (table.zero >= ZERO_WEIGHTS) & model.tied_embeddings


def _offloads_unsharded(_: Model, table: Table) -> Bools:
    return table.offload_weights & (table.replicas == 1)


def _split_otherwise(model: Model, table: Table) -> Bools:
    return (table.etp != table.tp) & model.has_experts


def _text(words: str) -> Callable[[Model, Table], str]:
    return lambda *_: words


LAUNCH_RULES: Mapping[LaunchRule, Rule] = {
    # See S:1158-1180, with micro-batch groups of pp, the default.
    LaunchRule.CHUNKED_MICRO_BATCHES: Rule(
        field="vpp",
        violated=_chunked_micro_batches,
        problem=lambda _, t: (
            f"interleaves micro-batches in groups of pp {one(t.pp)}, which must divide the "
            f"{one(t.micro_batches)} of a replica"
        ),
        reads=("vpp", "pp", "global_batch_size", "dp", "micro_batch_size"),
    ),
    LaunchRule.STAGED_MICRO_BATCHES: Rule(
        field="pp",
        violated=_staged_micro_batches,
        problem=lambda _, t: (
            f"needs micro-batches of a replica, {one(t.micro_batches)}, that pp divides"
        ),
        reads=("pp", "global_batch_size", "dp", "micro_batch_size"),
    ),
    # See A:968-998 and T:2295-2368
    LaunchRule.EVEN_STAGES: Rule(
        field="pp",
        violated=_even_stages,
        problem=lambda m, t: (
            f"spreads the {m.depth} layers evenly over stages of vpp {one(t.vpp)} chunks, but for "
            "first_stage_layers, last_stage_layers, embedding_as_layer and loss_as_layer"
        ),
        reads=(
            *("pp", "vpp", "first_stage_layers", "last_stage_layers"),
            *("embedding_as_layer", "loss_as_layer", "stage_layers"),
        ),
    ),
    # See T:1919 and core/recompute.py:167-181
    LaunchRule.RECOMPUTED_CHUNKS: Rule(
        field="recompute_layers",
        violated=_recomputed_chunks,
        problem=_text("counts them by chunk: a multiple of vpp, at most the layers of a stage"),
        reads=("recompute", "recompute_layers", "pp", "vpp"),
    ),
    # torchtitan models/common/decoder.py:187-199
    LaunchRule.KV_HEADS: Rule(
        field="tp",
        violated=_key_value_heads,
        problem=_text("needs tp to divide the key-value heads"),
        reads=("tp", "attention"),
    ),
    # Transformer Engine, context_parallel.py:4247
    LaunchRule.ALL_TO_ALL_HEADS: Rule(
        field="cp_exchange",
        violated=_all_to_all_heads,
        problem=_text("needs cp to divide the key-value heads of a tensor-parallel rank"),
        reads=("cp_exchange", "cp", "tp", "attention"),
    ),
    # torchtitan trainer.py:294-425
    LaunchRule.SPLIT_TOKENS: Rule(
        field="seq_len",
        violated=_split_tokens,
        problem=_text("needs tp x 2 cp to divide the tokens of a micro-batch"),
        reads=("seq_len", "micro_batch_size", "tp", "cp", "tp_exchange"),
    ),
    # torchtitan models/common/decoder.py:168
    LaunchRule.TIED_STAGES: Rule(
        field="pp",
        violated=_tied_stages,
        problem=_text("runs a model whose head is tied to the embedding with 1 only"),
        reads=("pp",),
    ),
    # See P:898-904
    LaunchRule.EXPERT_GRID: Rule(
        field="placement",
        violated=_expert_grid,
        problem=_text("places pp before dp only where etp x ep = tp x cp"),
        reads=("placement", "pp", "dp", "etp", "ep", "tp", "cp"),
    ),
    # torchtitan distributed/parallel_dims.py
    LaunchRule.EXPERT_SHARDS: Rule(
        field="ep",
        violated=_expert_shards,
        problem=_text("needs ep x etp to divide the ranks of one set of shards x cp x tp"),
        reads=("ep", "etp", "dp", "dp_shard", "zero", "cp", "tp"),
    ),
    # DeepSpeed utils/groups.py: groups of experts are made inside data parallelism
    LaunchRule.EXPERT_REPLICAS: Rule(
        field="ep",
        violated=_expert_replicas,
        problem=lambda _, t: f"needs ep to divide dp {one(t.dp)}",
        reads=("ep", "dp"),
    ),
    # torchtitan 0.2.0 to 0.2.2, distributed/parallel_dims.py
    LaunchRule.EXPERT_TENSORS: Rule(
        field="etp",
        violated=_expert_tensors,
        problem=lambda _, t: f"runs 1 or tp {one(t.tp)}",
        reads=("etp", "tp"),
    ),
    # Megatron-LM, core/transformer/moe/token_dispatcher.py
    LaunchRule.DISPATCHED_RANKS: Rule(
        field="dispatcher",
        violated=_dispatched_ranks,
        problem=_text("runs deepep and hybridep with ep x etp > 1 only"),
        reads=("dispatcher", "ep", "etp"),
    ),
    # Megatron-LM, core/transformer/moe/moe_layer.py:636
    LaunchRule.EXPERT_SEQUENCE: Rule(
        field="tp_exchange",
        violated=_expert_sequence,
        problem=_text("trains experts with tp > 1 with rs_ag (sequence parallelism) only"),
        reads=("tp_exchange", "tp", "training"),
    ),
    # See T:2612
    LaunchRule.EXPERT_BIASES: Rule(
        field="etp",
        violated=_expert_biases,
        problem=_text("runs experts that have biases with 1 only"),
        reads=("etp",),
    ),
    # Megatron-LM, core/models/gpt/gpt_layer_specs.py:117 and others
    LaunchRule.FUSED_NORMS: Rule(
        field="recompute_parts",
        violated=_fused_norms,
        problem=_text(
            "fuses the norms of a dense layer into the products that follow; only those of latent "
            "attention and before experts can be recomputed"
        ),
        reads=("recompute", "recompute_parts", "training"),
    ),
    # Megatron-LM, core/transformer/moe/experts.py:270
    LaunchRule.GROUPED_ACTIVATION: Rule(
        field="recompute_parts",
        violated=_grouped_activation,
        problem=_text("recomputes the activation of experts only"),
        reads=("recompute", "recompute_parts", "training"),
    ),
    # as FUSED_NORMS and GROUPED_ACTIVATION
    LaunchRule.FUSED_NORM_OFFLOAD: Rule(
        field="offload_parts",
        violated=_fused_norm_offload,
        problem=_text(
            "offloads norms that are not fused, of latent attention and before experts, and "
            "activations of experts"
        ),
        reads=("offload_activations", "offload_parts"),
    ),
    # See T:1900-2051
    LaunchRule.PRESENT_PARTS: Rule(
        field="recompute_parts",
        violated=_recomputes_absent,
        problem=lambda m, t: (
            f"recomputes parts that layers have; {m.name} has no "
            + ", ".join(RecomputePart.from_bits(one(t.recompute_parts) & _absent_parts(m)))
        ),
        reads=("recompute", "recompute_parts", "training"),
    ),
    # See A:1031-1064
    LaunchRule.UNTIED_SHARDS: Rule(
        field="fsdp_reshard",
        violated=_tied_shards,
        problem=_text("gathers weights once, in torch FSDP2, where head and embedding are untied"),
        reads=("fsdp_reshard", "zero"),
    ),
    # torchtitan distributed/fsdp.py and accelerate: a policy of FSDP, which one rank does not use
    LaunchRule.OFFLOAD_SHARDS: Rule(
        field="offload_weights",
        violated=_offloads_unsharded,
        problem=_text("offloads weights that FSDP shards: dp x cp > 1"),
        reads=("offload_weights", "dp", "cp"),
    ),
    # MaxText, configs/base.yml: tensor axes split experts too
    LaunchRule.EXPERTS_SPLIT_AS_TP: Rule(
        field="etp",
        violated=_split_otherwise,
        problem=lambda _, t: f"splits experts by tensor axes: etp {one(t.tp)}, as tp",
        reads=("etp", "tp"),
    ),
}
