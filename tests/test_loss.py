"""Losses: bytes of logits by hand, chunks of the head, gathered logits, launch files."""

from typing import Any

import pytest

import samples
from rows import each_row
from shardwise import Model, Stack, Strategy, System, catalog, estimate
from shardwise.config.enums import Loss
from shardwise.errors import InputError
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.registry import launcher_of
from shardwise.launchers.writing import launch_files
from shardwise.ops.loss import FIGURES, chunk_tokens
from shardwise.ops.operation import Operation, Phase

MIB = 2**20
TOKENS, VOCAB, HIDDEN = 8192, 256_000, 2304
"""Gemma 2 2B in table 1 of arXiv 2411.09009: 2,000 Mi logits."""
IN_CHUNKS = ("chunked_logits", "chunked", "chunked_recompute", "fused_linear", "cut")
APART = [word for word, one in FIGURES.items() if not one.whole]


def head(loss: str, *, tp: int = 1) -> dict[str, Operation]:
    """Product with the vocabulary and loss of one micro-batch."""
    model = samples.llama(vocab=VOCAB, hidden=HIDDEN)
    given = {"sequences": 1, "seq_len": TOKENS, "tp": tp, "loss": Loss(loss).code}
    return samples.head(model, **given, own_loss=False)


@each_row(
    ("loss", "forward", "backward"),
    [
        ("eager", 24_000, 28_000),  # as published
        ("compiled", 4_000, 8_000),
        ("vocab_parallel", 12_000, 12_000),
        ("vocab_parallel_fused", 12_000, 12_000),
        ("in_place", 4_000, 4_000),
        ("chunked_logits", 8_000, 9_631),  # as published
        ("chunked", 14 * 250 + 72, 72),  # and the fp32 gradient of the hidden states
        ("chunked_recompute", 12 * 62.5, 14 * 62.5),
        ("fused_linear", 6 * 31.25 + 36, 36),  # and the 16-bit gradient of the hidden states
        ("cut", 0, 0),
    ],
)
def test_bytes_of_logits(loss: str, forward: float, backward: float) -> None:
    """MiB live while the loss runs, without head and hidden states."""
    operation = head(loss)["loss"]
    assert operation.forward_working_bytes is not None
    assert operation.forward_working_bytes[0] / MIB == pytest.approx(forward, rel=0.01)
    live = operation.saved_bytes[0] + operation.working_bytes[0]
    assert live / MIB == pytest.approx(backward, rel=0.01)


def test_the_head_writes_all_logits_only_where_the_loss_needs_them() -> None:
    """Forward 2 bytes per logit next to its input; in chunks the loss counts them."""
    for word in FIGURES:
        written = head(word)["head"].working_bytes[0] / (2 * TOKENS)
        assert written == HIDDEN + (0 if word in APART else VOCAB), word


@each_row(
    ("loss", "tokens", "set_tokens"),
    [
        ("eager", TOKENS, 0),
        ("chunked", TOKENS / 8, 0),
        ("chunked", 512, 512),
        ("chunked_logits", TOKENS / 8, 0),
        ("chunked_recompute", 256, 0),
        ("fused_linear", 128, 0),  # 8,192 / ceil(256,000 / 2,304) = 74, rounded up
        ("cut", TOKENS, 0),
    ],
)
def test_tokens_of_a_chunk(loss: str, tokens: float, set_tokens: int) -> None:
    work = samples.rank_work(
        sequences=1, seq_len=TOKENS, loss=Loss(loss).code, loss_chunk_tokens=set_tokens
    )
    assert chunk_tokens(work, VOCAB, HIDDEN).tolist() == [tokens]


def test_the_gradient_of_the_head_may_be_made_in_forward() -> None:
    """In 16 bits, in addition to the input of the head; not where the head is frozen."""
    early, usual = (head(word)["head"].saved_bytes[0] for word in ("fused_linear", "cut"))
    assert early - usual == 2 * VOCAB * HIDDEN
    run = {"gpus": 1, "mbs": 1, "gbs": 1, "lora_rank": 8, "stack": "huggingface-2024", "zero": 0}
    held = [estimate("llama3.2-1b", "h100-sxm", run | {"loss": w}) for w in ("fused_linear", "cut")]
    fused, cut = (one.memory_bytes.buffers for one in held)
    assert 0 <= fused - cut < 2 * 128_256 * 2048


