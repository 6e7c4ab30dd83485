"""One process of a small training run, which `training` starts: python -m shardwise.measure.worker.

It reads `job.json` of a folder and writes its figures, or what went wrong, to `RANK.json` there.

With the backend "fake" of PyTorch's tests collectives return at once and move nothing: the time
that such a step takes less is that of exposed communication.
"""

import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everywhere in PyTorch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from shardwise.config.enums import ZERO_WEIGHTS
from shardwise.config.model import Model
from shardwise.measure.job import Job
from shardwise.measure.modules import Transformer

_TIMEOUT = timedelta(minutes=3)
_COLUMNS = ("query", "key", "value", "kv_up", "gate", "up")
_ROWS = ("out", "down")
_KILOBYTE = 1024
_ATTENTION_OPERATOR = "aten::_scaled_dot_product_"
_KERNELS = {
    "unfused": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash2": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
"""What runs the kernels of attention that a strategy may name; PyTorch chooses others."""
_OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda some: torch.optim.AdamW(some, fused=True),
    "sgd": lambda some: torch.optim.SGD(some, lr=1e-3, fused=True),
    "sgd-momentum": lambda some: torch.optim.SGD(some, lr=1e-3, momentum=0.9, fused=True),
}


@dataclass(slots=True)
class Clock:
    """Times parts of a step: by the host on a CPU, by events of its stream on an accelerator.

    A process alone with one thread has its own clock, which stops while another has the core.
    """

    device: torch.device
    alone: bool = False
    spans: list[tuple[str, Any, Any]] = field(default_factory=list)

    def _stamp(self) -> Any:
        if self.device.type != "cuda":
            return time.process_time() if self.alone else time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what runs inside, in addition to what has the same name."""
        begin = self._stamp()
        yield
        self.spans.append((name, begin, self._stamp()))

    def seconds(self) -> dict[str, float]:
        """Wait for the device; return the time of each part since the last call [s]."""
        found: dict[str, float] = defaultdict(float)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        for name, begin, end in self.spans:
            cuda = self.device.type == "cuda"
            found[name] += begin.elapsed_time(end) / 1e3 if cuda else end - begin
        self.spans.clear()
        return dict(found)


class Trainer:
    """A module, sharded as the strategy says, its optimizer and its batch."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.device = torch.device("cpu" if job.device == "cpu" else f"cuda:{rank}")
        self.clock = Clock(self.device, alone=job.ranks * job.threads == 1)
        model = Model.load(job.model)
        torch.manual_seed(0)
        first, last = rank == 0 or job.pp == 1, rank == job.pp - 1 or job.pp == 1
        layers = range(*job.stages[rank if job.pp > 1 else 0])
        with self.device:
            module: nn.Module = Transformer(model, job.seq_len, layers, first=first, last=last)
        self.parameters = list(module.parameters())
        if job.recompute:
            for layer in module.layers:
                layer.forward = _recomputed(layer.forward)
        self.module = self._split(module)
        self.parameters = list(self.module.parameters())
        split = [
            [p for p in self.parameters if isinstance(p, DTensor) == kind] for kind in (False, True)
        ]
        groups = [{"params": some} for some in split if some]
        self.optimizer = _OPTIMIZERS[job.optimizer](groups)
        torch.manual_seed(1 + (rank if job.dp > 1 else 0))
        shape = (job.micro_batches * job.micro_batch_size, job.seq_len)
        self.ids = torch.randint(model.vocab, shape, device=self.device)
        self.labels = torch.randint(model.vocab, shape, device=self.device)
        self.schedule = self._schedule(model) if job.pp > 1 else None

    def _split(self, module: nn.Module) -> nn.Module:
        """Split the module over the processes."""
        job = self.job
        if job.fsdp:
            mesh = init_device_mesh(self.device.type, (job.ranks,))
            policy = MixedPrecisionPolicy()
            if job.dtype == "bf16":
                policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
            reshard = job.zero == ZERO_WEIGHTS and job.reshard
            for unit in module.layers:
                fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
            fully_shard(module, mesh=mesh, mp_policy=policy)
        elif job.dp > 1 and not job.silent:
            module = DistributedDataParallel(module, gradient_as_bucket_view=True)
        elif job.tp > 1:
            mesh = init_device_mesh(self.device.type, (job.ranks,))
            parallelize_module(module, mesh, _plan(module, scattered=job.scattered))
        return module

    def _schedule(self, model: Model) -> Any:
        """Schedule of the pipeline, whose stage times its passes."""
        job = self.job
        shape = (job.micro_batch_size, job.seq_len)
        more: dict[str, Any] = {"device": self.device, "dtype": self._compute_dtype}
        more |= {"requires_grad": True}  # or no gradient would be sent back
        hidden = torch.empty(*shape, model.hidden, **more)
        tokens = torch.zeros(shape, dtype=torch.int64, device=self.device)
        logits = torch.empty(*shape, model.vocab, **more)
        stage = PipelineStage(
            self.module,
            self.rank,
            job.pp,
            self.device,
            input_args=tokens if self.rank == 0 else hidden,
            output_args=logits if self.rank == job.pp - 1 else hidden,
        )
        for name, part in (("forward_one_chunk", "forward"), ("backward_one_chunk", "backward")):
            setattr(stage, name, self._timed(getattr(stage, name), part))
        kind = Schedule1F1B if job.schedule == "1f1b" else ScheduleGPipe
        return kind(stage, job.micro_batches, loss_fn=_loss)

    @property
    def _compute_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.job.dtype == "bf16" else torch.float32

    def _timed(self, run: Any, part: str) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.clock.part(part), self.autocast():
                return run(*args, **kwargs)

        return timed

    def autocast(self) -> AbstractContextManager[Any]:
        """Products in 16 bits, where FSDP2 does not cast the weights itself."""
        if self.job.dtype != "bf16" or self.job.fsdp:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Loss of one micro-batch."""
        with self.autocast():
            return _loss(self.module(ids), labels)

    def step(self) -> float:
        """Train one step and return its loss; the clock has its parts."""
        losses: list[Any] = []
        with self.clock.part("step"):
            if self.schedule is not None:
                some = (self.ids,) if self.rank == 0 else ()
                last = self.rank == self.job.pp - 1
                more = {"target": self.labels, "losses": losses} if last else {}
                self.schedule.step(*some, **more)
            else:
                size, count = self.job.micro_batch_size, self.job.micro_batches
                batches = zip(self.ids.split(size), self.labels.split(size), strict=True)
                for number, (ids, labels) in enumerate(batches, start=1):
                    with self._synced(number == count):
                        with self.clock.part("forward"):
                            loss = self.forward(ids, labels) / count
                        with self.clock.part("backward"):
                            loss.backward()
                    losses.append(loss.detach())
            with self.clock.part("optimizer"):
                self._clip()
                self.optimizer.step()
                self.optimizer.zero_grad()
        return sum(map(float, losses)) / (len(losses) if self.schedule and losses else 1)

    def _clip(self) -> None:
        """Compute the norm of the gradients and scale them, as trainers do, here by 1."""
        for group in self.optimizer.param_groups:
            norm = nn.utils.get_total_norm([one.grad for one in group["params"]])
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            nn.utils.clip_grads_with_norm_(group["params"], torch.inf, norm)

    def _synced(self, last: bool) -> AbstractContextManager[Any]:
        """Reduce gradients of replicas with the last micro-batch alone, if they are not sharded."""
        if last or not isinstance(self.module, DistributedDataParallel):
            return nullcontext()
        return self.module.no_sync()

    def resident_bytes(self) -> int:
        """Bytes of weights, buffers, inputs and optimizer state."""
        state = [x for one in self.optimizer.state.values() for x in one.values()]
        every = [*self.parameters, *self.module.buffers(), self.ids, self.labels, *state]
        stored = {_storage(one).data_ptr(): _storage(one) for one in every if torch.is_tensor(one)}
        return sum(one.nbytes() for one in stored.values())


def _recomputed(run: Any) -> Any:
    return lambda x: checkpoint(run, x, use_reentrant=False)


def saved_bytes(module: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes that autograd saves in a forward pass, without weights and buffers, each storage once.

    The backward pass then runs, too.
    """
    kept: dict[int, torch.UntypedStorage] = {}
    own = {_storage(one).data_ptr() for one in (*module.parameters(), *module.buffers())}

    def pack(tensor: Tensor) -> Tensor:
        stored = _storage(tensor)
        if stored.data_ptr() not in own:
            kept[stored.data_ptr()] = stored
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward()
    found = sum(one.nbytes() for one in kept.values())
    loss.backward()
    return found


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def _plan(module: nn.Module, *, scattered: bool) -> dict[str, Any]:
    """Split products by columns, then by rows, and the vocabulary of embedding and head.

    Parameters
    ----------
    scattered
        Whether the stream between blocks is split by tokens (sequence parallelism).
    """
    stream, full = (Shard(1) if scattered else Replicate()), Replicate()
    plan: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=full, output_layouts=stream),
        "head": ColwiseParallel(
            input_layouts=stream, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    for path, one in module.named_modules():
        name = path.rsplit(".", 1)[-1]
        inside = path.startswith("layers.")
        if inside and name in ("attention", "mlp"):
            plan[path] = PrepareModuleInput(
                input_layouts=(stream,), desired_input_layouts=(full,), use_local_output=False
            )
        elif inside and name in _COLUMNS:
            plan[path] = ColwiseParallel()
        elif inside and name in _ROWS:
            plan[path] = RowwiseParallel(output_layouts=stream)
        elif scattered and isinstance(one, nn.RMSNorm | nn.LayerNorm):
            plan[path] = SequenceParallel(use_local_output=True)
    return plan


def train(job: Job, rank: int, folder: Path) -> dict[str, Any]:
    """Train some steps and return their figures."""
    torch.set_num_threads(job.threads)
    torch.set_flush_denormal(True)
    with ExitStack() as undo:
        if job.ranks > 1 or job.fsdp:
            _join(job, rank, folder)
            undo.callback(dist.destroy_process_group)
        if job.tp > 1:
            undo.enter_context(loss_parallel())
        if job.attention in _KERNELS:
            undo.enter_context(sdpa_kernel(_KERNELS[job.attention]))
        trainer = Trainer(job, rank)
        losses = []
        for _ in range(job.warm_up):
            losses.append(trainer.step())
            trainer.clock.seconds()
        if job.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        steps = []
        for _ in range(job.steps):
            losses.append(trainer.step())
            steps.append(trainer.clock.seconds())
        found: dict[str, Any] = {"steps": steps, "losses": losses}
        return found if job.silent else found | _memory(trainer)


def _join(job: Job, rank: int, folder: Path) -> None:
    """Join the other processes, or with `silent` pretend to."""
    backend = "gloo" if job.device == "cpu" else "nccl"
    store: Any = dist.FileStore(str(folder / "store"), job.ranks)
    if job.silent:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

        backend, store = "fake", FakeStore()
    if job.device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, store=store, rank=rank, world_size=job.ranks, timeout=_TIMEOUT)


