"""Mixers in place of attention: weights, FLOPs, saved bytes, context parallelism, kernel times."""

from typing import Any

import numpy as np
import pytest

from described_layers import model
from rows import each_row
from samples import dropped, exchanges, held, operations, rank_work, saved
from shardwise import InputError, System, estimate
from shardwise.analysis.graph.edges import INPUT, OUTPUT, linked
from shardwise.analysis.mixer_kernels import spread_of
from shardwise.config.enums import Generation
from shardwise.config.model import Model
from shardwise.config.software.mixers import scan_rates
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.cost.scan import scan_times
from shardwise.ops.delta import delta_bytes, delta_flops
from shardwise.ops.lora import Subset, with_subset
from shardwise.ops.mixer import core_flops
from shardwise.ops.operation import Matmul, MemoryBound, Operation, Phase, Scan
from shardwise.ops.param_count import REPLICATED, count_parameters, flops_per_token

pytestmark = pytest.mark.any_software

TOKENS, SIZE = 64, 2
MIXERS: dict[str, dict[str, Any]] = {
    "mamba2": {"heads": 6, "head_dim": 16, "groups": 2, "state": 24, "conv": 4, "chunk": 64},
    "mamba1": {"width": 192, "state": 8, "rank": 6, "conv": 4},
    "gated_delta": {"key_heads": 2, "value_heads": 4, "key_dim": 24, "value_dim": 16, "conv": 4},
    "kimi_delta": {"heads": 4, "head_dim": 16, "conv": 4},
    "lightning": {"heads": 4, "head_dim": 16, "block": 64},
    "short_conv": {"conv": 3},
}


def mixing(kind: str, hidden: int = 96, **fields: Any) -> Model:
    """Two layers of a mixer alone."""
    mixer = {"kind": kind} | MIXERS.get(kind, {}) | fields
    return model(hidden, 64, {"count": 2, "mixer": mixer}, seq_len=512)


def forward_flops(operation: Operation) -> float:
    """Of products, scans and convolutions, which PyTorch counts; not of gates and norms."""
    counted = (Matmul, Scan, MemoryBound) if operation.name.endswith("conv") else (Matmul, Scan)
    kernels = [k for k in operation.kernels if isinstance(k, counted)]
    return sum(float(k.flops[0]) for k in kernels if k.phase is Phase.FORWARD)


# FLOPs of the classes of transformers 5.24 as PyTorch counts them, fp32, a sequence of 512 tokens,
# and what they do more than kernels: the convolution runs over K - 1 more positions; a triangle is
# solved in place of a product with its inverse; Mamba-2 multiplies B and C for each head, and has
# one product among its 8 chunks; Mamba-1's scan is element-wise but for one product.
TORCH = [
    ("mamba2", 59_950_080, 2 * 4 * 192 * 3 + 2 * 9**2 * 6 * 16 * 24 + 512 * 4 * 2 * 64 * 24),
    ("mamba1", 64_492_032, 2 * 4 * 192 * 3 + 512 * (2 * 192 * 8 - 9 * 192 * 8)),
    ("gated_delta", 51_252_992, 2 * 4 * 160 * 3 - 512 * 4 * 64 * 2 * (24 + 16)),
    ("kimi_delta", 47_321_600, 2 * 4 * 192 * 3 - 512 * 4 * 64 * 2 * (16 + 16)),
    ("lightning", 41_943_040, 0),
    ("short_conv", 38_044_800, 2 * 3 * 96 * 2),
]


@each_row(("kind", "counted", "more"), TORCH)
def test_flops_are_those_that_pytorch_counts(kind: str, counted: int, more: int) -> None:
    """To the last one, but for what the reference code computes in another way."""
    ops = operations(mixing(kind))
    per_token = sum(map(forward_flops, ops.values())) / TOKENS
    assert per_token * 512 + more == counted


CORES = [
    ("nemotron-3-nano", 3.408),
    ("nemotron-3-super", 6.554),
    ("nemotron-h-56b", 21.496),
    ("falcon-h1-34b", 6.554),
    ("qwen3-next-80b-a3b", 5.767),
    ("kimi-linear-48b-a3b", 5.767),
    ("minimax-text-01", 12.583),
]


@each_row(("name", "millions"), CORES)
def test_flops_of_cores(name: str, millions: float) -> None:
    """Forward FLOPs of one token, worked out by hand; model FLOPs have three times as many."""
    mixer = Model.load(name).mixers[0]
    assert core_flops(mixer).forward / 1e6 == pytest.approx(millions, abs=5e-4)


