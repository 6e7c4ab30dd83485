"""Results of sweeps with round figures, made by hand: nothing is searched."""

from itertools import product
from typing import Any

from shardwise.config.strategy import Strategy
from shardwise.engine.step_time import TIME_PARTS
from shardwise.planning.sweep.results import Axis, Influence, PointPlan, SweepPoint, SweepResult

GIB = 2.0**30
SEQ_LEN, BATCH = 1000, 100
_BESIDE = {"bubble": 0.25, "tp_comm": 0.125, "dp_comm": 0.125}

__all__ = [
    "BATCH",
    "GIB",
    "GPUS",
    "SEQ_LEN",
    "axis",
    "influence",
    "mapped_sweep",
    "plan",
    "point",
    "scaled_sweep",
    "swept",
    "trace",
]


def plan(seconds: float, *, gpus: int = 8, used: float = 40, room: float = 80, **words: Any) -> Any:
    """A step of so many seconds: a quarter forward, a quarter backward, the rest as `parts` say.

    Memory is in GiB: 5 of what is used lie beside five equal parts.
    """
    parts = words.pop("parts", _BESIDE)
    usd, fits = words.pop("usd", None), words.pop("fits", used <= room)
    tp, pp = words.pop("tp", 1), words.pop("pp", 1)
    fields = {"global_batch_size": BATCH, "micro_batch_size": 1, "seq_len": SEQ_LEN} | words
    dp = gpus // (tp * pp * fields.get("cp", 1))
    strategy = Strategy(gpus=gpus, tp=tp, pp=pp, dp=dp, **fields)
    work = (1 - sum(parts.values())) / 2
    shares = dict.fromkeys(TIME_PARTS, 0.0) | {"forward": work, "backward": work} | parts
    names = ("weights", "gradients", "optimizer", "activations", "buffers")
    held = dict.fromkeys(names, (used - 5) * GIB / 5)
    tokens = fields["global_batch_size"] * fields["seq_len"]
    return PointPlan(
        strategy=strategy.model_dump(mode="json"),
        step_time_s=seconds,
        tokens_per_s=tokens / seconds,
        tokens_per_s_per_gpu=tokens / seconds / gpus,
        mfu=0.5,
        memory_reserved_bytes=used * GIB,
        usd_per_billion_tokens=usd,
        fits=fits,
        time_s={part: share * seconds for part, share in shares.items()},
        memory_bytes=held
        | {
            "total": (used - 5) * GIB,
            "reserved": used * GIB,
            "offloaded": 0.0,
            "capacity": room * GIB,
        },
    )


def axis(name: str, labels: Any, *, kind: Any = "system", unit: str | None = None) -> Axis:
    """An axis by its labels."""
    return Axis(name=name, kind=kind, unit=unit, labels=tuple(map(str, labels)))


def influence(figure: str, elasticity: float, saved: float, **words: Any) -> Influence:
    """What doubling a figure of the hardware saves; half of it costs as much unless said."""
    fields = {"unit": None, "value": None, "factor": 2.0, "step_time_s": 1 - saved}
    fields |= {"kind": "hardware", "worse_factor": 1 / words.get("factor", 2.0), "lost": saved}
    fields |= {"worse_step_time_s": 1 + saved, "worse_fits": True}
    again = {"best_step_time_s": None, "best_saved": None}
    again |= {"best_worse_step_time_s": None, "best_lost": None}
    return Influence(figure=figure, elasticity=elasticity, saved=saved, **(fields | again | words))


def point(system: str, at: tuple[int, ...], values: dict[str, Any], *plans: Any) -> SweepPoint:
    """A point with its strategies; without them nothing fits there."""
    rejected = {} if plans else {"accelerator_memory": 7, "tp_heads": 2}
    problem = None if plans else "nothing fits"
    words = {"best": plans, "rejected": rejected, "problem": problem}
    return SweepPoint(system=system, at=at, values=values, **words)


def swept(axes: Any, of: Any, *, systems: tuple[str, ...] = ("old",), **words: Any) -> SweepResult:
    """Every combination of axes, given as (axis, values); `of` tells the plans of system, values.

    It returns a plan, several, or None.
    """
    places = [range(len(values)) for _, values in axes]
    points = []
    for system, *at in product(systems, *places):
        given = [values[place] for (_, values), place in zip(axes, at, strict=True)]
        found = of(system, *given)
        plans = () if found is None else found if isinstance(found, tuple) else (found,)
        named = {one.name: value for (one, _), value in zip(axes, given, strict=True)}
        points.append(point(system, tuple(at), named, *plans))
    fields: dict[str, Any] = {
        "model": "m",
        "searched": True,
        "strategy": None,
        "space": {},
        "objective": "step_time",
        "assumed": (),
        "candidates": 9,
        "elapsed_s": 1.0,
        "complete": True,
    }
    return SweepResult(
        systems=systems,
        axes=tuple(one for one, _ in axes),
        points=tuple(points),
        **(fields | words),
    )


GPUS = (axis("gpus", [8, 16, 32], kind="strategy"), [8, 16, 32])
CAPACITY = (
    axis("hbm.capacity", ["40 GiB", "80 GiB", "1x"], unit="bytes"),
    [40 * 2**30, 80 * 2**30, 160 * 2**30],
)
BANDWIDTH = (axis("hbm.bandwidth", ["0.5x", "1x", "8x"], unit="byte/s"), [1e12, 2e12, 16e12])


def scaled_sweep() -> SweepResult:
    """Two systems over three numbers of GPUs; the old one has nothing on the smallest."""

    def best(system: str, gpus: int) -> PointPlan | None:
        if (system, gpus) == ("old", 8):
            return None
        seconds = {"old": 96, "new": 16}[system] * 8 / gpus
        return plan(seconds * (1.25 if gpus == 32 else 1), gpus=gpus, tp=4, pp=2, usd=gpus * 10.0)

    return swept([GPUS], best, systems=("old", "new"))


def mapped_sweep() -> SweepResult:
    """Step time over capacity and bandwidth: nothing fits into the least capacity."""

    def best(_: str, capacity: float, bandwidth: float) -> PointPlan | None:
        room = capacity / 2**30
        seconds = 1e13 / bandwidth + 80 / room
        return None if room == 40 else plan(seconds, used=room - 1, room=room, usd=seconds)

    return swept([CAPACITY, BANDWIDTH], best)


def trace(figure: Any, name: str) -> Any:
    """The trace of a name."""
    (one,) = [each for each in figure.data if each.name == name]
    return one
