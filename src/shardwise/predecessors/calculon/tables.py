"""Calculon's 96 statistics and what stands for each of them in an `Estimate`.

Where both mean the same, the figures agree to rounding (tests check that); where not, the
reason says what differs. docs/from/calculon.md shows the sizes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.text import Text

from shardwise.analysis.results import Estimate
from shardwise.predecessors.calculon import reference as calculon
from shardwise.predecessors.calculon.files import CalculonExecution
from shardwise.predecessors.calculon.translation import CalculonCase
from shardwise.predecessors.tables import Counterpart, print_columns, print_figures, print_pairs
from shardwise.report.console import plain_table, show
from shardwise.report.tables.process_groups import as_ranges, first_groups
from shardwise.units import readable

_VECTOR = (
    "vector FLOPs of norms, softmax and dropout are counted differently; matrix FLOPs are equal"
)
_BYTES = "traffic of element-wise operations is counted differently; that of products is equal"
_ADDED = "gradients are added to what is there: read and written here, written there"
_CORE = "the full core is recomputed here, all but its last product there"
_TIME = "follows from FLOPs and bytes"
_PREFIX = "theirs adds up running sums instead of the recomputed operations' own"
_EDGE = "what differs at the edge of a stage is in comm_s.pp here"
_MESSAGES = "messages into the critical stage here: of 2 v one less at an end of the model"
_WAITS = (
    "the critical stage waits here, processor 0 there; each stage has its own time, with its end"
)
_LINK = "theirs also times the additions of the reduction"
_RING = "ring hides one piece in T for nothing there"
_STALE = "exposed times there keep what an earlier pass left"
_REDO = "theirs gathers the attention input again in any case"
_OPTIMIZER = "theirs reads the state once; here gradients are read, all is written back"
_BIAS = "biases are parameters here"
_ENDS = "embedding, head and loss stand at the ends here"
_STATE = "theirs saves full checkpoints and omits some inputs; here each rank's share of all"
_OFFLOAD = "the link runs in parallel with kernels here; there it must wait for their traffic"
_STREAM = "optimizer state moves once a step here, with every micro-batch there"
_WINDOW = "windows there are shortened by running sums, one chunk stands for all but one"
_OVERLAPPED = "overlap " + _WINDOW
_GRADIENTS = "gradients have the stack's type here; 2 bytes there, 4 for one block"
_FOLLOWS = "follows from the rows above"
_LIVE = "the largest working set here, the sum of all there"
_FULL = "checkpoints here, a working set there"
_MOMENT = "what is live at the memory peak here, which may be the update; a block's gradients there"
_ON_STAGE = "layers.0.{}_bytes * stages.0.layers"

_PASSES = (
    ("fw", "forward", _VECTOR, _BYTES),
    ("re", "recompute", _PREFIX, _PREFIX),
    ("agrad", "input_grad", _VECTOR, _BYTES),
    ("wgrad", "weight_grad", _VECTOR, _ADDED),
    ("optim", "optimizer", _OPTIMIZER, _OPTIMIZER),
)


def _block(theirs: str, ours: str, flops: str, moved: str) -> tuple[Counterpart, ...]:
    time = flops if flops in (_PREFIX, _OPTIMIZER) else _TIME
    return (
        Counterpart(f"block_{theirs}_flops", f"layers.0.{ours}.flops", flops),
        Counterpart(f"block_{theirs}_flops_time", f"layers.0.{ours}.compute_s", time),
        Counterpart(f"block_{theirs}_mem_accessed", f"layers.0.{ours}.bytes", moved),
        Counterpart(f"block_{theirs}_mem_time", f"layers.0.{ours}.memory_s", time),
        Counterpart(
            f"block_{theirs}_time",
            f"layers.0.{ours}.time_s",
            f"{_CORE}; {time}" if theirs == "re" else _TIME,
        ),
    )


def _communication(kind: str, theirs: str, ours: str, link: str) -> tuple[Counterpart, ...]:
    return (
        Counterpart(f"{kind}block_{theirs}", f"layers.0.{ours}.time_s", link),
        Counterpart(
            f"{kind}block_{theirs}_exposed",
            f"layers.0.{ours}.exposed_s",
            f"{link}; {_RING}; {_STALE}",
        ),
    )


_Strategy = Mapping[str, Any]


def _is(field: str, *values: object) -> Callable[[_Strategy], bool]:
    return lambda strategy: strategy[field] in values


def _offloads(strategy: _Strategy) -> bool:
    return any(value for name, value in strategy.items() if name.startswith("offload_"))


_APPLIES: dict[str, Callable[[_Strategy], bool]] = {
    _CORE: _is("recompute", "selective"),
    _REDO: _is("recompute", "selective"),
    _FULL: _is("recompute", "full"),
    _EDGE: _is("tp_exchange", "p2p_rs_ag"),
    _RING: _is("tp_overlap", "ring"),
    _STALE: _is("tp_overlap", "ring", "pipe"),
    _OVERLAPPED: _is("dp_overlap", True),
    _OFFLOAD: _offloads,
    _STREAM: _offloads,
}
"""Reasons that need a choice of the strategy; the others always apply."""

_LAYERS_TIMES_BATCHES = "layers.0.tp_again.{} * stages.0.layers * micro_batches"

CALCULON: tuple[Counterpart, ...] = (
    *(row for names in _PASSES for row in _block(*names)),
    *(
        row
        for kind, edge in (("base", ""), ("edge", f"{_EDGE}; "))
        for theirs, ours, link in (
            ("fw_tp_time", "tp_forward", edge + _LINK),
            ("agrad_tp_time", "tp_backward", edge + _LINK),
            ("recomm_time", "tp_again", f"{edge}{_REDO}; {_LINK}"),
        )
        for row in _communication(kind, theirs, ours, link)
    ),
    Counterpart("baseblock_fw_tp_size", "layers.0.tp_forward.volume_bytes"),
    Counterpart("edgeblock_fw_tp_size", "layers.0.tp_forward.volume_bytes", _EDGE),
    Counterpart("baseblock_bw_tp_size", "layers.0.tp_backward.volume_bytes"),
    Counterpart("edgeblock_bw_tp_size", "layers.0.tp_backward.volume_bytes", _EDGE),
    Counterpart("baseblock_recomm_size", "layers.0.tp_again.volume_bytes", _REDO),
    Counterpart("edgeblock_recomm_size", "layers.0.tp_again.volume_bytes", f"{_EDGE}; {_REDO}"),
    Counterpart("block_fw_pp_size", "layers.0.boundary_bytes"),
    Counterpart("block_bw_pp_size", "layers.0.boundary_bytes", "forward only: none there"),
    Counterpart("block_dp_size", "layers.0.gradient_bytes", _BIAS),
    Counterpart("tp_bw_overlap_req", "required_bandwidth.tp_overlap", _TIME),
    Counterpart("dp_bw_overlap_req_chunk", "required_bandwidth.dp_chunks", _WINDOW),
    Counterpart("dp_bw_overlap_req_tail", "required_bandwidth.dp_tail", _WINDOW),
    Counterpart("block_weight_space", "layers.0.weight_bytes", _BIAS),
    Counterpart("block_act_working_space", "layers.0.working_bytes", _LIVE),
    Counterpart("block_act_storage_space", "layers.0.kept_bytes", _STATE),
    Counterpart("block_act_checkpoint_size", "layers.0.kept_bytes", _STATE),
    Counterpart("block_weight_grad_space", "layers.0.gradient_bytes", _GRADIENTS),
    Counterpart("block_weight_grad_space_no_sharding", "layers.0.gradient_bytes", _GRADIENTS),
    Counterpart("block_act_grad_space", "layers.0.working_bytes", _LIVE),
    Counterpart("block_optimizer_space", "layers.0.optimizer_bytes", _BIAS),
    Counterpart("weight_space_with_offload", "2 * layers.0.weight_bytes", _BIAS),
    Counterpart("act_space_with_offload", "2 * layers.0.kept_bytes", _STATE),
    Counterpart("act_checkpoint_size_with_offload", "2 * layers.0.kept_bytes", _STATE),
    Counterpart("act_grad_space_with_offload", "stages.0.buffers", _MOMENT),
    Counterpart("weight_grad_space_with_offload", _ON_STAGE.format("gradient"), _GRADIENTS),
    Counterpart("optimizer_space_with_offload", "2 * layers.0.optimizer_bytes", _BIAS),
    Counterpart("weight_space", _ON_STAGE.format("weight"), _BIAS),
    Counterpart(
        "act_space",
        _ON_STAGE.format("kept") + " * stages.0.in_flight",
        _FULL + "; " + _STATE,
    ),
    Counterpart("act_checkpoint_size", _ON_STAGE.format("kept") + " * stages.0.in_flight", _STATE),
    Counterpart("act_grad_space", "stages.0.buffers", _MOMENT),
    Counterpart("weight_grad_space", _ON_STAGE.format("gradient"), _GRADIENTS),
    Counterpart("optimizer_space", _ON_STAGE.format("optimizer"), _BIAS),
    Counterpart("fw_time", "time_s.forward", _ENDS),
    Counterpart("bw_time", "time_s.backward", _ENDS),
    Counterpart("optim_step_time", "time_s.optimizer", _OPTIMIZER),
    Counterpart("recompute_time", "time_s.recompute", f"{_CORE}; {_PREFIX}"),
    Counterpart(
        "recomm_link_time", _LAYERS_TIMES_BATCHES.format("time_s"), f"{_EDGE}; {_REDO}; {_LINK}"
    ),
    Counterpart(
        "recomm_exposed_time",
        _LAYERS_TIMES_BATCHES.format("exposed_s"),
        f"{_EDGE}; {_REDO}; {_LINK}; {_RING}; {_STALE}",
    ),
    Counterpart("bubble_time", "time_s.bubble", _WAITS),
    Counterpart(
        "tp_comm_link_time",
        "comm_s.tp.total - " + _LAYERS_TIMES_BATCHES.format("time_s"),
        _LINK + "; embedding and head communicate too",
    ),
    Counterpart("pp_comm_link_time", "comm_s.pp.total", _EDGE),
    Counterpart("dp_comm_link_time", "comm_s.dp.total", _ENDS + ", with gradients of their own"),
    Counterpart(
        "tp_comm_exposed_time",
        "comm_s.tp.exposed - " + _LAYERS_TIMES_BATCHES.format("exposed_s"),
        _LINK + "; embedding and head communicate too",
    ),
    Counterpart("pp_comm_exposed_time", "comm_s.pp.exposed", _MESSAGES + "; " + _EDGE),
    Counterpart("dp_comm_exposed_time", "comm_s.dp.exposed", _ENDS + "; " + _OVERLAPPED),
    Counterpart("fw_offload_exposed_time", "time_s.offload", "both passes here; " + _OFFLOAD),
    Counterpart("bw_offload_exposed_time", "time_s.offload", "both passes here; " + _STREAM),
    Counterpart("total_time", "step_time_s", _FOLLOWS),
    Counterpart("act_offload_bw_req", "required_bandwidth.offload_activations", _OFFLOAD),
    Counterpart("weight_offload_bw_req", "required_bandwidth.offload_weights", _OFFLOAD),
    Counterpart("optim_offload_bw_req", "required_bandwidth.offload_optimizer", _OFFLOAD),
    Counterpart("offload_mem_bw_req", "required_bandwidth.offload", _OFFLOAD),
    Counterpart("proc_mem_tier1_cap_req", "memory_bytes.reserved", _FOLLOWS),
    Counterpart("proc_mem_tier2_cap_req", "memory_bytes.offloaded", "gradients stay here"),
    Counterpart(
        "useful_flops",
        "layers.0.forward.flops + layers.0.input_grad.flops + layers.0.weight_grad.flops",
        "the optimizer's are counted there too",
    ),
    Counterpart("compute_efficiency", "efficiency.compute", "model FLOPs here"),
    Counterpart("system_efficiency", "efficiency.system", _FOLLOWS),
    Counterpart("total_efficiency", "efficiency.total", "model FLOPs here"),
    Counterpart("sample_rate", "samples_per_s", _FOLLOWS),
)


def counterparts(result: Estimate) -> tuple[Counterpart, ...]:
    """Return the statistics, each with the reasons that apply to a run."""

    def applies(reason: str) -> bool:
        return reason not in _APPLIES or _APPLIES[reason](result.strategy)

    return tuple(
        replace(row, reason="; ".join(filter(applies, row.reason.split("; ")))) for row in CALCULON
    )


# Shown next to the estimate unless everything is requested.
_MAIN = (
    "total_time",
    "fw_time",
    "bw_time",
    "recompute_time",
    "optim_step_time",
    "tp_comm_exposed_time",
    "recomm_exposed_time",
    "pp_comm_exposed_time",
    "dp_comm_exposed_time",
    "fw_offload_exposed_time",
    "bw_offload_exposed_time",
    "bubble_time",
    "weight_space",
    "weight_grad_space",
    "optimizer_space",
    "act_space",
    "act_checkpoint_size",
    "act_grad_space",
    "proc_mem_tier1_cap_req",
    "proc_mem_tier2_cap_req",
    "compute_efficiency",
    "system_efficiency",
    "total_efficiency",
    "sample_rate",
)
# One more than are shown, so that others are indicated.
_SHOWN_GROUPS = 4
_DEGREES = ("tensor_par", "pipeline_par", "data_par")
_NETS = ("tensor_par_net", "pipeline_par_net", "data_par_net")
_OFFLOADS = ("weight_offload", "activations_offload", "optimizer_offload")
_LAYER_COLUMNS = (
    "fw_flops",
    "fw_mem_accessed",
    "fw_processing_time",
    "agrad_flops",
    "agrad_processing_time",
    "wgrad_flops",
    "wgrad_processing_time",
    "weight",
    "activation",
)


def _amount(name: str, value: float | None) -> str:
    """A statistic with the unit that its name implies."""
    if value is None:
        return "-"
    for endings, unit in (
        (("time", "exposed"), "seconds"),
        (("space", "size", "offload", "cap_req", "accessed"), "bytes"),
        (("bw_req", "overlap_req", "req_chunk", "req_tail"), "byte/s"),
    ):
        if name.endswith(endings):
            return readable(value, unit) if value else "0"
    if name.endswith("efficiency"):
        return f"{100 * value:.2f} %"
    return f"{value:.6g}"


def print_statistics(statistics: Mapping[str, float | None]) -> None:
    """Print all statistics under their own names."""
    rows = ((name, _amount(name, value)) for name, value in statistics.items())
    print_figures(("statistic", "value"), "Calculon 0.1.0", rows)


def print_question(case: CalculonCase) -> None:
    """Print what is run: model, system, degrees and options, as Calculon's own output begins."""
    model, execution = case.model, case.execution
    degrees = " x ".join(str(getattr(execution, name)) for name in _DEGREES)
    batch = f"batch {execution.batch_size}, micro-batch {execution.microbatch_size}"
    options = [execution.datatype, f"recompute {execution.activation_recompute}"]
    options += [execution.tensor_par_comm_type, f"tp overlap {execution.tensor_par_overlap}"]
    options += [
        name.replace("_", " ")
        for name in ("data_par_overlap", "optimizer_sharding", *_OFFLOADS)
        if getattr(execution, name)
    ]
    shape = f"{model.num_blocks} blocks, hidden {model.hidden}, {model.attn_heads} heads"
    chunks = f"chunks {execution.pipeline_interleaving}"
    run = f"{execution.num_procs:,} processors: T x P x D = {degrees}, {batch}, {chunks}"
    lines = [f"{shape}, {model.seq_size:,} tokens", run, ", ".join(options)]
    show(Text("\n".join(lines)))


