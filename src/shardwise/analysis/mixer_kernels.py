"""How long the kernels of mixers take in a step, and how well their times are known.

Few of them have published times, and those of one accelerator generation are scaled to others, so
that the range of the step time covers their spread.
"""

import math
from collections.abc import Iterable

from shardwise.analysis.operations import critical_stage_components
from shardwise.analysis.results import MixerKernels
from shardwise.config.software.mixers import is_measured, scan_rates
from shardwise.engine.evaluate import Evaluation
from shardwise.ops.operation import Scan


def mixer_kernels(evaluation: Evaluation) -> tuple[MixerKernels, ...]:
    """Times of the cores of mixers on the critical stage of one row, by kind; recompute left out.

    Empty for models without mixers.
    """
    if not evaluation.step.model.mixers:
        return ()
    seconds: dict[str, float] = {}
    for component in critical_stage_components(evaluation):
        for cost in component.costs:
            for timed in cost.kernels:
                if isinstance(timed.kernel, Scan):
                    time_s = component.runs * float(timed.time_s[0])
                    seconds[timed.kernel.kind] = seconds.get(timed.kernel.kind, 0.0) + time_s
    step_s = float(evaluation.step_time_s[0])
    generation = evaluation.step.system.accelerator.generation
    return tuple(
        MixerKernels(
            kind=kind,
            share=time_s / step_s,
            spread=(rates := scan_rates(kind, generation)).spread,
            measured=is_measured(kind, generation),
            source=rates.source,
        )
        for kind, time_s in seconds.items()
    )


def spread_of(kernels: Iterable[MixerKernels]) -> float:
    """Factor on the step time that the times of these kernels leave open.

    exp(sqrt(sum (share log(1 + spread))^2)): errors of kinds are independent.
    """
    errors = (one.share * math.log1p(one.spread) for one in kernels)
    return math.exp(math.hypot(*errors))
