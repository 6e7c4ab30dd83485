"""The `Strategy` of a measured run.

Batch and pipeline settings that a row leaves open follow the defaults of its software, or the
memory.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from published_rows.fine_tuning import memory_fields
from published_rows.recompute import is_xla, recompute_choices
from published_rows.remarks import imbalance_of, is_unsplit, stage_fields
from published_rows.row import Run
from published_rows.software import capacity_of, dispatcher_of, newest, stated_dispatcher
from published_rows.words import FP8_SWITCHES, truth
from shardwise.config.enums import ZERO_WEIGHTS, GradSync
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.estimator import estimate_many
from shardwise.units import read_whole
from shardwise.validate.measured.runs import NotModeledError

_MOST_REPEATS = 10_000
# Schedules by the words of torchtitan and of papers; the others follow from the chunks.
_SCHEDULES = {
    "dualpipe": "dualpipe", "gpipe": "gpipe", "zbb": "zb-h1", "zb-h1": "zb-h1", "zbh1": "zb-h1",
    "zbv": "zb-v", "zb-v": "zb-v",
}  # fmt: skip
# Recipes of these stacks interleave down to a layer in a chunk (NeMo's performance recipes).
_INTERLEAVE = ("megatron-core-2025", "nemo-2025", "meta-2024")


# Trainers that skip synchronization until the last micro-batch, with the stack of one that does not
# (fabric.no_backward_sync in Lightning-AI/litgpt, pretrain.py).
_SYNCS_ONCE = re.compile(r"(?i)lit-?gpt")


def strategy_of(
    run: Run, model: Model, system: System, stack: Stack, assumed: list[str]
) -> Strategy:
    """Translate degrees, batch, precision, recompute, sharding and schedule."""
    p = run.parallelism
    gpus = run.hardware.count
    if gpus is None:
        raise NotModeledError("hardware.count is not stated")
    tp, pp, cp = _accelerators_of_ranks(p.tp or 1, p.extra.get("unit")), p.pp or 1, p.cp or 1
    world = tp * pp * cp
    dp, rest = divmod(gpus, world)
    if rest:
        raise NotModeledError(f"{gpus} accelerators are no multiple of tp x pp x cp, {world}")
    if run.global_batch is None:
        raise NotModeledError("global_batch is not stated")
    fields: dict[str, Any] = {
        "gpus": gpus,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "ep": p.ep or 1,
        "etp": p.etp
        or _whole(run, "expert_tensor_parallel_size")
        or _expert_tensors(run, stack, tp),
        "global_batch_size": run.global_batch,
        "seq_len": run.model.seq_len,
        "stack": stack,
        "any_software": True,  # it ran, whatever its release is said to run
    }
    fields |= _precision(run, stack, system, assumed)
    fields |= _sharding(run, stack, dp, system)
    if _SYNCS_ONCE.search(run.software.framework or "") or truth(run.features.get("no_sync")):
        fields["grad_sync"] = GradSync.STEP
    fields |= _communication(run, tp)
    if truth(run.features.get("torch_compile")) and not stack.compiles_layers:
        fields["compile"] = "layers"
    if (cp or 1) > 1 and any(one.is_sparse for one in model.attentions):
        fields["cp_exchange"] = "all_gather"  # each query selects keys of the full sequence
    fields |= memory_fields(run, stack.name, assumed)
    fields |= _experts(run, model, stack, dp, assumed)
    sizes = _batches(run, pp, dp, assumed)
    fields |= _stages(run, model, stack, pp, run.global_batch // (dp * sizes[0]), assumed)
    choices = [
        {"micro_batch_size": size, "zero": zero} | recompute
        for recompute in recompute_choices(run, model, stack, assumed)
        for size in sizes
        for zero in _stages_of_zero(run, fields)
    ]
    stated = fields["zero"]
    fields = _first_that_fits(model, system, fields, choices)
    if fields["zero"] != stated:
        assumed.append("a sharded optimizer")
    if len(sizes) > 1:
        assumed.append(f"micro_batch {fields['micro_batch_size']}")
    return Strategy.validated(fields, source=run.id)


def unstated(run: Run, strategy: Strategy) -> tuple[str, ...]:
    """Fields of a strategy that follow from the software and that the row does not state."""
    features, text = run.features, (run.precision or "").lower()
    kept = r"fp8 params|float8 all-gather|\ball-gather\b"
    low = re.search(kept, text) or truth(features.get("fp8_params"))
    stated = {
        "dispatcher": stated_dispatcher(run) is not None,
        "expert_overlap": "moe_a2a_overlap" in features,
        "quantized_weights": bool(low) or truth(features.get("fp8_param_gather")),
        "grad_sync": truth(features.get("no_sync")),
        "fsdp_reshard": False,
        "etp": bool(run.parallelism.etp or _whole(run, "expert_tensor_parallel_size")),
    }
    return tuple(name for name in stated if not stated[name] and name in strategy.model_fields_set)


def _expert_tensors(run: Run, stack: Stack, tp: int) -> int:
    """Ranks that split an expert where a row does not say.

    Megatron-LM splits experts as it does other layers unless set otherwise; its recipes with
    expert parallelism set 1.
    """
    alone = (run.parallelism.ep or 1) == 1 and bool(run.model.experts)
    return tp if alone and stack.name.startswith(("megatron", "nemo")) else 1


def _whole(run: Run, name: str) -> int | None:
    """A feature that is a whole number above 0; None: none is stated."""
    return read_whole(str(run.features.get(name))) or None


def _accelerators_of_ranks(ranks: int, unit: str | None) -> int:
    """Accelerators of so many tensor-parallel ranks; a Trainium chip is two of its cores."""
    found = re.search(r"([1-9]\d{0,8}) per chip", unit or "")
    return max(ranks // int(found[1]), 1) if found else ranks


def _batches(run: Run, pp: int, dp: int, assumed: list[str]) -> tuple[int, ...]:
    """Sequences of a micro-batch; several to try where the row does not say."""
    assert run.global_batch is not None  # noqa: S101 - checked before
    # MaxText and Pax print sequences for each accelerator, and accumulate no gradients.
    size = run.global_batch // dp if is_xla(run) else run.micro_batch
    if size is None:
        size = _whole(run, "local_batch")
    if size is None and (steps := _whole(run, "gradient_accumulation")):
        size, rest = divmod(run.global_batch, dp * steps)
        size = size if size and not rest else None
    if size is None and run.global_batch % dp == 0:
        sizes = _default_sizes(run, pp, run.global_batch // dp)
        if len(sizes) == 1:
            assumed.append(f"micro_batch {sizes[0]}")
        return sizes
    size = size or 1
    if run.global_batch % (dp * size):
        raise NotModeledError(
            f"global_batch {run.global_batch} is no multiple of {dp} replicas x micro_batch {size}"
        )
    return (size,)


def _precision(run: Run, stack: Stack, system: System, assumed: list[str]) -> dict[str, object]:
    text = _type_of_products(run, assumed)
    if "nvfp4" in text and "fp8" in text and "fp4" not in system.accelerator.matrix:
        text = "fp8"
    fields: dict[str, object] = {"dtype": "fp16" if text.startswith("fp16") else "bf16"}
    if not text:
        assumed.append("bf16")
    if "nvfp4" in text or "fp4" in text:
        fields["quantization"] = "nvfp4"
    elif "mxfp8" in text or "fp8_mx" in text:
        fields["quantization"] = "mxfp8"
    elif "block" in text:
        fields["quantization"] = "fp8_block"
    elif "rowwise" in text:
        fields["quantization"] = "fp8_row"
    elif "fp8" in text or "float8" in text:
        fields["quantization"] = "fp8_tensor"
        if "ambiguous" in text:
            assumed.append("fp8 scaled by tensor")
        if re.match("megatron|nemo|mlperf", stack.name) or "float8 all-gather" in text:
            fields["quantized_weights"] = True
    return fields


def _type_of_products(run: Run, assumed: list[str]) -> str:
    """Precision of a row; fp8 also where only a switch for fp8 is set.

    Submissions to MLPerf since 4.1 train language models in fp8 or less (config_common.sh of
    mlcommons/training_results) unless a file overrides it.
    """
    text = (run.precision or "").lower()
    if "fp8" in text or "fp4" in text:
        return text
    if [name for name in FP8_SWITCHES if name in run.features]:
        return "fp8"
    if "MLPerf" in (run.group or ""):
        assumed.append("fp8")
        return "fp8"
    return text


def _sharding(run: Run, stack: Stack, dp: int, system: System) -> dict[str, Any]:
    p = run.parallelism
    shard = p.fsdp_shard
    zero3 = p.zero_stage == ZERO_WEIGHTS or truth(run.features.get("use_megatron_fsdp"))
    zero3 = zero3 or (p.zero_stage is None and shard is None and truth(run.features.get("fsdp2")))
    if p.zero_stage is None and shard is not None and (shard > 1 or shard == -1):
        zero3 = True
    if zero3:
        fields: dict[str, Any] = {"zero": ZERO_WEIGHTS}
        if is_xla(run) and (shard is None or shard < 1 or p.dp is None):
            shard = _slice_replicas(run, dp, system)
        if shard is not None and 1 < shard < dp and dp % shard == 0:
            fields["dp_shard"] = shard
        if (p.pp or 1) > 1 or _gathers_once(run, stack):
            # PyTorch's FSDP keeps the weights of a stage between its passes.
            fields["fsdp_reshard"] = False
        return fields
    stage = p.zero_stage
    if stage is None:
        stated = p.distributed_optimizer
        sharded = truth(run.features.get("use_dist_optimizer")) if stated is None else stated
        stage = 1 if sharded else 0
    fields = {"zero": int(stage)}
    group = p.extra.get("zero1_group")
    if group and group < dp and dp % group == 0:
        fields["dp_shard"] = group
    return fields


def _gathers_once(run: Run, stack: Stack) -> bool:
    """Whether the weights of a model with experts stay gathered without a pipeline too.

    AutoModel wraps their layers so unless a recipe sets reshard_after_forward (components/moe/
    parallelizer.py, apply_fsdp).
    """
    return bool(run.model.experts) and stack.name.startswith("automodel")


def _stages_of_zero(run: Run, fields: Mapping[str, Any]) -> tuple[int, ...]:
    """ZeRO stages to try: no sharding and a sharded optimizer where a row says nothing of it."""
    p = run.parallelism
    silent = p.zero_stage is None and p.distributed_optimizer is None and p.fsdp_shard is None
    if silent and fields["zero"] == 0 and fields["dp"] > 1 and not is_xla(run):
        return (0, 1)
    return (fields["zero"],)


def _slice_replicas(run: Run, dp: int, system: System) -> int | None:
    """Replicas of a slice, which share shards unless a recipe of MaxText has another number."""
    chips = system.network[0].domain
    return math.gcd(dp, chips // (run.parallelism.tp or 1)) if chips else None


def _communication(run: Run, tp: int) -> dict[str, object]:
    features = run.features
    fields: dict[str, object] = {}
    if tp > 1:
        # XLA splits the residual stream over the ranks, as sequence parallelism does.
        split, stated = run.parallelism.sp, features.get("sequence_parallel")
        # Each rank routes its own tokens.
        needed = split is None and stated is None and bool(run.model.experts)
        split = truth(stated) if split is None else split
        fields["sequence_parallel"] = (split or needed or is_xla(run)) and not is_unsplit(run)
    overlap = str(features.get("overlap") or "")
    if features.get("dp_overlap") is not None:
        fields["dp_overlap"] = truth(features["dp_overlap"])
    if "disabled" in overlap:
        fields["dp_overlap"] = False
    if "cuda_launch_blocking" in features or "no gradient bucketing" in (run.notes or ""):
        fields["dp_overlap"] = False
    kind = str(features.get("cp_comm_type") or "")
    if "a2a" in kind or "ulysses" in kind:
        fields["cp_exchange"] = "all_to_all"
    elif "gather" in kind:
        fields["cp_exchange"] = "all_gather"
    if truth(features.get("tp_pp_dp_mapping")):
        fields["placement"] = "tp-cp-pp-dp"
    if truth(features.get("moe_a2a_overlap")) or (run.model.experts and newest(run)):
        fields["expert_overlap"] = True
    return fields


def _stages(
    run: Run, model: Model, stack: Stack, pp: int, micro_batches: int, assumed: list[str]
) -> dict[str, Any]:
    if pp == 1:
        return {}
    vpp = run.parallelism.vpp
    if vpp is None:
        vpp = _default_chunks(run, stack, model.depth, pp, micro_batches)
        assumed.append("no interleaving" if vpp == 1 else f"vpp {vpp}")
    fields: dict[str, object] = {"vpp": vpp}
    schedule = str(run.features.get("schedule") or "").lower()
    named = next((name for word, name in _SCHEDULES.items() if word in schedule), None)
    if named is not None:
        fields["schedule"] = named
    chunks, layers = pp * vpp, model.depth
    layout = str(run.features.get("pp_layout") or "")
    if "t" in layout:
        return fields | {
            "stage_layers": tuple(chunk.count("t") for chunk in _expand_layout(layout))
        }
    if moved := stage_fields(run, model, chunks):
        return fields | moved
    if layers % chunks == 0:
        return fields
    assumed.append("layers spread over the stages")
    return fields | _uneven_stages(model, stack, chunks)


def _uneven_stages(model: Model, stack: Stack, chunks: int) -> dict[str, object]:
    """Layers of each chunk, where the chunks do not divide the layers."""
    layers = model.depth
    if stack.name.startswith("internevo"):  # its last stages take what is left over
        quotient, more = divmod(layers, chunks)
        return {"stage_layers": tuple(quotient + (i >= chunks - more) for i in range(chunks))}
    if (layers + 2) % chunks == 0:
        return {"embedding_as_layer": True, "loss_as_layer": True}
    if model.mtp:
        most = math.ceil(layers / chunks)
        lengths = [most] * chunks
        lengths[-1] = layers - most * (chunks - 1)
        if lengths[-1] >= 0:
            return {"stage_layers": tuple(lengths)}
    quotient, more = divmod(layers + 2, chunks)
    lengths = [quotient + (i < more) for i in range(chunks)]
    lengths[0] -= 1
    lengths[-1] -= 1
    return {"stage_layers": tuple(lengths)}


def _expand_layout(layout: str) -> list[str]:
    """Chunks of a pipeline layout such as Et*4|(t*4|)*14tmL."""
    text = re.sub(r"\(([^()]*)\)\*(\d+)", _repeated, layout)
    return re.sub(r"(\w)\*(\d+)", _repeated, text).split("|")


def _repeated(found: re.Match[str]) -> str:
    times = read_whole(found[2])
    return found[1] * min(_MOST_REPEATS if times is None else times, _MOST_REPEATS)


def _experts(
    run: Run, model: Model, stack: Stack, dp: int, assumed: list[str]
) -> dict[str, object]:
    if not model.has_experts:
        return {}
    fields: dict[str, object] = {"dispatcher": dispatcher_of(run, stack)}
    if run.parallelism.ep is None and "DeepEP" in str(run.features.get("kernels") or ""):
        # DeepEP sends tokens to the experts of other ranks; recipes use up to 64 ranks.
        fields["ep"] = math.gcd(dp, run.model.experts or 1, 64)
        assumed.append(f"ep {fields['ep']}")
    capacity = capacity_of(run)
    if capacity:
        return fields | {"expert_capacity": capacity}
    imbalance = imbalance_of(run, assumed)
    return fields | ({"expert_imbalance": imbalance} if imbalance else {})


def _default_sizes(run: Run, pp: int, sequences: int) -> tuple[int, ...]:
    """Micro-batch sizes to try, the most likely first, for the sequences of a replica.

    torchtitan splits a batch into as many micro-batches as stages. Without a pipeline a larger
    one is never slower, so users take the largest that fits; with one it adds to the bubble.
    """
    if pp > 1:
        quotient, rest = divmod(sequences, pp)
        cut = "torchtitan" in (run.software.framework or "") and not rest
        return (max(quotient, 1),) if cut else (1,)
    powers = [1 << n for n in range(sequences.bit_length()) if sequences % (1 << n) == 0]
    return tuple(reversed(powers))


def _default_chunks(run: Run, stack: Stack, layers: int, pp: int, micro_batches: int) -> int:
    """Chunks of layers of a stage, where the row does not have them."""
    if "interleaved" in str(run.features.get("schedule") or "").lower():
        return 2  # torchtitan's default of stages on a rank
    even = layers % pp == 0 and micro_batches % pp == 0
    if stack.name == "meta-2024" and (layers + 2) % pp == 0:
        return (layers + 2) // pp  # the first and the last chunk have no layer (arXiv 2407.21783)
    return layers // pp if even and stack.name in _INTERLEAVE else 1


def _first_that_fits(
    model: Model,
    system: System,
    fields: Mapping[str, object],
    choices: Sequence[Mapping[str, object]],
) -> dict[str, object]:
    """Fields with the first choice whose memory fits, or with the last if none does."""
    if len(choices) == 1:
        return dict(fields) | dict(choices[0])
    tried = [Strategy.validated(dict(fields) | dict(one), source="a row") for one in choices]
    table = estimate_many(model, system, tried)
    found = next((n for n in range(len(tried)) if table.reason(n) is None and table.fits[n]), -1)
    return dict(fields) | dict(choices[found])