def print_peers(execution: CalculonExecution) -> None:
    """Print the groups of each dimension in Calculon's numbering."""
    table = plain_table("peers", "groups", "members", "first ranks", wraps=("first ranks",))
    table.columns[-1].justify = "left"
    for name, groups in calculon.groups(execution).items():
        count, members = groups.shape
        if members > 1:
            first = first_groups(groups[:_SHOWN_GROUPS].tolist())
            table.add_row(name, str(count), str(members), first)
    show(Text(f"Calculon's numbering of {execution.num_procs:,} processors"))
    if table.row_count:
        show(table)


def print_rank(rank: int, peers: Mapping[str, Sequence[int] | int]) -> None:
    """Print the peers of one rank."""
    table = plain_table(f"peers of rank {rank}", "ranks", wraps=("ranks",))
    table.columns[-1].justify = "left"
    for name, ranks in peers.items():
        word = f"{name}, next stage" if isinstance(ranks, int) else name
        table.add_row(word, str(ranks) if isinstance(ranks, int) else as_ranges(ranks))
    show(table if peers else Text("one rank, no groups"))


def print_float8() -> None:
    """Say what float8 means in either model."""
    show("float8: everything has one byte in Calculon; here products of weights have, the rest two")


def print_comparison(
    result: Estimate, statistics: Mapping[str, float | None], *, everything: bool
) -> None:
    """Print Calculon's figures next to those of shardwise."""
    shown = (row for row in counterparts(result) if everything or row.name in _MAIN)
    print_pairs("Calculon", shown, result, statistics, _amount)


