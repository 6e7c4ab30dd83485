"""As plain words: which fields change anything, and which ways to spread layers differ."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.parallel.constraints import CONSTRAINTS, first_violation
from shardwise.parallel.pipeline_layout import layers_on_ranks, stage_groups

Values = Mapping[str, Any]
OFFLOADS = ("offload_weights", "offload_activations", "offload_optimizer")
TYPES = ("weight_dtype", "master_dtype", "gradient_dtype", "reduce_dtype")
SPREAD = ("first_stage_layers", "last_stage_layers", "embedding_as_layer", "loss_as_layer")


def spread(
    model: Model,
    system: System,
    space: Values,
    tried: Values,
    chunked: Mapping[str, Any],
    pp: int,
) -> list[dict[str, Any]]:
    """Ways to spread the layers over stages, those with the same layers once; illegal ones too."""
    names = (*SPREAD, "stage_layers")
    ways = [dict(zip(names, w, strict=True)) for w in product(*(tried[name] for name in names))]
    if pp == 1:
        ways = [{**dict.fromkeys(names), **FLAT, "stage_layers": w["stage_layers"]} for w in ways]
    elif space.get("stage_layers") == "balanced":
        places = 2 * pp if chunked["schedule"] == "zb-v" else pp
        ends = balanced(model.depth, places)
        ways = [{**w, **dict(zip(names, e, strict=False))} for w in ways for e in ends]
    if len(ways) == 1:
        return ways
    found: list[dict[str, Any]] = []
    seen: list[Any] = []
    rules = ("layers", "stage_list", "stage_list_sum", "stage_list_only", "spread", "half_stages")
    for way in ways:
        one = {"pp": pp, "dp": 1, "global_batch_size": 1, "seq_len": 1, **way}
        one |= {name: chunked[name] for name in ("vpp", "schedule")}
        table = Table.of(model, [Strategy.validated(one)])
        legal = (
            first_violation(model, system, table, [r for r in CONSTRAINTS if r.reason in rules])[0]
            < 0
        )
        key = layers_on_ranks(model.depth, table, 0) if legal else way
        dropped = space.get("stage_layers") == "balanced" and not legal and len(ways) > 1
        if (legal, key) not in seen and not dropped:
            seen.append((legal, key))
            found.append(way)
    return found or ways[:1]


def balanced(depth: int, places: int) -> list[tuple[int | None, int | None]]:
    """Layers of the first and the last stage that are tried where stages are to be balanced."""
    share = -(-depth // places)
    if places == 2:
        ends = [(share + n, depth - share - n) for n in range(9) if n <= depth - share]
    else:
        ends = [(share - n, share - m) for n in range(3) for m in range(9)]
    kept = [(first, last) for first, last in ends if first >= 0 and last >= 0]
    return [(None, None), *((first or None, last or None) for first, last in kept)]


FLAT = {"embedding_as_layer": False, "loss_as_layer": False}


def most_layers(model: Model, fields: tuple[tuple[str, Any], ...]) -> int:
    """Layers on the fullest rank of a pipeline."""
    key = id(model), fields
    if key not in _LAYERS:
        one = {**dict(fields), "dp": 1, "gbs": 1, "seq_len": 1}
        table = Table.of(model, [Strategy.validated(one)])
        most = int(max(run.layers[0] for run in stage_groups(model, table)))
        if one.get("schedule") == "dualpipe":  # its two stages count apart
            most = max(layers_on_ranks(model.depth, table, 0))
        _LAYERS[key] = model, most
    return _LAYERS[key][1]


# With the model, so that no other one takes its identity.
_LAYERS: dict[tuple[int, tuple[tuple[str, Any], ...]], tuple[Model, int]] = {}


def kind_of(model: Model, layout: Mapping[str, Any], *, legal: bool = True) -> dict[str, Any]:
    """What of a layout decides which fields have an effect on it."""
    tp, cp, dp = layout["tp"], layout["cp"], layout["dp"]
    experts = any(layer.moe is not None for layer in model.layers)
    shared = layout["ep"] * layout["etp"]
    most = 0
    if legal:
        names = ("pp", "vpp", "schedule", "stage_layers", *SPREAD)
        listed = tuple(layout["stage_layers"]) if layout["stage_layers"] else None
        fields = {**{name: layout[name] for name in names}, "stage_layers": listed}
        most = most_layers(model, tuple(fields.items()))
    return {
        "tp": tp * layout.get("tp2", 1) > 1,
        "cp": cp > 1,
        "dp": dp * cp > 1 or (experts and tp * cp * dp // shared > 1),
        "experts": experts,
        "dispatches": experts and shared > 1,
        "uneven": experts and layout["ep"] > 1,
        "both_ways": experts and layout["schedule"] == "dualpipe",
        "layers": most,
        "panels": math.lcm(tp, layout.get("tp2", 1)),
    }


def same_run(options: Mapping[str, Any], kind: Mapping[str, Any], name: str) -> Any:
    """What a field's value amounts to: values that make no difference amount to the same."""
    training, zero = options["training"], options["zero"]
    value = options[name]
    exchanged = options["tp_exchange"] == "rs_ag"
    updates = options["offload_optimizer"] and training
    updates &= options["optimizer"] not in ("muon", "adamw-8bit")
    matters = {
        "tp_exchange": kind["tp"],
        "tp_overlap": kind["tp"],
        "tp_regather": kind["tp"] and training and exchanged,
        "cp_exchange": kind["cp"],
        "dp_overlap": kind["dp"] and (training or zero == 3),
        "recompute_parts": options["recompute"] == "selective" and training,
        "quantized_weights": options["quantization"] != "none",
        "lora_parts": options["lora_rank"] is not None and options["lora_targets"] is None,
        **dict.fromkeys(("lora_targets", "adapter"), options["lora_rank"] is not None),
        "base_weights": options["lora_rank"] is not None or bool(options["frozen"]),
        "reference_model": options["task"] in ("dpo", "kto") and training,
        "checkpoint_place": options["recompute"] == "full"
        and training
        and not options["offload_activations"],
        "offload_parts": options["offload_activations"] and training,
        "batching": options["data_lengths"] is not None,
        "cpu_optimizer": updates,
        "host_threads": updates and options["cpu_optimizer"] != "none",
        "offload_nvme": updates and options["cpu_optimizer"] != "none",
        "expert_capacity": kind["experts"],
        "expert_kernel": kind["experts"],
        "graph_scope": options["cuda_graphs"] == "partial",
        "expert_imbalance": kind["uneven"],
        "dispatcher": kind["dispatches"],
        "dispatch_dtype": kind["experts"],
        "expert_overlap": kind["dispatches"] and training and not kind["both_ways"],
        "fsdp_reshard": zero == 3,
        "fsdp_prefetch": zero == 3,
        "grad_sync": zero >= 2 and training,
        **dict.fromkeys(("recompute", "optimizer", "fused_activation", *OFFLOADS[1:]), training),
        **dict.fromkeys(TYPES, training and options["dtype"] != "fp32"),
        "moment_dtype": training,
    }
    if name == "zero":
        splits = kind["dp"] and training
        gathers = (2 if training else 3) <= value <= 3
        return value if splits or gathers else "nothing is split"
    if name == "recompute_layers":
        if options["recompute"] == "none" or not training:
            return "none"
        return "all" if value is None or (kind["layers"] and value >= kind["layers"]) else value
    if name == "summa_panels" and kind["tp"] and options["tp_exchange"] == "summa":
        return "all" if value in (None, kind["panels"]) else value
    return value if matters.get(name, name != "summa_panels") else "no matter"


def has_effect(model: Model, strategy: Mapping[str, Any], other: Any, name: str) -> bool:
    """Whether another value of a field would make it another run."""
    kind = kind_of(model, strategy, legal=name == "recompute_layers")
    return bool(same_run(strategy, kind, name) != same_run({**strategy, name: other}, kind, name))


def first_usable(system: System, name: str, values: Sequence[Any]) -> Any:
    """What a field without effect has: the first value that can be had at all."""
    none = name in OFFLOADS and len(system.accelerator.memory) == 1
    usable = [v for v in values if not ((name == "zero" and v > 3) or (none and v))]
    return (usable or values)[0]
