"""SimuMax's models and strategies as fields of `Model` and `Strategy`.

What cannot be expressed here is refused under the keys of the file, never dropped.
`docs/from/simumax.md` has every key, and where it went.

SimuMax's systems as fields of our `System`: rates, floors of time, measured tables, tiers.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.errors import Fault, InputError, refuse
from shardwise.predecessors.simumax.files import (
    CollectiveClass,
    OperationClass,
    SimumaxAccelerator,
    SimumaxCollective,
    SimumaxModel,
    SimumaxNetwork,
    SimumaxStrategy,
    SimumaxSystem,
)
from shardwise.units import LEAST_SHARE, read_whole

GIB, TERA, MICRO = 2**30, 1e12, 1e6
COLLECTIVES: dict[str, CollectiveClass] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all2all",
}
# Devices that a network within a node reaches, of systems with PCIe; or that are all connected.
_LADDER = (2, 4, 8)
_FULLY_CONNECTED = 8


def system_fields(system: SimumaxSystem, name: str, source: str = "") -> dict[str, Any]:
    """A SimuMax system: measured shares by shape, the larger of compute and memory time, a ring."""
    refuse(_faults(system, source))
    tiers = _ladder(system) if system.networks.intra_with_pcie else [_inside(system)]
    text = f"SimuMax's file {name}"
    return {
        "name": name,
        "description": "Imported from a SimuMax system.",
        "accelerator": _accelerator(system, name, source),
        "node": {"accelerators": system.num_per_node},
        "network": [*tiers, _between(system)],
        "sources": {
            "": {"kind": "published", "text": text},
            "accelerator.vector": {
                "kind": "assumed",
                "text": "SimuMax has no vector units; the matrix peak, so that bytes decide",
            },
        },
    }


def _accelerator(system: SimumaxSystem, name: str, source: str) -> dict[str, object]:
    chip = system.accelerator
    usual = chip.bandwidth["default"]
    peak = chip.op["default"].tflops
    classes = {
        "permute": chip.bandwidth.get("permute_fwd"),
        "permute_backward": chip.bandwidth.get("permute_bwd"),
        "loss": chip.bandwidth.get("ce_fusion") or chip.bandwidth.get("ce"),
    }
    own = {
        kind: {
            "efficiency": rate.efficient_factor * rate.gbps / usual.gbps,
            "launch": rate.latency_us / MICRO,
        }
        for kind, rate in classes.items()
        if rate is not None
    }
    return {
        "name": name,
        "multiprocessors": None,
        "matrix": {"bf16": peak * TERA},
        "vector": {"fp32": peak * TERA},
        "memory": [
            {"name": "hbm", "capacity": chip.mem_gbs * GIB, "bandwidth": usual.gbps * GIB},
        ],
        "matmul_table": {"bf16": matmul_table(chip, source)},
        "grouped_table": {"bf16": grouped_table(chip, source)},
        "attention_table": {"bf16": attention_table(chip, source)},
        "attention": None,
        "memory_bound": {
            "efficiency": usual.efficient_factor,
            "launch": usual.latency_us / MICRO,
        },
        "memory_bound_class": own,
        "processing": "roofline",
    }


def _inside(system: SimumaxSystem) -> dict[str, object]:
    """The network of a node, one link for each device; with FC8 one seventh for each other one."""
    network = system.networks.high_intra_node
    assert network is not None  # noqa: S101 - validated

    def shares(operation: SimumaxCollective) -> dict[int, float]:
        share = _share(network, operation)
        links = range(1, _FULLY_CONNECTED) if system.FC8 else []
        return {1 + part: share * part / links[-1] for part in links} or {1: share}

    collectives = {
        ours: _rates(operation, shares(operation), _line(network, operation))
        for ours, operation in _collectives(network)
    }
    collectives["p2p"] = _message(network, min(shares(network.op["p2p"]).values()))
    return _tier("node", system.num_per_node, network.bandwidth.gbps * GIB, collectives)


def _ladder(system: SimumaxSystem) -> list[dict[str, object]]:
    """Networks for 2, 4 and 8 devices on PCIe as tiers, one inside the other.

    A group that fills the domain inside sends over as many links as this has devices. The link is
    chosen so that it comes out as SimuMax has it: gbps x efficiency over these. Replicas that are
    apart send over fewer, and have `dp_fixed_bw` where it is set, else the same. Latencies of
    tiers add up, so that each has what it adds to those inside.
    """
    tiers = []
    reached = dict.fromkeys(COLLECTIVES, 0.0)
    for size in _LADDER:
        network = getattr(system.networks, f"intra_node_pcie_{size}x")
        within = size // 2
        collectives = {}
        for ours, operation in _collectives(network):
            latency = _latency(network, operation, size)
            added = max(0.0, latency - reached[ours])
            reached[ours] += added
            alone = {1: _share(network, operation) * within}  # each member sends its own buffer
            several = _shares_by_inner(network, operation, within)
            shares = alone if ours == "all_to_all" else several
            collectives[ours] = _rates(operation, shares, (added, 0.0))
        collectives["p2p"] = _message(network, _share(network, network.op["p2p"]) * within)
        bandwidth = network.bandwidth.gbps * GIB / within
        tiers.append(_tier(f"PCIe {size}x", size, bandwidth, collectives))
    return tiers


def _shares_by_inner(
    network: SimumaxNetwork, operation: SimumaxCollective, within: int
) -> dict[int, float]:
    """Share of a link by the devices inside that send at once: 1, 2 ... to all of them."""
    share = _share(network, operation)
    shares = {}
    inner = 1
    while inner <= within:
        rate = share * network.bandwidth.gbps
        if inner < within:
            rate = (operation.dp_fixed_bw or {}).get(str(2 * inner), rate)
        shares[inner] = rate * within / (inner * network.bandwidth.gbps)
        inner *= 2
    return shares


def _between(system: SimumaxSystem) -> dict[str, object]:
    """The network between nodes: gbps is of a node, whose devices share it.

    All-to-alls use no more than the device's own share, as messages do. Latencies are
    those of one device in each node.
    """
    network = system.networks.inter_node
    collectives = {}
    for ours, operation in _collectives(network):
        shares = {1: _share(network, operation)}
        collectives[ours] = _rates(operation, shares, _line(network, operation))
    collectives["p2p"] = _message(network, _share(network, network.op["p2p"]))
    tier = _tier("between nodes", None, network.bandwidth.gbps * GIB, collectives)
    return tier | {"links_per_node": 1}


def _tier(
    name: str, domain: int | None, bandwidth: float, collectives: Mapping[str, object]
) -> dict[str, Any]:
    return {
        "name": name,
        "domain": domain,
        "bandwidth": bandwidth,
        "join_exponent": 1,
        "collectives": dict(collectives),
    }


def _rates(
    operation: SimumaxCollective, efficiency: dict[int, float], line: tuple[float, float]
) -> dict[str, object]:
    latency, step = line
    return {
        "latency": latency,
        "latency_per_member": step,
        "efficiency": efficiency,
        "scale": operation.scale,
        "offset": operation.offset,
    }


def _message(network: SimumaxNetwork, share: float) -> dict[str, object]:
    """A message between two devices."""
    operation = network.op["p2p"]
    passing = operation.scale * (1 + operation.offset / 2)
    return {
        "latency": (_base_us(network, operation) + _fixed_us(network, operation, 2)) / MICRO,
        "latency_per_member": 0,
        "efficiency": {1: share},
        "scale": passing,
    }


def _collectives(network: SimumaxNetwork) -> Iterator[tuple[str, SimumaxCollective]]:
    for ours, theirs in COLLECTIVES.items():
        yield ours, network.op[theirs]


def _share(network: SimumaxNetwork, operation: SimumaxCollective) -> float:
    own = operation.efficient_factor
    return network.bandwidth.efficient_factor if own is None else own


def _base_us(network: SimumaxNetwork, operation: SimumaxCollective) -> float:
    own = operation.latency_us
    return network.bandwidth.latency_us if own is None else own


def _fixed_us(network: SimumaxNetwork, operation: SimumaxCollective, members: int) -> float:
    """Latency in addition to the ring's steps: of so many members, or of any."""
    rates = network.bandwidth
    for by_members, any_number in (
        (operation.fixed_latency_us_by_comm_num, operation.fixed_latency_us),
        (rates.fixed_latency_us_by_comm_num, rates.fixed_latency),
    ):
        found = (by_members or {}).get(str(members), any_number)
        if found is not None:
            return found
    return 0.0