def _memory(trainer: Trainer) -> dict[str, Any]:
    """Peak memory, saved bytes, and the operators that computed attention."""
    found: dict[str, Any] = {}
    if trainer.device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
    if trainer.job.tp * trainer.job.pp == 1:
        size = trainer.job.micro_batch_size
        batch = trainer.ids[:size], trainer.labels[:size]
        found["saved_bytes"] = saved_bytes(trainer.module, lambda: trainer.forward(*batch))
        trainer.optimizer.zero_grad()
    resident = trainer.resident_bytes()
    with profile(activities=_activities(trainer.device), profile_memory=True) as seen:
        trainer.step()
    trainer.clock.seconds()
    events = seen.profiler.kineto_results.events()
    if trainer.device.type == "cpu":
        changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
        found["peak_bytes"] = resident + _highest([by for _, by in sorted(changes)])
    names = {e.name() for e in events if e.name().startswith(_ATTENTION_OPERATOR)}
    forward = {one for one in names if not one.endswith("backward")}
    found["attention"] = sorted(one.removeprefix(_ATTENTION_OPERATOR) for one in forward)
    found["process_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTE
    return found


def _activities(device: torch.device) -> list[ProfilerActivity]:
    more = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return [ProfilerActivity.CPU, *more]


def _highest(changes: Sequence[int]) -> int:
    """Highest sum of the first changes, at least 0."""
    highest = current = 0
    for change in changes:
        current += change
        highest = max(highest, current)
    return highest


def main(folder: Path, rank: int) -> None:
    """Train as `job.json` says; write the figures, or the error in one line."""
    found: dict[str, Any]
    try:
        job = Job(**json.loads((folder / "job.json").read_text(encoding="utf-8")))
        found = train(job, rank, folder)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is said by the parent
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        lines = str(cause).strip().splitlines() or [""]
        found = {"error": f"{type(cause).__name__}: {lines[0]}"}
    written = folder / f"{rank}.partial"
    written.write_text(json.dumps(found), encoding="utf-8")
    written.rename(folder / f"{rank}.json")
    if "error" in found:
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
