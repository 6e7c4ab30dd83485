"""A plan, and the rules that all launchers share."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Release = tuple[int, ...]
NEWEST: Release = (999,)
ALWAYS: Release = ()

# For each field, what it may be, and the first release that can; a value left out no release can.
Abilities = Mapping[str, Mapping[object, Release]]


def release_numbers(release: str) -> Release:
    """`0.16.1` as numbers; `main` is after all of them."""
    return NEWEST if release == "main" else tuple(int(part) for part in re.findall(r"\d+", release))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A strategy, the model that it runs, and the release that runs it."""

    model: Any
    values: Mapping[str, Any]
    release: Release

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def micro_batches(self) -> int:
        return self["global_batch_size"] // (self["micro_batch_size"] * self["dp"])

    @property
    def depth(self) -> int:
        return sum(layer.count for layer in self.model.layers)

    @property
    def heads(self) -> set[tuple[int, int]]:
        """Heads of queries and of keys and values, of each kind of layer."""
        pairs = set()
        for layer in self.model.layers:
            heads = layer.attention.heads
            groups = {"model": layer.attention.kv_heads, "multihead": heads, "multiquery": 1}
            pairs.add((heads, groups[self["attention"]]))
        return pairs

    @property
    def experts(self) -> list[Any]:
        """Mixtures of experts, one per kind of layer that has one."""
        return [layer.moe for layer in self.model.layers if layer.moe is not None]

    @property
    def has_dense_layers(self) -> bool:
        return any(layer.moe is None for layer in self.model.layers)

    @property
    def is_latent(self) -> bool:
        return any(layer.attention.latent is not None for layer in self.model.layers)

    @property
    def dispatcher(self) -> str | None:
        """Dispatcher of tokens, if there is one and the plan names it."""
        return self.values.get("dispatcher") if self.experts else None

    @property
    def parts(self) -> set[str]:
        """Parts of a layer that are recomputed."""
        return set(self["recompute_parts"]) if self["recompute"] == "selective" else set()

    @property
    def offloaded_parts(self) -> set[str]:
        """Parts whose activations are offloaded; empty where it is none or all of them."""
        return set(self["offload_parts"] or ()) if self["offload_activations"] else set()

    @property
    def offloads_all_activations(self) -> bool:
        return self["offload_activations"] and not self["offload_parts"]

    @property
    def is_sharded(self) -> bool:
        """Whether there is anything to shard or reduce over."""
        if self["dp"] * self["cp"] > 1:
            return True
        return bool(self.experts) and self["gpus"] > self["etp"] * self["ep"] * self["pp"]

    @property
    def order(self) -> tuple[str, ...]:
        """Axes that have more than one rank, innermost first."""
        return tuple(axis for axis in self["placement"].split("-") if self[axis] > 1)

    def orders_as(self, placement: str) -> bool:
        """Whether its ranks are in this order; axes of one rank are anywhere."""
        return self.order == tuple(axis for axis in placement.split("-") if self[axis] > 1)

    def is_idle(self, name: str) -> bool:
        """Whether nothing depends on a field, so that a launch file leaves it out."""
        return {
            "schedule": self["pp"] == 1,
            "tp_exchange": self["tp"] * self["tp2"] == 1,
            "tp_overlap": self["tp"] * self["tp2"] == 1,
            "tp_regather": self["tp"] == 1 or self["tp_exchange"] != "rs_ag",
            "cp_exchange": self["cp"] == 1,
            "embedding_as_layer": self["pp"] == 1,
            "loss_as_layer": self["pp"] == 1,
            "zero": not self.is_sharded,
            "dp_overlap": not self.is_sharded,
            "fsdp_reshard": self["zero"] < 3,
            "fsdp_prefetch": self["zero"] < 3,
            "grad_sync": self["zero"] < 2,
            "dispatcher": not self.experts,
            "dispatch_dtype": not self.experts,
            "expert_capacity": not self.experts,
            "expert_kernel": not self.experts,
        }.get(name, False)


Rule = Callable[[Plan], Iterator[str]]


def ability_faults(plan: Plan, abilities: Abilities) -> Iterator[str]:
    for name, since in abilities.items():
        value = plan.values.get(name)
        if plan.is_idle(name) or (value is None and name == "dispatcher"):
            continue
        if value not in since:
            yield f"{name} {value}: cannot"
        elif since[value] > plan.release:
            yield f"{name} {value}: not before release {'.'.join(map(str, since[value]))}"


def part_faults(plan: Plan, known: Mapping[str, Release]) -> Iterator[str]:
    for part in sorted(plan.parts):
        if part not in known:
            yield f"recompute_parts {part}: cannot"
        elif known[part] > plan.release:
            yield f"recompute_parts {part}: not before {'.'.join(map(str, known[part]))}"


def only_defaults(**values: object) -> dict[str, dict[object, Release]]:
    return {name: {value: ALWAYS} for name, value in values.items()}


def any_of(*values: object) -> dict[object, Release]:
    return dict.fromkeys(values, ALWAYS)


# No trainer has two-dimensional products, and none keeps gathered inputs of sequence parallelism.
NOWHERE = only_defaults(tp2=1, tp_regather=True)
# DeepSpeed alone updates during backward or from drives.
ON_HOST: Abilities = {
    "cpu_optimizer": any_of("stack", "none", "fused", "unfused"),
    "offload_nvme": any_of(False),
}
NO_TIERS = only_defaults(extents=None, tp_tier=None, cp_tier=None, dp_tier=None, pp_tier=None)
NO_STAGES = only_defaults(
    pp=1,
    vpp=1,
    first_stage_layers=None,
    last_stage_layers=None,
    stage_layers=None,
    embedding_as_layer=False,
    loss_as_layer=False,
)


# What is of training only, where a plan does not train.
_FORWARD_ONLY: Mapping[str, object] = {
    "recompute": "none",
    "recompute_layers": None,
    "optimizer": "adamw",
    "expert_overlap": False,
    "fused_activation": False,
    "offload_activations": False,
    "offload_optimizer": False,
}


def grid_faults(plan: Plan) -> Iterator[str]:
    product = plan["tp"] * plan["tp2"] * plan["cp"] * plan["pp"] * plan["dp"]
    if product != plan["gpus"]:
        yield f"gpus {plan['gpus']}: the degrees multiply to {product}"
    if plan["global_batch_size"] % (plan["micro_batch_size"] * plan["dp"]):
        yield "global_batch_size: must be a multiple of micro_batch_size x dp"


def expert_degree_faults(plan: Plan) -> Iterator[str]:
    if not plan.experts and (plan["ep"] > 1 or plan["etp"] > 1):
        yield "ep, etp: the model has no experts"
    for moe in plan.experts:
        if moe.experts % plan["ep"]:
            yield f"ep {plan['ep']}: must divide {moe.experts} experts"


def plan_of(model: Any, strategy: Mapping[str, Any], release: str) -> Plan:
    lists = {name: tuple(value) for name, value in strategy.items() if isinstance(value, list)}
    idle = {} if strategy["training"] else _FORWARD_ONLY
    values = {**strategy, **lists, **idle}
    return Plan(model=model, values=values, release=release_numbers(release))