def _latency(network: SimumaxNetwork, operation: SimumaxCollective, members: int) -> float:
    """Latency of n members: base (n + offset) scale, each step of the ring, and what is fixed [s].

    In nodes of other than 8 devices SimuMax uses the base alone, which is a fault.
    """
    steps = (members + operation.offset) * operation.scale
    fixed = _fixed_us(network, operation, members)
    return (_base_us(network, operation) * steps + fixed) / MICRO


def _line(network: SimumaxNetwork, operation: SimumaxCollective) -> tuple[float, float]:
    """Latency of two members and what each further one adds [s].

    Exact where what is fixed is the same for all numbers of members; else by least squares over
    those that are listed, with no number faster than a smaller one.
    """
    by_members = operation.fixed_latency_us_by_comm_num
    if by_members is None:
        by_members = network.bandwidth.fixed_latency_us_by_comm_num
    counts = sorted({2, 3} if not by_members else map(int, by_members))
    times = [_latency(network, operation, count) for count in counts]
    mean, middle = math.fsum(times) / len(times), math.fsum(counts) / len(counts)
    squares = math.fsum((count - middle) ** 2 for count in counts)
    pairs = zip(counts, times, strict=True)
    product = math.fsum((count - middle) * (time - mean) for count, time in pairs)
    step = max(0.0, product / squares) if squares else 0.0
    return max(0.0, mean + step * (2 - middle)), step


