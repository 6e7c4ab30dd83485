"""Pipelines drawn at random: their closed form, and the event simulation that it is held to."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from profiles import examples
from shardwise.config.enums import Schedule
from shardwise.parallel.schedule.orders import rank_of, virtual_stages
from shardwise.parallel.schedule.pipelines import Times
from shardwise.parallel.schedule.simulate import simulate
from shardwise.parallel.schedule.step_time import step_time

fast = examples(40)
PASSES = ("forward", "input_grad", "weight_grad")
NO_END = (0.0, 0.0, 0.0)
seconds = st.floats(0.5, 1.5)
three = st.tuples(seconds, seconds, seconds)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pipeline: runs of (stages, seconds of F, B, W on each), and its ends.

    `apart` is what one chunk of a rank of each run takes of it: interleaved the last one, in the V
    the earlier one; without it all take equal shares.
    """

    schedule: str
    runs: tuple
    m: int
    apart: tuple = ()
    v: int = 1
    embedding: tuple = NO_END
    head: tuple = NO_END
    hop: float = 0.0
    hidden: bool = False

    @property
    def p(self):
        return sum(length for length, _ in self.runs)


def simulated(case, **given):
    """The truth: times spread evenly over the chunks of a rank, the ends on their virtual stage."""
    per_rank = [times for length, times in case.runs for _ in range(length)]
    shares = case.apart or [None] * len(case.runs)
    apart = [
        part for (length, _), part in zip(case.runs, shares, strict=True) for _ in range(length)
    ]
    stages = virtual_stages(case.schedule, ranks=case.p, chunks=case.v)
    held = 1 if case.schedule == "dualpipe" else stages // case.p
    passes = []
    for kind in range(3):
        ranks = [rank_of(case.schedule, stage=s, ranks=case.p)[0] for s in range(stages)]
        column = []
        for stage, rank in enumerate(ranks):
            whole, part = per_rank[rank][kind], apart[rank]
            here = stage < case.p if case.schedule == "zb-v" else stage >= stages - case.p
            if part is None:
                column.append(whole / held)
            else:
                column.append(part[kind] if here else (whole - part[kind]) / (held - 1))
        column[0] += case.embedding[kind]
        column[-1] += case.head[kind]
        passes.append(column)
    return simulate(
        case.schedule,
        ranks=case.p,
        micro_batches=case.m,
        chunks=case.v,
        forward_s=passes[0],
        input_grad_s=passes[1],
        weight_grad_s=passes[2],
        hop_s=case.hop,
        blocking=not case.hidden,
        **given,
    )


def closed(cases, **given):
    """All cases as rows, with as many runs as the longest has."""
    most = max(len(case.runs) for case in cases)
    runs = [case.runs + ((0, (9.0, 9.0, 9.0)),) * (most - len(case.runs)) for case in cases]

    def column(values):
        return np.array(list(values))

    def apart(schedule, kind):
        """Of the rows of other schedules too, where any has a chunk apart: they do not read it."""
        if not any(case.apart and case.schedule == schedule for case in cases):
            return None
        return column(
            [
                case.apart[at][kind] if case.apart and at < len(case.apart) else times[kind] / held
                for at, (_, times) in enumerate(row)
            ]
            for case, row in zip(cases, runs, strict=True)
            for held in [2 if case.schedule == "zb-v" else case.v]
        ).T

    def times(kind):
        return Times(
            stage_s=column([[one[kind] for _, one in row] for row in runs]).T,
            first_extra_s=column(case.embedding[kind] for case in cases),
            last_extra_s=column(case.head[kind] for case in cases),
            first_chunk_s=apart("zb-v", kind),
            last_chunk_s=apart("interleaved", kind),
        )

    return step_time(
        schedule=column(Schedule(case.schedule).code for case in cases),
        group_sizes=column([[length for length, _ in row] for row in runs]).T,
        **{kind: times(at) for at, kind in enumerate(PASSES)},
        micro_batches=column(case.m for case in cases),
        chunks=column(case.v for case in cases),
        hop_s=column(case.hop for case in cases),
        hop_hidden=column(float(case.hidden) for case in cases),
        **given,
    )


@st.composite
def cases(draw, schedules=Schedule, *, runs=3, ends=True, hops=True, whole=True):
    """Pipelines of p from 1 to 16 and m from 1 to 8 p, whose runs differ by up to half."""
    schedule = draw(st.sampled_from(schedules))
    p = draw(st.integers(1, 16))
    v = 1
    if schedule == "dualpipe":
        p = 2 * draw(st.integers(1, 8))
        m = 2 * p + 2 * draw(st.integers(0, 3 * p))
    elif schedule == "interleaved":
        v = draw(st.integers(2, 4))
        m = p * draw(st.integers(1, 8)) if whole else draw(st.integers(1, 8 * p))
    else:
        m = draw(st.integers(1, 8 * p))
    cuts = sorted(draw(st.lists(st.integers(0, p), min_size=runs - 1, max_size=runs - 1)))
    lengths = np.diff([0, *cuts, p]).tolist()
    share = st.tuples(*[st.floats(0, 0.5)] * 3)
    return Case(
        schedule=schedule,
        runs=tuple((length, draw(three)) for length in lengths),
        m=m,
        v=v,
        embedding=draw(share) if ends else NO_END,
        head=draw(share) if ends else NO_END,
        hop=draw(st.floats(0, 0.2)) / (2 if schedule == "zb-v" else v) if hops else 0.0,
        hidden=draw(st.booleans()) if hops else False,
    )


def error(case):
    return closed([case]).step_s[0] / simulated(case).step_s - 1


@st.composite
def with_short_last_chunks(draw):
    """Chunks of up to four equal layers; of trailing ranks, if not of all, the last lacks one."""
    p, v, layers = draw(st.integers(1, 12)), draw(st.integers(2, 5)), draw(st.integers(1, 4))
    layer, share = np.array(draw(three)), st.floats(0, 1)
    full = draw(st.integers(0, p))

    def times(count):
        return tuple((layer * count).tolist())

    return Case(
        schedule="interleaved",
        runs=((full, times(v * layers)), (p - full, times(v * layers - 1))),
        apart=(times(layers), times(layers - 1)),
        m=p * draw(st.integers(1, 8)),
        v=v,
        embedding=times(0.02 * draw(share)),
        head=times(2 * draw(share)),
        hop=draw(st.floats(0, 0.05)),
        hidden=draw(st.booleans()),
    )
