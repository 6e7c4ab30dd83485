"""Traces as PyTorch's profiler writes them, from times of the components of a step."""

import gzip
import json
from dataclasses import dataclass, field

PRODUCT = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
ATTENTION = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Params)"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>"
GROUPS = {
    "tp": ("TENSOR_MODEL_PARALLEL_GROUP", "ncclDevKernel_AllGather_RING_LL", "_allgather_base"),
    "cp": ("CONTEXT_PARALLEL_GROUP", "ncclDevKernel_SendRecv", "send"),
    "ep": ("EXPERT_MODEL_PARALLEL_GROUP", "ncclDevKernel_SendRecv", "all_to_allv"),
    "pp": ("PIPELINE_MODEL_PARALLEL_GROUP", "ncclDevKernel_SendRecv", "send"),
    "dp": ("DATA_PARALLEL_GROUP_WITH_CP", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "allreduce"),
}
_STREAMS = {axis: 20 + n for n, axis in enumerate(GROUPS)}


@dataclass(frozen=True, kw_only=True)
class Step:
    """Times of a step on one rank [s]."""

    products: float = 0.0
    attention: float = 0.0
    other: float = 0.0
    exposed: dict = field(default_factory=dict)
    """Of communication by axis."""
    hidden: dict = field(default_factory=dict)
    """Communication behind products, by axis."""
    idle: float = 0.0
    """Gaps between kernels."""
    between: float = 0.0
    """Gap after the last kernel."""
    loading: float = 0.0
    """Of that gap: wait for the data loader."""
    memcpy: float = 0.0

    @property
    def seconds(self):
        """From its first kernel to that of the next step."""
        own = self.products + self.attention + self.other + self.memcpy
        return own + sum(self.exposed.values()) + self.idle + self.between


def _event(name, category, start, duration, stream=7, **args):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0 if category != "user_annotation" else 4321,
        "tid": stream,
        "ts": round(start * 1e6, 3),
        "dur": round(duration * 1e6, 3),
        "args": {"device": 0, "stream": stream, **args},
    }


def _communication(axis, start, duration, *, described):
    description, kernel, collective = GROUPS[axis]
    args = {"Collective name": collective, "In msg nelems": 1 << 20, "dtype": "BFloat16"}
    args |= {"Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]"}
    args |= {"Process Group Description": description} if described else {}
    name = f"{kernel}(ncclDevKernelArgsStorage<4096ul>)"
    return _event(name, "kernel", start, duration, _STREAMS[axis], **args)


def step_events(step, number, start, *, rounds=8, described=True, on_device=True):
    """Events of one step from its start on."""
    now, events = start, []
    for _ in range(rounds):
        behind = now
        for axis, hidden in step.hidden.items():
            events.append(_communication(axis, behind, hidden / rounds, described=described))
        compute = ((PRODUCT, step.products), (ATTENTION, step.attention), (ELEMENTWISE, step.other))
        for name, seconds in compute:
            for _ in range(2):
                events.append(_event(name, "kernel", now, seconds / rounds / 2))
                now += seconds / rounds / 2
        for axis, exposed in step.exposed.items():
            events.append(_communication(axis, now, exposed / rounds, described=described))
            now += exposed / rounds
        if step.memcpy:
            events.append(_event("Memcpy HtoD", "gpu_memcpy", now, step.memcpy / rounds))
            now += step.memcpy / rounds
        now += step.idle / rounds
    name, end = f"ProfilerStep#{number}", start + step.seconds
    events.append(_event(name, "user_annotation", start, step.seconds))
    if on_device:  # the annotation ends with the last kernel, not with the gap after it
        last = now - step.idle / rounds
        events.append(_event(name, "gpu_user_annotation", start, last - start))
    if step.loading:
        load = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        events.append(_event(load, "user_annotation", end - step.loading, step.loading))
    return events


def write_trace(path, step, *, steps=3, rank=0, world=32, order=None, **how):
    """Write a trace of some equal steps and return its path."""
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    for number in range(steps):
        events += step_events(step, number, 1000.0 + number * step.seconds, **how)
        events.append(_event("aten::mm", "cpu_op", 1000.0, 0.1))
    if order is not None:
        events = [events[n] for n in order.permutation(len(events))]
    record = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "traceEvents": events,
        "traceName": str(path),
    }
    text = json.dumps(record, indent=1)
    if str(path).endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path
