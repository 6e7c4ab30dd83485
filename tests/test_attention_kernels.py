"""`attention_kernel`: what software chooses, how fast each kernel is, and what runs it."""

from typing import Any

import numpy as np
import pytest

import samples
from rows import each_row
from samples import run
from shardwise import InputError, Model, Stack, System, catalog, estimate, estimate_many
from shardwise.config.accelerator import KernelTime
from shardwise.config.enums import AttentionKernel, Generation
from shardwise.config.software.attention import attention_facts, sdpa_kernel, te_kernel
from shardwise.cost.attention import kernel_time_factor, months_of, release_time_factor

pytestmark = pytest.mark.any_software

PLAIN: dict[str, Any] = {"dp": 1, "mbs": 2, "gbs": 2}
SYSTEMS = [System.load(name) for name in catalog.names("systems")]
FACTS = attention_facts()


@pytest.mark.parametrize(
    ("torch", "cuda", "generation", "kernel"),
    [
        ("2.5.0", None, "hopper", "cudnn"),
        ("2.5.1", None, "hopper", "flash2"),
        ("2.8", None, "hopper", "flash2"),
        ("2.10", "cu128", "hopper", "flash2"),
        ("2.10", "13.0", "hopper", "cudnn"),
        ("2.10.0+cu130", None, "hopper", "cudnn"),
        ("2.11", None, "hopper", "cudnn"),
        ("2.11", None, "blackwell", "cudnn"),
        ("2.11", None, "blackwell_rtx", "flash2"),
        ("2.12", None, "ampere", "flash2"),
        ("2.1", None, "ampere", "flash1"),
        ("1.13", None, "ampere", "unfused"),
        ("2.6", None, "volta", "efficient"),
        ("2.8", None, "cdna3", "aotriton"),
        ("2.8", None, "tpu", "best"),
    ],
)
def test_pytorch_chooses_by_release_wheel_and_accelerator(
    torch: str, cuda: str | None, generation: str, kernel: str
) -> None:
    """2.5.0 tried cuDNN first on Hopper, 2.5.1 took it back, 2.11 has it in all main wheels."""
    assert sdpa_kernel(torch, Generation(generation), cuda) == kernel


@pytest.mark.parametrize(
    ("te", "generation", "kernel"),
    [
        ("1.1", "hopper", "flash2"),
        ("1.8", "hopper", "cudnn"),
        ("2.18", "hopper", "cudnn"),
        ("2.18", "ampere", "flash2"),
        ("1.13", "blackwell", "flash2"),
        ("2.0", "blackwell", "cudnn"),
        ("2.4", "cdna3", "ck"),
    ],
)
def test_transformer_engine_chooses_by_release_and_accelerator(
    te: str, generation: str, kernel: str
) -> None:
    """CuDNN first on compute capability 9.0 from 1.2 on, and above it from 2.0 on."""
    assert te_kernel(te, Generation(generation)) == kernel


def test_a_release_without_numbers_is_refused() -> None:
    """Words such as nightly are no release."""
    with pytest.raises(ValueError, match=r"nightly: must be a release such as 2\.5\.1"):
        sdpa_kernel("nightly", Generation.HOPPER)


def test_the_time_of_a_kernel_is_interpolated_in_the_logarithm_of_the_keys() -> None:
    """Between 1,024 and 4,096 keys 2,048 are half of the way; constant outside."""
    time = KernelTime(forward={1024: 2, 4096: 1}, backward={1024: 3})
    keys = np.array([512.0, 1024, 2048, 4096, 8192])
    assert kernel_time_factor(time, keys, backward=False) == pytest.approx([2, 2, 1.5, 1, 1])
    assert kernel_time_factor(time, keys, backward=True) == pytest.approx([3] * 5)
    alike = KernelTime(forward={1024: 2})
    assert kernel_time_factor(alike, keys, backward=True) == pytest.approx([2] * 5)


RELEASES = {
    "2024-01": KernelTime(forward={1024: 1, 4096: 4}),
    "2026-01": KernelTime(forward={1024: 1, 4096: 0.25}, backward={1024: 0.5}),
}


@each_row(
    ("month", "keys", "backward", "factor"),
    [
        ("2024-01", 4096, False, 4),
        ("2023-01", 4096, False, 4),  # constant outside
        ("2026-08", 4096, False, 0.25),
        ("2025-01", 4096, False, 1),  # half way: sqrt(4 x 0.25)
        ("2024-07", 4096, False, 2),
        ("2024-07", 1024, False, 1),
        ("2024-01", 2048, False, 2.5),
        ("2025-01", 4096, True, 2**0.5),
        ("", 4096, False, 1),
    ],
)
def test_the_time_of_a_kernel_by_release(
    month: str, keys: int, backward: bool, factor: float
) -> None:
    """Interpolated between months in its logarithm; 1 where no month is known."""
    months, size = np.array([months_of(month)]), np.array([float(keys)])
    found = release_time_factor(RELEASES, months, size, backward=backward)
    assert found == pytest.approx(factor)


@each_row(
    ("kernel", "released", "factor"),
    [
        ("best", "2024-01", 2),
        ("cudnn", "2024-01", 2),
        ("best", "", 1),
        ("flash2", "2024-01", 1),
        ("unfused", "2024-01", 1),
    ],
)
def test_releases_change_the_kernel_of_the_figures(
    kernel: str, released: str, factor: float
) -> None:
    """Other kernels, and software of no month, keep their time."""
    times = {"2024-01": {"forward": {1024: 2}}, "2026-01": {"forward": {1024: 1}}}
    software = {"attention_kernel": kernel, "released": released}

    def attention_s(**figures: Any) -> float:
        memory = [{"name": "hbm", "capacity": 1e12, "bandwidth": 1e30}]
        machine = samples.system(attention=figures, memory=memory)
        found = samples.run(samples.llama(), software, machine, operations=True, **PLAIN)
        assert found.operations is not None
        return sum(o.time_s for o in found.operations if o.operation == "attention.core")

    assert attention_s(release_times=times) == pytest.approx(factor * attention_s(), rel=1e-3)


