"""Runs as NERSC's perf-estimates describes them.

Left out, because it has nothing of the kind:

- of a model its name, vocabulary, embedding, head, loss and final norm, positions, residuals,
  causal masks (all pairs are scored), dropout or none (it always drops), the kinds of norm and of
  activation (a layer norm and GELU) and which products have biases (all but query, key and value);
- of a system its names, generation, price, power, the size of a node, kernels of every kind
  (products and vectors reach 0.8 of their peak), memory beyond the first tier, network tiers
  between the first and the outermost, and what sets collectives of one tier apart: all have the
  figures of all-gather among the largest group listed;
- of a strategy the stack, what hides communication (SUMMA's panels and data-parallel collectives
  always hide) and whether inputs are gathered again.

Whatever else it has no word for is refused by name.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.arrays import Floats
from shardwise.config.model import Model, ModelLike
from shardwise.config.network import Tier
from shardwise.config.plain import plain
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, InputError, refuse
from shardwise.parallel.placement import place
from shardwise.predecessors.nersc import reference as nersc
from shardwise.predecessors.nersc.reader import GIGA, TERA, system_fields
from shardwise.predecessors.nersc.reference import (
    Method,
    NerscConfiguration,
    NerscModel,
    NerscSystem,
)
from shardwise.predecessors.translation import (
    PLAIN,
    layer_lacks,
    refusals_of,
    unsupported_fields,
    with_dtype_of,
)

_fault = refusals_of("NERSC's model")
_TYPES = ("fp16", "bf16")
_TIERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NerscCase:
    """A run as NERSC's model describes it."""

    model: NerscModel
    system: NerscSystem
    configuration: NerscConfiguration
    described: Model
    """The model that was translated, with the attention of the run."""
    machine: System
    """The system that was translated."""

    def answer(self) -> dict[str, Any]:
        """Return its statistics of a step, and in a sentence if they do not fit."""
        found: dict[str, Any] = nersc.statistics(self.model, self.system, self.configuration)
        if found["mem"] <= self.system.hbm_capacity:
            return found
        message = f"mem needs {found['mem']:.6g} GB and has {self.system.hbm_capacity:.6g} GB"
        return found | {"infeasible": "mem", "message": message}

    def layers(self) -> list[dict[str, Any]]:
        """Return its figures by layer."""
        return nersc.layer_statistics(self.model, self.system, self.configuration)


def nersc_case(
    model: ModelLike,
    system: SystemLike,
    strategy: Strategy | Mapping[str, Any] | str | Path,
    *,
    source: str = "strategy",
) -> NerscCase:
    """Describe a run in NERSC's words."""
    loaded, machine = Model.load(model), System.load(system)
    complete = with_dtype_of(machine, Strategy.load(strategy))
    resolved = complete.resolved(loaded, machine.stack)
    described = loaded.with_attention(resolved.attention)
    case = NerscCase(
        described=described,
        machine=machine,
        model=model_for_nersc(described, seq_len=resolved.seq_len),
        system=system_for_nersc(machine),
        configuration=_configuration(loaded, machine, resolved, source),
    )
    nersc.check_together(case.model, case.system, case.configuration, source)
    return case


def model_for_nersc(
    model: ModelLike, *, seq_len: int | None = None, source: str = ""
) -> NerscModel:
    """Return a model of the catalog or of a file as NERSC's, its sequences of a set length.

    Messages name `source`, or the model.
    """
    loaded = Model.load(model)
    length = seq_len or loaded.seq_len
    refuse(_model_faults(loaded, length, source or loaded.name))
    layer = loaded.layers[0]
    return NerscModel.validated(
        {
            "l": length,
            "e": loaded.hidden,
            "h": layer.own_attention.heads,
            "depth": layer.count,
            "f": layer.feed_forward.ffn,
        },
        source=source or loaded.name,
    )


def _model_faults(model: Model, length: int | None, source: str) -> Iterator[Fault]:
    if len(model.layers) > 1:
        yield _fault(source, "layers", len(model.layers), "knows one kind of layer")
        return
    if model.mtp:
        yield _fault(source, "mtp", model.mtp, "knows no multi-token prediction")
    if length is None:
        yield _fault(source, "seq_len", None, "needs the length of a sequence")
    layer = model.layers[0]
    if layer.moe is not None:
        yield _fault(source, "layers[0].moe", layer.moe, "knows no mixture of experts")
    heads = layer.attention.heads if layer.attention is not None else 0
    width = f"divides hidden {model.hidden} among the heads, {heads}"
    for field, value, problem in layer_lacks(model, layer, "layers[0]", width):
        yield _fault(source, field, value, problem)