def test_model_flops_count_cores_three_times() -> None:
    """6 for each weight but the embedding, and 3 times the core of each layer."""
    one = mixing("lightning")
    counted = count_parameters(one)
    core = 4 * (4 * 16**2 + 4 * 64 * 16)
    assert flops_per_token(one, 512) == 6 * (counted.active - counted.embedding) + 2 * 3 * core


SAVED = [
    ("nemotron-3-nano", 0, 42_368),
    ("nemotron-3-super", 0, 78_080),
    ("nemotron-h-56b", 0, 156_160),
    ("nemotron-3-nano", 2, 22_912),
    ("nemotron-3-super", 2, 25_728),
    ("nemotron-h-56b", 2, 53_504),
    ("qwen3-next-80b-a3b", 0, 73_984),
]


@each_row(("name", "kind", "bytes_"), SAVED)
def test_saved_bytes_of_a_token(name: str, kind: int, bytes_: int) -> None:
    """Worked out by hand from what the autograd functions save; one copy of the layer's input."""
    known = Model.load(name)
    alone = known.layers[kind].to_dict() | {"count": 1, "symbol": None, "moe": None, "mlp": None}
    ops = operations(model(known.hidden, 64, alone))
    assert saved(ops.values()) / TOKENS - known.hidden * SIZE == bytes_


@each_row("kind", list(MIXERS))
def test_tensor_parallel_ranks_share_the_weights(kind: str) -> None:
    """Two ranks have the weights of one, but for what each has a copy of."""
    one, two = operations(mixing(kind)), operations(mixing(kind), tp=2)
    for name, operation in two.items():
        whole, part = held([one[name]]), held([operation])
        norm_of_a_head = name == "mixer.gate" and kind != "lightning"
        copied = name in REPLICATED or norm_of_a_head
        assert part == (whole if copied else whole / 2), name


@each_row("kind", list(MIXERS))
def test_context_parallel_ranks_trade_heads_or_pass_states(kind: str) -> None:
    """Two all-to-alls each way, or messages; nothing without context parallelism."""
    heads = {"key_heads": 4} if kind == "gated_delta" else {}
    one, two = (operations(mixing(kind, **heads), cp=cp) for cp in (1, 2))
    kinds = [kind for o in two.values() for kind, *_ in exchanges(o)]
    assert not [sent for o in one.values() for sent in exchanges(o)]
    swaps = kind in ("mamba2", "gated_delta")
    assert kinds == ["all_to_all"] * 4 if swaps else set(kinds) == {"p2p"}


def test_states_have_the_size_of_the_heads() -> None:
    """4 heads of 16 x 16 in fp32, to the one other rank, for 2 sequences."""
    sent = exchanges(operations(mixing("lightning"), cp=2)["mixer.core"])
    assert [size for *_, size in sent] == [2 * 4 * 16 * 16 * 4] * 2


# Forward and backward milliseconds of the gated delta rule on GB200 (flash-linear-attention
# bc3b101d, README): sequences, tokens, heads, width of a head. Two more shapes are host bound.
GB200 = [
    (1, 8192, 96, 128, 1.265, 4.738 - 1.265),
    (2, 16384, 16, 128, 1.029, 3.616 - 1.029),
    (4, 4096, 64, 128, 1.581, 5.964 - 1.581),
    (8, 2048, 32, 256, 1.831, 8.644 - 1.831),
]
# Forward alone (MoonshotAI/FlashKDA 1ce47ea): of the gated delta rule and of Kimi delta attention.
HOPPER = [
    ("h800-sxm", "gated_delta", 1, 8192, 96, 2.033),
    ("h800-sxm", "gated_delta", 2, 16384, 16, 1.342),
    ("h800-sxm", "kimi_delta", 1, 8192, 96, 3.268),
    ("h800-sxm", "kimi_delta", 2, 16384, 16, 2.299),
]


def scan_ms(system: str, kind: str, phase: Phase, batch: int, tokens: int, heads: int, dim: int):
    """Predicted milliseconds of one kernel."""
    chip = System.load(system).accelerator
    flops, moved = delta_flops(heads, dim, dim), batch * tokens * delta_bytes(heads, dim, dim)
    backward = phase is not Phase.FORWARD
    state = flops.backward_state if backward else flops.state
    chunk = flops.backward_chunk if backward else flops.chunk
    kernel = Scan(
        phase=phase,
        kind=kind,
        state_flops=np.array([batch * tokens * state]),
        chunk_flops=np.array([batch * tokens * chunk]),
        bytes=np.array([moved * (2.75 if backward else 1) * (1.5 if kind == "kimi_delta" else 1)]),
        items=np.array([batch * heads]),
    )
    rates = scan_rates(kind, chip.generation)
    peak = np.array([chip.matrix["bf16"]])
    return 1e3 * float(
        scan_times(kernel, rates, peak=peak, bandwidth=chip.memory[0].bandwidth)[2][0]
    )


