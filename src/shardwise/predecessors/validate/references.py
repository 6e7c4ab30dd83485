"""Predictions of the predecessors for measured runs.

Calculon, NERSC's model and AMPeD predict by their formulas as published (`*/reference` here), for
runs translated as by `estimate --also`:

- Calculon on its own files of an A100 and an H100, because it times kernels by curves that our
  systems do not have, always with its own network; bf16 as fp16, as both have one rate;
- NERSC's model on our system, converted;
- AMPeD likewise, its products at 0.51 of the peak.

Runs that they cannot express or fit in memory have their reason. SimuMax has the predictions that
it published, for 30 rows and for the steps of its A100 server, which are not among the rows.
"""

from collections.abc import Callable, Iterator, Sequence

from shardwise.config.enums import Dtype
from shardwise.errors import InputError
from shardwise.predecessors.amped.translation import amped_case
from shardwise.predecessors.calculon.translation import calculon_case
from shardwise.predecessors.nersc.translation import nersc_case
from shardwise.predecessors.validate.simumax import Measured
from shardwise.validate.measured.predict import Prediction
from shardwise.validate.measured.runs import Case, NotModeledError
from shardwise.validate.measured.statistics import ReferencePrediction

_CALCULON_SYSTEMS = {"a100-80gb-sxm": "calculon-a100-80g", "h100-sxm": "calculon-h100-80g-nvl8"}


def references(predictions: Sequence[Prediction]) -> dict[str, tuple[ReferencePrediction, ...]]:
    """Predict runs by each predecessor, of those that we have a prediction for."""
    ours = [one for one in predictions if one.step_time_s is not None]
    cases = [(one, one.run.case()) for one in ours]
    found = {
        name: tuple(_predict_by(one, case, answer) for one, case in cases)
        for name, answer in _FORMULAS.items()
    }
    return found | _of_simumax(ours)


def _predict_by(
    one: Prediction, case: Case, answer: Callable[[Case], float]
) -> ReferencePrediction:
    theirs, refused = None, None
    try:
        theirs = answer(case)
    except NotModeledError as reason:
        refused = str(reason)
    except InputError as error:
        refused = "; ".join(str(fault) for fault in error.faults)
    return _pair(one, theirs, refused)


def _pair(one: Prediction, theirs: float | None, refused: str | None = None) -> ReferencePrediction:
    assert one.step_time_s is not None  # noqa: S101 - selected by it
    return ReferencePrediction(
        id=one.run.id,
        measured_s=one.measured_step_time_s,
        ours_s=one.step_time_s,
        theirs_s=theirs,
        refused=refused,
    )


def _calculon(case: Case) -> float:
    """Calculon's `total_time` [s]."""
    system = _CALCULON_SYSTEMS.get(case.system.name)
    if system is None:
        raise NotModeledError(f"Calculon has no file of {case.system.name}")
    strategy = case.strategy
    if strategy.dtype == "bf16":
        strategy = strategy.model_copy(update={"dtype": Dtype.FP16})
    found = calculon_case(case.model, system, strategy).answer()
    if "infeasible" in found:
        raise NotModeledError(str(found["message"]))
    return float(found["total_time"])


def _nersc(case: Case) -> float:
    """`t` of NERSC's model [s]."""
    found = nersc_case(case.model, case.system, case.strategy).answer()
    if "infeasible" in found:
        raise NotModeledError(str(found["message"]))
    return float(found["t"])


def _amped(case: Case) -> float:
    """Time of one batch by AMPeD [s]."""
    found = amped_case(case.model, case.system, case.strategy).answer()
    return float(found["Total time to train (s)"])


_FORMULAS: dict[str, Callable[[Case], float]] = {
    "calculon": _calculon,
    "nersc": _nersc,
    "amped": _amped,
}


def _of_simumax(ours: Sequence[Prediction]) -> dict[str, tuple[ReferencePrediction, ...]]:
    """Its predictions of rows, and of the steps of its A100 server."""
    measured = Measured.load("simumax")
    published = {f"simumax-b200-{run.id}_cef": run.their_step_s for run in measured.of("b200")}
    rows = tuple(
        _pair(one, published[one.run.id]) for one in ours if published.get(one.run.id) is not None
    )
    return {"simumax": rows, "simumax-a100": tuple(_a100(measured))} if rows else {}


def _a100(measured: Measured) -> Iterator[ReferencePrediction]:
    speed = measured.servers["a100"].speed
    for run in measured.of("a100"):
        if run.step_s is not None:
            yield ReferencePrediction(
                id=f"simumax-a100-{run.id}",
                measured_s=run.step_s,
                ours_s=measured.estimated(run, speed).step_time_s,
                theirs_s=run.their_step_s,
            )
