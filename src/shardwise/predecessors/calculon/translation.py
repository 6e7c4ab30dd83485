"""Shardwise configurations as Calculon's files, where Calculon can express them.

Left out, because Calculon has nothing of the kind:

- of a model its name, vocabulary, embedding, head, loss and final norm, positions, biases, dropout,
  causal masks (all pairs are scored), the kinds of norm (a weight and a bias) and of activation;
- of a system its names, price, power, the size of a node, the multiprocessors and all-to-all;
- of a strategy the stack, with what hides tensor-parallel communication where that is left to it
  (nothing does), and the order of the axes: each stands on the outermost network that it spans.

Whatever else it has no word for is refused by name.

Runs as Calculon describes them: shardwise configurations, or its own files.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shardwise import catalog
from shardwise.arrays import Ints
from shardwise.config import files
from shardwise.config.base import ConfigBase
from shardwise.config.model import Model, ModelLike
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System, SystemLike
from shardwise.errors import Fault, refuse
from shardwise.parallel.placement import place
from shardwise.predecessors.calculon import reference as calculon
from shardwise.predecessors.calculon.files import (
    CalculonExecution,
    CalculonFile,
    CalculonModel,
    CalculonSystem,
    check_together,
    looks_like,
)
from shardwise.predecessors.calculon.reader import (
    COLLECTIVES,
    DTYPES,
    FLOAT8,
    GB,
    GIB,
    GIGA,
    MEGA,
    RECOMPUTES,
    TERA,
    TP_EXCHANGES,
)
from shardwise.predecessors.translation import refusals_of, with_dtype_of

_fault = refusals_of("Calculon")
_DTYPE_OF = {ours: theirs for theirs, ours in DTYPES.items()}
_RECOMPUTE_OF = {ours: theirs for theirs, ours in RECOMPUTES.items()}
_COMM_TYPE_OF = {ours: theirs for theirs, ours in TP_EXCHANGES.items()}
_TYPES = f"allowed: {', '.join(_DTYPE_OF)}"
_MEMORY_TIERS = 2
# Times of kernels that Calculon has no word for, with what it has.
_USUAL_KERNELS: dict[str, tuple[Any, str]] = {
    "memory_bound": (
        {"efficiency": 1, "launch": 0},
        "knows no share of the bandwidth and no launch of kernels",
    ),
    "compute_latency": (0, "knows no time of a kernel without work; allowed: 0"),
}
# A tier of no size still needs a rate and a curve in the file.
_NO_MEMORY = {"GiB": 0, "GBps": 1, "MB_efficiency": [[0, 1]]}


def calculon_model(model: Mapping[str, Any], source: str = "") -> CalculonModel:
    """Return a model's layers as Calculon's model file."""
    name = source or str(model["name"])
    refuse(_model_faults(model, name))
    layer = model["layers"][0]
    return CalculonModel.parse(
        {
            "hidden": model["hidden"],
            "feedforward": layer["mlp"]["ffn"],
            "seq_size": model["seq_len"],
            "attn_heads": layer["attention"]["heads"],
            "attn_size": layer["attention"]["head_dim"],
            "num_blocks": layer["count"],
        },
        name,
    )


_PLAIN = {"mtp": 0, "streams": 1, "layer_embedding": 0, "more_parameters": 0}
_UNKNOWN_OF_ATTENTION = (
    *("v_head_dim", "latent", "window", "chunk", "sinks", "rotary_dim", "gate", "indexer"),
    *("compressed", "tied_values", "shared_keys", "out_norm", "v_norm"),
)


def _unknown_features(layer: Mapping[str, Any], name: str) -> Iterator[Fault]:
    """Features of modern layers that Calculon has no word for."""
    attention = layer["attention"]
    if attention is None or layer["mixer"] is not None:
        yield _fault(name, "layers[0].mixer", layer["mixer"], "knows attention and MLPs only")
        return
    if layer["mlp"] is None and layer["moe"] is None:
        yield _fault(name, "layers[0].mlp", None, "knows attention and MLPs only")
    for field in _UNKNOWN_OF_ATTENTION:
        if attention[field] not in (None, False, "none"):
            yield _fault(name, f"layers[0].attention.{field}", attention[field], "does not know it")
    if layer["more_parameters"]:
        yield _fault(name, "layers[0].more_parameters", layer["more_parameters"], "must be 0")
    if layer["norms"] != "pre":
        yield _fault(name, "layers[0].norms", layer["norms"], "knows norms before blocks only")
    if layer["moe"] is not None:
        yield _fault(name, "layers[0].moe", layer["moe"], "knows no mixture of experts")


def _model_faults(model: Mapping[str, Any], name: str) -> Iterator[Fault]:
    layers = model["layers"]
    if len(layers) > 1:
        yield _fault(name, "layers", len(layers), "knows one kind of layer")
        return
    yield from _unknown_features(layers[0], name)
    attention, mlp = layers[0]["attention"], layers[0]["mlp"]
    if mlp is None or attention is None or layers[0]["mixer"] is not None:
        return
    for field, usual in _PLAIN.items():
        if model[field] != usual:
            yield _fault(name, field, model[field], f"does not know it; allowed: {usual}")
    if attention["kv_heads"] not in (1, attention["heads"]):
        allowed = f"knows multi-head and multi-query attention; allowed: 1, {attention['heads']}"
        yield _fault(name, "layers[0].attention.kv_heads", attention["kv_heads"], allowed)
    if attention["qk_norm"] != "none":
        problem = "knows no norm of queries and keys"
        yield _fault(name, "layers[0].attention.qk_norm", attention["qk_norm"], problem)
    if "glu" in mlp["activation"]:
        yield _fault(name, "layers[0].mlp.activation", mlp["activation"], "knows no gated MLP")
    if layers[0].get("parallel"):
        yield _fault(name, "layers[0].parallel", True, "knows no parallel blocks")
    if model["seq_len"] is None:
        yield _fault(name, "seq_len", None, "needs the length of a sequence")


def calculon_system(system: Mapping[str, Any], source: str = "") -> CalculonSystem:
    """Return a system of efficiency curves as Calculon's system file."""
    name = source or str(system["name"])
    chip = system["accelerator"]
    refuse(_system_faults(system, name))
    tiers = [
        {
            "GiB": tier["capacity"] / GIB,
            "GBps": tier["bandwidth"] / GB,
            "MB_efficiency": _rows(tier["efficiency"], MEGA),
        }
        for tier in chip["memory"]
    ] + [_NO_MEMORY]
    return CalculonSystem.parse(
        {
            "matrix": _engine(chip["matrix"], chip["matmul_curve"]),
            "vector": _engine(chip["vector"], chip["vector_curve"]),
            "mem1": tiers[0],
            "mem2": tiers[1],
            "processing_mode": chip["processing"],
            "networks": [_network(tier) for tier in system["network"]],
        },
        name,
    )


