"""How long planning FSDP2 units takes: 1,156 modules, compute-bound and communication-bound.

Rules of FSDP2 on a Llama of 96 layers by our own operations. Compute-bound: 8192 tokens on each of
64 GPUs; communication-bound: 512 tokens, so that nearly all communication is exposed. What matters
is the ratio of planning to one evaluation of a wrapping, as every other planner would need many of
them, and the gap to the bound where the proof is cut short. Then the same algorithm with the rules
of fsdp_ilp, on the statistics of docs/examples/llama4-modules.json whose second layer is repeated.
"""

from dataclasses import fields, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.fsdp.from_catalog import profile_of
from shardwise.fsdp.plan import Setting
from shardwise.fsdp.planner.collectives import SystemTimes
from shardwise.fsdp.planner.planner import Planner
from shardwise.fsdp.planner.search import least_peak, optimum
from shardwise.predecessors.fsdp_ilp.comm import comm_times
from shardwise.predecessors.fsdp_ilp.files import ModuleInfo, read_module_info
from shardwise.predecessors.fsdp_ilp.reference.exact import IlpRules

LAYERS, GPUS, LIMIT_S = 96, 64, 5.0
STATISTICS = Path(__file__).parents[1] / "docs/examples/llama4-modules.json"


def main() -> None:
    """Print modules, budget, time, exposed communication, gap and ratio for each regime."""
    small = Model.load("llama3-8b")
    kinds = tuple(kind.model_copy(update={"count": LAYERS}) for kind in small.layers)
    model = small.model_copy(update={"name": "llama-96-layers", "layers": kinds})
    system, setting = System.load("h100-sxm"), Setting(shards=GPUS)
    collectives = SystemTimes(system=system, setting=setting)
    for regime, seq_len in (("compute-bound", 8192), ("communication-bound", 512)):
        profile = profile_of(model, system, batch=1, seq_len=seq_len)
        planner = Planner(
            profile=profile, setting=setting, collectives=collectives, seconds=LIMIT_S
        )
        fastest = planner.best()
        if fastest is None:
            raise SystemExit("nothing fits without a budget")
        began = perf_counter()
        planner.evaluate(fastest.plan.wrapping)
        evaluation_s = perf_counter() - began
        for share in (1.0, 0.5, 0.1):
            least, most = planner.least_peak_bytes, fastest.plan.peak.total_bytes
            budget = least + share * (most - least)
            found = planner.best(budget)
            if found is None:
                raise SystemExit(f"nothing fits in {budget:.0f} bytes")
            gap = 1 - found.bound_s / found.cost_s
            print(
                f"{regime}: {len(profile.modules)} modules, {budget / 2**30:.1f} GiB: "
                f"{found.elapsed_s:.2f} s ({found.elapsed_s / evaluation_s:.0f} evaluations of a "
                f"wrapping), "
                f"{1e3 * found.plan.exposed_s:.1f} ms exposed, versus "
                f"{1e3 * found.plan.compute_s:.0f} ms of compute, gap {100 * gap:.2g} %"
            )


def by_rules_of_fsdp_ilp() -> None:
    """Print the same for its rules, on 8 GPUs of a node and on 64 of eight."""
    info = stretched(read_module_info(STATISTICS))
    for gpus in (8, 64):
        rules = IlpRules(
            info=info,
            comm=comm_times(gpus),
            world_size=gpus,
            allowed=info.parameter_bytes > 0,
        )
        least = least_peak(rules).peak
        for budget in (np.inf, least * 1.002):
            began = perf_counter()
            path = optimum(rules, budget)
            print(
                f"fsdp_ilp's rules, {gpus} GPUs: {len(info.end)} modules, "
                f"{budget / 2**30:.1f} GiB: {perf_counter() - began:.2f} s, {path.cost:.2f} ms "
                f"exposed, versus {info.forward_ms[0] + info.backward_ms[0]:.0f} ms of compute, "
                f"gap {100 * (1 - path.bound / path.cost):.2g} %"
            )


def stretched(info: ModuleInfo) -> ModuleInfo:
    """A model of as many layers, each like its second, from statistics of four."""
    layers = [info.names.index(f"Llama.layers.{i}") for i in range(4)]
    first, second, size = layers[0], layers[1], layers[2] - layers[1]
    before, after = list(range(first)), list(range(layers[3] + size, len(info.names)))
    one, more = list(range(first, second)), list(range(second, second + size))
    rows = np.array(before + one + (LAYERS - 1) * more + after)
    steps = np.concatenate(
        [np.zeros(second), np.repeat(np.arange(LAYERS - 1), size), np.full(len(after), LAYERS - 4)]
    )
    left = LAYERS - 4 - steps
    arrays = {
        field.name: getattr(info, field.name)[rows].copy()
        for field in fields(info)
        if field.name not in ("source", "names", "end", "post_position")
    }
    alive, made = info.activation_total_bytes, info.gradient_total_bytes
    arrays["activation_total_bytes"] += steps * (alive[second + size] - alive[second])
    arrays["gradient_total_bytes"] += left * (made[second] - made[second + size])
    for name in ("parameter_bytes", "gradient_bytes", "forward_ms", "backward_ms"):
        arrays[name][0] += (LAYERS - 4) * arrays[name][second]
    end = np.arange(len(rows)) + info.end[rows] - rows
    end[0] = len(rows)
    post = np.empty(len(rows), dtype=np.int64)
    post[sorted(range(len(rows)), key=lambda i: (end[i], -i))] = np.arange(len(rows))
    names = tuple(f"m{i}" for i in range(len(rows)))
    return replace(info, names=names, end=end, post_position=post, **arrays)


if __name__ == "__main__":
    main()
    by_rules_of_fsdp_ilp()