def print_executions(
    found: Sequence[tuple[Mapping[str, Any], Mapping[str, float | None]]], summary: str
) -> None:
    """Print the best executions of a search, best first."""
    show(Text(summary))
    if not found:
        return
    table = plain_table(
        "",
        "T x P x D",
        "networks",
        "batch",
        "micro",
        "chunks",
        "recompute",
        "exchange",
        "overlap",
        "sharded",
        "offload",
        "samples/s",
        "time",
        "tier 1",
        optional=("networks", "overlap", "samples/s", "offload", "sharded", "exchange", "batch"),
    )
    for rank, (execution, statistics) in enumerate(found, start=1):
        options = [execution["tensor_par_comm_type"]]
        options += ["redo"] if execution["seq_par_ag_redo"] else []
        overlap = [f"tp {execution['tensor_par_overlap']}"]
        overlap += ["dp"] if execution["data_par_overlap"] else []
        letters = "".join(name[0].upper() for name in _OFFLOADS if execution[name])
        table.add_row(
            str(rank),
            " x ".join(str(execution[name]) for name in _DEGREES),
            "/".join(str(execution[name]) for name in _NETS),
            str(execution["batch_size"]),
            str(execution["microbatch_size"]),
            str(execution["pipeline_interleaving"]),
            execution["activation_recompute"],
            " ".join(options),
            " ".join(overlap),
            "yes" if execution["optimizer_sharding"] else "no",
            letters or "-",
            f"{statistics['sample_rate']:.6g}",
            _amount("total_time", statistics["total_time"]),
            _amount("proc_mem_tier1_cap_req", statistics["proc_mem_tier1_cap_req"]),
        )
    show(table)


def print_layers(layers: Sequence[Mapping[str, Any]]) -> None:
    """Print the operations of a block; the JSON has all of their fields."""
    title = "One block, one micro-batch"
    print_columns(title, "operation", _LAYER_COLUMNS, layers, _amount)