def _faults(system: SimumaxSystem, source: str) -> Iterator[Fault]:
    def fault(field: str, value: object, problem: str) -> Fault:
        return Fault.of(field, value, problem, source)

    chip = system.accelerator
    if chip.mode != "roofline":
        problem = "must be roofline: else the bytes of products would have no time"
        yield fault("accelerator.mode", chip.mode, problem)
    for name, operation in chip.op.items():
        ratio = operation.tflops / chip.op["default"].tflops
        share = operation.efficient_factor
        if not name.startswith("fp8") and not LEAST_SHARE <= share * ratio <= 2:  # noqa: PLR2004
            problem = f"must be from {LEAST_SHARE / ratio:g} to {2 / ratio:g} here"
            yield fault(f"accelerator.op.{name}.efficient_factor", share, problem)
    gbps = chip.bandwidth["default"].gbps
    for kind, rate in chip.bandwidth.items():
        if rate.gbps != gbps:
            problem = f"must be {gbps:g} as of default; a class has a share of its own"
            yield fault(f"accelerator.bandwidth.{kind}.gbps", rate.gbps, problem)
    if system.num_per_node != _LADDER[-1]:
        for flag, value in (
            ("FC8", system.FC8),
            ("networks.intra_with_pcie", system.networks.intra_with_pcie),
        ):
            if value:
                yield fault(flag, value, f"needs num_per_node {_LADDER[-1]}")


_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_PHASES = {"TN": "forward", "NN": "input_grad", "NT": "weight_grad"}
_STAGES = {"fwd": "forward", "bwd_grad_act": "input_grad", "bwd_grad_w": "weight_grad"}
_MOST = 2.0  # of a `ShapeTable`

