"""What a step would take on other hosts, where the host updates the weights.

Threads of a rank and how its update is written differ by a factor of 50 between two users of one
trainer, and few people say theirs, so that the range of the step time covers them.
"""

import numpy as np

from shardwise.analysis.results import AssumedHost
from shardwise.config.enums import CpuOptimizer
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.engine.evaluate import evaluate
from shardwise.engine.host_update import ranks_of_server
from shardwise.engine.step_time import Update

RATE_SPREAD = 1.5
"""Factor that rates of cores and memory of 8 of 10 hosts lie within (assumed)."""
_FUSED, _UNFUSED = CpuOptimizer.FUSED.code, CpuOptimizer.UNFUSED.code


def assumed_host(model: Model, system: System, table: Table) -> AssumedHost | None:
    """Step times of one legal row with the slowest and the fastest usual update on the host.

    Between one thread and an unfused update, and all cores and a fused one; what the strategy sets
    stays. None if the host updates nothing.
    """
    if not table.updates_on_host[0]:
        return None
    host, ranks = system.server, int(ranks_of_server(system, table)[0])
    threads, word = int(table.threads[0]), int(table.in_effect("cpu_optimizer")[0])

    def step_s(other_threads: int, other_word: int, factor: float) -> float:
        rates = {n: getattr(host, n) * factor for n in ("core_bandwidth", "memory_bandwidth")}
        changed = system.model_copy(update={"host": host.model_copy(update=rates)})
        columns = {
            "host_threads": threads if table.host_threads[0] else other_threads,
            "cpu_optimizer": word if table.cpu_optimizer[0] else other_word,
        }
        other = table.changed(**{name: np.array([value]) for name, value in columns.items()})
        return float(evaluate(model, changed, other).step_time_s[0])

    best = word if word == CpuOptimizer.SUPEROFFLOAD.code else _FUSED
    return AssumedHost(
        update_s=float(Update.of(evaluate(model, system, table).step).host_s[0]),
        ranks=ranks,
        threads=threads,
        cpu_optimizer=str(CpuOptimizer.from_code(word)),
        slower_step_s=step_s(1, _UNFUSED, 1 / RATE_SPREAD),
        faster_step_s=step_s(max(threads, host.cores // ranks), best, RATE_SPREAD),
    )
