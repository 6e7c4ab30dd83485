"""How long the kernels of mixers take in a step, and how well their times are known.

Few of them have published times, and those of one accelerator generation are scaled to others, so
that the range of the step time covers their spread.
"""

import math
from collections.abc import Iterable
from itertools import count

from shardwise.analysis.results import MixerKernels
from shardwise.arrays import Floats
from shardwise.config.software.mixers import is_measured, scan_rates
from shardwise.engine.evaluate import Evaluation
from shardwise.ops.operation import Scan


def mixer_kernels(evaluation: Evaluation) -> list[tuple[MixerKernels, ...]]:
    """Times of the cores of mixers on the critical stage of each row, by kind; recompute left out.

    Empty for models without mixers.
    """
    step = evaluation.step
    model, table, work = step.model, step.table, step.critical.work
    if not model.mixers:
        return [()] * len(table)
    layers, kinds = count(), len(model.layers)
    ends = {"mtp": 2 * kinds, "embedding": 2 * kinds + 1, "head": 2 * kinds + 2}
    seconds: dict[str, Floats] = {}
    for part, _, costs in evaluation.parts:
        place = next(layers) if part == "layer" else ends[part]
        runs = table.micro_batches * work[place]
        if part == "layer":
            runs = runs + table.micro_batches * work[kinds + place]
        for cost in costs:
            for timed in cost.kernels:
                if isinstance(timed.kernel, Scan):
                    before = seconds.get(timed.kernel.kind, 0.0)
                    seconds[timed.kernel.kind] = before + runs * timed.time_s
    generation = step.system.accelerator.generation
    return [
        tuple(
            MixerKernels(
                kind=kind,
                share=float(time_s[row]) / float(evaluation.step_time_s[row]),
                spread=(rates := scan_rates(kind, generation)).spread,
                measured=is_measured(kind, generation),
                source=rates.source,
            )
            for kind, time_s in seconds.items()
        )
        for row in range(len(table))
    ]


def spread_of(kernels: Iterable[MixerKernels]) -> float:
    """Factor on the step time that the times of these kernels leave open.

    exp(sqrt(sum (share log(1 + spread))^2)): errors of kinds are independent.
    """
    errors = (one.share * math.log1p(one.spread) for one in kernels)
    return math.exp(math.hypot(*errors))