_Measured = list[tuple[str, tuple[float, ...], float]]
"""Phase, shape and share of each kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One measured kernel: its key, and its share of the peak of the matrix units."""

    place: str
    """Field of the file."""
    source: str
    key: str
    parts: Mapping[str, str]
    share: float

    def size(self, name: str) -> int:
        """A number of its shape, 1 or more."""
        text = self.parts.get(name, "")
        number = read_whole(text) or 0
        if number < 1:
            raise self.fault(f"must have {name}=a whole number")
        return number

    def word(self, name: str, allowed: Mapping[str, object], default: str = "") -> Any:
        """Meaning of one of the words that a key may have."""
        text = self.parts.get(name, default)
        if text not in allowed:
            raise self.fault(f"must have {name}=one of {', '.join(allowed)}")
        return allowed[text]

    def fault(self, problem: str) -> InputError:
        place = {"source": self.source, "field": self.place}
        return InputError(Fault(**place, value=self.key, has_value=True, problem=problem))


def _entries(chip: SimumaxAccelerator, kind: OperationClass, source: str) -> Iterator[_Entry]:
    """What was measured of a class; efficiencies of 0 were not."""
    operation = chip.op.get(kind, chip.op["default"])
    ratio = operation.tflops / chip.op["default"].tflops
    for key, share in (operation.accurate_efficient_factor or {}).items():
        pairs = (part.partition("=") for part in key.split(","))
        entry = _Entry(
            place=f"accelerator.op.{kind}.accurate_efficient_factor",
            source=source,
            key=key,
            parts={name.strip(): value.strip() for name, _, value in pairs},
            share=share * ratio,
        )
        if share == 0:
            continue
        if not LEAST_SHARE <= entry.share <= _MOST:
            raise entry.fault(f"its efficiency must be 0 or from {LEAST_SHARE:g} to {_MOST:g}")
        yield entry


def _fallback(chip: SimumaxAccelerator, kind: OperationClass) -> float:
    operation = chip.op.get(kind, chip.op["default"])
    return operation.efficient_factor * operation.tflops / chip.op["default"].tflops


def _result_bytes(entry: _Entry, dtype: str, *, accumulates: bool) -> float:
    """Bytes moved per element of a result, which is read again where it is added to."""
    size: float = entry.word(dtype, _BYTES, "fp32")
    return 2 * size if accumulates else size


def matmul_table(chip: SimumaxAccelerator, source: str = "") -> dict[str, Any]:
    """Products; those of weight gradients are transposed, so that m and n swap places."""
    measured: _Measured = []
    for entry in _entries(chip, "matmul", source):
        phase = entry.word("layout", _PHASES)
        m, n = ("n", "m") if phase == "weight_grad" else ("m", "n")
        accumulates = entry.parts.get("accumulate") == "True"
        result = _result_bytes(entry, "out_dtype", accumulates=accumulates)
        shape = (entry.size("b"), entry.size(m), entry.size(n), entry.size("k"), result)
        measured.append((phase, shape, entry.share))
    return _of_products("batch", measured, _fallback(chip, "matmul"))


def grouped_table(chip: SimumaxAccelerator, source: str = "") -> dict[str, Any]:
    """Products of experts, named by those of forward: M tokens of each, K inputs, N outputs."""
    measured: _Measured = []
    for entry in _entries(chip, "group_matmul", source):
        phase = entry.word("stage", _STAGES)
        tokens, outputs, inputs = (entry.size(name) for name in "MNK")
        adds = phase == "weight_grad"
        m, n, k = {
            "forward": (tokens, outputs, inputs),
            "input_grad": (tokens, inputs, outputs),
            "weight_grad": (inputs, outputs, tokens),
        }[phase]
        dtype = "main_grad_dtype" if adds else "out_dtype"
        result = _result_bytes(entry, dtype, accumulates=True) if adds else _BYTES["bf16"]
        measured.append((phase, (entry.size("ng"), m, n, k, result), entry.share))
    return _of_products("groups", measured, _fallback(chip, "group_matmul"))


