"""An estimate as plain lines, one term each: ``label ----- value unit``."""

from collections.abc import Iterator, Sequence

from shardwise.analysis.results import CommunicationShare, Estimate, MoeOverhead
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.config.strategy_fields import COMM_AXES, PARALLELISM, RANK_DEGREES
from shardwise.report.console import GIB

_DAY_S, _YEAR_D = 86400.0, 365.25
_WHATS = {
    "weights": "ZeRO gathers of weights",
    "gradients": "gradients",
    "momenta": "gathers of momenta for Muon",
    "mirrors": "gradients between mirrored stages",
    "embeddings": "gradients of copied embeddings",
    "messages": "transfers between stages",
    "activations": "activations",
    "tokens": "tokens",
}
_LEVELS = ("intra", "inter")
_WAYS = {"forward": "forward pass", "backward": "backward pass", "both": "forward or backward"}
_MOE = {
    "exchange_forward_s": "MoE all-to-all forward pass",
    "exchange_backward_s": "MoE all-to-all backward pass",
    "gating_forward_s": "MoE gating computation forward pass",
    "gating_backward_s": "MoE gating computation backward pass",
    "permute_forward_s": "MoE permutation of tokens forward pass",
    "permute_backward_s": "MoE permutation of tokens backward pass",
    "imbalance_s": "MoE imbalance of experts' load",
    "total_s": "Total MoE overhead",
}
_MEMORY = ("weights", "gradients", "optimizer", "activations", "buffers", "total", "reserved")


def breakdown_text(estimate: Estimate) -> str:
    """Every term of an estimate on a line of its own.

    Times are those of one step on its critical stage. Computation, exposed communication, bubbles,
    offload and other time are disjoint and add up to the step time; hidden communication has a
    line of its own. Intra is inside a domain of the innermost network tier, inter across such
    domains. Terms that other models have and this one does not are listed with the reason.
    """
    time = estimate.time_s
    labels = {
        "forward": "Computation time forward pass",
        "backward": "Computation time backward pass",
        "recompute": "Computation time recompute",
        "optimizer": "Computation time weight updates",
    }
    lines = [
        *_headline(estimate),
        *(_line(label, time[part], "s") for part, label in labels.items()),
        _line("Total computation time", sum(time[part] for part in labels), "s"),
        *_communication(estimate),
        *_rest(estimate),
        *_training_run(estimate.whole_run),
        *_rates(estimate),
        *_experts(estimate.breakdown.moe),
        *_memory(estimate),
        _line("Zero-DP overhead factor", "none: gathers of weights are timed as communication"),
    ]
    return "\n".join(lines) + "\n"


def _line(label: str, value: float | str, unit: str = "") -> str:
    shown = value if isinstance(value, str) else f"{value:.6g}"
    return f"{label} ----- {shown} {unit}".rstrip()


def _headline(estimate: Estimate) -> list[str]:
    s = estimate.strategy
    degrees = ", ".join(f"{axis} {s[axis]}" for axis in (*RANK_DEGREES, "ep"))
    return [
        _line("Model", estimate.model),
        _line("System", estimate.system),
        _line("GPUs", f"{s['gpus']}"),
        _line("Parallelism", degrees),
        _line("Global batch", f"{s['global_batch_size']}", "sequences"),
        _line("Sequence length", f"{s['seq_len']}", "tokens"),
    ]


def _communication(estimate: Estimate) -> Iterator[str]:
    shares = estimate.breakdown.exchanges
    for axis in (*COMM_AXES, "pp", "dp"):
        name = f"{PARALLELISM[axis]} parallel"
        own = [share for share in shares if share.axis == axis]
        if not own:
            yield _line(f"Communication {name}", f"none: {_why_not(estimate, axis)}")
            continue
        for what, way in dict.fromkeys((share.what, share.direction) for share in own):
            for level in _LEVELS:
                where = f"{_WHATS[what]} {_WAYS[way]} {level}"
                spent = _exposed(own, what=what, direction=way, level=level)
                yield _line(f"Communication {name} {where}", spent, "s")
        yield _line(f"Communication {name} total", _exposed(own), "s")
    gathers = sum(s.exposed_s for s in shares if s.what == "weights")
    yield _line("Communication ZeRO gathers of weights total", gathers, "s")
    for way in ("forward", "backward", "both"):
        total = _exposed(shares, direction=way)
        yield _line(f"Total communication time {_WAYS[way]}", total, "s")
    for level in _LEVELS:
        yield _line(f"Total communication time {level}", _exposed(shares, level=level), "s")
    yield _line("Total communication time", sum(share.exposed_s for share in shares), "s")
    hidden = sum(share.total_s - share.exposed_s for share in shares)
    yield _line("Communication hidden behind computation", hidden, "s")