def _system_faults(system: Mapping[str, Any], name: str) -> Iterator[Fault]:
    chip = system["accelerator"]
    hint = "; such systems of the catalog are named calculon-..."
    if chip["matmul"] or chip["attention"]:
        field = "accelerator.matmul" if chip["matmul"] else "accelerator.attention"
        problem = f"times kernels by curves over their FLOPs, not by closed forms{hint}"
        yield Fault(source=name, field=field, problem=f"Calculon {problem}")
        return
    if chip["processing"] == "measured":
        yield _fault(name, "accelerator.processing", "measured", "knows roofline and no_overlap")
    yield from _kernel_faults(chip, name)
    yield from _memory_faults(chip["memory"], name)
    for engine in ("matrix", "vector"):
        for dtype in chip[engine]:
            if dtype not in _DTYPE_OF:
                yield _fault(name, f"accelerator.{engine}", dtype, f"has no name for it; {_TYPES}")
    for index, tier in enumerate(system["network"]):
        yield from _tier_faults(tier, name, f"network[{index}]")


def _memory_faults(tiers: Sequence[Mapping[str, Any]], name: str) -> Iterator[Fault]:
    if len(tiers) > _MEMORY_TIERS:
        yield _fault(name, "accelerator.memory", len(tiers), "knows two tiers of memory")
    for index, tier in enumerate(tiers):
        if tier["host"] is not None:
            field = f"accelerator.memory[{index}].host"
            problem = "knows one efficiency of a memory, without sharing or reserves; allowed: null"
            yield Fault(source=name, field=field, problem=f"Calculon {problem}")
        if tier["limit_on"] != "reserved":
            field = f"accelerator.memory[{index}].limit_on"
            yield _fault(name, field, tier["limit_on"], "has no word for it; allowed: reserved")


