"""How an AMPeD configuration was imported: what was used, what has no meaning here, and why."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from shardwise.errors import Fault, InputError, refuse
from shardwise.predecessors.amped.files import (
    USES,
    AmpedConfig,
    Parameter,
    Purpose,
    parse_amped,
    unit_letters,
    why_not,
)
from shardwise.predecessors.amped.reader import model_fields, strategy_fields, system_fields

_SAME = 1e-9
_ZERO_OF_AMPED = 3
_IN_BITS = ("inter_accelerator_bandwidth", "bandwidth_per_network_card", "inter_node_bandwidth")
_WIDTHS = ("hidden_layer_dimension_for_attention_sublayers", "key_query_value_length")
_TOTAL = "total_number_of_parameters_without_embedding"


def fields_of(purpose: Purpose, config: AmpedConfig, name: str) -> dict[str, object]:
    """Fields of a model, a system or a strategy; `name` is for what has none."""
    if purpose == "model":
        return model_fields(config, name)
    return system_fields(config, name) if purpose == "system" else strategy_fields(config)


def fields_of_several(
    purposes: Collection[Purpose], config: AmpedConfig, name: str
) -> dict[Purpose, dict[str, Any]]:
    """Fields of models, systems and strategies; `run` has none."""
    found: dict[Purpose, dict[str, object]] = {}
    faults: list[Fault] = []
    for purpose in purposes:
        try:
            found[purpose] = {} if purpose == "run" else fields_of(purpose, config, name)
        except InputError as error:
            faults += [fault for fault in error.faults if fault not in faults]
    refuse(faults)
    return found


def import_record(
    config: AmpedConfig, purposes: Collection[Purpose], strategy: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Report the parameters that were used for some purposes; and why the others were not."""
    if strategy is None and "strategy" in purposes:
        strategy = strategy_fields(config)
    used, not_used = [], []
    for name, one in config.parameters.items():
        uses = {purpose: fields[name] for purpose, fields in USES.items() if name in fields}
        if name.startswith("effective_perf_perc") and one.origin == "calculated":
            uses = {}
        fields = [f"{purpose} {uses[purpose]}" for purpose in purposes if purpose in uses]
        if fields:
            used.append(_entry(one) | {"as": "; ".join(fields)})
        elif uses:
            why = f"the {' and the '.join(uses)} come from elsewhere"
            why = why if len(uses) > 1 else why.replace("come", "comes")
            not_used.append(_entry(one) | {"why": why})
        else:
            not_used.append(_entry(one) | {"why": why_not(name)})
    return {
        "format": "amped",
        "file": config.source,
        "tables": config.tables_source or None,
        "rows": dict(config.rows),
        "taken": used,
        "not_used": not_used,
        "notes": [*_notes(config, purposes, strategy or {})],
    }


def _entry(one: Parameter) -> dict[str, object]:
    return {
        "parameter": one.name,
        "category": one.category,
        "value": one.value if one.raw is None else one.raw,
        "origin": one.origin,
        "description": one.description,
        "lookup_name": one.lookup_name,
    }


def _notes(
    config: AmpedConfig, purposes: Collection[Purpose], strategy: Mapping[str, Any]
) -> Iterator[str]:
    for one in config.parameters.values():
        yield from _of_two(one)
        if one.name in _IN_BITS and unit_letters(one.raw).startswith("B"):
            yield (
                f"{one.name}: {one.raw} is read in bit/s, as AMPeD does whatever the letters: "
                f"{one.value / 8e9:g} GB/s"
            )
    if "model" in purposes:
        yield from _of_model(config)
    if "strategy" in purposes:
        yield from _of_strategy(strategy)
    if "system" in purposes:
        memory = system_fields(config, "")["sources"]["accelerator.memory"]
        if memory["kind"] == "assumed":
            yield f"memory: {memory['text']}"


def _of_strategy(fields: Mapping[str, Any]) -> Iterator[str]:
    """What AMPeD assumes, each with the flag that changes it."""
    if fields.get("tp_exchange") == "all_reduce":
        yield "as in AMPeD, tensor parallelism communicates by all-reduce (--tp-exchange)"
    if "dp_overlap" in fields:
        yield "as in AMPeD, communication is not hidden (--dp-overlap, --tp-overlap)"
    if "zero" in fields:
        other = (
            "" if fields["zero"] == _ZERO_OF_AMPED else ", but not with stages, where each would"
        )
        other += " gather them for every micro-batch" if other else ""
        yield (
            "AMPeD divides all that belongs to weights by all accelerators, and charges a "
            f"quarter of other communication for gathering them: ZeRO 3{other}; here "
            f"ZeRO {fields['zero']} (--zero)"
        )
    if fields.get("ep", 1) > 1:
        yield f"AMPeD has no expert-parallel degree; ep {fields['ep']}, as dp allows (--ep)"


def _of_two(one: Parameter) -> Iterator[str]:
    """The value that was ignored where a parameter has two."""
    if one.origin == "given" or one.written is None:
        if one.also_calculated:
            yield f"{one.name}: looked up, not calculated, though it is marked so too"
        return
    try:
        ignored = parse_amped(one.written)
    except ValueError:
        ignored = None
    if ignored is None or abs(ignored - one.value) > _SAME * abs(one.value):
        value = one.raw if one.raw is not None else f"{one.value:g}"
        yield f"{one.name}: {value} was {one.origin}; its value {one.written} was ignored"


def _of_model(config: AmpedConfig) -> Iterator[str]:
    width, heads = config["dimensionality"].value, config["attention_heads"].value
    for name in _WIDTHS:
        if name in config and config[name].value == width and heads > 1:
            yield f"{name}: {width:g} is the width of all heads; one has {width / heads:g}"
    if all(name not in config for name in _WIDTHS):
        yield f"width of a head: not set; {width:g} / {heads:g} heads = {width / heads:g}"
    if _TOTAL in config:
        yield f"parameters by AMPeD's formula: {config[_TOTAL].value:,.0f}"
