"""A strategy in a line of a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.analysis.results import Interval
from shardwise.config import enums
from shardwise.config.fine_tuning import targets_in_brief
from shardwise.config.plain import joined
from shardwise.config.strategy_fields import DEGREES, FIELDS, HEADLINES, RANK_DEGREES
from shardwise.report.console import gpu_count, seconds

DEGREE_HEADS = {name: FIELDS[name].short for name in HEADLINES}
"""Fields that a line always shows, under these heads."""
ALWAYS_SHOWN = tuple(name for name in RANK_DEGREES if name in HEADLINES)
"""Degrees that a table shows even where all strategies agree."""
MORE_DEGREES = tuple(name for name in DEGREES if name not in HEADLINES)
"""Degrees that are shown where they split something."""
_ADAPTER_WORDS = {enums.Adapter.LORA: "LoRA", enums.Adapter.DORA: "DoRA"}
FOLLOWS = ("1f1b", "interleaved")
"""Schedules that follow from the chunks."""
SWITCHES = {
    "fused_activation": "fused activations",
    "offload_weights": "weights offloaded",
    "offload_activations": "activations offloaded",
    "offload_optimizer": "optimizer offloaded",
    "offload_nvme": "optimizer on NVMe",
}


def word(value: object) -> str:
    """A value of a field, as a word."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return str(value.get("base", value.get("name")))
    if isinstance(value, (list, tuple)):
        return joined(value)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def in_brief(strategy: Mapping[str, Any]) -> str:
    """A strategy in a line."""
    return ", ".join([_degrees(strategy), *options_in_brief(strategy)])


def _degrees(strategy: Mapping[str, Any]) -> str:
    degrees = " ".join(f"{head} {strategy[field]}" for field, head in DEGREE_HEADS.items())
    degrees += "".join(f" {axis} {strategy[axis]}" for axis in MORE_DEGREES if strategy[axis] > 1)
    return f"{degrees}{stages_in_brief(strategy)}"