def _kernel_faults(chip: Mapping[str, Any], name: str) -> Iterator[Fault]:
    for field, (usual, problem) in _USUAL_KERNELS.items():
        if chip[field] != usual:
            yield _fault(name, f"accelerator.{field}", chip[field], problem)
    engines = {
        f"{engine}.{dtype}": curve
        for engine in ("matmul_curve", "vector_curve")
        for dtype, curve in chip[engine].items()
    }
    tiers = {f"memory[{i}].efficiency": tier["efficiency"] for i, tier in enumerate(chip["memory"])}
    for field, curve in (engines | tiers).items():
        if curve is not None and curve["interpolate"]:
            yield _fault(name, f"accelerator.{field}.interpolate", True, "knows curves of steps")


def _tier_faults(tier: Mapping[str, Any], name: str, where: str) -> Iterator[Fault]:
    if tier["domain"] is None:
        yield _fault(name, f"{where}.domain", None, "needs the size of every network")
    if tier["links_per_node"] is not None:
        problem = "knows networks with a link of its own for each processor"
        yield _fault(name, f"{where}.links_per_node", tier["links_per_node"], problem)
    if tier["join_exponent"] != 1:
        problem = "adds latency and transfer; allowed: 1"
        yield _fault(name, f"{where}.join_exponent", tier["join_exponent"], problem)
    rates = [tier["collectives"][kind] for kind in COLLECTIVES]
    shares = {share for kind in rates for share in kind["efficiency"].values()}
    latencies = {kind["latency"] for kind in rates}
    if len(shares) > 1 or len(latencies) > 1 or any(kind["latency_per_member"] for kind in rates):
        problem = "knows one efficiency and one latency per network"
        yield Fault(source=name, field=f"{where}.collectives", problem=f"Calculon {problem}")
    if any(kind["scale"] is None for kind in rates):
        problem = "needs scale and offset of each"
        yield Fault(source=name, field=f"{where}.collectives", problem=f"Calculon {problem}")


def _engine(peaks: Mapping[str, float], curves: Mapping[str, Any]) -> dict[str, Any]:
    """Peaks with their curves; a type without a curve reaches its peak."""
    return {
        _DTYPE_OF[dtype]: {
            "tflops": peak / TERA,
            "gflops_efficiency": _rows(curves.get(dtype), GIGA),
        }
        for dtype, peak in peaks.items()
    }


def _rows(curve: Mapping[str, Any] | None, unit: float) -> list[list[float]]:
    points = curve["points"] if curve is not None else [[0, 1]]
    return [[least / unit, share] for least, share in reversed(points)]


def _network(tier: Mapping[str, Any]) -> dict[str, Any]:
    rates = tier["collectives"]
    ops = {kind: [rates[kind]["scale"], rates[kind]["offset"]] for kind in COLLECTIVES}
    return {
        "bandwidth": tier["bandwidth"] / GB,
        "efficiency": next(iter(rates["p2p"]["efficiency"].values())),
        "size": tier["domain"],
        "latency": rates["p2p"]["latency"],
        "ops": ops,
        "must_be_filled": tier["must_be_filled"],
        "processor_usage": tier["processor_share"],
    }