@each_row(("batch", "tokens", "heads", "dim", "forward", "backward"), GB200)
def test_delta_kernels_of_blackwell(batch, tokens, heads, dim, forward, backward) -> None:
    """Within 15 %, each direction."""
    shape = (batch, tokens, heads, dim)
    for phase, measured in ((Phase.FORWARD, forward), (Phase.INPUT_GRAD, backward)):
        found = scan_ms("gb200-nvl72", "gated_delta", phase, *shape)
        assert found == pytest.approx(measured, rel=0.15)


@each_row(("system", "kind", "batch", "tokens", "heads", "measured"), HOPPER)
def test_delta_kernels_of_hopper(system, kind, batch, tokens, heads, measured) -> None:
    """Within 10 %."""
    found = scan_ms(system, kind, Phase.FORWARD, batch, tokens, heads, 128)
    assert found == pytest.approx(measured, rel=0.1)


@each_row("kind", [kind for kind in MIXERS if kind != "short_conv"])
def test_every_kind_has_rates_on_every_generation(kind: str) -> None:
    """Where nobody measured them, wider than where somebody did."""
    for generation in Generation:
        own, other = (scan_rates(kind, g) for g in (generation, Generation.OTHER))
        assert own.source
        assert own.spread <= other.spread


def test_spread_of_kernels_widens_the_interval() -> None:
    """By their share of the step; on other generations more; not without mixers."""
    options = {"gpus": 8, "tp": 8, "gbs": 8}
    found = estimate("nemotron-h-8b", "h100-sxm", **options)
    (kernels,) = found.mixer_kernels
    assert (kernels.kind, kernels.measured) == ("mamba2", True)
    assert 0.02 < kernels.share < 0.3
    assert spread_of([kernels]) == pytest.approx((1 + kernels.spread) ** kernels.share)
    (scaled,) = estimate("nemotron-h-8b", "a100-80gb-sxm", **options).mixer_kernels
    assert (scaled.measured, scaled.spread > kernels.spread) == (False, True)
    assert estimate("llama3-8b", "h100-sxm", **options).mixer_kernels == ()


PATTERN = {
    "pattern": "M-M*-",
    "layers": [
        {"symbol": "M", "mixer": {"kind": "mamba2"} | MIXERS["mamba2"]},
        {"symbol": "-", "mlp": {"ffn": 64, "activation": "relu2"}},
        {"symbol": "*", "attention": {"heads": 4, "kv_heads": 2, "head_dim": 8}},
    ],
}


def patterned(**fields: Any) -> Model:
    """Five layers of three kinds."""
    return model(96, 64, *PATTERN["layers"], **{"pattern": "M-M*-"} | fields)


def test_a_pattern_orders_and_counts_layers() -> None:
    """Every layer by the symbol of its group; written and read again the same."""
    one = patterned(mtp=1, mtp_pattern="*-")
    assert one.order == (0, 1, 0, 2, 1)
    assert [layer.count for layer in one.layers] == [2, 2, 1]
    assert [layer.symbol for layer in one.mtp_layers] == ["*", "-"]
    assert Model.load(one.to_dict()) == one


@each_row(
    ("fields", "fault"),
    [
        ({"pattern": "M-X*"}, "pattern: 'X' is no symbol of a group; 'M', '-', '*'"),
        ({"pattern": "M-M"}, "pattern: has no '*', of layers[2]"),
        ({"pattern": None}, "layers[0].count: is missing and has no default"),
        ({"interleave": [1, 1, 1]}, "pattern: says the order of layers, and so does interleave"),
        ({"mtp_pattern": "*"}, "mtp_pattern: there are no modules (mtp) to have it"),
        ({"mtp": 1, "mtp_pattern": "*E"}, "mtp_pattern: 'E' is no symbol of a group"),
    ],
)
def test_patterns_that_contradict_themselves_are_refused(fields: Any, fault: str) -> None:
    """By one line."""
    with pytest.raises(InputError) as caught:
        patterned(**fields)
    assert fault in str(caught.value)


@each_row(
    ("layer", "fault"),
    [
        ({}, "must have attention, a mixer, an mlp or a moe; has none of them"),
        ({"mixer": {"kind": "mamba3"}}, "layers[0].mixer: kind: allowed: mamba2, mamba1,"),
        ({"mixer": {"heads": 2}}, "layers[0].mixer: kind is missing and has no default"),
        ({"mixer": {"kind": "lightning"}}, "layers[0].mixer.heads: is missing and has no default"),
        (
            {"mixer": {"kind": "mamba2"} | MIXERS["mamba2"] | {"groups": 4}},
            "layers[0].mixer: groups 4 must divide heads 6",
        ),
    ],
)
def test_bad_layers_are_refused(layer: Any, fault: str) -> None:
    """The message names the field as a file has it."""
    with pytest.raises(InputError) as caught:
        model(96, 64, {"count": 1} | layer)
    assert fault in str(caught.value)
    assert "mixer.lightning" not in str(caught.value)


