"""The measured runs that AMPeD (ISPASS 2023) was validated on: GPipe's and Megatron-LM's.

The criterion is AMPeD's own: a largest error of 12 %. Its predictions were not published as data;
ours are compared with its formulas as they were described.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.config.base import ConfigBase, Count, Number
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.estimator import estimate
from shardwise.predecessors.amped.translation import amped_case
from shardwise.validate.measured.predict import Prediction, predict_runs
from shardwise.validate.measured.runs import Run, load_runs
from shardwise.validate.scores import Compared, Criterion, Part, PublishedFigures, Row, Scoreboard

_PREFIX = "narayanan21-"
_TABLE_1, _PTDP, _ZERO_3 = "t1-", "t2-ptdp-", "t2-zero3-"
_BY_THEIR_COUNT = (
    "time of a step, from the printed TFLOP/s of a GPU and the paper's own count of FLOPs, 96 B s "
    "l h^2 (1 + s / 6h + V / 16lh), which has the recomputed forward pass. Status: confirmed in "
    "the text of the paper, or recalled from its table, an image, as the collection of runs has it."
)
_OURS = (
    "step_time_s of the collection's rows, as in `shardwise validate runs`; all are of grade B, so "
    "no figure of system or stack was fitted to them. Where the micro-batch is not printed it is "
    "the largest that fits without pipeline, 1 with it; chunks are not printed, and assumed as one."
)
_THEIRS = (
    "its formulas as they were described, at its constant efficiency of 0.51. It has no word for "
    "recompute, which these runs did, nor for ZeRO: both are left out (docs/from/amped.md adds a "
    "second forward pass)."
)
_BUBBLE = "its formulas as they were described, with a bubble too small by the layers."
# Strategy fields that AMPeD can express.
_AMPED_FIELDS = ("tp", "pp", "dp", "micro_batch_size", "global_batch_size", "seq_len", "dtype")


class Gpipe(ConfigBase):
    """A model, and its throughput by number of stages."""

    system: str
    stack: str
    micro_batches: Count
    to_stages: Count
    """Stages of the run that throughput is relative to."""
    throughput: Mapping[Count, Number]
    """By stages."""
    model: Mapping[str, Any]


class Published(PublishedFigures):
    """Figures of `catalog/validation/amped.yaml`."""

    limit: Number
    """Largest error that the paper claims."""
    study: str
    """Group of measured runs."""
    confirmed: tuple[str, ...]
    """Runs whose figures are in the paper's text."""
    gpipe: Gpipe
    beyond: Mapping[str, str]
    """Why rows are beyond the limit, by part and case, or a part's `*`."""


def amped() -> Scoreboard:
    """Compare with Megatron-LM's and ZeRO-3's steps on A100, and GPipe's throughput on P100."""
    published = Published.load("amped")
    runs = [run for run in load_runs() if run.source == published.study]
    predicted = {one.run.id.removeprefix(_PREFIX): one for one in predict_runs(runs)}
    parts = (
        _steps(published, predicted, _TABLE_1, "table1", "Table 1: weak scaling of GPT models"),
        _steps(published, predicted, _PTDP, "table2_ptdp", "Table 2: PTD-P, Megatron-LM"),
        _steps(published, predicted, _ZERO_3, "table2_zero3", "Table 2: ZeRO-3, DeepSpeed"),
        _gpipe(published),
    )
    return Scoreboard(
        suite=published.name,
        title=published.description,
        predecessor="amped",
        parts=parts,
        criterion=Criterion(
            limit=published.limit,
            source=published.source_text("limit"),
            why=_explained(parts, published.beyond),
        ),
    )


def _explained(parts: Sequence[Part], beyond: Mapping[str, str]) -> dict[str, str]:
    """Reasons by row, also those of a full part."""
    found = {}
    for part in parts:
        for row in part.rows:
            name = f"{part.name}/{row.case}"
            why = beyond.get(name, beyond.get(f"{part.name}/*"))
            if why is not None:
                found[name] = why
    return found