def test_a_named_kernel_is_that_of_a_stack_with_it() -> None:
    """In time and memory, for every kernel; `stack` leaves it to the stack."""
    for word in AttentionKernel:
        if word == "stack":
            continue
        named = run(attention_kernel=word, **PLAIN)
        by_stack = run(software={"attention_kernel": word}, **PLAIN)
        assert named.step_time_s == by_stack.step_time_s
        assert named.memory_bytes == by_stack.memory_bytes
        left = run(software={"attention_kernel": word}, attention_kernel="stack", **PLAIN)
        assert left.step_time_s == by_stack.step_time_s


def test_unfused_attention_saves_its_scores() -> None:
    """A fused kernel writes none."""
    held = [
        run(attention_kernel=word, **PLAIN).memory_bytes.activations
        for word in ("unfused", "best", "flash2")
    ]
    assert held[0] > held[1] == held[2]


def test_the_backward_pass_has_its_own_times() -> None:
    """A kernel twice as slow forward and three times backward adds these to the two passes."""
    other = {"forward": {1024: 2}, "backward": {1024: 3}}
    system = samples.system(attention={"other_kernels": {"triton": other}})
    columns = {"gpus": 1, "gbs": 1, "seq_len": 65536, "stack": samples.stack(host_launch=0)}

    def passes(word: str) -> np.ndarray[Any, Any]:
        times = estimate("llama3-8b", system, columns | {"attention_kernel": word}).time_s
        return np.array([times["forward"], times["backward"]])

    best, slow = passes("best"), passes("triton")
    ratio = (slow - best)[1] / (slow - best)[0]
    chip = system.accelerator.attention
    assert chip is not None
    assert ratio == pytest.approx(chip.backward_ratio * 2 / 1, rel=0.05)


@pytest.mark.parametrize(
    ("base", "former", "now"),
    [
        ("megatron-core-2025", {"attention": "unfused"}, "unfused"),
        ("megatron-core-2025", {"flash_kernel": "flash2"}, "flash2"),
        ("megatron-core-2025", {"attention": "flash"}, "best"),
        ("torchtitan-2024", {"attention": "flash"}, "flash2"),
        ("torchtitan-2024", {"flash_kernel": "best"}, "best"),
        ("megatron-lm-2022", {"attention": "flash"}, "best"),
        ("megatron-lm-2022", {"attention": "flash", "flash_kernel": "flash1"}, "flash1"),
        ("megatron-lm-2022", {"flash_kernel": "flash2"}, "unfused"),
    ],
)
def test_stack_files_of_before_are_read(base: str, former: dict[str, str], now: str) -> None:
    """`attention` said whether it is fused, `flash_kernel` by which kernel."""
    source = {"kind": "assumed", "text": "as before"}
    fields = {"base": base, "name": "mine", **former, "sources": dict.fromkeys(former, source)}
    stack = Stack.load(fields)
    assert stack.attention_kernel == now
    assert stack.sources["attention_kernel"].text == "as before"


@each_row("system", SYSTEMS)
def test_kernels_run_where_they_are_written_for(system: System) -> None:
    """A strategy that names another one is refused with the reason; so is a stack."""
    generation = system.accelerator.generation
    model, columns = Model.load("llama3-8b"), {"gpus": 8, "gbs": 8, "recompute": "full", "zero": 3}
    for word, facts in FACTS.kernels.items():
        if generation in (*facts.runs_on, Generation.OTHER):
            continue
        with pytest.raises(InputError, match=f"{word} does not run on .*: {facts.because}"):
            estimate(model, system, columns | {"attention_kernel": word})


@each_row("system", SYSTEMS)
def test_no_kernel_of_the_catalog_is_faster_than_the_best(system: System) -> None:
    """At any length; and all but FlashAttention 1 run on the accelerator that names them."""
    figures = system.accelerator.attention
    for word, time in ({} if figures is None else figures.other_kernels).items():
        factors = [time] if isinstance(time, float | int) else [*time.forward.values()]
        assert min(factors) >= 1
        if word != "flash1":
            assert system.accelerator.generation in FACTS.kernels[word].runs_on


@each_row(("name", "kernel"), [("llama3.2-1b", "stack"), ("deepseek-v2-lite", "triton")])
def test_a_stack_may_have_another_kernel_for_experts(name: str, kernel: str) -> None:
    """torchtitan 0.2: FlexAttention with experts, in single plans and in columns; what is set
    wins, in the strategy and in the stack."""
    plan: dict[str, Any] = {"gpus": 8, "mbs": 1, "gbs": 8, "seq_len": 2048}
    plan |= {"stack": "torchtitan-2025", "zero": 3}
    alone = estimate(name, "h100-sxm", plan)
    assert alone.strategy["attention_kernel"] == kernel
    (together,) = estimate_many(name, "h100-sxm", {**plan, "gbs": [8]}).step_time_s
    assert together == pytest.approx(alone.step_time_s, rel=1e-12)
    best = estimate(name, "h100-sxm", plan, attention_kernel="best")
    assert best.strategy["attention_kernel"] == "best"
    plan["stack"] = {"base": "torchtitan-2025", "attention_kernel": "flash2"}
    own = estimate(name, "h100-sxm", plan)
    assert own.strategy["attention_kernel"] == "stack"
    assert own.step_time_s > best.step_time_s
