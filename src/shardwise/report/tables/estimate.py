"""An estimate as tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from shardwise import catalog
from shardwise.analysis.coverage import coverage_of
from shardwise.analysis.features import feature_words
from shardwise.analysis.results import (
    Estimate,
    LayerTotals,
    OperationEstimate,
    StageEstimate,
    WeightMemory,
)
from shardwise.analysis.training_run.results import TrainingTime
from shardwise.config.enums import PLACED_AXES
from shardwise.config.roles import Group
from shardwise.config.strategy_fields import COLUMNS, RANK_DEGREES
from shardwise.report.console import (
    both_ends,
    chance,
    count,
    gib,
    gpu_count,
    percent,
    plain_table,
    seconds,
    show,
)
from shardwise.report.tables.gemms import gemm_table
from shardwise.report.tables.strategy_line import (
    dispatcher_in_brief,
    host_in_brief,
    measured_words,
    method_in_brief,
    recipe_in_brief,
    stages_in_brief,
)
from shardwise.units import readable

if TYPE_CHECKING:
    from shardwise.planning.nearest import NearestPlan

_BAR = 24
PART_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "optimizer": "optimizer",
    "tp_comm": "tensor-parallel comm",
    "cp_comm": "context-parallel comm",
    "ep_comm": "expert-parallel comm",
    "pp_comm": "stage-to-stage transfer",
    "dp_comm": "data-parallel comm",
    "offload": "offload",
    "bubble": "pipeline bubble",
    "other": "overhead and stragglers",
}
_MOST_STAGES = 8
# How similar the closest measured run is, by its largest distance.
_SIMILARITY = (
    (0.5, "very similar"),
    (1.5, "similar"),
    (2.5, "different"),
    (math.inf, "very different"),
)
_OFFLOADED = ("weights", "activations", "optimizer")
_PASSES = {
    "forward": "forward",
    "recompute": "recompute",
    "input_grad": "gradient of inputs",
    "weight_grad": "gradient of weights",
    "optimizer": "optimizer, per step",
}
_COLLECTIVES = {
    "tp_forward": "communication forward",
    "tp_backward": "communication backward",
    "tp_again": "communication in recompute",
    "cp": "context communication, all passes",
    "ep": "expert communication, all passes",
}
_NEEDED = {
    "tp_overlap": "tensor-parallel communication behind GEMMs",
    "dp_chunks": "gradients of all chunks but the last",
    "dp_tail": "gradients of the last chunk",
    "offload_weights": "weights in the second tier",
    "offload_activations": "activations in the second tier",
    "offload_optimizer": "optimizer state in the second tier",
    "offload": "all that is offloaded, together",
}
_REMARK = "range and reasons"
_VERDICT_STYLES = {"fits": "", "on the edge": "yellow"}


def print_estimate(
    result: Estimate, change: "NearestPlan | None" = None, command: str = ""
) -> None:
    """Print the summary, where time and memory go, and the operations if they were requested.

    Parameters
    ----------
    change
        The smallest change with which it fits, where it may not.
    command
        The command line of the estimate.
    """
    first = [verdict(result), *([] if change is None else [change_words(change, command)])]
    style = _VERDICT_STYLES.get(verdict_word(result), "bold red")
    show(_headline(result))
    if result.strategy["training"]:
        show(coverage_of(result)[1], style="dim")
    show(Text("\n".join(first) + "\n", style=style))
    show(_summary(result), _times(result), _memory(result))
    if result.operations is not None:
        if result.strategy["training"]:
            show(_peaks(result.stages))
        show(_operations(result.operations))
        if any(row.network for row in result.operations):
            show(_collectives(result.operations))
        show(*(_layer_table(layer) for layer in result.layers), _bandwidths(result))
    if result.gemms is not None:
        show(gemm_table(result))
    if result.whole_run is not None:
        show(_training_run(result.whole_run))
    show("\n".join(closing_lines(result)), style="dim")


def _headline(result: Estimate) -> Text:
    s = result.strategy
    degrees = " x ".join(f"{axis} {s[axis]}" for axis in RANK_DEGREES if s[axis] > 1)
    experts = " x ".join(f"{axis} {s[axis]}" for axis in ("etp", "ep") if s[axis] > 1)
    experts += "".join(f" by {word}" for word in dispatcher_in_brief(s))
    options = [
        gpu_count(s["gpus"]) + (f" = {degrees}" if degrees else ""),
        f"micro-batch {s['micro_batch_size']}",
        f"global batch {s['global_batch_size']:,} x {s['seq_len']:,} tokens",
        s["dtype"] + (f" with {s['quantization']}" if s["quantization"] != "none" else ""),
        *([f"experts {experts}"] if experts else []),
        *([f"recompute {s['recompute']}", f"ZeRO-{s['zero']}"] if s["training"] else []),
        s["schedule"] + (f" x {s['vpp']}" if s["vpp"] > 1 else "") + stages_in_brief(s),
    ]
    options += [*recipe_in_brief(s), *method_in_brief(s), *_options(s)]
    text = Text("\n")
    text.append(f"{result.model} on {result.system}", style="bold")
    release = f" ({result.software.release})" if result.software.release else ""
    text.append(f" with {result.software.stack}{release}")
    text.append("\n" + ", ".join(options) + "\n")
    return text


def _options(strategy: Mapping[str, Any]) -> list[str]:
    """What a strategy does beyond the usual, where it has an effect."""
    training, several = strategy["training"], strategy["tp"] * strategy["tp2"] > 1
    panels = strategy["summa_panels"]
    flags = {
        "sequence parallel": several and strategy["tp_exchange"] == "rs_ag",
        "scattered between stages": several
        and strategy["pp"] > 1
        and strategy["tp_exchange"] == "p2p_rs_ag",
        "2D products" + (f" in {panels} panels" if panels else ""): several
        and strategy["tp_exchange"] == "summa",
        f"{strategy['tp_overlap']} overlap": several and strategy["tp_overlap"] in ("ring", "pipe"),
        "no tensor-parallel overlap": several and strategy["tp_overlap"] == "none",
        "full inputs saved": training
        and strategy["tp_exchange"] == "rs_ag"
        and not strategy["tp_regather"],
        "no data-parallel overlap": training and not strategy["dp_overlap"] and strategy["dp"] > 1,
        "fused activation": training and strategy["fused_activation"],
        f"{strategy['attention']} attention": strategy["attention"] != "model",
        f"{strategy['attention_kernel']} attention kernel": strategy["attention_kernel"] != "stack",
        "forward only": not training,
    }
    parts = _OFFLOADED if training else _OFFLOADED[:1]  # forward only, the weights are all there is
    away = [part for part in parts if strategy[f"offload_{part}"]]
    if "activations" in away and strategy["offload_parts"]:
        away[away.index("activations")] += f" of {'+'.join(strategy['offload_parts'])}"
    tiers = [
        f"{axis} on {strategy[f'{axis}_tier']}" for axis in PLACED_AXES if _placed(strategy, axis)
    ]
    options = [label for label, holds in flags.items() if holds]
    options += [f"offloaded {', '.join(away)}"] if away else []
    options += host_in_brief(strategy)
    options += ["optimizer on NVMe"] if strategy["offload_nvme"] else []
    options += [f"network tiers: {', '.join(tiers)}"] if tiers else []
    extents = strategy["extents"]
    return options + ([f"in a domain: {extents}"] if extents is not None else [])


def _placed(strategy: Mapping[str, Any], axis: str) -> bool:
    return strategy[f"{axis}_tier"] is not None and strategy[axis] > 1


def _summary(result: Estimate) -> Table:
    grid = Table.grid(padding=(0, 3))
    for justify in ("left", "right", "left", "right"):
        grid.add_column(justify=justify, no_wrap=True)
    cost = result.cost.usd_per_billion_tokens
    power = result.cost.kwh_per_step
    rows = [
        ("step time", seconds(result.step_time_s), "MFU", percent(result.mfu)),
        ("tokens/s", f"{result.tokens_per_s:,.0f}", "HFU", percent(result.hfu)),
        (
            "tokens/s per GPU",
            f"{result.tokens_per_s_per_gpu:,.0f}",
            "model TFLOP/s per GPU",
            f"{result.model_tflops_per_gpu:,.0f}",
        ),
        (
            "per billion tokens",
            "no price" if cost is None else f"${cost:,.0f}",
            "maximum energy per step",
            "no figure" if power is None else f"{power:.3g} kWh",
        ),
    ]
    for name, value, other, amount in rows:
        grid.add_row(name, Text(value, style="bold"), other, Text(amount, style="bold"))
    return grid


def _times(result: Estimate) -> Table:
    table = plain_table("where the step goes", "time", "share", "", "hidden", texts=("",))
    longest = max(result.time_s.values())
    for part, label in PART_NAMES.items():
        time = result.time_s[part]
        if not time:
            continue
        bar = "█" * round(_BAR * time / longest) or "▏"
        axis = result.comm_s.get(part.removesuffix("_comm"))
        hidden = seconds(axis.total - axis.exposed) if axis and axis.total > axis.exposed else ""
        share = percent(time / result.step_time_s)
        table.add_row(label, seconds(time), share, Text(bar, style=_colour(part)), hidden)
    return table


def _colour(part: str) -> str:
    if part in ("forward", "backward"):
        return "green"
    return "red" if part.endswith("_comm") or part == "bubble" else "yellow"


def _memory(result: Estimate) -> Table:
    names = ("weights", "gradients", "optimizer", "activations", "buffers", "total", "reserved")
    capacity = gib(result.memory_bytes.capacity)
    table = plain_table(
        *("stage", "layers", "parameters", *names, "peak in"),
        texts=("peak in",),
        title=f"Memory by stage [GiB]; capacity {capacity}",
        optional=("parameters", "layers", "peak in", "buffers"),
    )
    for stage in both_ends(result.stages, _MOST_STAGES):
        if stage is None:
            table.add_row("...")
            continue
        amounts = [gib(getattr(stage, name)) for name in names]
        style = "red" if stage.needed > stage.capacity else None
        contents = (str(stage.layers), count(stage.parameters))
        row = (str(stage.stage), *contents, *amounts, stage.peak.operation)
        table.add_row(*row, style=style)
        if stage.experts is not None and stage.experts.parameters:
            table.add_row(*_of_experts(stage.experts), style="dim")
    return table


def _of_experts(part: WeightMemory) -> tuple[str, ...]:
    """Cells of a row below a stage: what its routed experts need of it."""
    amounts = (part.weights, part.gradients, part.optimizer)
    return ("experts", "", count(part.parameters), *map(gib, amounts))


def _peaks(stages: tuple[StageEstimate, ...]) -> Table:
    """Peak of the forward and of the backward pass of each stage."""
    heads = ("stage", "forward", "peak in", "backward", "peak in ")
    table = plain_table(*heads, texts=("peak in", "peak in "), title="Peak by pass [GiB]")
    for stage in both_ends(stages, _MOST_STAGES):
        cells = [] if stage is None else [stage.forward_peak, stage.backward_peak]
        places = [text for one in cells if one for text in (gib(one.bytes), one.operation)]
        table.add_row("..." if stage is None else str(stage.stage), *places)
    return table


def _collectives(operations: tuple[OperationEstimate, ...]) -> Table:
    """Each different collective: network, bandwidth of its link, and volume over time."""
    table = plain_table(
        *("collective", "axis", "group", "network", "link", "latency"),
        *("volume", "time", "volume/time"),
        optional=("latency", "volume", "group", "link"),
        title="Collectives",
        left=2,
        notes={
            "link": "link: bandwidth of one accelerator, one direction",
            "latency": "latency: of one collective without data",
        },
    )
    distinct: dict[tuple[object, ...], OperationEstimate] = {}
    for row in operations:
        if row.network:
            distinct.setdefault((row.kind, row.axis, row.extents, row.volume_bytes), row)
    for one in distinct.values():
        table.add_row(
            one.kind.replace("_", "-"),
            one.axis,
            " / ".join(map(str, one.extents)),
            one.network,
            readable(one.link_bandwidth, "byte/s"),
            seconds(one.latency_s),
            _bytes(one.volume_bytes),
            seconds(one.time_s),
            readable(one.volume_bytes / one.time_s, "byte/s"),
        )
    return table


def _operations(operations: tuple[OperationEstimate, ...]) -> Table:
    table = plain_table(
        *("operation", "pass", "kernel or\ncollective", "FLOPs", "bytes", "volume", "group"),
        *("compute", "memory", "time", "exposed", "bound by", "weights", "saved"),
        title="One micro-batch on one rank",
        left=3,
        optional=(
            *("weights", "saved", "memory", "compute", "group", "bound by", "bytes", "volume"),
            *("FLOPs", "exposed", "pass"),
        ),
        notes={"group": "group: members within each network tier, innermost first"},
    )
    part = ""
    for row in operations:
        if row.part != part:
            part = row.part
            heading = part if row.count == 1 else f"{part} (x {row.count})"
            table.add_row(Text(heading, style="bold"))
        group = " / ".join(map(str, row.extents)) if row.group > 1 else "-"
        table.add_row(
            f"  {row.operation}",
            row.phase.replace("_", " "),
            row.kind.replace("_", "-"),
            count(row.flops),
            _bytes(row.bytes),
            _bytes(row.volume_bytes),
            group,
            seconds(row.compute_s),
            seconds(row.memory_s),
            seconds(row.time_s),
            seconds(row.exposed_s),
            row.bound,
            _bytes(row.weight_bytes),
            _bytes(row.saved_bytes),
        )
    return table


def _word(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _bytes(value: float) -> str:
    return readable(value, "bytes") if value else "-"


def closing_lines(result: Estimate) -> list[str]:
    """Return what was assumed, where figures come from, and the ranges."""
    listed = {
        name: result.assumed[name]
        for name, field in COLUMNS.items()
        if name in result.assumed
        and (field.role.listed or field.role.headline)
        and not (field.role.group is Group.LAYOUT and field.default == 1 == result.assumed[name])
    }
    defaults = ", ".join(f"{name} {_word(value)}" for name, value in listed.items())
    kinds = [source.kind for source in result.provenance.values()]
    origins = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    lines = [*software_lines(result)]
    lines += [f"assumed: {defaults}"] if defaults else []
    if result.missed_operations:
        missed = ", ".join(result.missed_operations)
        lines.append(f"no similar measured shapes for {missed}: mean efficiency used")
    stack = result.strategy["stack"]
    stack = stack if isinstance(stack, str) else stack.get("base", stack.get("name"))
    named = (("systems", result.system), ("stacks", stack))
    shown = [f"shardwise {folder} {name}" for folder, name in named if catalog.find(folder, name)]
    lines.append(f"origin of the figures used: {origins}" + ("; to see each:" if shown else ""))
    lines += ["  " + ", ".join(shown)] if shown else []
    lines.append(result.cost.price_line)
    lines += _assumed_network(result)
    lines += _assumed_host(result)
    # How much of the step kernels of mixers take, and how well their times are known.
    lines += [
        f"kernels of {one.kind}: {one.share:.0%} of the step, +-{one.spread:.0%}, rates "
        + ("of this generation" if one.measured else "scaled from another generation")
        for one in result.mixer_kernels
    ]
    lines += _interval(result)
    lines += _memory_interval(result)
    return lines


def software_lines(result: Estimate) -> Iterator[str]:
    """How a description of software was understood, and what it may mean in addition."""
    software = result.software
    yield from (f"warning: reported: {one}" for one in software.reported)
    if software.how != "stack":
        engine = f", {software.engine}" if software.engine else ""
        yield f"software: {software.trainer or 'unknown'}{engine} ({software.how})"
    yield from (f"  {note}" for note in software.notes)
    for one in result.software_candidates:
        size = readable(one.reserved_bytes, "bytes")
        if (one.margin_bytes or 0.0) < 0:
            size += f", lacks {readable(-(one.margin_bytes or 0.0), 'bytes')}"
        yield f"  {one.weight:.0%} {one.description}: {seconds(one.step_time_s)}, {size}"


def _assumed_network(result: Estimate) -> list[str]:
    """Network cards that the system assumes, and the step with others."""
    found = result.assumed_network
    if found is None:
        return []
    rate = f"{found.link_rate * 8 / 1e9:.4g} Gbit/s"
    slower, faster = seconds(found.slower_step_s), seconds(found.faster_step_s)
    cards = f"network cards assumed: {found.links_per_node} x {rate} per node"
    times = f"step time with 1/{found.spread:g} of it {slower}, with {found.spread:g}x {faster}"
    return [f"{cards}; {times}"]


def _assumed_host(result: Estimate) -> list[str]:
    """Threads and kernels of the update on the host, and the step with others."""
    found = result.assumed_host
    if found is None:
        return []
    own, stack = result.strategy["host_threads"], result.strategy["cpu_optimizer"] == "stack"
    threads = f"{found.threads} thread{'s' * (found.threads > 1)} each"
    one = f"optimizer on the host: {seconds(found.update_s)}, {found.cpu_optimizer}, {threads} for "
    one += f"{found.ranks} rank{'s' * (found.ranks > 1)}"
    names = ["--host-threads"] * (own is None) + ["--cpu-optimizer"] * stack
    slower, faster = seconds(found.slower_step_s), seconds(found.faster_step_s)
    unknown = f" (set {' and '.join(names)})" if names else ""
    return [one, f"  step time on the fastest such host {faster}, on the slowest {slower}{unknown}"]


def _interval(result: Estimate) -> list[str]:
    """Range of the measured time, and the most similar measured run."""
    found = result.interval
    if found is None:
        return []
    similarity = next(word for most, word in _SIMILARITY if found.distance <= most)
    expected = f"{seconds(found.low_s)} to {seconds(found.high_s)} in 8 of 10 runs"
    lines = [f"expect {expected}; closest measured run ({similarity}):", f"  {found.nearest}"]
    stack = result.strategy["stack"]
    name = stack if isinstance(stack, str) else stack.get("name") or stack["base"]
    no_run = f"no run of this software has been measured, {name}"
    if not found.stack_measured:
        lines.append(f"{no_run}: the range has the spread between frameworks")
    elif not found.stack_sources:
        lines.append(f"{no_run}, but of its framework: the range is wider")
    elif not found.release_sources:
        lines.append(f"{no_run}, but of other releases: the range is wider")
    elif found.release_sources == 1:
        lines.append(f"one source has measured this software, {name}: the range is wider")
    if found.stack_sources and found.accelerator_sources and not found.pair_sources:
        lines.append("no run of this software has been measured on such accelerators")
    if words := measured_words(found):
        lines.append(words)
    elif not found.accelerator_sources:
        lines.append(f"no measured run on this system, {result.system}: the range is wider")
    if result.unmeasured_features:
        words = feature_words(result.unmeasured_features)
        lines.append(f"no measured run has used {words}: the range is wider")
    return lines


def _memory_interval(result: Estimate) -> list[str]:
    """Range of the measured peak memory, by what is measured."""
    found = result.memory_interval
    if found is None:
        return []
    tensors, device = (
        f"{readable(low, 'bytes')} to {readable(high, 'bytes')}"
        for low, high in (
            (found.total_low, found.total_high),
            (found.reserved_low, found.reserved_high),
        )
    )
    return [f"expect {tensors} allocated and {device} reserved in 8 of 10 runs"]


def verdict_word(result: Estimate) -> str:
    """Whether it fits; as predicted in files of earlier versions."""
    return result.verdict or ("fits" if result.fits else "does not fit")


def verdict(result: Estimate) -> str:
    """One line: whether the model fits, by how much, and how likely."""
    memory, word = result.memory_bytes, verdict_word(result)
    margins = {"on the peak-memory stage": memory.capacity - memory.needed}
    if memory.offloaded:
        where = f"in host memory, of {readable(memory.offload_capacity, 'bytes')} usable"
        margins[where] = memory.offload_capacity - memory.offloaded
    free = [f"{readable(margin, 'bytes')} free {where}" for where, margin in margins.items()]
    lacks = [f"lacks {readable(-m, 'bytes')} {where}" for where, m in margins.items() if m < 0]
    line = f"{word}: {_by_software(result) or ', '.join(lacks or free)}"
    if result.fits_probability is None:
        return line
    likely = chance(result.fits_probability)
    line += f"; {likely} sure" if word == "fits" else f"; fits with {likely}"
    load = result.fits_assumes.get("expert_imbalance")
    return line if load is None else f"{line} (experts at {load:g} times an even load)"


def _by_software(result: Estimate) -> str:
    """What is free with some of the software that may be meant, and lacks with the rest."""
    found = result.software_candidates
    margins = [(one.margin_bytes or 0.0, one.weight) for one in found]
    fitting, short = ([one for one in margins if (one[0] < 0) is lacks] for lacks in (False, True))
    if not fitting or not short:
        return ""
    share = sum(weight for _, weight in fitting) / sum(weight for _, weight in margins)
    some = f"{len(fitting)} of {len(found)} software candidates ({chance(share)})"
    return f"{some} fit with {_range(fitting)} free, the rest lacks {_range(short)}"


def _range(margins: Sequence[tuple[float, float]]) -> str:
    """The least to the largest of some margins, as far as they differ in print."""
    sizes = sorted(abs(margin) for margin, _ in margins)
    texts = dict.fromkeys(readable(size, "bytes") for size in (sizes[0], sizes[-1]))
    return " to ".join(texts)


def print_change(change: "NearestPlan", command: str) -> None:
    """Print with which change the nearest plan of a search fits."""
    show(f"the nearest {change_words(change, command)}")


def change_words(change: "NearestPlan", command: str = "") -> str:
    """The smallest change with which a plan fits, and the command that makes it."""
    changes = ", ".join(
        f"{one.field} {_word(one.value)} in place of {_word(one.given)}" for one in change.changes
    )
    if "--finetune" in change.flags:
        changes = change.flags
    likely = chance(change.fits_probability)
    words = f"fits with {changes}: {likely} sure, {seconds(change.step_time_s)} a step"
    return f"{words}\n  {command} {change.flags}" if command and change.flags else words


def _layer_table(layer: LayerTotals) -> Table:
    """One layer, one micro-batch, one rank."""
    table = plain_table(
        *("pass", "FLOPs", "bytes", "volume", "compute", "memory", "time", "exposed"),
        title=f"One layer of {layer.count}, added up",
        optional=("compute", "memory", "bytes"),
    )
    for name, label in _PASSES.items():
        done = getattr(layer, name)
        if done.time_s:
            parts = (seconds(done.compute_s), seconds(done.memory_s), seconds(done.time_s))
            table.add_row(label, count(done.flops), readable(done.bytes, "bytes"), "-", *parts, "-")
    for name, label in _COLLECTIVES.items():
        moved = getattr(layer, name)
        if moved.time_s:
            volume = readable(moved.volume_bytes, "bytes")
            times = (seconds(moved.time_s), seconds(moved.exposed_s))
            table.add_row(label, "-", "-", volume, "-", "-", *times)
    return table


def _bandwidths(result: Estimate) -> Table:
    """Least bandwidths that would hide transfers behind compute."""
    table = plain_table("to hide", "bandwidth needed")
    for name, label in _NEEDED.items():
        rate = getattr(result.required_bandwidth, name)
        if rate != 0:
            needed = "none would do" if rate is None else readable(rate, "byte/s")
            table.add_row(label, needed)
    return table


def _training_run(run: TrainingTime) -> Table:
    """Time to train, price, energy and emissions, and what failures leave of it."""
    title = f"time to train on {count(run.tokens_asked)} tokens"
    table = plain_table(title, "expected", _REMARK, texts=(_REMARK,), wraps=(_REMARK,))
    for name, figure, remark in run.rows():
        known = "dim" if figure == "unknown" else "bold"
        table.add_row(name, Text(figure, style=known), remark)
    return table