def _steps(
    published: Published,
    predicted: Mapping[str, Prediction],
    prefix: str,
    name: str,
    title: str,
) -> Part:
    return Part(
        name=f"{name}_step_time",
        title=f"{title}, time of a step",
        unit="s",
        kind="measured",
        source=published.source_text("study"),
        compared=Compared(reference=_BY_THEIR_COUNT, ours=_OURS, theirs=_THEIRS),
        rows=tuple(
            Row(
                case=case.removeprefix(prefix),
                reference=one.measured_step_time_s or 0.0,
                ours=one.step_time_s or 0.0,
                theirs=_their_run_s(one.run),
                status="confirmed" if one.run.id in published.confirmed else "recalled",
            )
            for case, one in predicted.items()
            if case.startswith(prefix)
        ),
    )


def _gpipe(published: Published) -> Part:
    gpipe = published.gpipe
    sources = {"": {"kind": "published", "text": published.source_text("gpipe.model")}}
    model = Model.validated({**gpipe.model, "sources": sources}, source=published.name)
    first = _step_s(gpipe, model, gpipe.to_stages)
    their_first = _their_step_s(gpipe, model, gpipe.to_stages)
    return Part(
        name="gpipe_gpu",
        title=f"GPipe, table 3: throughput on K GPUs over that on {gpipe.to_stages}",
        unit="x",
        kind="measured",
        source=published.source_text("gpipe.throughput"),
        compared=Compared(
            reference=(
                f"{model.name} on P100 without NVLink, {gpipe.micro_batches} micro-batches. A "
                "pipeline of equal stages without communication would give K / (1 + (K - 1) / M) "
                "over that of K = 2, 1.89 and 3.38."
            ),
            ours=(
                f"steps on {gpipe.system} with {gpipe.stack}, whose figures are of the data sheet "
                "or assumed, none set for these two; fp32, micro-batches of one sequence, layers "
                "spread evenly and recomputed, the head on the last stage, which so has about a "
                "layer more than the others: GPipe itself cuts where its costs are most alike. "
                "Table 2, on TPUs, is left out: it says neither which of v2 and v3 it ran on nor "
                "how batches were fitted to memory, and the catalog has neither chip."
            ),
            theirs=_BUBBLE,
        ),
        rows=tuple(
            Row(
                case=f"K={stages}",
                reference=throughput,
                ours=first / _step_s(gpipe, model, stages),
                theirs=their_first / _their_step_s(gpipe, model, stages),
                status="confirmed",
            )
            for stages, throughput in gpipe.throughput.items()
        ),
    )


def _step_s(gpipe: Gpipe, model: Model, stages: int) -> float:
    """Step time of one replica by its stages [s]."""
    strategy = {
        "pp": stages,
        "dp": 1,
        "micro_batch_size": 1,
        "global_batch_size": gpipe.micro_batches,
        "dtype": "fp32",
        "schedule": "gpipe",
        "recompute": "full",
        "stack": gpipe.stack,
    }
    return estimate(model, gpipe.system, strategy).step_time_s


def _their_run_s(run: Run) -> float:
    """AMPeD's step time of a measured run [s]."""
    case = run.case()
    fields = {name: getattr(case.strategy, name) for name in _AMPED_FIELDS}
    return _their_time_s(case.model, case.system, fields)


def _their_step_s(gpipe: Gpipe, model: Model, stages: int) -> float:
    """AMPeD's step time of one replica by its stages [s]."""
    fields = {"pp": stages, "dp": 1, "gbs": gpipe.micro_batches, "dtype": "fp32"}
    return _their_time_s(model, gpipe.system, fields)


def _their_time_s(model: Model, system: System | str, fields: Mapping[str, Any]) -> float:
    return float(amped_case(model, system, fields).answer()["Total time to train (s)"])
