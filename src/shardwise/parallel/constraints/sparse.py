"""Constraints of sparse attention, residual streams, and what layers share across stages."""

import numpy as np

from shardwise.arrays import Bools
from shardwise.config.enums import CpExchange
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints.constraint import Constraint, any_of, joined, rule


def _output_groups(model: Model) -> list[int]:
    return [one.compressed.output_groups for one in model.attentions if one.compressed]


def _is_sparse(model: Model) -> bool:
    return any(one.is_sparse for one in model.attentions)


def _selects_latent(model: Model) -> bool:
    return any(one.latent is not None and one.indexer is not None for one in model.attentions)


def _ratios(model: Model) -> list[int]:
    """Tokens that one key of attention or of an indexer stands for."""
    found = {one.compressed.ratio or 1 for one in model.attentions if one.compressed}
    found |= {one.indexer.pool for one in model.attentions if one.indexer}
    return sorted(found - {1})


def _context(model: Model, table: Table) -> Bools:
    gathers = table.cp_exchange == CpExchange.ALL_GATHER.code
    return _is_sparse(model) & (table.cp > 1) & ~gathers


def _shared_by_layers(model: Model) -> str:
    """What layers read that other layers, perhaps of other stages, have computed."""
    if model.layer_embedding:
        return "embeddings of layers"
    return "keys of earlier layers" if any(one.shared_keys for one in model.attentions) else ""


SPARSE_CONSTRAINTS: tuple[Constraint, ...] = (
    rule(
        "sparse_context",
        "cp_exchange",
        _context,
        "each query of {m.name} selects keys of the full sequence; allowed with cp: all_gather",
    ),
    rule(
        "masked_context",
        "cp",
        lambda m, t: (
            (t.cp > 1) & t.by_stack(lambda stack: stack.masked_selection) & _selects_latent(m)
        ),
        "this software masks keys of full sequences in place of selecting them; allowed: 1",
    ),
    rule(
        "sparse_ratio",
        "cp",
        lambda m, t: (
            any_of(t, (t.seq_len % (2 * t.cp * ratio) != 0 for ratio in _ratios(m))) & (t.cp > 1)
        ),
        lambda m, _: (
            f"2 x cp x {joined(_ratios(m))} must divide seq_len: one key stands for so many tokens"
        ),
    ),
    rule(
        "output_groups",
        "tp",
        lambda m, t: any_of(t, (groups % t.tp != 0 for groups in _output_groups(m))),
        lambda m, _: f"must divide the groups of the output, {joined(_output_groups(m))}",
    ),
    rule(
        "sparse_summa",
        "tp_exchange",
        lambda m, t: t.summa & (_is_sparse(m) or m.streams > 1 or bool(_shared_by_layers(m))),
        "is not modeled with sparse attention, residual streams or what layers share; allowed: "
        "all_reduce, rs_ag, p2p_rs_ag",
    ),
    rule(
        "shared_stages",
        "pp",
        lambda m, t: (t.pp > 1) & np.full(len(t), bool(_shared_by_layers(m))),
        lambda m, _: f"{_shared_by_layers(m)} are not modeled across stages; allowed: 1",
    ),
)
