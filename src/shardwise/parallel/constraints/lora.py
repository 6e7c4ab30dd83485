"""Rules of what is trained: frozen parts and adapters."""

from collections.abc import Callable

from shardwise.arrays import Bools
from shardwise.config.enums import FrozenPart, LoraPart, Recompute
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.ops.lora import Subset, goes_back, parts_of_model
from shardwise.parallel.constraints.constraint import Rule, one

__all__ = ["TRAINABLE_RULES"]

Broken = Callable[[Model, System, Table], Bools]
_USUAL_ADAPTED = LoraPart.bits(Strategy.model_fields["lora_parts"].default)
_EMBEDDING, _HEAD = FrozenPart.bits(["embedding"]), FrozenPart.bits(["head"])
_IN_TRAINING = "has an effect in training only; leave it out"


def _lacking(model: Model) -> int:
    """Parts that a model has none of, as bits of frozen ones."""
    return ~parts_of_model(model)


def _lacking_adapted(model: Model) -> int:
    missing = set(FrozenPart.from_bits(_lacking(model)))
    return LoraPart.bits(missing & set(LoraPart))


def _adapts_nothing(model: Model, _: System, table: Table) -> Bools:
    named = (table.lora_rank > 0) & (table.lora_parts != _USUAL_ADAPTED)
    lacks: Bools = named & ((table.lora_parts & _lacking_adapted(model)) > 0)
    return lacks


def _nothing_left(model: Model, _: System, table: Table) -> Bools:
    every = parts_of_model(model)
    nothing: Bools = (table.frozen & every) == every
    return nothing


def _half_a_table(model: Model, _: System, table: Table) -> Bools:
    embedding, head = (table.frozen & _EMBEDDING) > 0, (table.frozen & _HEAD) > 0
    return (embedding != head) & model.tied_embeddings


def _recomputes_nothing(model: Model, _: System, table: Table) -> Bools:
    return (table.recompute != Recompute.NONE.code) & ~goes_back(model, Subset.of(table))


def _without_training(field: str) -> Broken:
    return lambda _, __, table: ~table.training & (getattr(table, field) > 0)


def _activation_apart(model: Model, _: System, table: Table) -> Bools:
    """Rows whose stack has no kernel that could compute a gated activation again."""
    blocks = [block for layer in model.layers for block in (layer.mlp, layer.moe)]
    gated = any(block is not None and block.gated for block in blocks)
    apart = table.by_stack(lambda stack: not stack.fused_swiglu)
    return table.fused_activation & apart & gated


TRAINABLE_RULES: tuple[Rule, ...] = (
    Rule(
        reason="frozen_adapters",
        field="frozen",
        broken=lambda _, __, t: (t.lora_rank > 0) & (t.frozen > 0),
        problem=lambda *_: "with lora_rank all weights of the model are; leave it out",
    ),
    Rule(
        reason="frozen_lacking",
        field="frozen",
        broken=lambda m, _, t: (t.frozen & _lacking(m)) > 0,
        problem=lambda m, _, t: (
            f"{m.name} has no {', '.join(FrozenPart.from_bits(one(t.frozen) & _lacking(m)))}"
        ),
    ),
    Rule(
        reason="frozen_everything",
        field="frozen",
        broken=_nothing_left,
        problem=lambda *_: "leaves nothing to train; for forward only training is false",
    ),
    Rule(
        reason="frozen_tied",
        field="frozen",
        broken=_half_a_table,
        problem=lambda m, _, __: f"embedding and head of {m.name} are one table; name both or none",
    ),
    *(
        Rule(
            reason=f"{field}_training",
            field=field,
            broken=_without_training(field),
            problem=lambda *_: _IN_TRAINING,
        )
        for field in ("frozen", "lora_rank")
    ),
    Rule(
        reason="lora_parts",
        field="lora_parts",
        broken=lambda _, __, t: (t.lora_rank == 0) & (t.lora_parts != _USUAL_ADAPTED),
        problem=lambda *_: "has an effect with lora_rank only; leave it out",
    ),
    Rule(
        reason="lora_lacking",
        field="lora_parts",
        broken=_adapts_nothing,
        problem=lambda m, _, t: (
            f"{m.name} has no "
            + ", ".join(LoraPart.from_bits(one(t.lora_parts) & _lacking_adapted(m)))
        ),
    ),
    Rule(
        reason="recompute_frozen",
        field="recompute",
        broken=_recomputes_nothing,
        problem=lambda *_: "nothing before the head is trained or goes backward; allowed: none",
    ),
    Rule(
        reason="fused_activation_stack",
        field="fused_activation",
        broken=_activation_apart,
        problem=lambda _, __, t: (
            f"{t.stacks[one(t.stack)].name} has no fused_swiglu that could; allowed: false"
        ),
    ),
)
