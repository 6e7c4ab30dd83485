"""Conditions of launchers that stacks switch on by name (`config.enums.LaunchRule`).

References are files and lines of Megatron-LM (A arguments.py, T transformer_config.py, P
parallel_state.py, S schedules.py; commit d98e8a64 of 2026-08-22), torchtitan (b5bcd76c of
2026-08-21), DeepSpeed (edaa7221 of 2026-08-22) and Transformer Engine (d0067d0d of 2026-08-22).
"""

from collections.abc import Callable, Mapping

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
from shardwise.parallel.constraints.constraint import Check, any_of, one, said, with_all
from shardwise.parallel.constraints.degrees import is_latent
from shardwise.parallel.constraints.options import absent_parts

_NORMS = RecomputePart.bits(("attention_norm", "mlp_norm"))
_GROUPED = RecomputePart.bits(("activation",))


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


def _split_tokens(table: Table) -> Bools:
    pieces = np.where(table.sequence_parallel, table.tp, 1) * np.where(
        table.cp > 1, 2 * table.cp, 1
    )
    return table.micro_batch_size * table.seq_len % pieces != 0


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


def _dispatched_ranks(model: Model, table: Table) -> Bools:
    once = np.array([word.sends_once for word in Dispatcher])[table.dispatcher]
    return once & (table.ep * table.etp == 1) & model.has_experts


def _expert_sequence(model: Model, table: Table) -> Bools:
    split = table.tp_exchange == TpExchange.RS_AG.code
    return (table.tp > 1) & ~split & table.training & model.has_experts


def _expert_biases(model: Model, table: Table) -> Bools:
    biased = any(layer.moe is not None and layer.moe.bias for layer in model.layers)
    return (table.etp > 1) & biased


def _recomputes(table: Table, parts: int) -> Bools:
    selective = (table.recompute == Recompute.SELECTIVE.code) & table.training
    return selective & (table.recompute_parts & parts > 0)


def _fused_norms(model: Model, table: Table) -> Bools:
    apart = is_latent(model) or model.has_experts
    return _recomputes(table, _NORMS) & (not apart)


def _fused_norm_offload(model: Model, table: Table) -> Bools:
    named = 0 if is_latent(model) else OffloadPart.bits(("attention_norm",))
    if not model.has_experts:
        named |= OffloadPart.bits(("mlp_norm", "expert_up", "activation", "expert_down"))
    return table.offload_activations & (table.offload_parts & named > 0)


def _check(
    field: str, test: Callable[..., Bools], text: str | Callable[..., str], *reads: str
) -> Check:
    """A condition on the fields that it reads; functions and text as of `rule`."""
    return Check(field=field, violated=with_all(test), problem=said(text), reads=reads)


