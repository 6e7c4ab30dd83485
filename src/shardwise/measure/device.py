"""What is measured: a processor or an accelerator, and how calls on it are timed."""

import time
from collections.abc import Callable
from functools import cached_property, partial
from itertools import pairwise
from statistics import median
from typing import Any

Call = Callable[[], Any]
Clock = Callable[[], float]
DEVICES = ("cpu", "cuda")
_AHEAD_CYCLES = 4_000_000
"""Clocks for which the stream is busy while the host launches what is timed: 2 to 3 ms."""
_PROBE = 256
_EMULATED = 8.0
"""A processor whose bf16 products take so many times as long as those in fp32 computes them without
instructions for bf16: nobody trains with it, and one product can take seconds."""
_KERNELS = {
    "flash2": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "unfused": "MATH",
}
"""Kernels of scaled_dot_product_attention by their names here and in `SDPBackend`."""


class Device:
    """One device of PyTorch: the same calls for a processor, which is synchronous, and for CUDA."""

    def __init__(self, torch: Any, kind: str, index: int = 0, threads: int = 0) -> None:
        self.torch, self.kind = torch, kind
        self._alone = kind == "cpu" and threads == 1
        self.asynchronous = kind != "cpu"
        self.place = kind if kind == "cpu" else f"{kind}:{index}"
        if self.asynchronous:
            torch.cuda.set_device(index)

    @property
    def backend(self) -> str:
        """Library of collectives."""
        return "nccl" if self.asynchronous else "gloo"

    @cached_property
    def dtypes(self) -> list[str]:
        """Types whose products this device has instructions for."""
        if self.asynchronous:
            return ["bf16" if self.torch.cuda.is_bf16_supported() else "fp16", "fp32"]
        return ["fp32"] if self.bf16_time_factor > _EMULATED else ["bf16", "fp32"]

    @cached_property
    def bf16_time_factor(self) -> float:
        """Time of a bf16 product of a processor over that of the same product in fp32."""
        times = []
        for dtype in ("fp32", "bf16"):
            x = self.randn(_PROBE, _PROBE, dtype=dtype)
            x @ x
            times.append(self.host_s(partial(self.torch.matmul, x, x), 3))
        return times[1] / times[0]

    def dtype(self, name: str) -> Any:
        """The type of a name."""
        names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
        return getattr(self.torch, names[name])

    def randn(self, *sizes: int, dtype: str = "fp32") -> Any:
        """Return a random tensor: values change the power that products draw."""
        return self.torch.randn(*sizes, dtype=self.dtype(dtype), device=self.place)

    def wait(self) -> None:
        """Wait for all work of the device."""
        if self.asynchronous:
            self.torch.cuda.synchronize()

    def time_s(self, call: Call, calls: int, *, waits: bool = False) -> float:
        """Time of one of several calls on the device, without its launch if that is hidden [s].

        Events of the stream enclose the calls, which the host launches while it is busy. A
        processor is timed by the clock of the host; one thread, unless the call waits for other
        ranks, by its own, which stops while another process has the core.
        """
        if not self.asynchronous:
            own = self._alone and not waits
            return self.host_s(call, calls, time.thread_time if own else time.perf_counter)
        cuda = self.torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        self.wait()
        cuda._sleep(_AHEAD_CYCLES)  # noqa: SLF001 - PyTorch has no public call that waits on a stream
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3 / calls

    def host_s(self, call: Call, calls: int, clock: Clock = time.perf_counter) -> float:
        """Median time of the host for one of several calls, while the device works [s]."""
        self.wait()
        stamps = [clock()]
        for _ in range(calls):
            call()
            stamps.append(clock())
        self.wait()
        return median(after - before for before, after in pairwise(stamps))

    def attention_kernels(self) -> dict[str, Any]:
        """Return a context for each kernel of attention that PyTorch has for the device."""
        from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415 - an extra

        names = _KERNELS if self.asynchronous else {n: _KERNELS[n] for n in ("flash2", "unfused")}
        backends = {name: getattr(SDPBackend, word, None) for name, word in names.items()}
        return {n: lambda b=b: sdpa_kernel(b) for n, b in backends.items() if b is not None}

    def describe(self) -> dict[str, Any]:
        """Return name and memory of the device."""
        if self.asynchronous:
            found = self.torch.cuda.get_device_properties(self.place)
            return {"name": found.name, "memory_bytes": found.total_memory}
        import os  # noqa: PLC0415

        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {"name": _processor(), "memory_bytes": pages}


def _processor() -> str:
    """Name of the processor, as Linux says it; else its architecture."""
    import platform  # noqa: PLC0415

    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model n")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
