"""Calculon's 96 statistics and what stands for each of them in an `Estimate`.

Where both mean the same, the figures agree to rounding (tests check that); where not, the
reason says what differs. docs/from/calculon.md shows the sizes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardwise.analysis.results import Estimate
from shardwise.predecessors.counterpart import Counterpart

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