def test_a_layer_of_one_block_has_one_norm_and_one_residual() -> None:
    """Mamba, an MLP, or attention."""
    one = patterned()
    names = [list(operations(model(96, 64, x.to_dict() | {"count": 1}))) for x in one.layers]
    ends = [(one[0], one[-1]) for one in names]
    assert ends == [
        ("mamba.norm", "mamba.residual"),
        ("mlp.norm", "mlp.residual"),
        ("attention.norm", "attention.residual"),
    ]


@each_row("kind", list(MIXERS))
def test_graphs_of_mixers(kind: str) -> None:
    """Projection of the normed input first, output into the residual, the gate from both."""
    links = {(link.source, link.target) for link in linked(list(operations(mixing(kind))))}
    name = "mamba" if kind.startswith("mamba") else "mixer"
    norm, residual = (f"{name if name == 'mamba' else 'attention'}.{end}" for end in ENDS)
    assert {(INPUT, norm), (norm, f"{name}.in"), (f"{name}.out", residual)} <= links
    assert {(INPUT, residual), (residual, OUTPUT)} <= links
    if kind not in ("mamba1", "short_conv"):
        assert {(f"{name}.core", f"{name}.gate"), (f"{name}.in", f"{name}.gate")} <= links
    read = {source for source, _ in links}
    assert set(operations(mixing(kind))) <= read


@each_row("kind", list(MIXERS))
def test_adapters_of_mixers_count_as_those_of_attention(kind: str) -> None:
    """Frozen with attention; both large projections have adapters."""
    one = mixing(kind)
    words = {"gpus": 1, "gbs": 1, "stack": "megatron-core-2025"}
    table = Table.of(one, [Strategy(**words, lora_rank=4, lora_parts=["attention"])])
    work = rank_work()
    listed = list(operations(one).values())
    some = with_subset(one, "layer", listed, work, Subset.of(table))
    adapters = {o.name for o in some if ".lora_" in o.name}
    name = "mamba" if kind.startswith("mamba") else "mixer"
    assert adapters == {f"{name}.{o}.lora_{x}" for o in ("in", "out") for x in "ab"}
    assert all(float(o.trained[0]) == 0 for o in some if ".lora_" not in o.name)


ENDS = ("norm", "residual")


def test_attention_and_a_mixer_side_by_side_share_norm_and_collectives() -> None:
    """One norm, gather and scatter; the residual adds two branches."""
    heads = {"heads": 4, "kv_heads": 4, "head_dim": 24}
    mixer = {"kind": "mamba2"} | MIXERS["mamba2"]
    both = model(96, 64, {"count": 1, "attention": heads, "mixer": mixer})
    ops = operations(both, tp=2, sequence_parallel=True)
    assert [name for name in ops if "norm" in name] == ["attention.norm"]
    assert not exchanges(ops["mamba.in"])
    assert not exchanges(ops["mamba.out"])
    assert saved([ops["mamba.in"]]) == 0
    assert exchanges(ops["attention.qkv"])


def test_a_gate_that_runs_again_drops_the_input_of_the_projection() -> None:
    """As gdn_norm_out of Megatron-LM: 4 heads of 16 values in 2 bytes."""
    ops = operations(mixing("gated_delta"))
    assert {name for name, one in ops.items() if "mixer_gate" in one.reruns_with} == {"mixer.gate"}
    assert dropped(ops.values(), "mixer_gate") == TOKENS * 4 * 16 * SIZE


def test_streams_that_run_again_keep_the_outputs_of_blocks() -> None:
    """As mhc of Megatron-LM: streams, and what norms read of them, follow from these outputs."""
    known = Model.load("deepseek-v4-flash")
    described = known.model_copy(update={"layers": known.layers[:1]})
    ops = operations(described)
    mixed = {f"{block}.{kind}" for block in ("attention", "mlp") for kind in ("mix", "residual")}
    assert {name for name, one in ops.items() if "streams" in one.reruns_with} == mixed
    outputs = {name for name in mixed if name.endswith("residual")}
    assert all("streams" not in ops[name].dropped_with for name in outputs)
    streams = 2 * known.streams * known.hidden
    assert dropped(ops.values(), "streams") >= TOKENS * streams * SIZE