def _of_products(count: str, measured: _Measured, fallback: float) -> dict[str, Any]:
    """A table of products; with the type of results only where a phase has several."""
    results = {(phase, shape[-1]) for phase, shape, _ in measured}
    several = len(results) > len({phase for phase, _ in results})
    sizes = [count, "m", "n", "k", *(["output_bytes"] if several else [])]
    cut = [(phase, shape[: len(sizes)], share) for phase, shape, share in measured]
    return {"sizes": sizes, "rows": _averaged(cut), "fallback": fallback}


def _averaged(
    measured: _Measured,
) -> dict[str, list[list[float]]]:
    """Rows by phase; the mean of what was measured of one shape."""
    found: dict[str, dict[tuple[float, ...], list[float]]] = {}
    for phase, shape, share in measured:
        found.setdefault(phase, {}).setdefault(shape, []).append(share)
    return {
        phase: [[*shape, sum(shares) / len(shares)] for shape, shares in shapes.items()]
        for phase, shapes in found.items()
    }


def attention_table(chip: SimumaxAccelerator, source: str = "") -> dict[str, Any]:
    """Fused attention, with the FLOPs of all pairs, queries and keys and values side by side.

    Backward SimuMax counts 2.5 times the forward FLOPs. Ours are 3 d_qk + 2 d_v per score, where
    forward's are d_qk + d_v, and shares are those of our FLOPs.
    """
    measured: _Measured = []
    kinds: dict[OperationClass, str] = {"sdp_fwd": "forward", "sdp_bwd": "input_grad"}
    for kind, phase in kinds.items():
        entries = list(_entries(chip, kind, source))
        shapes = [_heads(entry) for entry in entries]
        contiguous = {
            shape for shape, entry in zip(shapes, entries, strict=True) if _is_contiguous(entry)
        }
        for shape, entry in zip(shapes, entries, strict=True):
            if shape in contiguous and not _is_contiguous(entry):
                continue
            qk, v = shape[-2:]
            ours = (3 * qk + 2 * v) / (2.5 * (qk + v)) if phase == "input_grad" else 1.0
            measured.append((phase, shape, entry.share * ours))
    forward, backward = _fallback(chip, "sdp_fwd"), _fallback(chip, "sdp_bwd")
    return {
        "sizes": ["sequences", "seq_len", "heads", "kv_heads", "head_dim", "v_head_dim"],
        "rows": _averaged(measured),
        # Of both together: of seven parts of the FLOPs two are forward.
        "fallback": 7 / (2 / forward + 5 / backward),
        "counts_all_pairs": True,
    }


def _heads(entry: _Entry) -> tuple[float, ...]:
    names = ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
    return tuple(entry.size(name) for name in names)


def _is_contiguous(entry: _Entry) -> bool:
    return entry.parts.get("qkv_contiguous") == "True"


# What a stack of this name assumes of the vocabulary.
_VOCAB_MULTIPLE = 128
# Bytes per logit of the loss that is not fused, forward and backward (`ce`), and of fused ones
# (`ce_fusion`); what is kept: fp32 logits, or 16-bit ones. SimuMax 1.2, commit 4dcaae5.
_FUSED_LOSS: dict[str, Any] = {"loss": "in_place", "loss_figures": "in_place"}
_FUSED_LOSS |= {"loss_forward_bytes": 4, "loss_backward_bytes": 4, "loss_saved_bytes": 2}

_MEGATRON_PARTS = {
    "layernorm": ("attention_norm", "mlp_norm"),
    "mla_up_proj": ("mla_up",),
    "moe_act": ("activation",),
    "mlp": ("mlp",),
    "moe": ("moe",),
}
# Checkpoints end before the output projection and the dispatch: neither is recomputed.
_SELECTIVE_PARTS = {
    "mla_rms_recompute": ("attention_norm",),
    "attn_recompute": ("qkv", "core_attention"),
    "mlp_rms_recompute": ("mlp_norm", "shared_experts"),
    "mlp_recompute": ("mlp", "experts"),
}


