"""What NERSC's model says of a run or of a space of runs, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from shardwise.analysis.results import Estimate
from shardwise.predecessors.calculon.tables import print_pairs
from shardwise.predecessors.nersc.counterparts import ComparedRun, in_our_units
from shardwise.predecessors.nersc.translation import NerscCase
from shardwise.report.console import plain_table, show
from shardwise.units import readable

_TERA = 1e12
_LAYER_COLUMNS = (
    "flops_fwd",
    "t_fwd",
    "t_fwd_comm",
    "flops_bwd",
    "t_bwd",
    "t_bwd_comm",
    "weights_mem",
    "activation_buffer",
)


def _own(name: str, value: float) -> str:
    """A figure in its own unit, which its name implies."""
    if name.startswith("t_") or name == "t":
        return readable(value, "seconds") if value else "0"
    if name.startswith("flops"):
        return f"{value:.6g} TFLOP"
    if name.endswith(("mem", "buffer")):
        return f"{value:.6g} GB"
    return f"{100 * value:.2f} %" if name.endswith("frac") else f"{value:.6g}"


def _ours(name: str, value: float | None) -> str:
    """A figure in seconds, FLOP or bytes."""
    if not value:
        return "0"
    if name.startswith("t_") or name == "t":
        return readable(value, "seconds")
    if name.startswith("flops"):
        return f"{value / _TERA:.6g} TFLOP"
    return readable(value, "bytes")


def print_statistics(statistics: Mapping[str, float]) -> None:
    """Print all statistics under their own names."""
    table = plain_table("statistic", "value", title="NERSC perf-estimates")
    for name, value in statistics.items():
        table.add_row(name, _own(name, value))
    show(table)


def print_refusal(message: str) -> None:
    """Say why the run does not fit there."""
    show(f"It does not fit by NERSC's model: {message}")


def print_comparison(
    case: NerscCase, result: Estimate, statistics: Mapping[str, Any], *, everything: bool
) -> None:
    """Print NERSC's figures next to those of shardwise, with what differs in this run."""
    run = ComparedRun(case=case, result=result, statistics=in_our_units(statistics))
    shown = [row for row in run.counterparts() if everything or row.name != "flops_per_gpu"]
    print_pairs("NERSC", shown, result, run.statistics, _ours)


def print_configurations(found: Sequence[Mapping[str, Any]], summary: str) -> None:
    """Print the best configurations of a search, best first."""
    show(Text(summary))
    if not found:
        return
    table = plain_table(
        "",
        *("tp", "pp", "dp", "micro", "panels", "in a domain", "sequences/s"),
        *("time", "compute", "tp comm", "dp comm", "pp comm", "bubble", "memory"),
        *_days(found[0], head=True),
        optional=("pp comm", "dp comm", "bubble", "tp comm", "compute", "memory"),
    )
    for rank, entry in enumerate(found, start=1):
        stats = entry["stats"]
        shares = ("comp", "tp_comm", "dp_comm", "pp_comm", "bubble")
        table.add_row(
            str(rank),
            *_degrees(entry),
            f"{entry['throughput']:.6g}",
            _own("t", stats["t"]),
            *(f"{100 * stats[f'{share}_frac']:.1f} %" for share in shares),
            f"{entry['memory']:.4g} GB",
            *_days(entry),
        )
    show(table)


def print_searches(searches: Sequence[Mapping[str, Any]], elapsed_s: float) -> None:
    """Print the best configuration of each search, or why it has none."""
    candidates = sum(search["candidates"] for search in searches)
    summary = f"NERSC's space: {candidates:,} candidates in {len(searches)} searches"
    places = [_place(search) for search in searches]
    if all("best" not in search for search in searches):
        show(Text(summary))
        table = plain_table(*places[0], "candidates")
        for place, search in zip(places, searches, strict=True):
            table.add_row(*place.values(), f"{search['candidates']:,}")
        show(table)
        return
    feasible = sum(search["feasible"] for search in searches)
    show(Text(f"{summary}; {feasible:,} are feasible, found in {elapsed_s:.2f} s"))
    with_days = any("days" in one for search in searches for one in search["best"])
    heads = ("tp", "pp", "dp", "micro", "panels", "in a domain", "sequences/s", "time", "memory")
    days = ["days"] if with_days else []
    optional = ("panels", "in a domain", "memory", "micro")
    table = plain_table(*places[0], *heads, *days, optional=optional)
    reasons = {}
    for place, search in zip(places, searches, strict=True):
        cells = ["-"] * (len(heads) + len(days))
        if search["best"]:
            best = search["best"][0]
            cells = [*_degrees(best), f"{best['throughput']:.6g}", _own("t", best["stats"]["t"])]
            cells += [f"{best['memory']:.4g} GB", *_days(best)]
        else:
            where = ", ".join(f"{name} {value}" for name, value in place.items())
            reasons[where] = search["reason"]
        table.add_row(*place.values(), *cells)
    show(table)
    for where, reason in reasons.items():
        show(Text(f"{where}: {reason}"))


def _days(entry: Mapping[str, Any], *, head: bool = False) -> list[str]:
    """The cell of the training days of a configuration, or its head; none without tokens."""
    if "days" not in entry:
        return []
    return ["days"] if head else [f"{entry['days']:.4g}"]


_OUTCOME = ("candidates", "feasible", "best", "reason")


def _place(search: Mapping[str, object]) -> dict[str, str]:
    """Fields of a search that identify it, as text."""
    place = {name: value for name, value in search.items() if name not in _OUTCOME}
    return {name: v if isinstance(v, str) else f"{v:.6g}" for name, v in place.items()}


def _degrees(entry: Mapping[str, Any]) -> list[str]:
    """Degrees, micro-batch, panels and placement of a configuration."""
    config, stats = entry["config"], entry["stats"]
    degrees = [config[name] for name in ("tp1", "tp2") if name in config] or [config["tp"]]
    inside = [stats[name] for name in stats if name.startswith("nv_")]
    return [
        " x ".join(map(str, degrees)),
        str(config["pp"]),
        str(config["dp"]),
        str(config["mbs"]),
        str(config.get("nb", "-")),
        " x ".join(map(str, inside)),
    ]


def print_layers(layers: Sequence[Mapping[str, Any]]) -> None:
    """Print the layers of a micro-batch and a step's communication; the JSON has all fields."""
    title = "One transformer layer, one micro-batch; dp_comms and pp_comms of a full step"
    optional = tuple(reversed(_LAYER_COLUMNS))
    table = plain_table("layer", *_LAYER_COLUMNS, title=title, optional=optional)
    for layer in layers:
        table.add_row(layer["name"], *(_own(name, layer[name]) for name in _LAYER_COLUMNS))
    show(table)