def system_for_nersc(system: SystemLike, source: str = "") -> NerscSystem:
    """Return a system of the catalog or of a file as NERSC's; `source` as for the model."""
    loaded = System.load(system)
    refuse(_system_faults(loaded))
    chip, fast, slow = loaded.accelerator, loaded.network[0], loaded.network[-1]
    memory, node = chip.memory[0], loaded.node.accelerators
    single = chip.vector.get("fp32")
    vector = chip.vector["fp16" if "fp16" in chip.vector else "fp32"]
    return NerscSystem.validated(
        {
            "matrix_flops_fp16": chip.matrix["fp16"] / TERA,
            "vector_flops_fp16": vector / TERA,
            "vector_flops_fp32": None if single is None else single / TERA,
            "hbm_bandwidth": memory.bandwidth / GIGA,
            "hbm_capacity": memory.capacity / GIGA,
            **_network("nvlink", fast),
            "nvlink_size": fast.domain,
            **_network("ib", slow),
            "nic_factor": (slow.links_per_node or node) / node,
        },
        source=source or loaded.name,
    )


def collective_for_nersc(
    system: SystemLike, operation: str, buffer_bytes: Floats, inside: int, nodes: int
) -> Floats:
    """NERSC's time of a collective among so many accelerators of each node [s]."""
    members = np.full(buffer_bytes.shape, inside * nodes)
    kind, volume = operation.replace("_", ""), buffer_bytes / GIGA
    return nersc.collective_time(
        kind, volume, members, np.full_like(members, inside), system_for_nersc(system)
    )


def _system_faults(system: System) -> Iterator[Fault]:
    if "fp16" not in system.accelerator.matrix:
        types = ", ".join(system.accelerator.matrix)
        yield _fault(system.name, "accelerator.matrix", types, "needs the rate of fp16")
    if len(system.network) < _TIERS:
        problem = "knows a fast network and a slow one; give two tiers"
        yield _fault(system.name, "network", len(system.network), problem)


def _network(name: str, tier: Tier) -> dict[str, float]:
    """A tier as one network: all-gather among the largest group, one latency for each hop."""
    rates = tier.collectives["all_gather"]
    return {
        f"{name}_bandwidth": tier.bandwidth / GIGA,
        f"{name}_eff": rates.efficiency[max(rates.efficiency)],
        f"{name}_latency": rates.latency_per_member or rates.latency,
    }


def _configuration(
    model: Model, system: System, strategy: Strategy, source: str
) -> NerscConfiguration:
    """A resolved strategy as NERSC's configuration."""
    refuse(_strategy_faults(strategy, source))
    summa = strategy.tp_exchange == "summa"
    method: Method = "2d" if summa else "2d-seqp" if strategy.cp > 1 else "1d"
    extents = place(system, Table.of(model, [strategy]))
    along = "tp2" if method == "2d" else "cp"
    return NerscConfiguration.validated(
        {
            "method": method,
            "global_batch": strategy.global_batch_size,
            "b": strategy.micro_batch_size,
            "m1": strategy.tp,
            "m2": getattr(strategy, along),
            "nb": (strategy.summa_panels or math.lcm(strategy.tp, strategy.tp2))
            if method == "2d"
            else 1,
            "dp": strategy.dp,
            "pp": strategy.pp,
            "t1": int(extents.tp[0, 0]),
            "t2": int(getattr(extents, along)[0, 0]),
            "t_dp": int(extents.dp[0, 0]),
            "t_pp": int(extents.pp[0, 0]),
        },
        source=source,
    )


def _strategy_faults(strategy: Strategy, source: str) -> Iterator[Fault]:
    summa = strategy.tp_exchange == "summa"
    only = {**PLAIN, "ep": 1, "schedule": "1f1b"}
    only |= {"zero": 1, "dp_overlap": True} if strategy.dp != 1 else {}
    yield from unsupported_fields(strategy, only, "NERSC's model", source)
    if strategy.dtype not in _TYPES:
        problem = f"has 2 bytes per element; allowed: {', '.join(_TYPES)}"
        yield _fault(source, "dtype", strategy.dtype, problem)
    if strategy.tp > 1 and strategy.tp_exchange not in ("rs_ag", "summa"):
        problem = "knows sequence parallelism and 2D products; allowed: rs_ag, summa"
        yield _fault(source, "tp_exchange", strategy.tp_exchange, problem)
    if strategy.tp_overlap not in ("stack", "none") and not summa:
        problem = "hides panels of 2D products only; allowed: stack, none"
        yield _fault(source, "tp_overlap", strategy.tp_overlap, problem)
    if strategy.cp > 1 and summa:
        problem = "splits the sequence of 2D products by tp2; allowed: 1"
        yield _fault(source, "cp", strategy.cp, problem)
    if strategy.cp > 1 and not summa and strategy.cp_exchange != "all_gather":
        problem = "gathers keys and values; allowed: all_gather"
        yield _fault(source, "cp_exchange", strategy.cp_exchange, problem)
    if strategy.tp2 > 1 and not summa:
        yield _fault(source, "tp2", strategy.tp2, "needs tp_exchange summa; allowed without: 1")


