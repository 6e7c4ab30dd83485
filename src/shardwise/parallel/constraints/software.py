"""Constraints of software: what the release of a strategy's stack can run (`Capabilities`).

A field that has no effect on a strategy breaks nothing: with one tensor-parallel rank any
`tp_exchange` is the same.

Stacks switch on conditions of launchers by name (`config.enums.LaunchRule`). Their references are
files and lines of Megatron-LM (A arguments.py, T transformer_config.py, P parallel_state.py, S
schedules.py; commit d98e8a64 of 2026-08-22), torchtitan (b5bcd76c of 2026-08-21), DeepSpeed
(edaa7221 of 2026-08-22) and Transformer Engine (d0067d0d of 2026-08-22).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from shardwise.arrays import Bools, Column, Ints
from shardwise.config.capabilities import (
    ANY,
    IN_DOMAIN,
    SET,
    Capabilities,
    Combination,
    Reported,
    Values,
    comparison,
    described,
)
from shardwise.config.enums import (
    EXTENT_AXES,
    PLACED_AXES,
    PLACEMENTS,
    TIER_FIELDS,
    ZERO_GRADIENTS,
    ZERO_OPTIMIZER,
    ZERO_WEIGHTS,
    AttentionKind,
    CpExchange,
    Dispatcher,
    Dtype,
    LaunchRule,
    OffloadPart,
    Quantization,
    Recompute,
    RecomputePart,
    TpExchange,
)
from shardwise.config.model import Attention, Model
from shardwise.config.roles import Section
from shardwise.config.stack import Stack
from shardwise.config.strategy_fields import COLUMNS, LAYOUT_FIELDS, Kind, StrategyField
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.constraints.constraint import (
    Check,
    Constraint,
    Test,
    any_of,
    one,
    said,
    with_all,
)
from shardwise.parallel.constraints.degrees import is_latent
from shardwise.parallel.constraints.network import wrong_degrees
from shardwise.parallel.constraints.options import absent_parts
from shardwise.parallel.placement import fixed_tiers, place
from shardwise.records import replace

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
    plain = [attention for attention in model.attentions if attention.latent is None]
    return any_of(table, (_kv_heads(one_of, table) % table.tp != 0 for one_of in plain))


def _all_to_all_heads(model: Model, table: Table) -> Bools:
    swaps = (table.cp > 1) & (table.cp_exchange == CpExchange.ALL_TO_ALL.code)
    wrong = (
        np.maximum(_kv_heads(attention, table) // table.tp, 1) % table.cp != 0
        for attention in model.attentions
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


def _expert_shards(model: Model, table: Table) -> Bools:
    # Replicas that share one set of shards.
    hybrid = np.where(table.dp_shard > 0, table.dp_shard, table.dp)
    ranks = np.where(table.zero >= ZERO_OPTIMIZER, hybrid, 1) * table.cp * table.tp
    return (ranks % (table.ep * table.etp) != 0) & (table.ep > 1) & model.has_experts


def _dispatched_ranks(model: Model, table: Table) -> Bools:
    once = np.array([word.sends_once for word in Dispatcher])[table.dispatcher]
    return once & (table.ep * table.etp == 1) & model.has_experts


def _recomputes(table: Table, parts: int) -> Bools:
    selective = (table.recompute == Recompute.SELECTIVE.code) & table.training
    return selective & (table.recompute_parts & parts > 0)


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
    # torchtitan, apply_moe_ep_tp: without expert parallelism the tp mesh splits experts
    LaunchRule.EXPERT_TENSORS_ALONE: _check(
        "etp",
        lambda m, t: (t.ep == 1) & (t.etp != t.tp) & m.has_experts,
        "splits experts like tp {tp} where ep is 1",
        *("etp", "ep", "tp"),
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
        lambda m, t: (
            (t.tp > 1) & (t.tp_exchange != TpExchange.RS_AG.code) & t.training & m.has_experts
        ),
        "trains experts with tp > 1 with rs_ag (sequence parallelism) only",
        *("tp_exchange", "tp", "training"),
    ),
    # See T:2612
    LaunchRule.EXPERT_BIASES: _check(
        "etp",
        lambda m, t: (t.etp > 1) & any(layer.moe and layer.moe.bias for layer in m.layers),
        "runs experts that have biases with 1 only",
        "etp",
    ),
    # Megatron-LM, core/models/gpt/gpt_layer_specs.py:117 and others
    LaunchRule.FUSED_NORMS: _check(
        "recompute_parts",
        lambda m, t: _recomputes(t, _NORMS) & (not (is_latent(m) or m.has_experts)),
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
    # See T:2068-2074
    LaunchRule.SELECTIVE_STREAMS: _check(
        "recompute",
        lambda m, t: (t.recompute == Recompute.FULL.code) & t.training & (m.streams > 1),
        "recomputes layers of {m.streams} residual streams by part: none, selective",
        *("recompute", "training"),
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
    # accelerate splits modules by a plan of PyTorch's styles, which has none for experts
    LaunchRule.DENSE_TENSORS: _check(
        "tp", lambda m, t: (t.tp > 1) & m.has_experts, "runs experts with 1 only", "tp"
    ),
}


_NETWORK = ("placement", "extents", *TIER_FIELDS)
_USUAL_ORDER = str(COLUMNS["placement"].default)
LIFTS = "; --any-software lifts this"
"""End of a problem that `any_software` lifts."""


def capabilities_of(stack: Stack) -> Capabilities | None:
    """What the release of a stack can run; None: anything."""
    return stack.capabilities


def reported_on(stack: Stack, model: Model, system: System) -> tuple[Reported, ...]:
    """Return what was reported of the release of a stack on a system, of what the model has."""
    bound = capabilities_of(stack)
    if bound is None:
        return ()
    found = [one for one in bound.reported.values() if one is not None and _holds_on(one, system)]
    experts = {name for name, field in COLUMNS.items() if field.role.section is Section.EXPERTS}
    return tuple(one for one in found if model.has_experts or experts.isdisjoint(one.when))


def reports_of(
    model: Model, system: System, table: Table, *, avoided: bool = False
) -> tuple[Reported, ...]:
    """Return what was reported of the strategy of a table of one row; or what of it is avoided."""
    bound = capabilities_of(table.stacks[one(table.stack)])
    return tuple(
        check.reported
        for check in (checks_of(bound) if bound is not None else ())
        if check.reported is not None
        and (not avoided or _is_avoided(table, check))
        and check.violated(model, system, table).any()
    )


def can_run(stack: Stack, field: str, value: object) -> bool:
    """Whether the release of a stack lists a value of a field, or does not bind the field.

    Combinations with other fields do not count.
    """
    bound = capabilities_of(stack)
    return bound is None or bound.allows(field, value)


# --- Which fields have an effect ------------------------------------------------------------------


def _tensor_parallel(_: Model, table: Table) -> Bools:
    return table.tp * table.tp2 > 1


def _data_parallel(model: Model, table: Table) -> Bools:
    several: Bools = table.replicas > 1
    return several | (table.expert_replicas > 1) if model.has_experts else several


def _with_experts(model: Model, table: Table) -> Bools:
    return np.full(len(table), model.has_experts)


def _pipelined(_: Model, table: Table) -> Bools:
    return table.pp > 1


def _weights_sharded(_: Model, table: Table) -> Bools:
    return table.zero >= ZERO_WEIGHTS


# Rows in which a field has an effect; a field that is not here always has one.
_ACTIVE: Mapping[str, Callable[[Model, Table], Bools]] = {
    "tp_exchange": _tensor_parallel,
    "tp_overlap": _tensor_parallel,
    "tp_regather": lambda _, t: (t.tp > 1) & (t.tp_exchange == TpExchange.RS_AG.code),
    "cp_exchange": lambda _, t: t.cp > 1,
    "zero": lambda m, t: _data_parallel(m, t) | (t.zero >= ZERO_WEIGHTS),
    "dp_overlap": _data_parallel,
    "dp_shard": lambda _, t: t.dp_shard != t.dp,
    "fsdp_reshard": _weights_sharded,
    "fsdp_prefetch": _weights_sharded,
    "grad_sync": lambda _, t: (t.zero >= ZERO_GRADIENTS) & t.training,
    "quantized_weights": lambda _, t: t.quantization != Quantization.NONE.code,
    "ep": _with_experts,
    "etp": _with_experts,
    "dispatch_dtype": _with_experts,
    "dispatcher": _with_experts,
    "expert_capacity": _with_experts,
    "expert_overlap": lambda m, t: _with_experts(m, t) & t.training,
    "expert_kernel": _with_experts,
    "graph_scope": lambda _, t: t.captured_modules > 0,
    "recompute": lambda _, t: t.training,
    "recompute_parts": lambda _, t: (t.recompute == Recompute.SELECTIVE.code) & t.training,
    "recompute_layers": lambda _, t: (t.recompute != Recompute.NONE.code) & t.training,
    "lora_parts": lambda _, t: t.lora_rank > 0,
    "lora_targets": lambda _, t: t.lora_rank > 0,
    "adapter": lambda _, t: t.lora_rank > 0,
    "base_weights": lambda _, t: (t.lora_rank > 0) | (t.frozen > 0),
    "reference_model": lambda _, t: t.has_reference & t.training,
    "checkpoint_place": lambda _, t: (t.recompute == Recompute.FULL.code) & t.training,
    "optimizer": lambda _, t: t.training,
    **dict.fromkeys(
        ("weight_dtype", "master_dtype", "gradient_dtype", "reduce_dtype"),
        lambda _, t: t.training & (t.dtype != Dtype.FP32.code),
    ),
    "moment_dtype": lambda _, t: t.training,
    "fused_activation": lambda _, t: t.training,
    "offload_activations": lambda _, t: t.training,
    "offload_parts": lambda _, t: t.offload_activations & t.training,
    "offload_optimizer": lambda _, t: t.training,
    "schedule": _pipelined,
    "embedding_as_layer": _pipelined,
    "loss_as_layer": _pipelined,
}


def _active(name: str, model: Model, table: Table) -> Bools | bool:
    """Rows in which a field has an effect."""
    return _ACTIVE[name](model, table) if name in _ACTIVE else True


# --- Which rows have one of several values --------------------------------------------------------


def _has_value(field: StrategyField, values: Values) -> Callable[[Table], Bools]:
    """Test for rows that have one of some values of a field."""
    match field.kind:
        case Kind.WORD:
            known = np.isin(
                np.arange(len(field.words)), [*map(field.words.index, map(str, values))]
            )
            return lambda table: known[getattr(table, field.name)]
        case Kind.SET:
            return _has_groups(field, values)
        case Kind.FLAG:
            return lambda table: np.where(
                getattr(table, field.name), True in values, False in values
            )
    nothing = -1 if field.kind in (Kind.TIER, Kind.LIST) else 0
    tests = [_number_test(value, nothing) for value in values]

    def has(table: Table) -> Bools:
        column = getattr(table, field.name)
        found = tests[0](column)
        for test in tests[1:]:
            found = found | test(column)
        return found

    return has


def _number_test(value: object, nothing: int) -> Callable[[Column], Bools]:
    if value is None:
        return lambda column: column == nothing
    if value == SET:
        return lambda column: column != nothing
    compared = comparison(value)  # type: ignore[arg-type]
    return compared or (lambda column: column == value)


def _bits(field: StrategyField, values: Values) -> list[int]:
    """Words that come together, as bits; of None, none."""
    return [field.word_type.bits(v.split("+")) for v in values if isinstance(v, str) and v != SET]


def _has_groups(field: StrategyField, values: Values) -> Callable[[Table], Bools]:
    """Test for sets that are made of some groups of words, each in full."""
    groups, empty = _bits(field, values), None in values or not field.optional
    anything = SET in values

    def has(table: Table) -> Bools:
        column: Ints = getattr(table, field.name)
        covered = np.zeros_like(column)
        for bits in groups:
            covered |= np.where(column & bits == bits, bits, 0)
        return np.where(column == 0, empty, anything | (covered == column))

    return has


def _graphs_in_effect(values: Values) -> Callable[[Table], Bools]:
    """Test for rows with one of some CUDA graphs in effect, be they those of the stack."""
    words = COLUMNS["cuda_graphs"].words
    known = np.isin(np.arange(len(words)), [words.index(str(value)) for value in values])
    return lambda table: known[table.graphs]


def _mentions(field: StrategyField, values: Values) -> Callable[[Table], Bools]:
    """Test for rows that `when` means: of a set, those with one of the words."""
    if field.kind is not Kind.SET or None in values or SET in values:
        return _has_value(field, values)
    groups = _bits(field, values)

    def has(table: Table) -> Bools:
        column: Ints = getattr(table, field.name)
        return np.logical_or.reduce([column & bits == bits for bits in groups])

    return has


def _has_placement(values: Values) -> Callable[[System, Table], Bools]:
    """Test for ranks in one of some orders, or in the domains that one of them gives.

    An axis of one rank may stand anywhere.
    """
    orders = [str(value) for value in values]
    known = np.any([_alike(order) for order in orders], axis=0)

    def has(system: System, table: Table) -> Bools:
        several = [table.tp * table.tp2 > 1, *(getattr(table, a) > 1 for a in PLACED_AXES[1:])]
        bits = np.sum([axis << n for n, axis in enumerate(several)], axis=0)
        found: Bools = known[table.placement, bits]
        own = np.asarray(table.extents >= 0)
        for name in TIER_FIELDS:
            own = own | (getattr(table, name) >= 0)
        rows = np.flatnonzero(own)
        if rows.size:
            found[rows] = _placed_as(system, table.take(rows), orders)
        return found

    return has


def _alike(order: str) -> Bools:
    """Placements that order axes of several ranks as one does; shape (placements, axes as bits)."""
    alike = np.empty((len(PLACEMENTS), 1 << len(PLACED_AXES)), dtype=np.bool_)
    for bits in range(alike.shape[1]):
        several = [axis for n, axis in enumerate(PLACED_AXES) if bits >> n & 1]
        orders = [[a for a in p.split("-") if a in several] for p in (*PLACEMENTS, order)]
        alike[:, bits] = [one_of == orders[-1] for one_of in orders[:-1]]
    return alike


def _placed_as(system: System, table: Table, orders: Iterable[str]) -> Bools:
    """Rows whose tiers or extents are those that one of some orders gives."""
    found = np.zeros(len(table), dtype=np.bool_)
    tiers = len(system.network)
    usable = ~wrong_degrees(table) & np.all(fixed_tiers(table) < tiers, axis=0)
    rows = np.flatnonzero(usable)
    if not rows.size:
        return ~usable  # other rules refuse them
    some = table.take(rows)
    own = place(system, some)
    nothing = np.full(rows.size, -1)
    free = dict.fromkeys(("extents", *TIER_FIELDS), nothing)
    for order in orders:
        code = np.full(rows.size, PLACEMENTS.index(order))
        other = place(system, some.changed(placement=code, **free))
        same = [
            np.all(getattr(own, axis) == getattr(other, axis), axis=0)
            for axis in (*EXTENT_AXES, "ep", "etp")
        ]
        found[rows] |= np.logical_and.reduce(same)
    return found | ~usable


def _in_domain(_: Model, system: System, table: Table) -> Bools:
    """Rows whose groups of experts lie in one domain of the fastest network each."""
    found: Bools = table.ep * table.etp == 1
    domain = math.inf if system.fast_domain is None else system.fast_domain
    usable = (
        ~found & ~wrong_degrees(table) & np.all(fixed_tiers(table) < len(system.network), axis=0)
    )
    rows = np.flatnonzero(usable)  # other rules refuse the rest
    found = found | ~usable
    if rows.size:
        some = table.take(rows)
        tier = max(n for n, one in enumerate(system.network) if (one.domain or math.inf) <= domain)
        extents = place(system, some)
        found[rows] = (extents.ep[tier] == some.ep) & (extents.etp[tier] == some.etp)
    return found


# --- Checks of a release --------------------------------------------------------------------------


def _field_check(name: str, values: Values) -> Check:
    field = COLUMNS[name]
    text = "cannot set it" if values == (None,) else f"supports {name} {described(values)} only"
    if name == "placement":
        text = f"places ranks in the order {described(values)}, or in the domains that it gives"
        placed = _has_placement(values)
        return Check(
            field=name,
            violated=lambda _, s, t: ~placed(s, t),
            problem=lambda *_: text,
            reads=_NETWORK,
        )
    if IN_DOMAIN in values:
        return Check(
            field=name,
            violated=lambda m, s, t: ~_in_domain(m, s, t),
            problem=lambda *_: text,
            reads=(name, "etp", *_NETWORK),
        )
    has = _has_value(field, values)

    def violated(model: Model, _: System, table: Table) -> Bools:
        wrong = ~has(table)
        return wrong & _active(name, model, table) if wrong.any() else wrong

    return Check(field=name, violated=violated, problem=lambda *_: text, reads=(name,))


def _combination_check(combination: Combination) -> Check:
    """Rows that have what is named by `when`, and not what is named by `then`."""
    tests = {name: _mentions(COLUMNS[name], values) for name, values in combination.when.items()}
    checks = {name: _field_check(name, values) for name, values in combination.then.items()}
    reported = combination if isinstance(combination, Reported) else None
    graphs = combination.when.get("cuda_graphs", ())
    if graphs and (reported or graphs == ("full",)):  # of the stack, too
        tests["cuda_graphs"] = _graphs_in_effect(graphs)
    if reported and "cuda_graphs" in checks:
        captured = _graphs_in_effect(reported.then["cuda_graphs"])
        old = checks["cuda_graphs"]
        checks["cuda_graphs"] = replace(old, violated=lambda _, __, table: ~captured(table))

    def violated(model: Model, system: System, table: Table) -> Bools:
        if not _holds_on(combination, system):
            return np.zeros(len(table), dtype=np.bool_)
        rows: Bools = np.ones(len(table), dtype=np.bool_)
        for name, has in tests.items():
            if name == "placement":
                orders = combination.when[name]
                rows = rows & _has_placement(orders)(system, table)
                if _USUAL_ORDER not in orders:
                    rows = rows & ~_has_placement((_USUAL_ORDER,))(system, table)
            else:
                rows = rows & has(table) & _active(name, model, table)
            if not rows.any():
                return rows
        wrong = np.zeros_like(rows)
        for check in checks.values():
            wrong = wrong | check.violated(model, system, table)
        return rows & wrong

    when, then, machine = (
        " and ".join(f"{n} {described(v)}" for n, v in fields.items())
        for fields in (combination.when, combination.then, combination.machine)
    )
    where = f" on {machine}" if machine else ""
    text = f"runs {when}{where} with {then} only: {combination.because}"
    return Check(
        field=next(iter(combination.when)),
        violated=violated,
        problem=lambda *_: text,
        reads=(*combination.when, *combination.then),
        reported=reported,
    )


def _holds_on(combination: Combination, system: System) -> bool:
    if not combination.machine:
        return True
    domain = system.fast_domain or math.inf
    return combination.holds_on(system.accelerator.generation, domain)


def _checks(capabilities: Capabilities) -> Iterator[Check]:
    for name in COLUMNS:  # degrees before what follows from them
        if ANY not in (values := capabilities.fields.get(name, (ANY,))):
            yield _field_check(name, values)
    for combination in (*capabilities.combinations.values(), *capabilities.reported.values()):
        if combination is not None:
            yield _combination_check(combination)
    for word, applies in capabilities.rules.items():
        if applies:
            yield LAUNCH_RULES[word]


_MOST_KNOWN = 64
_known: dict[int, tuple[Capabilities, tuple[Check, ...]]] = {}


def checks_of(capabilities: Capabilities) -> tuple[Check, ...]:
    """What a release requires of strategies, one check for each field, combination and rule."""
    found = _known.get(id(capabilities))
    if found is None or found[0] is not capabilities:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = capabilities, tuple(_checks(capabilities))
        _known[id(capabilities)] = found
    return found[1]


Selected = Callable[[Check], bool]


def _broken(
    selected: Selected, checks: Callable[[Capabilities], Iterable[Check]] = checks_of
) -> Callable[[Model, System, Table], Bools]:
    """Rows that the release of their stack cannot run, by some of its checks."""

    def violated(model: Model, system: System, table: Table) -> Bools:
        wrong: Bools = np.zeros(len(table), dtype=np.bool_)
        bound = [capabilities_of(stack) for stack in table.stacks]
        lifted = table.any_software
        if all(one is None for one in bound) or lifted.all():
            return wrong
        distinct = {id(one): one for one in bound if one is not None}
        for one_of in distinct.values():
            mine = np.array([one is one_of for one in bound])[table.stack] & ~lifted
            rows = np.flatnonzero(mine)
            if not rows.size:
                continue
            some = table if rows.size == len(table) else table.take(rows)
            found: Bools = np.zeros(rows.size, dtype=np.bool_)
            for check in checks(one_of):
                if selected(check):
                    found = found | check.violated(model, system, some)
            if rows.size == len(table):
                wrong = wrong | found
            elif found.any():
                shape = np.broadcast_shapes(wrong.shape[:-1], found.shape[:-1])
                wrong = np.broadcast_to(wrong, (*shape, len(table))).copy()
                wrong[..., rows] |= found
        return wrong

    return violated


def _parts(selected: Selected, table: Table) -> list[Test]:
    """The selected checks of all releases of a table, one by one."""
    releases = {id(one): one for one in map(capabilities_of, table.stacks) if one is not None}
    checks = [(one, check) for one in releases.values() for check in checks_of(one)]
    return [_broken(selected, partial(_alone, *both)) for both in checks if selected(both[1])]


def _alone(own: Capabilities, check: Check, capabilities: Capabilities) -> tuple[Check, ...]:
    """One check of a release; none of others. `checks_of` may have made it again since."""
    return (check,) if capabilities is own else ()


def _first(selected: Selected, model: Model, system: System, table: Table) -> Check:
    """The first check that a table of one row violates."""
    capabilities = capabilities_of(table.stacks[one(table.stack)])
    checks = checks_of(capabilities) if capabilities is not None else ()
    return next(
        check for check in checks if selected(check) and check.violated(model, system, table).any()
    )


def _constraint(
    selected: Selected, *, layout_only: bool = False, field: str = "stack"
) -> Constraint:
    def problem(model: Model, system: System, table: Table) -> str:
        stack = table.stacks[one(table.stack)]
        release = f" ({stack.release})" if stack.release else ""
        found = _first(selected, model, system, table)
        return f"{stack.name}{release} {found.problem(model, system, table)}{LIFTS}"

    return Constraint(
        reason="software",
        field=field,
        layout_only=layout_only,
        violated=_broken(selected),
        problem=problem,
        blame=lambda m, s, t: _blamed(_first(selected, m, s, t), t),
        parts=lambda table: _parts(selected, table),
    )


def _blamed(check: Check, table: Table) -> str:
    """The field to blame in a table of one row: not at its default, or in place of a placement."""
    if check.field == "placement":
        if one(table.extents) >= 0:
            return "extents"
        return next((name for name in TIER_FIELDS if one(getattr(table, name)) >= 0), check.field)
    strategy, stack = table.strategy(0), table.stacks[one(table.stack)]
    usual = dict(stack.field_defaults) | (
        {"etp": strategy.tp} if stack.has_etp_of_tp(alone=strategy.ep == 1) else {}
    )
    own = (name for name in (check.field, *check.reads) if not COLUMNS[name].role.implied)
    differs = (n for n in own if getattr(strategy, n) != usual.get(n, COLUMNS[n].default))
    return next(differs, check.field)


def _is_avoided(table: Table, check: Check) -> bool:
    """Whether rows avoid what was reported."""
    named, reported = table.named, check.reported
    return named is not None and reported is not None and not named.issuperset(reported.named)


def _of_network(check: Check) -> bool:
    return any(name in _NETWORK for name in check.reads)


def _of_layout(check: Check) -> bool:
    return check.reported is None and _OF_LAYOUTS.issuperset(check.reads)


def _of_replicas(check: Check) -> bool:
    return check.reported is None and not _OF_REPLICAS.isdisjoint(check.reads)


_OF_LAYOUTS = frozenset(LAYOUT_FIELDS)
_OF_REPLICAS = {"gpus", "dp", "dp_shard", "global_batch_size", "micro_batch_size"}
SOFTWARE_CONSTRAINT = _constraint(lambda check: check.reported is None and not _of_replicas(check))
"""What software requires, but for what depends on the number of replicas."""
SOFTWARE_REPLICA_CONSTRAINT = _constraint(_of_replicas)
"""What software requires of replicas and micro-batches."""
SOFTWARE_LAYOUT_CONSTRAINT = _constraint(
    lambda check: _of_layout(check) and not _of_network(check), layout_only=True
)
"""What software requires of degrees, chunks and batch, which searches check first."""
SOFTWARE_PLACEMENT_CONSTRAINT = _constraint(
    lambda check: _of_layout(check) and _of_network(check), layout_only=True, field="extents"
)
"""What software requires of the order of the ranks, which searches check next."""
REPORTED_CONSTRAINT = Constraint(
    reason="reported",
    field="stack",
    violated=lambda m, s, t: _broken(partial(_is_avoided, t))(m, s, t),
    problem=lambda m, s, t: str(_first(partial(_is_avoided, t), m, s, t).reported),
    parts=lambda table: _parts(partial(_is_avoided, table), table),
)
"""What a search avoids, since it was reported broken or slower."""
SOFTWARE_CONSTRAINTS = (
    SOFTWARE_LAYOUT_CONSTRAINT,
    SOFTWARE_PLACEMENT_CONSTRAINT,
    SOFTWARE_CONSTRAINT,
    SOFTWARE_REPLICA_CONSTRAINT,
)
