"""How long planning FSDP2 units takes: 1,156 modules, compute-bound and communication-bound.

Rules of FSDP2 on a Llama of 96 layers by our own operations. Compute-bound: 8192 tokens on each of
64 GPUs; communication-bound: 512 tokens, so that nearly all communication is exposed. What matters
is the ratio of planning to one look at a wrapping, as every other planner would need many of them,
and the gap to the bound where the proof is cut short.
"""

from time import perf_counter

from shardwise.fsdp.from_catalog import profile_of
from shardwise.fsdp.links import SystemLinks
from shardwise.fsdp.plan import Setting
from shardwise.fsdp.planner import Planner
from shardwise.model import Model
from shardwise.system import System

LAYERS, GPUS, LIMIT_S = 96, 64, 10.0


def main() -> None:
    """Print modules, budget, time, exposed communication, gap and ratio for each regime."""
    small = Model.load("llama3-8b")
    kinds = tuple(kind.model_copy(update={"count": LAYERS}) for kind in small.layers)
    model = small.model_copy(update={"name": "llama-96-layers", "layers": kinds})
    system, setting = System.load("h100-sxm"), Setting(shards=GPUS)
    links = SystemLinks(system=system, setting=setting)
    for regime, seq_len in (("compute-bound", 8192), ("communication-bound", 512)):
        profile = profile_of(model, system, batch=1, seq_len=seq_len)
        planner = Planner(profile=profile, setting=setting, links=links, seconds=LIMIT_S)
        fastest = planner.best()
        if fastest is None:
            raise SystemExit("nothing fits without a budget")
        began = perf_counter()
        planner.evaluated(fastest.plan.wrapping)
        look_s = perf_counter() - began
        for share in (1.0, 0.5, 0.1):
            least, most = planner.least_peak_bytes, fastest.plan.peak.total_bytes
            budget = least + share * (most - least)
            found = planner.best(budget)
            if found is None:
                raise SystemExit(f"nothing fits in {budget:.0f} bytes")
            gap = 1 - found.bound_s / found.cost_s
            print(
                f"{regime}: {len(profile.modules)} modules, {budget / 2**30:.1f} GiB: "
                f"{found.elapsed_s:.2f} s ({found.elapsed_s / look_s:.0f} looks at a wrapping), "
                f"{1e3 * found.plan.exposed_s:.1f} ms exposed beside "
                f"{1e3 * found.plan.compute_s:.0f} ms of compute, gap {100 * gap:.2g} %"
            )


if __name__ == "__main__":
    main()
