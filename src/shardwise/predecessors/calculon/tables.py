"""What Calculon says of a run or of a space of runs, as tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from shardwise.analysis.results import Estimate
from shardwise.predecessors.calculon import reference as calculon
from shardwise.predecessors.calculon.counterparts import counterparts
from shardwise.predecessors.calculon.files import CalculonExecution
from shardwise.predecessors.calculon.translation import CalculonCase
from shardwise.predecessors.counterpart import Counterpart
from shardwise.report.console import plain_table, show
from shardwise.report.tables.process_groups import as_ranges, first_groups
from shardwise.units import readable

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
    table = plain_table("statistic", "value", title="Calculon 0.1.0")
    for name, value in statistics.items():
        table.add_row(name, _amount(name, value))
    show(table)


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


def print_refusal(message: str) -> None:
    """Say why Calculon gives no figures."""
    show(f"Calculon refuses this run: {message}")


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


def print_pairs(
    predecessor: str,
    counterparts: Iterable[Counterpart],
    result: Estimate,
    statistics: Mapping[str, float | None],
    amount: Callable[[str, float | None], str],
) -> None:
    """Print a predecessor's figures next to the estimate, with differences and their reasons."""
    table = plain_table(
        *(f"{predecessor}'s name", "shardwise", predecessor, "difference", "may come from"),
        wraps=("may come from",),
    )
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = False
    table.columns[-1].max_width = 70
    for counterpart in counterparts:
        value, reference = counterpart.value(result), statistics[counterpart.name]
        if not value and not reference:
            continue
        difference = "-" if not reference else f"{100 * (value / reference - 1):+.1f} %"
        same = reference is not None and abs(value - reference) <= 1e-9 * abs(reference)
        table.add_row(
            counterpart.name,
            amount(counterpart.name, value),
            amount(counterpart.name, reference),
            difference,
            "" if same else counterpart.reason,
        )
    show(table)


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
    optional = tuple(reversed(_LAYER_COLUMNS))
    table = plain_table("operation", *_LAYER_COLUMNS, title=title, optional=optional)
    for layer in layers:
        cells = (_amount(name, layer[name]) for name in _LAYER_COLUMNS)
        table.add_row(layer["name"], *cells)
    show(table)
