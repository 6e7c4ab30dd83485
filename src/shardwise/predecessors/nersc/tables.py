"""NERSC's statistics and what stands for each of them in an `Estimate`.

Where both mean the same, the figures agree to rounding (tests check that); where not, the reasons
say what differs in the run at hand. Its shares of the step (`*_frac`) follow from its times.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isclose
from typing import Any

from rich.text import Text

from shardwise.analysis.results import Estimate, LayerTotals
from shardwise.errors import InputError
from shardwise.predecessors.nersc.translation import NerscCase, nersc_system
from shardwise.predecessors.tables import Counterpart, print_columns, print_figures, print_pairs
from shardwise.report.console import plain_table, show
from shardwise.units import readable

_GB, _TERA = 1e9, 1e12

_RUNS = " * stages.0.layers * micro_batches"
_ON_STAGE = "layers.0.{}_bytes * stages.0.layers"
_PASSES = ("forward", "input_grad", "weight_grad")
# Bytes of a weight, of its gradient and of its optimizer state.
_WEIGHT, _STATE = 2, 12
_ROUNDING = 1e-6


def _in_passes(figure: str, sign: str = "+") -> str:
    """A figure of one layer over all passes of a step."""
    return f" {sign} ".join(f"layers.0.{name}.{figure}{_RUNS}" for name in _PASSES)


NERSC: tuple[Counterpart, ...] = (
    Counterpart("flops_per_gpu", _in_passes("flops")),
    Counterpart("t_comp", _in_passes("compute_s")),
    Counterpart("t_mem", f"{_in_passes('time_s')} - {_in_passes('compute_s', '-')}"),
    Counterpart("t_tp_comm", "comm_s.tp.exposed + comm_s.cp.exposed"),
    Counterpart("t_pp_comm", "comm_s.pp.exposed"),
    Counterpart("t_bubble", "time_s.bubble"),
    Counterpart("t_dp_comm", "comm_s.dp.exposed"),
    Counterpart("t", "step_time_s"),
    Counterpart("wts_mem", _ON_STAGE.format("weight")),
    Counterpart("wts_grad_mem", _ON_STAGE.format("gradient")),
    Counterpart("wts_optimizer_states_mem", _ON_STAGE.format("optimizer")),
    Counterpart("acts_mem", _ON_STAGE.format("kept") + " * stages.0.in_flight"),
    Counterpart("mem", "memory_bytes.total"),
)


def in_our_units(statistics: Mapping[str, float]) -> dict[str, float]:
    """Statistics with a counterpart in seconds, bytes and FLOP."""

    def unit(name: str) -> float:
        if name == "flops_per_gpu":
            return _TERA
        return _GB if name.endswith("mem") and not name.startswith("t_") else 1.0

    return {row.name: statistics[row.name] * unit(row.name) for row in NERSC}


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run by both models, and why their figures differ there."""

    case: NerscCase
    result: Estimate
    statistics: Mapping[str, float]
    """NERSC's, in our units."""

    def counterparts(self) -> tuple[Counterpart, ...]:
        """Return the statistics, each with the reasons that apply to this run."""
        reasons = {
            "flops_per_gpu": self._flops,
            "t_comp": self._compute,
            "t_mem": self._kernels,
            "t_tp_comm": self._tensor,
            "t_pp_comm": self._messages,
            "t_bubble": self._bubble,
            "t_dp_comm": self._replicas,
            "t": self._step,
            "wts_mem": self._weights,
            "wts_grad_mem": self._gradients,
            "wts_optimizer_states_mem": self._optimizer,
            "acts_mem": self._activations,
            "mem": self._memory,
        }
        return tuple(replace(row, reason="; ".join(reasons[row.name]())) for row in NERSC)

    @property
    def _layer(self) -> LayerTotals:
        return self.result.layers[0]

    @property
    def _causal(self) -> bool:
        return self.case.described.layers[0].own_attention.causal

    @cached_property
    def _same_rates(self) -> bool:
        """Whether the system has the kernels and latencies of NERSC's own."""
        machine = self.case.machine
        try:
            nersc_system(machine)
        except InputError:
            return False
        return True

    def _flops(self) -> Iterator[str]:
        yield "vector FLOPs count there as what the matrix units would do in their time"
        if self._causal:
            yield "all pairs of a causal mask are scored there, half of them here"

    def _compute(self) -> Iterator[str]:
        if self._same_rates:
            yield "20 us for the full backward pass of a product there, for each of its two here"
        else:
            yield "0.8 of either peak there, and 20 us for every pass of every layer"
        yield "softmax and dropout are work of attention there"
        if self._causal:
            yield "all pairs of a causal mask are scored there"

    def _kernels(self) -> Iterator[str]:
        yield "bias and dropout are kernels of their own there, residual sums here"
        if not self._same_rates:
            yield "each at the full bandwidth there, measured bandwidth and launches here"

    def _tensor(self) -> Iterator[str]:
        configuration, comm = self.case.configuration, self.result.comm_s
        summa = configuration.method == "2d"
        hidden = sum(comm[axis].total - comm[axis].exposed for axis in ("tp", "cp"))
        if hidden > _ROUNDING * self.result.step_time_s:
            but = " but panels of SUMMA" if summa else ""
            yield f"all of it{but} is exposed there, the stack hides {_seconds(hidden)} here"
        if configuration.t1 < configuration.m1 or configuration.t2 < configuration.m2:
            yield "between domains, each further member adds the latency of a hop there"
        if not self._same_rates:
            yield "one bandwidth and one latency for all collectives there"
        if configuration.m1 > 1 and not summa and self.result.strategy["tp_regather"]:
            yield "inputs of products are saved unsplit there, gathered again in backward here"
        if configuration.m1 > 1 and self.case.described.vocab:
            yield "embedding and head communicate too"

    def _messages(self) -> Iterator[str]:
        configuration, comm = self.case.configuration, self.result.comm_s["pp"]
        yield "messages of all micro-batches are exposed there"
        if comm.total - comm.exposed > _ROUNDING * self.result.step_time_s:
            yield f"the critical stage does not wait for {_seconds(comm.total - comm.exposed)} here"
        if 1 < configuration.t_pp < configuration.pp:
            yield "messages between domains cost nothing there, as some stages share one"

    def _bubble(self) -> Iterator[str]:
        yield "follows from the layers and messages above"
        if self.case.described.vocab:
            yield "the ends of the model make stages unequal here"

    def _replicas(self) -> Iterator[str]:
        if self.case.described.vocab:
            yield "embedding and head have weights and gradients of their own"
        gradient = self._per_weight(self._layer.gradient_bytes)
        if not isclose(gradient, _WEIGHT, rel_tol=_ROUNDING):
            yield f"gradients have {gradient:.3g} bytes here, {_WEIGHT} there"
        if self.result.stages[0].layers > 1:
            yield "there only the pass of one layer hides a collective"
        elif not self._same_rates:
            yield "one bandwidth and one latency for all collectives there"

    def _step(self) -> Iterator[str]:
        yield "follows from the rows above"
        extra = {"optimizer": "the optimizer step takes", "other": "overhead and stragglers take"}
        for part, words in extra.items():
            if self.result.time_s[part] > 0:
                yield f"{words} {_seconds(self.result.time_s[part])} here"
        if self.case.described.vocab:
            yield "embedding, head and loss are timed here"

    def _weights(self) -> Iterator[str]:
        model, configuration = self.case.described, self.case.configuration
        layer = model.layers[0]
        if configuration.method == "1d" and configuration.m1 > 1:
            yield "biases after a row split are not split there"
        if configuration.method == "2d":
            yield "norms are l / m1 wide there"
        if layer.own_attention.bias in ("qkv", "all"):
            yield "query, key and value have no bias there"
        if layer.own_attention.bias not in ("output", "all") or not layer.feed_forward.bias:
            yield "the other products have biases there"
        if model.norm != "layernorm":
            yield "norms have biases there"

    def _per_weight(self, size: float) -> float:
        return size / self._layer.parameters

    def _gradients(self) -> Iterator[str]:
        gradient = self._per_weight(self._layer.gradient_bytes)
        if not isclose(gradient, _WEIGHT, rel_tol=_ROUNDING):
            yield f"gradients have {gradient:.3g} bytes per weight here, {_WEIGHT} there"
        yield from self._as_the_weights()

    def _optimizer(self) -> Iterator[str]:
        configuration = self.case.configuration
        shards = configuration.dp * (configuration.m2 if configuration.method == "2d-seqp" else 1)
        state = self._per_weight(self._layer.optimizer_bytes) * shards
        if not isclose(state, _STATE, rel_tol=_ROUNDING):
            yield f"the state has {state:.4g} bytes per weight here, {_STATE} there"
        yield from self._as_the_weights()

    def _as_the_weights(self) -> Iterator[str]:
        ours = self._layer.weight_bytes * self.result.stages[0].layers
        if not isclose(ours, self.statistics["wts_mem"], rel_tol=_ROUNDING):
            yield "as the weights"

    def _activations(self) -> Iterator[str]:
        model, strategy = self.case.described, self.result.strategy
        if self.case.configuration.m1 > 1 and strategy["tp_regather"]:
            yield "gathered inputs of products are saved unsplit there"
        yield "dropout after the activation saves a mask there"
        if not model.dropout:
            yield "so does all other dropout, which the model does not have"

    def _memory(self) -> Iterator[str]:
        yield "follows from the rows above"
        memory = self.result.memory_bytes
        if memory.buffers > 0:
            yield f"working sets and buffers have {readable(memory.buffers, 'bytes')} here"
        peak = max(self.result.stages, key=lambda stage: stage.total)
        if peak.parameters > self._layer.parameters * peak.layers * (1 + _ROUNDING):
            yield f"the peak-memory stage here, {peak.stage}, has the embedding or the head"


def _seconds(time_s: float) -> str:
    return readable(time_s, "seconds")


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
    rows = ((name, _own(name, value)) for name, value in statistics.items())
    print_figures(("statistic", "value"), "NERSC perf-estimates", rows)


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
    print_columns(title, "layer", _LAYER_COLUMNS, layers, _own)