def calculon_execution(
    strategy: Mapping[str, Any],
    *,
    multiquery: bool,
    tiers: Mapping[str, int],
    source: str = "strategy",
) -> CalculonExecution:
    """Return a strategy as Calculon's execution file.

    Overlap as the stack has it becomes none; options that Calculon only takes where they matter
    are off where they do not.
    """
    refuse(_strategy_faults(strategy, source))
    training, recompute = strategy["training"], strategy["recompute"]
    attention = {"model": "multiquery" if multiquery else "multihead"}
    redo = strategy["tp_exchange"] == "rs_ag" and recompute != "full" and strategy["tp_regather"]
    overlap = strategy["tp_overlap"] if strategy["tp"] > 1 else "none"
    return CalculonExecution.parse(
        {
            "num_procs": strategy["gpus"],
            "tensor_par": strategy["tp"],
            "pipeline_par": strategy["pp"],
            "data_par": strategy["dp"],
            "tensor_par_net": tiers["tp"],
            "pipeline_par_net": tiers["pp"],
            "data_par_net": tiers["dp"],
            "batch_size": strategy["global_batch_size"],
            "microbatch_size": strategy["micro_batch_size"],
            "datatype": _datatype(strategy),
            "fused_activation": strategy["fused_activation"],
            "attention_type": attention.get(strategy["attention"], strategy["attention"]),
            "activation_recompute": _RECOMPUTE_OF[recompute],
            "pipeline_interleaving": strategy["vpp"],
            "optimizer_sharding": strategy["zero"] >= 1 and strategy["dp"] > 1,
            "tensor_par_comm_type": _COMM_TYPE_OF[strategy["tp_exchange"]],
            "tensor_par_overlap": "none" if overlap == "stack" else overlap,
            "seq_par_ag_redo": redo,
            "data_par_overlap": strategy["dp_overlap"] and training and strategy["dp"] > 1,
            "weight_offload": strategy["offload_weights"],
            "activations_offload": strategy["offload_activations"],
            "optimizer_offload": strategy["offload_optimizer"],
            "training": training,
        },
        source,
    )


def _datatype(strategy: Mapping[str, Any]) -> str:
    return "float8" if strategy["quantization"] == FLOAT8 else _DTYPE_OF[strategy["dtype"]]


# Fields that Calculon has no word for, with what it does.
_USUAL: dict[str, Any] = {
    "document_len": None,
    "data_lengths": None,
    "recompute_parts": ["core_attention"],
    "recompute_layers": None,
    "dp_shard": None,
    "fsdp_reshard": True,
    "optimizer": "adamw",
    "frozen": [],
    "lora_rank": None,
    "task": "pretrain",
    "loss_tokens": 1.0,
    "checkpoint_place": "device",
    "offload_parts": None,
    "cpu_optimizer": "stack",
    "host_threads": None,
    "offload_nvme": False,
    "attention_kernel": "stack",
    "first_stage_layers": None,
    "last_stage_layers": None,
    "stage_layers": None,
    "embedding_as_layer": False,
    "loss_as_layer": False,
}


def _quantization_faults(strategy: Mapping[str, Any], source: str) -> Iterator[Fault]:
    recipe = strategy["quantization"]
    if recipe not in ("none", FLOAT8):
        problem = f"does not know it; allowed: none, {FLOAT8}"
        yield _fault(source, "quantization", recipe, problem)
    elif recipe == FLOAT8 and not strategy["quantized_weights"]:
        problem = f"stores weights of {FLOAT8} in 8 bits alone; allowed: true"
        yield _fault(source, "quantized_weights", False, problem)


def _strategy_faults(strategy: Mapping[str, Any], source: str) -> Iterator[Fault]:
    for axis in ("cp", "ep", "etp"):
        if strategy[axis] > 1:
            yield _fault(source, axis, strategy[axis], "does not know this axis; allowed: 1")
    if strategy["zero"] > 1:
        yield _fault(source, "zero", strategy["zero"], "shards the optimizer; allowed: 0, 1")
    if strategy["dtype"] not in _DTYPE_OF:
        yield _fault(source, "dtype", strategy["dtype"], f"does not know it; {_TYPES}")
    if strategy["tp_exchange"] not in _COMM_TYPE_OF:
        problem = f"does not know it; allowed: {', '.join(_COMM_TYPE_OF)}"
        yield _fault(source, "tp_exchange", strategy["tp_exchange"], problem)
    yield from _quantization_faults(strategy, source)
    for field, usual in _USUAL.items():
        if strategy[field] != usual:
            yield _fault(source, field, strategy[field], f"does not know it; allowed: {usual}")
    schedule, chunks = strategy["schedule"], strategy["vpp"]
    if (schedule == "interleaved") != (chunks > 1):
        problem = f"interleaves where vpp is above 1, and only there; vpp is {chunks}"
        yield _fault(source, "schedule", schedule, problem)