def model_fields(model: SimumaxModel, name: str, source: str = "") -> dict[str, Any]:
    """The layers of a SimuMax model: dense ones first, then mixtures of experts if it has any."""
    _refuse(_model_faults(model), source)
    attention = _attention(model)
    activation = "swiglu" if model.use_swiglu else "gelu"
    dense = {"mlp": {"ffn": model.intermediate_size, "activation": activation}}
    sparse = model.layer_num - model.dense_layers if model.has_experts else 0
    layers = [
        {"count": count, "attention": attention} | block
        for count, block in (
            (model.layer_num - sparse, dense),
            (sparse, {"moe": _experts(model, activation)} if sparse else {}),
        )
        if count
    ]
    return {
        "name": model.model_name or name,
        "description": "Imported from a SimuMax model.",
        "hidden": model.hidden_size,
        "vocab": model.orig_vocab_size or model.vocab_size,
        "layers": layers,
        "norm": "rmsnorm",
        "position": "rope",
        "sources": {"": {"kind": "published", "text": f"SimuMax's file {name}"}},
    }


def _attention(model: SimumaxModel) -> dict[str, Any]:
    if model.attention_type == "mha":
        return {
            "heads": model.head_num,
            "kv_heads": model.kv_head_num,
            "head_dim": model.head_size or model.hidden_size // model.head_num,
        }
    rotated = model.qk_pos_emb_head_dim or 0
    return {
        "heads": model.head_num,
        "kv_heads": model.head_num,
        "head_dim": (model.qk_head_dim or 0) + rotated,
        "v_head_dim": model.v_head_dim,
        "latent": {
            "q_rank": model.q_lora_rank,
            "kv_rank": model.kv_lora_rank,
            "rope_dim": rotated,
        },
    }


def _experts(model: SimumaxModel, activation: str) -> dict[str, object]:
    return {
        "experts": model.expert_num,
        "top_k": model.topk,
        "ffn": model.moe_ffn_hidden_size or model.intermediate_size,
        "activation": activation,
        "shared_ffn": model.moe_shared_expert_intermediate_size or 0,
    }


def _model_faults(model: SimumaxModel) -> Iterator[tuple[str, object, str]]:
    multiple = model.make_vocab_size_divisible_by if model.padded_vocab_size else 1
    if multiple != _VOCAB_MULTIPLE:
        field = "make_vocab_size_divisible_by" if model.padded_vocab_size else "padded_vocab_size"
        problem = f"must be {_VOCAB_MULTIPLE} or left out: padding is the stack's vocab_multiple"
        if not model.padded_vocab_size:
            problem = "must be true or left out: padding is the stack's vocab_multiple"
        yield field, getattr(model, field), problem
    if not model.has_experts:
        return
    if model.capacity != 1 and model.moe_pad_expert_input_to_capacity:
        problem = "must be 1 or left out: it is the strategy's expert_capacity"
        yield "capacity", model.capacity, problem
    if model.group_linear_mode != "parallel":
        problem = "must be parallel: SimuMax loses the weights of all experts but one otherwise"
        yield "group_linear_mode", model.group_linear_mode, problem


def strategy_fields(strategy: SimumaxStrategy, source: str = "") -> dict[str, object]:
    """A SimuMax strategy, run by software that does as SimuMax assumes."""
    _refuse(_strategy_faults(strategy), source)
    sequences = strategy.micro_batch_size * strategy.micro_batch_num
    fields: dict[str, object] = {
        "gpus": strategy.world_size,
        "tp": strategy.tp_size,
        "cp": strategy.cp_size,
        "pp": strategy.pp_size,
        "ep": strategy.ep_size,
        "etp": strategy.etp_size,
        "dp": strategy.replicas,
        "vpp": strategy.interleaving_size,
        "micro_batch_size": strategy.micro_batch_size,
        "global_batch_size": sequences * strategy.replicas,
        "seq_len": strategy.seq_len,
        "dtype": strategy.dtype,
        "quantization": "fp8_tensor" if strategy.fp8 else "none",
        "quantized_weights": strategy.fp8,
        "zero": strategy.zero_state,
        "first_stage_layers": strategy.num_layers_in_first_pipeline_stage,
        "last_stage_layers": strategy.num_layers_in_last_pipeline_stage,
        "embedding_as_layer": strategy.account_for_embedding_in_pipeline_split,
        "loss_as_layer": strategy.account_for_loss_in_pipeline_split,
        "sequence_parallel": strategy.enable_sequence_parallel,
        "cp_exchange": "all_to_all",
        "dp_overlap": False,
        "stack": {"base": "simumax"} | _stack(strategy),
    }
    if strategy.ep_size > 1:  # only then it is certain that there are experts
        fields["expert_capacity"] = 1
    if strategy.offload_groupgemm_col_inputs:
        fields |= {"offload_activations": True, "offload_parts": ("expert_up",)}
    return fields | _recompute(strategy)