LAUNCH_RULES: Mapping[LaunchRule, Check] = {
    # See S:1158-1180, with micro-batch groups of pp, the default.
    LaunchRule.CHUNKED_MICRO_BATCHES: _check(
        "vpp",
        lambda t: (t.vpp > 1) & (t.pp > 1) & (t.micro_batches % t.pp != 0),
        "interleaves micro-batches in groups of pp {pp}, which must divide the {micro_batches} of "
        "a replica",
        *("vpp", "pp", "global_batch_size", "dp", "micro_batch_size"),
    ),
    LaunchRule.STAGED_MICRO_BATCHES: _check(
        "pp",
        lambda t: (t.pp > 1) & (t.micro_batches % t.pp != 0),
        "needs micro-batches of a replica, {micro_batches}, that pp divides",
        *("pp", "global_batch_size", "dp", "micro_batch_size"),
    ),
    # See A:968-998 and T:2295-2368
    LaunchRule.EVEN_STAGES: _check(
        "pp",
        _even_stages,
        "spreads the {m.depth} layers evenly over stages of vpp {vpp} chunks, but for "
        "first_stage_layers, last_stage_layers, embedding_as_layer and loss_as_layer",
        *("pp", "vpp", "first_stage_layers", "last_stage_layers"),
        *("embedding_as_layer", "loss_as_layer", "stage_layers"),
    ),
    # See T:1919 and core/recompute.py:167-181
    LaunchRule.RECOMPUTED_CHUNKS: _check(
        "recompute_layers",
        _recomputed_chunks,
        "counts them by chunk: a multiple of vpp, at most the layers of a stage",
        *("recompute", "recompute_layers", "pp", "vpp"),
    ),
    # torchtitan models/common/decoder.py:187-199
    LaunchRule.KV_HEADS: _check(
        "tp", _key_value_heads, "needs tp to divide the key-value heads", "tp", "attention"
    ),
    # Transformer Engine, context_parallel.py:4247
    LaunchRule.ALL_TO_ALL_HEADS: _check(
        "cp_exchange",
        _all_to_all_heads,
        "needs cp to divide the key-value heads of a tensor-parallel rank",
        *("cp_exchange", "cp", "tp", "attention"),
    ),
    # torchtitan trainer.py:294-425
    LaunchRule.SPLIT_TOKENS: _check(
        "seq_len",
        _split_tokens,
        "needs tp x 2 cp to divide the tokens of a micro-batch",
        *("seq_len", "micro_batch_size", "tp", "cp", "tp_exchange"),
    ),
    # torchtitan models/common/decoder.py:168
    LaunchRule.TIED_STAGES: _check(
        "pp",
        lambda m, t: (t.pp > 1) & m.tied_embeddings,
        "runs a model whose head is tied to the embedding with 1 only",
        "pp",
    ),
    # See P:898-904
    LaunchRule.EXPERT_GRID: _check(
        "placement",
        _expert_grid,
        "places pp before dp only where etp x ep = tp x cp",
        *("placement", "pp", "dp", "etp", "ep", "tp", "cp"),
    ),
    # torchtitan distributed/parallel_dims.py
    LaunchRule.EXPERT_SHARDS: _check(
        "ep",
        _expert_shards,
        "needs ep x etp to divide the ranks of one set of shards x cp x tp",
        *("ep", "etp", "dp", "dp_shard", "zero", "cp", "tp"),
    ),
    # DeepSpeed utils/groups.py: groups of experts are made inside data parallelism
    LaunchRule.EXPERT_REPLICAS: _check(
        "ep",
        lambda m, t: (t.dp % t.ep != 0) & m.has_experts,
        "needs ep to divide dp {dp}",
        *("ep", "dp"),
    ),
    # torchtitan 0.2.0 to 0.2.2, distributed/parallel_dims.py
    LaunchRule.EXPERT_TENSORS: _check(
        "etp",
        lambda m, t: (t.etp != 1) & (t.etp != t.tp) & m.has_experts,
        "runs 1 or tp {tp}",
        *("etp", "tp"),
    ),
    # Megatron-LM, core/transformer/moe/token_dispatcher.py
    LaunchRule.DISPATCHED_RANKS: _check(
        "dispatcher",
        _dispatched_ranks,
        "runs deepep and hybridep with ep x etp > 1 only",
        *("dispatcher", "ep", "etp"),
    ),
    # Megatron-LM, core/transformer/moe/moe_layer.py:636
    LaunchRule.EXPERT_SEQUENCE: _check(
        "tp_exchange",
        _expert_sequence,
        "trains experts with tp > 1 with rs_ag (sequence parallelism) only",
        *("tp_exchange", "tp", "training"),
    ),
    # See T:2612
    LaunchRule.EXPERT_BIASES: _check(
        "etp", _expert_biases, "runs experts that have biases with 1 only", "etp"
    ),
    # Megatron-LM, core/models/gpt/gpt_layer_specs.py:117 and others
    LaunchRule.FUSED_NORMS: _check(
        "recompute_parts",
        _fused_norms,
        "fuses the norms of a dense layer into the products that follow; only those of latent "
        "attention and before experts can be recomputed",
        *("recompute", "recompute_parts", "training"),
    ),
    # Megatron-LM, core/transformer/moe/experts.py:270
    LaunchRule.GROUPED_ACTIVATION: _check(
        "recompute_parts",
        lambda m, t: _recomputes(t, _GROUPED) & (not m.has_experts),
        "recomputes the activation of experts only",
        *("recompute", "recompute_parts", "training"),
    ),
    # as FUSED_NORMS and GROUPED_ACTIVATION
    LaunchRule.FUSED_NORM_OFFLOAD: _check(
        "offload_parts",
        _fused_norm_offload,
        "offloads norms that are not fused, of latent attention and before experts, and "
        "activations of experts",
        *("offload_activations", "offload_parts"),
    ),
    # See T:1900-2051
    LaunchRule.PRESENT_PARTS: _check(
        "recompute_parts",
        lambda m, t: _recomputes(t, absent_parts(m)),
        lambda m, t: (
            f"recomputes parts that layers have; {m.name} has no "
            + ", ".join(RecomputePart.from_bits(one(t.recompute_parts) & absent_parts(m)))
        ),
        *("recompute", "recompute_parts", "training"),
    ),
    # See A:1031-1064
    LaunchRule.UNTIED_SHARDS: _check(
        "fsdp_reshard",
        lambda m, t: ~t.fsdp_reshard & (t.zero >= ZERO_WEIGHTS) & m.tied_embeddings,
        "gathers weights once, in torch FSDP2, where head and embedding are untied",
        *("fsdp_reshard", "zero"),
    ),
    # torchtitan distributed/fsdp.py and accelerate: a policy of FSDP, which one rank does not use
    LaunchRule.OFFLOAD_SHARDS: _check(
        "offload_weights",
        lambda t: t.offload_weights & (t.replicas == 1),
        "offloads weights that FSDP shards: dp x cp > 1",
        *("offload_weights", "dp", "cp"),
    ),
    # MaxText, configs/base.yml: tensor axes split experts too
    LaunchRule.EXPERTS_SPLIT_AS_TP: _check(
        "etp",
        lambda m, t: (t.etp != t.tp) & m.has_experts,
        "splits experts by tensor axes: etp {tp}, as tp",
        *("etp", "tp"),
    ),
}