def test_logits_that_are_made_again_cost_a_third_of_the_head() -> None:
    plain = 2 * TOKENS * VOCAB * HIDDEN
    for word, one in FIGURES.items():
        product = head(word)["head"]
        assert samples.flops(product, Phase.FORWARD) == pytest.approx(plain)
        assert samples.flops(product, Phase.WEIGHT_GRAD) == pytest.approx(plain)
        assert samples.flops(product, Phase.INPUT_GRAD) == pytest.approx(
            (2 if one.again else 1) * plain
        )


def test_each_chunk_reads_the_head_and_adds_to_its_gradient() -> None:
    """32 chunks: 2 bytes per weight read, 8 of an fp32 gradient read and written, in each."""
    products = {k.phase: k for k in head("chunked_recompute")["head"].kernels}
    weights, logits, inputs = VOCAB * HIDDEN, TOKENS * VOCAB, TOKENS * HIDDEN
    forward, gradient = products[Phase.FORWARD], products[Phase.WEIGHT_GRAD]
    assert forward.bytes[0] == 2 * (32 * weights + logits + inputs)
    assert gradient.bytes[0] == 32 * 8 * weights + 2 * (logits + inputs)


def test_a_loss_that_is_not_parallel_gathers_the_logits() -> None:
    """Each of 4 ranks has them all, of an all-gather; where the vocabulary is split, a quarter."""
    one, four = (head("eager", tp=tp)["loss"] for tp in (1, 4))
    assert four.saved_bytes == one.saved_bytes
    assert sorted(float(c.bytes[0]) for c in four.collectives) == [0, 0, 0, 2 * TOKENS * VOCAB]
    split = head("loss_parallel", tp=4)["loss"]
    assert split.saved_bytes[0] == 4 * TOKENS * VOCAB / 4
    assert {float(c.bytes[0]) for c in split.collectives} == {4 * TOKENS}


@each_row("name", catalog.names("stacks"))
def test_the_loss_of_a_stack_has_its_figures(name: str) -> None:
    """Naming it changes nothing, and the stack can run it."""
    stack = Stack.load(name)
    assert stack.loss == stack.loss_with_figures
    assert stack.capabilities is None or stack.capabilities.allows("loss", stack.loss)
    run = {"stack": name, "gpus": 8, "mbs": 1, "gbs": 8, "zero": 0, "any_software": True}
    usual, own = (
        estimate("llama3.2-1b", "h100-sxm", run | {"loss": word}) for word in ("stack", stack.loss)
    )
    assert usual.step_time_s == own.step_time_s
    assert usual.memory_bytes == own.memory_bytes


def test_another_loss_of_a_stack_has_standard_figures() -> None:
    """Whether the strategy names it or the stack: its own bytes are of the loss it had before."""
    run = {"gpus": 8, "mbs": 4, "gbs": 32, "zero": 3, "any_software": True}
    for word in FIGURES:
        if word == Loss.LOSS_PARALLEL:
            continue
        named, changed = (
            estimate("llama3.2-1b", "h100-sxm", run | fields)
            for fields in (
                {"stack": "torchtitan-2025", "loss": word},
                {"stack": {"base": "torchtitan-2025", "loss": word}},
            )
        )
        assert (named.step_time_s, named.memory_bytes) == (
            changed.step_time_s,
            changed.memory_bytes,
        ), word