def _stack(strategy: SimumaxStrategy) -> dict[str, Any]:
    """What differs from the software that is described under SimuMax's name."""
    plain = {
        "attention_kernel": "best" if strategy.use_flash_sdp else "unfused",
        "fused_norm": strategy.use_fused_norm,
        "fused_swiglu": strategy.use_fused_swiglu,
        "fused_gradient_accumulation": strategy.use_fused_grad_accumulation,
        "weight_gradient_buffers": _reaches(
            strategy.te_version, strategy.te_dummy_wgrad_min_version
        ),
        "gradient_dtype": "compute" if strategy.grad_reduce_in_bf16 else "fp32",
        "allocator_slack": 1 / strategy.mem_factor,
    }
    loss = _FUSED_LOSS if strategy.cross_entropy_loss_fusion else {}
    even = {} if strategy.enable_straggler_model else {"straggler_per_doubling": 0}
    return plain | loss | even


def _reaches(version: str | None, least: str) -> bool:
    """Whether a release is not before another one; no release is."""
    if version is None:
        return False
    return _release(version) >= _release(least)


def _release(version: str) -> tuple[int, ...]:
    numbers = [
        read_whole("".join(filter(str.isdigit, part))) or 0 for part in version.split(".")[:3]
    ]
    return (*numbers, 0, 0, 0)[:3]


def _recompute(strategy: SimumaxStrategy) -> dict[str, Any]:
    if not strategy.recomputes:
        return {}
    layers = {"recompute_layers": strategy.recompute_layer_num}
    if strategy.recompute_granularity == "full_block":
        return layers | {"recompute": "full"}
    parts = _parts(strategy)
    return layers | {"recompute": "selective", "recompute_parts": parts} if parts else {}


def _parts(strategy: SimumaxStrategy) -> tuple[str, ...]:
    """What selective recompute runs again.

    A strategy does not know its model, so that MLP stands for dense ones and for experts.
    """
    match strategy.recompute_granularity:
        case "attn_only":
            return ("attention",)
        case "mlp_only":
            return ("mlp_norm", "mlp", "moe")
        case "sdp_only":
            return ("core_attention",)
    modules = strategy.megatron_recompute_modules or ()
    parts = [part for module in modules for part in _MEGATRON_PARTS[module]]
    for field, recomputed in _SELECTIVE_PARTS.items():
        parts += recomputed if getattr(strategy, field) else ()
    return tuple(parts)


def _strategy_faults(strategy: SimumaxStrategy) -> Iterator[tuple[str, object, str]]:
    if strategy.cache_groupgemm_col_fp8_inputs:
        problem = "must be false: inputs are saved one way here"
        yield "cache_groupgemm_col_fp8_inputs", True, problem
    for field in ("use_fp32_accum_grad", "use_accm_weight"):
        if not getattr(strategy, field):
            yield field, False, "must be true: there is no other way here"
    whole = strategy.recompute_granularity == "full_block"  # SimuMax leaves it out there
    if strategy.recompute_variance and strategy.recomputes and not whole:
        problem = "must be false: what is run again is run to its end here"
        yield "recompute_variance", True, problem


def _refuse(faults: Iterator[tuple[str, object, str]], source: str) -> None:
    found = [Fault.of(field, value, problem, source) for field, value, problem in faults]
    refuse(found)
