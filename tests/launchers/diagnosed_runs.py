"""Runs to diagnose: logs and traces written from estimates, into which something slow is put.

What is slow is a figure of the machine that the estimate of the run has, and the prediction has
not: the bandwidth of a tier, the time of products, the fixed time of a step.
"""

from dataclasses import dataclass, field

import numpy as np

from shardwise import Model, Stack, Strategy, System, estimate
from shardwise.config.launch import Launch
from written_logs import Run
from written_traces import Step

STACK = "megatron-core-2025"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A launched strategy, and the rank whose trace is written."""

    model: str
    fields: dict
    tier: str
    """Tier whose links may be slow."""
    system: str = "h100-sxm"
    rank: int = 0

    @property
    def strategy(self):
        """Fields with the stack."""
        return self.fields | {"stack": STACK}

    @property
    def launch(self):
        """As a launch file of Megatron-LM would set it."""
        return Launch(
            launcher="megatron",
            release=None,
            source="train.sh",
            model=Model.load(self.model),
            strategy=self.strategy,
        )

    def estimate(self, slow=None):
        """Of the run: on the machine with what is slow."""
        system, stack = System.load(self.system).to_dict(), Stack.load(STACK)
        slow = slow or Slow()
        added = slow.host_share + slow.loading_share
        added_s = added * self.estimate().step_time_s if added else 0.0
        for tier in system["network"]:
            if tier["name"] == self.tier:
                tier["bandwidth"] /= slow.link
        own = stack.model_copy(
            update={
                "matmul_time_factor": stack.matmul_time_factor * slow.products,
                "step_overhead": stack.step_overhead + added_s,
            }
        )
        strategy = Strategy.validated(self.strategy | {"stack": own})
        return estimate(self.model, System.validated(system), strategy, operations=True)


@dataclass(frozen=True, kw_only=True)
class Slow:
    """What is slow: factors of time, and shares of the predicted step that are added."""

    products: float = 1.0
    link: float = 1.0
    host_share: float = 0.0
    loading_share: float = 0.0


CASES = {
    "tensor and pipeline": Case(
        model="llama3-8b",
        fields={"gpus": 32, "tp": 4, "pp": 2, "gbs": 64},
        tier="nvlink",
        rank=16,
    ),
    "replicas": Case(
        model="llama3-8b", fields={"gpus": 64, "gbs": 64, "zero": 1, "tp": 2}, tier="fabric"
    ),
    "experts": Case(model="qwen3-30b-a3b", fields={"gpus": 32, "ep": 8, "gbs": 64}, tier="nvlink"),
}


def kernel_seconds(found, kind):
    """Time of kernels of a kind on the last stage in a step [s]."""
    stages = found.strategy["pp"]
    seconds = 0.0
    for one in found.operations:
        times = {"layer": one.count / stages, "head": 1, "step": 1}
        times["embedding"] = 1 if stages == 1 else 0
        rounds = 1 if one.part == "step" else found.micro_batches
        if one.kind == kind:
            seconds += times[one.part] * rounds * one.time_s
    return seconds


def traced_step(found, loading_s):
    """The step of a trace by an estimate with all operations, some of it spent on loading."""
    comm = {axis: one for axis, one in found.comm_s.items() if one.total and axis != "offload"}
    exposed = {axis: one.exposed for axis, one in comm.items()}
    hidden = {axis: one.total - one.exposed for axis, one in comm.items()}
    kernels = {
        "products": kernel_seconds(found, "matmul"),
        "attention": kernel_seconds(found, "attention"),
        "other": kernel_seconds(found, "memory"),
    }
    idle = found.step_time_s - sum(kernels.values()) - sum(exposed.values()) - loading_s
    return Step(
        **kernels,
        exposed=exposed,
        hidden={axis: one for axis, one in hidden.items() if one > 0},
        idle=idle,
        between=loading_s,
        loading=loading_s,
    )


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What a run leaves: the times of its steps, and its trace."""

    case: Case
    slow: Slow = field(default_factory=Slow)
    seed: int = 0
    noise: float = 0.01

    def run(self):
        """For a writer of logs: thirty steps, of which the first compiles."""
        found = self.case.estimate(self.slow)
        draw = np.random.default_rng(self.seed)
        steps = found.step_time_s * draw.normal(1.0, self.noise, 30)
        strategy = found.strategy
        return Run(
            seconds=(4 * found.step_time_s, *steps.tolist()),
            gpus=strategy["gpus"],
            batch=strategy["global_batch_size"],
            seq_len=strategy["seq_len"],
            memory=found.memory_bytes.total,
            degrees=tuple(strategy[name] for name in ("tp", "cp", "dp", "pp")),
        )

    def step(self):
        """For the writer of traces."""
        loading_s = self.slow.loading_share * self.case.estimate().step_time_s
        return traced_step(self.case.estimate(self.slow), loading_s)

    def gain(self):
        """Shorter step without what is slow [s]."""
        return self.case.estimate(self.slow).step_time_s - self.case.estimate().step_time_s