def _exposed(shares: Sequence[CommunicationShare], **words: str) -> float:
    return sum(
        share.exposed_s
        for share in shares
        if all(getattr(share, name) == word for name, word in words.items())
    )


def _why_not(estimate: Estimate, axis: str) -> str:
    if axis == "ep" and estimate.breakdown.moe is None:
        return "the model has no experts"
    if axis == "dp" and not estimate.strategy["training"]:
        return "forward only, no gradients"
    return "no communication on this axis"


def _rest(estimate: Estimate) -> list[str]:
    time = estimate.time_s
    return [
        _line("Waiting time due to pipeline bubbles", time["bubble"], "s"),
        _line("Transfers to and from the second memory tier", time["offload"], "s"),
        _line("Fixed overhead and stragglers", time["other"], "s"),
        _line("Time of a step", estimate.step_time_s, "s"),
    ]


def _training_run(run: TrainingTime | None) -> list[str]:
    if run is None:
        return [_line("Total time to train", "unknown: no number of tokens was set")]
    days = run.days.expected
    lines = [
        _line("Tokens", f"{run.tokens}"),
        _line("Steps", f"{run.steps}"),
        _line("Total time to train", days * _DAY_S, "s"),
        _line("Total time to train", days, "days"),
        _line("Total time to train", days / _YEAR_D, "years"),
        _line("GPU-hours", run.gpu_hours.expected, "h"),
    ]
    prices = {"Price": ("usd", "USD"), "Maximum energy": ("kwh", "kWh"), "CO2": ("co2_kg", "kg")}
    for label, (name, unit) in prices.items():
        amount = getattr(run, name)
        shown = f"unknown: {run.unknown.get(name, '')}" if amount is None else amount.expected
        lines.append(_line(label, shown, "" if amount is None else unit))
    if run.goodput is None:
        return [*lines, _line("Goodput", f"unknown: {run.unknown['goodput']}")]
    found = run.goodput
    lines += [
        _line("Failures expected", "no end" if found.failures is None else found.failures),
        _line("Interval of checkpoints", found.interval_s, "s"),
        *(_line(f"Share {name.replace('_', ' ')}", s) for name, s in found.share.items()),
    ]
    if "waiting" in run.unknown:
        lines.append(_line("Share waiting", f"unknown: {run.unknown['waiting']}"))
    if found.days is None:
        return [*lines, _line("Effective time to train", "never: failures undo all work")]
    return [*lines, _line("Effective time to train", found.days.expected, "days")]


def _rates(estimate: Estimate) -> list[str]:
    gpus, step = estimate.strategy["gpus"], estimate.step_time_s
    flops = estimate.matrix_flops * gpus / estimate.strategy["pp"]
    model = estimate.model_tflops_per_gpu
    peak = model / estimate.mfu
    even = estimate.strategy["expert_imbalance"] == 1
    done = "executed" if even else "executed, if every rank had the load of the busiest"
    return [
        _line(f"MACs of a step, {done}", flops / 2),
        _line(f"TFLOP of a step, {done}", flops / 1e12, "TFLOP"),
        _line(f"TFLOP/s, {done}", flops / step / 1e12, "TFLOP/s"),
        _line(f"TFLOP/s per GPU, {done}", flops / step / gpus / 1e12, "TFLOP/s"),
        _line("TFLOP of a step, of the model", model * gpus * step, "TFLOP"),
        _line("TFLOP/s, of the model", model * gpus, "TFLOP/s"),
        _line("TFLOP/s per GPU, of the model", model, "TFLOP/s"),
        _line("TFLOP/s at peak", peak * gpus, "TFLOP/s"),
        _line("TFLOP/s per GPU at peak", peak, "TFLOP/s"),
        _line("Model FLOPs utilization", estimate.mfu),
    ]


def _experts(moe: MoeOverhead | None) -> list[str]:
    if moe is None:
        return [_line("MoE overhead", "none: the model has no experts")]
    return [_line(label, getattr(moe, name), "s") for name, label in _MOE.items()]


def _memory(estimate: Estimate) -> list[str]:
    memory = estimate.memory_bytes
    lines = [_line(f"Memory {name}", getattr(memory, name) / GIB, "GiB") for name in _MEMORY]
    lines.append(_line("Memory capacity", memory.capacity / GIB, "GiB"))
    lines.append(_line("Fits", "yes" if estimate.fits else "no"))
    if estimate.fits_probability is not None:
        lines.append(_line("Probability that it fits", estimate.fits_probability))
    return lines