T = TypeVar("T", bound=CalculonFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculonCase:
    """A run as Calculon describes it."""

    model: CalculonModel
    system: CalculonSystem
    execution: CalculonExecution

    def statistics(self) -> dict[str, float | int | None]:
        """Return Calculon's 96 statistics.

        Raises
        ------
        reference.calculon.Infeasible
            If Calculon refuses the run.
        """
        return calculon.statistics(self.model, self.system, self.execution)

    def answer(self) -> dict[str, Any]:
        """Return Calculon's statistics, or why it refuses the run."""
        try:
            return self.statistics()
        except calculon.Infeasible as refusal:
            return {"infeasible": refusal.reason, "message": refusal.sentence}

    def layers(self) -> list[dict[str, Any]]:
        """Return Calculon's statistics by operation."""
        return calculon.layer_statistics(self.model, self.system, self.execution)


def calculon_case(
    model: ModelLike,
    system: SystemLike,
    strategy: Strategy | Mapping[str, Any] | str | Path,
    *,
    source: str = "",
) -> CalculonCase:
    """Describe a run in Calculon's words; its own files are used as they are.

    Sequences are as long as the strategy says; one of Calculon's execution files leaves the length
    to the model.
    """
    named = source or _file_name(strategy, Strategy) or "strategy"
    the_system = system_for_calculon(system)
    execution = _own_file(strategy, Strategy, "execution", CalculonExecution)
    if execution is not None:
        the_model = model_for_calculon(model)
    else:
        loaded = Model.load(model)
        machine = System.load(system)
        complete = with_dtype_of(machine, Strategy.load(strategy))
        resolved = complete.resolved(loaded, machine.stack)
        the_model = model_for_calculon(model, seq_len=resolved.seq_len)
        execution = _execution(loaded, machine, resolved, named)
    check_together(the_model, the_system, execution, source=named)
    return CalculonCase(model=the_model, system=the_system, execution=execution)


def model_for_calculon(model: ModelLike, *, seq_len: int | None = None) -> CalculonModel:
    """Return a model of the catalog or of a file as Calculon's, its sequences of a set length."""
    theirs = _own_file(model, Model, "model", CalculonModel)
    length = {} if seq_len is None else {"seq_len": seq_len}
    if theirs is None:
        return calculon_model(Model.load(model).to_dict() | length, _file_name(model, Model))
    return theirs if seq_len is None else theirs.model_copy(update={"seq_size": seq_len})


def system_for_calculon(system: SystemLike) -> CalculonSystem:
    """Return a system of the catalog or of a file as Calculon's."""
    theirs = _own_file(system, System, "system", CalculonSystem)
    return theirs or calculon_system(System.load(system).to_dict(), _file_name(system, System))


def _file_name(name: object, config_type: type[ConfigBase]) -> str:
    """Name of the file that `ConfigBase.load` would read; empty if it is none."""
    if not isinstance(name, (str, Path)):
        return ""
    text = str(name).strip()
    if config_type.CATALOG is not None and catalog.find(config_type.CATALOG, text) is not None:
        return ""
    return text if isinstance(name, Path) or (text and files.is_file_name(text)) else ""


def _own_file(name: object, config_type: type[ConfigBase], kind: str, file: type[T]) -> T | None:
    """Parse a file or mapping that is already Calculon's."""
    if isinstance(name, Mapping):
        data, source = dict(name), kind
    elif source := _file_name(name, config_type):
        data = files.read_mapping(source)
    else:
        return None
    return file.parse(data, source) if looks_like(data) == kind else None


def _execution(model: Model, system: System, resolved: Strategy, source: str) -> CalculonExecution:
    extents = place(system, Table.of(model, [resolved]))
    tiers = {axis: _outermost(getattr(extents, axis)[:, 0]) for axis in ("tp", "pp", "dp")}
    chosen = {axis: getattr(resolved, f"{axis}_tier") for axis in tiers}
    return calculon_execution(
        resolved.to_dict(),
        multiquery=all(attention.kv_heads == 1 for attention in model.attentions),
        tiers=tiers | {axis: tier for axis, tier in chosen.items() if tier is not None},
        source=source,
    )


def _outermost(extents: Sequence[int] | Ints) -> int:
    """Position of the outermost tier that an axis spans; the innermost for an axis of one."""
    reached = np.asarray(extents)
    return int(np.argmax(reached == reached[-1]))