def in_common(strategies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields that have one value in all of several strategies, with that value."""
    first = strategies[0]
    return {f: value for f, value in first.items() if all(one[f] == value for one in strategies)}


def work_in_common(common: Mapping[str, Any]) -> list[str]:
    """Return GPUs, batch and tokens in words, as far as strategies have them in common."""
    words = [gpu_count(common["gpus"])] if "gpus" in common else []
    batch = f"global batch {common['global_batch_size']:,}" if "global_batch_size" in common else ""
    tokens = f"{common['seq_len']:,} tokens" if "seq_len" in common else ""
    if batch and tokens:
        return [*words, f"{batch} x {tokens}"]
    return [*words, *([batch] if batch else []), *([f"sequences of {tokens}"] if tokens else [])]


def briefly(strategies: Sequence[Mapping[str, Any]]) -> tuple[list[str], str]:
    """Return strategies in a line each, and a note on the options that all of several have."""
    options = [options_in_brief(strategy) for strategy in strategies]
    first = options[0] if len(options) > 1 else []
    common = [one for one in first if all(one in other for other in options)]
    lines = [
        ", ".join([_degrees(strategy), *(one for one in own if one not in common)])
        for strategy, own in zip(strategies, options, strict=True)
    ]
    return lines, f"all plans: {', '.join(common)}" if common else ""


def options_in_brief(strategy: Mapping[str, Any]) -> list[str]:
    """What a strategy does apart from its degrees, in a few words each."""
    options = [_recompute(strategy), f"ZeRO-{strategy['zero']}"]
    if strategy["tp"] * strategy["tp2"] > 1:
        panels = strategy["summa_panels"]
        cut = f" in {panels} panels" if panels else ""
        overlap = strategy["tp_overlap"]
        own = "" if overlap == enums.TpOverlap.STACK else f"/{overlap}"
        options.append(f"{strategy['tp_exchange']}{own}{cut}")
    if strategy["schedule"] not in FOLLOWS:
        options.append(strategy["schedule"])
    options += [*dispatcher_in_brief(strategy), *recipe_in_brief(strategy)]
    if (kernel := strategy["attention_kernel"]) != enums.AttentionKernel.STACK:
        options.append(f"{kernel} attention")
    if (sync := strategy["grad_sync"]) != enums.GradSync.STACK:
        options.append(f"gradients reduced each {sync.replace('_', '-')}")
    options += [words for field, words in SWITCHES.items() if strategy[field]]
    return [*options, *host_in_brief(strategy), *method_in_brief(strategy)]


def host_in_brief(strategy: Mapping[str, Any]) -> list[str]:
    """How the host updates, where the strategy says it."""
    update, threads = strategy["cpu_optimizer"], strategy["host_threads"]
    words = [] if update == enums.CpuOptimizer.STACK else [f"cpu optimizer {update}"]
    return words if threads is None else [*words, f"host threads {threads}"]


def method_in_brief(strategy: Mapping[str, Any]) -> list[str]:
    """What is trained and how, apart from all weights on next tokens, in a few words each."""
    words = [strategy["task"]] if strategy["task"] != enums.Task.PRETRAIN else []
    if strategy["reference_model"] != enums.Reference.USUAL:
        words.append(f"reference {strategy['reference_model']}")
    if strategy["lora_rank"] is not None:
        own = strategy["lora_targets"]
        places = "+".join(strategy["lora_parts"]) if own is None else targets_in_brief(own)
        kind = _ADAPTER_WORDS[strategy["adapter"]]
        words.append(f"{kind} rank {strategy['lora_rank']} on {places}")
    if strategy["base_weights"] != enums.BaseWeights.STACK:
        words.append(f"{strategy['base_weights']} base")
    if strategy["checkpoint_place"] != enums.CheckpointPlace.DEVICE:
        words.append("checkpoints on the host")
    if strategy["data_lengths"] is not None:
        p50, p95, longest = strategy["data_lengths"]
        how = str(strategy["batching"]).replace("_", "-")
        words.append(f"lengths {p50:,}, {p95:,}, {longest:,} {how}")
    if (share := strategy["loss_tokens"]) != 1:
        words.append(f"{100 * share:g} % of the tokens in the loss")
    return words


def dispatcher_in_brief(strategy: Mapping[str, Any]) -> list[str]:
    """The dispatcher, where tokens are sent to other ranks by another one than all_to_all."""
    sends = strategy["ep"] * strategy["etp"] > 1
    word = strategy["dispatcher"]
    return [word] if sends and word != enums.Dispatcher.ALL_TO_ALL else []


def recipe_in_brief(strategy: Mapping[str, Any]) -> list[str]:
    """Overlap of experts, CUDA graphs and quantized weights, where the strategy has them."""
    graphs, sends = strategy["cuda_graphs"], strategy["ep"] * strategy["etp"] > 1
    said = {
        "expert overlap": strategy["expert_overlap"] and sends,
        f"CUDA graphs {graphs}": graphs != enums.CudaGraphs.STACK,
        "quantized weights": strategy["quantized_weights"],
    }
    return [words for words, holds in said.items() if holds]


def _recompute(strategy: Mapping[str, Any]) -> str:
    layers = strategy["recompute_layers"]
    of = "" if layers is None else f" of {layers} layer{'s' if layers > 1 else ''} a stage"
    return f"recompute {strategy['recompute']}{of}"


def stages_in_brief(strategy: Mapping[str, object]) -> str:
    """Layers of the stages, where they are not spread evenly."""
    if strategy["stage_layers"] is not None:
        return f" layers {word(strategy['stage_layers'])}"
    ends = {"first": strategy["first_stage_layers"], "last": strategy["last_stage_layers"]}
    return "".join(f" {end} stage {n}" for end, n in ends.items() if n is not None)


def measured_words(interval: Interval | None) -> str:
    """What of a system was measured on the machine itself; empty: nothing."""
    if interval is None or not interval.measured:
        return ""
    return (
        f"system measured on {interval.measured_on}: {', '.join(interval.measured)}; "
        "the range is narrower"
    )


def interval_words(interval: Interval | None) -> str:
    """Range of the measured time of a step, in a cell."""
    if interval is None:
        return "-"
    return f"{seconds(interval.low_s)} to {seconds(interval.high_s)}"