@each_row("model", ["llama3-8b", "qwen3-30b-a3b", "gemma2-9b"])
def test_chunks_never_need_more_memory_than_eager_logits(model: str) -> None:
    """Where a chunk has fewer tokens than the micro-batch."""
    run = {"gpus": 64, "mbs": 1, "gbs": 64, "seq_len": 8192, "zero": 3, "stack": "torchtitan-eager"}
    held = {
        word: estimate(model, "h100-sxm", run | {"loss": word, "any_software": True}).memory_bytes
        for word in ("eager", *IN_CHUNKS)
    }
    assert all(held[word].total <= held["eager"].total for word in IN_CHUNKS)


def test_the_memory_of_a_million_tokens() -> None:
    """Qwen3-8B on 8 H100 in 8-fold context parallelism, checkpoints on the host, chunks of TRL:
    56.2 GB (huggingface/trl, issue 6846). Whole logits alone would take six times that."""
    stack = {"base": "accelerate-2026", "master_weights": False, "gradient_dtype": "compute"}
    run = {"gpus": 8, "cp": 8, "mbs": 1, "gbs": 1, "seq_len": 2**20, "zero": 3, "stack": stack}
    run |= {"recompute": "full", "offload_activations": True, "optimizer": "adamw-bf16"}
    run |= {"any_software": True}
    chunked, eager = (
        estimate("qwen3-8b", "h100-sxm", run | {"loss": word}).memory_bytes.reserved
        for word in ("chunked_recompute", "eager")
    )
    assert chunked / 1e9 == pytest.approx(56.2, rel=0.08)
    assert eager > 5 * chunked


@each_row(
    ("fields", "problem"),
    [
        ({"loss": "loss_parallel"}, "needs tp > 1"),
        ({"loss": "fused_linear", "tp": 2}, "reads the full head on one rank"),
        ({"loss": "chunked_recompute", "tp": 2}, "reads the full head on one rank"),
        ({"loss": "chunked", "tp": 2, "tp_exchange": "summa"}, "tp_exchange summa"),
        (
            {"loss": "cut", "any_software": False},
            "supports loss stack, eager, compiled, loss_parallel only",
        ),
    ],
)
def test_what_is_refused(fields: dict[str, Any], problem: str) -> None:
    run = {"gpus": 8, "gbs": 8, "stack": "torchtitan-2025", "any_software": True} | fields
    with pytest.raises(InputError, match=problem):
        estimate("llama3-8b", "h100-sxm", run)


def test_a_stack_has_a_loss() -> None:
    with pytest.raises(InputError, match="is what a stack does; allowed: eager, compiled"):
        Stack.load({"base": "torchtitan-2025", "loss": "stack"})


def exported(launcher: str, **fields: Any) -> tuple[LaunchPlan, list[str]]:
    """A plan for a launcher, and its files."""
    one = launcher_of(launcher)
    model, system = Model.load("llama3-8b"), System.load("h100-sxm")
    given = {"gpus": 8, "mbs": 1, "gbs": 64, "zero": 3, "stack": one.stack} | fields
    strategy = Strategy(**given).resolved(model)
    plan = LaunchPlan(model=model, system=system, strategy=strategy)
    return plan, [file.text for file in launch_files(one, plan)]


@each_row(
    ("launcher", "loss", "text"),
    [
        ("megatron", "vocab_parallel_fused", "--cross-entropy-fusion-impl native"),
        ("megatron-bridge", "in_place", "cross_entropy_fusion_impl=te"),
        ("megatron-bridge", "vocab_parallel", "cross_entropy_loss_fusion=false"),
        ("torchtitan", "eager", 'components = ["model"]'),
        ("accelerate", "fused_linear", "--use_liger_kernel true"),
        ("accelerate", "chunked_recompute", "--loss_type chunked_nll"),
        ("accelerate", "cut", "cut_cross_entropy"),
        ("deepspeed", "fused_linear", "--use_liger_kernel true"),
    ],
)
def test_launch_files_set_the_loss(launcher: str, loss: str, text: str) -> None:
    assert any(text in file for file in exported(launcher, loss=loss)[1])


def test_megatron_refuses_the_kernel_of_transformer_engine() -> None:
    with pytest.raises(InputError, match="refuses --cross-entropy-fusion-impl te"):
        exported("megatron", loss="in_place", zero=1)