# Fields that its files do not have, with the only values that they may have then.
_MEMORY = {
    "efficiency": None,
    "host": None,
    "limit_on": "reserved",
    "shared_bandwidth": None,
}
_CHIP: dict[str, Any] = {
    "matmul": {},
    "matmul_table": {},
    "grouped_table": {},
    "attention_table": {},
    "sparse_attention": None,
    "memory_bound_class": {},
    "update_efficiency": None,
    "asynchronous": True,
    "benchmark": None,
    "speed": 1,
    "tuned_until": "",
}
_TIER = {
    "through_host": None,
    "rate_spread": 1,
    "must_be_filled": False,
    "processor_share": 0,
    "slowed_by_compute": True,
    "same_links": False,
}
_RATES = {"scale": None, "offset": None, "bulk": None}


def nersc_model(model: Model, source: str = "") -> NerscModel:
    """Return a model's layers as a dictionary of NERSC's, rotary positions of full heads alone."""
    for index, layer in enumerate(model.layers):
        turned = None if layer.attention is None else layer.attention.rotary_dim
        if turned is not None:
            field, value = f"layers[{index}].attention.rotary_dim", turned
            refuse([_lacks(source or model.name, field, value, "does not know it")])
    return model_for_nersc(model, source=source)


def nersc_system(system: System, source: str = "") -> NerscSystem:
    """Return a system in NERSC's terms as its file, which must give back all figures when read.

    Left out are its names, generation, price, power, the size of a node and all-to-all. Raises an
    `InputError` if its figures are of a form that NERSC has no word for.
    """
    name, fields = source or system.name, plain(system.to_dict())
    refuse(_form_faults(fields, name))
    chip, (inside, between) = fields["accelerator"], fields["network"]
    links = between["links_per_node"]
    per_gpu = 1 if links is None else links / inside["domain"]
    theirs = system_for_nersc(system, source=name)
    theirs = NerscSystem.validated({**theirs.to_dict(), "nic_factor": per_gpu}, source=name)
    again = plain(_with_defaults(system_fields(theirs, name)))
    compared = {"accelerator": (chip, again["accelerator"])}
    for index, tier in enumerate(fields["network"]):
        compared[f"network[{index}]"] = (tier, again["network"][index])
    if faults := [
        _lacks(name, place, ours, f"has no word for it; {allowed}")
        for where, pair in compared.items()
        for place, ours, allowed in _differences(where, *pair)
    ]:
        raise InputError(faults)
    return theirs


def _lacks(source: str, field: str, value: object, problem: str) -> Fault:
    return Fault.of(field, value, f"NERSC {problem}", source)


def _form_faults(system: Mapping[str, Any], name: str) -> Iterator[Fault]:
    chip = system["accelerator"]
    hint = "; such systems of the catalog are named nersc-..."
    if chip["matmul"] or chip["attention"]:
        field = "accelerator.matmul" if chip["matmul"] else "accelerator.attention"
        problem = f"times kernels by one share of the peak, not by closed forms{hint}"
        yield Fault(source=name, field=field, problem=f"NERSC {problem}")
        return
    for field in ("matrix", "vector"):
        if "fp16" not in chip[field]:
            yield _lacks(name, f"accelerator.{field}", sorted(chip[field]), "needs a rate of fp16")
    if len(chip["memory"]) > 1:
        yield _lacks(name, "accelerator.memory", len(chip["memory"]), "knows one tier of memory")
    tiers = system["network"]
    if len(tiers) != _TIERS or tiers[0]["domain"] is None:
        problem = "knows two tiers of network, the inner one of a size"
        yield _lacks(name, "network", len(tiers), problem)


def _with_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a `System` with what its files leave to the defaults."""
    chip = fields["accelerator"]
    chip |= _CHIP
    chip["memory"] = [tier | _MEMORY for tier in chip["memory"]]
    for engine in ("matmul_curve", "vector_curve"):
        chip[engine] = {t: curve | {"interpolate": False} for t, curve in chip[engine].items()}
    tiers = []
    for tier in fields["network"]:
        rates = {kind: one | _RATES for kind, one in tier["collectives"].items()}
        tiers.append({"links_per_node": None} | tier | _TIER | {"collectives": rates})
    return fields | {"network": tiers}


_LEFT_OUT = ("name", "generation", "all_to_all")
_ROUNDING = 1e-12  # of figures that were multiplied by their unit and divided again


def _equal_but_for_rounding(ours: Any, theirs: Any) -> bool:
    numbers = all(isinstance(value, (int, float)) for value in (ours, theirs))
    return numbers and math.isclose(ours, theirs, rel_tol=_ROUNDING)


def _differences(place: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, str]]:
    """Fields that the file would not reproduce: place, value, what is allowed.

    Types of 16 bits other than fp16 need not be there.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in _LEFT_OUT:
                continue
            if key in theirs:
                yield from _differences(f"{place}.{key}", value, theirs[key])
            else:
                yield f"{place}.{key}", value, f"allowed: {', '.join(theirs) or 'none'}"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from _differences(f"{place}[{index}]", *pair)
    elif ours != theirs and not _equal_but_for_rounding(ours, theirs):
        yield place, ours, f"allowed: {theirs}"
