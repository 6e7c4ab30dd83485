"""Shardwise models and systems as NERSC's files, where these can express them.

Left out, because NERSC has nothing of the kind:

- of a model its name, vocabulary, embedding, head and final norm, positions, biases, dropout,
  causal masks (each token sees all others), the kinds of norm and of ungated activation;
- of a system its names, price, power, the size of a node and all-to-all.

Whatever else it has no word for is refused by name.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.config.model import Model
from shardwise.config.plain import plain
from shardwise.errors import Fault, InputError, refuse
from shardwise.predecessors.nersc.files import NerscModel, NerscSystem
from shardwise.predecessors.nersc.reader import GIGA, TERA, system_fields
from shardwise.predecessors.nersc.translation import model_for_nersc

_TIERS = 2
# Fields that its files do not have, with the only values that they may have then.
_MEMORY = {"efficiency": None, "host": None, "limit_on": "reserved"}
_CHIP: dict[str, Any] = {
    "matmul": {},
    "matmul_table": {},
    "grouped_table": {},
    "attention_table": {},
    "memory_bound_class": {},
    "benchmark": None,
    "speed": 1,
    "tuned_until": "",
}
_TIER = {"must_be_filled": False, "processor_share": 0, "slowed_by_compute": True}
_RATES = {"scale": None, "offset": None, "bulk": None}


def _fault(source: str, field: str, value: object, problem: str) -> Fault:
    return Fault.of(field, value, f"NERSC {problem}", source)


def nersc_model(model: Model, source: str = "") -> NerscModel:
    """Return a model's layers as a dictionary of NERSC's.

    Raises
    ------
    InputError
        If the layers differ or are none that NERSC knows; the fault names `source`, or the model.
    """
    for index, layer in enumerate(model.layers):
        if layer.attention.rotary_dim is not None:
            field, value = f"layers[{index}].attention.rotary_dim", layer.attention.rotary_dim
            refuse([_fault(source or model.name, field, value, "does not know it")])
    return model_for_nersc(model, source=source)


def nersc_system(system: Mapping[str, Any], source: str = "") -> NerscSystem:
    """Return a system in NERSC's terms as its file.

    The file is written from a few figures, read again, and must give back all of them.

    Parameters
    ----------
    system
        Fields of a `System`, all of them.
    source
        What faults call it, if not by its name.

    Raises
    ------
    InputError
        If its figures are of a form that NERSC has no word for.
    """
    name = source or str(system["name"])
    system = plain(system)
    refuse(_form_faults(system, name))
    chip, (inside, between) = system["accelerator"], system["network"]
    links = between["links_per_node"]
    shares = [_share(tier) for tier in (inside, between)]
    theirs = NerscSystem.validated(
        {
            "matrix_flops_fp16": chip["matrix"]["fp16"] / TERA,
            "vector_flops_fp16": chip["vector"]["fp16"] / TERA,
            "vector_flops_fp32": chip["vector"].get("fp32", 0) / TERA or None,
            "hbm_bandwidth": chip["memory"][0]["bandwidth"] / GIGA,
            "hbm_capacity": chip["memory"][0]["capacity"] / GIGA,
            "nvlink_bandwidth": inside["bandwidth"] / GIGA,
            "nvlink_eff": shares[0],
            "nvlink_latency": inside["collectives"]["all_gather"]["latency"],
            "ib_bandwidth": between["bandwidth"] / GIGA,
            "ib_eff": shares[1],
            "ib_latency": between["collectives"]["all_gather"]["latency"],
            "nvlink_size": inside["domain"],
            "nic_factor": 1 if links is None else links / inside["domain"],
        },
        source=name,
    )
    again = plain(_with_defaults(system_fields(theirs, name)))
    compared = {"accelerator": (chip, again["accelerator"])}
    for index, tier in enumerate(system["network"]):
        compared[f"network[{index}]"] = (tier, again["network"][index])
    if faults := [
        _fault(name, place, ours, f"has no word for it; {allowed}")
        for where, pair in compared.items()
        for place, ours, allowed in _differences(where, *pair)
    ]:
        raise InputError(faults)
    return theirs


def _share(tier: Mapping[str, Any]) -> float:
    return float(next(iter(tier["collectives"]["all_gather"]["efficiency"].values())))


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
            yield _fault(name, f"accelerator.{field}", sorted(chip[field]), "needs a rate of fp16")
    if len(chip["memory"]) > 1:
        yield _fault(name, "accelerator.memory", len(chip["memory"]), "knows one tier of memory")
    tiers = system["network"]
    if len(tiers) != _TIERS or tiers[0]["domain"] is None:
        problem = "knows two tiers of network, the inner one of a size"
        yield _fault(name, "network", len(tiers), problem)


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


_LEFT_OUT = ("name", "all_to_all")
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
