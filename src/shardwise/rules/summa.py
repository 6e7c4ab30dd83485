"""Rules of 2D tensor parallelism: where a second axis and panels have a meaning."""

from shardwise.rules.rule import Rule, one
from shardwise.words import TP_EXCHANGES

__all__ = ["SUMMA_RULES"]

_SUMMA = TP_EXCHANGES.index("summa")

SUMMA_RULES: tuple[Rule, ...] = (
    Rule(
        reason="summa",
        field="tp_exchange",
        broken=lambda _, __, t: t.tp_exchange == _SUMMA,
        problem=lambda *_: "is not modelled; allowed: all_reduce, rs_ag, p2p_rs_ag",
    ),
    Rule(
        reason="tp2",
        field="tp2",
        broken=lambda _, __, t: (t.tp2 > 1) & (t.tp_exchange != _SUMMA),
        problem=lambda _, __, t: (
            f"{one(t.tp2)} needs 2D products, tp_exchange summa; allowed without: 1"
        ),
    ),
    Rule(
        reason="summa_panels",
        field="summa_panels",
        broken=lambda _, __, t: (t.summa_panels > 0) & (t.tp_exchange != _SUMMA),
        problem=lambda *_: "has an effect with tp_exchange summa only; leave it out",
    ),
)
