"""What the predecessors predict for measured runs.

Calculon, NERSC's model and AMPeD answer by their formulas as published (`interop/*/reference`), for
runs put in their words in the way of `estimate --also`:

- Calculon on its own files of an A100 and an H100, as it times kernels by curves that our systems
  have not, with its own network whatever the row says of it; bf16 as fp16, as both have one rate;
- NERSC's model on our system, converted;
- AMPeD likewise, its products at 0.51 of the peak.

What they refuse, be it for lack of words or of memory, has their reason. SimuMax answers with the
predictions that it published, for 30 rows and for the steps of its A100 server, which are no rows.
"""

from collections.abc import Callable, Iterator, Sequence

from shardwise.config.enums import Dtype
from shardwise.errors import InputError
from shardwise.interop.amped.translation import amped_case
from shardwise.interop.calculon.translation import calculon_case
from shardwise.interop.nersc.translation import nersc_case
from shardwise.validate.measured.predict import Prediction, Translation, translate
from shardwise.validate.measured.run import NotModelledError
from shardwise.validate.measured.statistics import Beside
from shardwise.validate.simumax import Measured

__all__ = ["references"]

_CALCULON_SYSTEMS = {"a100-80gb-sxm": "calculon-a100-80g", "h100-sxm": "calculon-h100-80g-nvl8"}


def references(predictions: Sequence[Prediction]) -> dict[str, tuple[Beside, ...]]:
    """Put what each predecessor says beside our predictions, of runs that we have one for."""
    ours = [one for one in predictions if one.step_time_s is not None]
    told = [(one, translate(one.run)) for one in ours]
    found = {
        name: tuple(_beside(one, said, answer) for one, said in told)
        for name, answer in _FORMULAS.items()
    }
    return found | _of_simumax(ours)


def _beside(one: Prediction, said: Translation, answer: Callable[[Translation], float]) -> Beside:
    theirs, refused = None, None
    try:
        theirs = answer(said)
    except NotModelledError as reason:
        refused = str(reason)
    except InputError as error:
        refused = "; ".join(str(fault) for fault in error.faults)
    return _pair(one, theirs, refused)


def _pair(one: Prediction, theirs: float | None, refused: str | None = None) -> Beside:
    assert one.step_time_s is not None  # noqa: S101 - chosen by it
    return Beside(
        id=one.run.id,
        measured_s=one.measured_step_time_s,
        ours_s=one.step_time_s,
        theirs_s=theirs,
        refused=refused,
    )


def _calculon(said: Translation) -> float:
    """Calculon's `total_time` [s]."""
    system = _CALCULON_SYSTEMS.get(said.system.name)
    if system is None:
        raise NotModelledError(f"Calculon has no file of {said.system.name}")
    strategy = said.strategy
    if strategy.dtype == "bf16":
        strategy = strategy.model_copy(update={"dtype": Dtype.FP16})
    found = calculon_case(said.model, system, strategy).answer()
    if "infeasible" in found:
        raise NotModelledError(str(found["message"]))
    return float(found["total_time"])


def _nersc(said: Translation) -> float:
    """`t` of NERSC's model [s]."""
    found = nersc_case(said.model, said.system, said.strategy).answer()
    if "infeasible" in found:
        raise NotModelledError(str(found["message"]))
    return float(found["t"])


def _amped(said: Translation) -> float:
    """Time of one batch by AMPeD [s]."""
    found = amped_case(said.model, said.system, said.strategy).answer()
    return float(found["Total time to train (s)"])


_FORMULAS: dict[str, Callable[[Translation], float]] = {
    "calculon": _calculon,
    "nersc": _nersc,
    "amped": _amped,
}


def _of_simumax(ours: Sequence[Prediction]) -> dict[str, tuple[Beside, ...]]:
    """Its predictions of rows by their id, and with these of the steps of its A100 server."""
    measured = Measured.load("simumax")
    published = {f"simumax-b200-{run.id}_cef": run.their_step_s for run in measured.of("b200")}
    rows = tuple(
        _pair(one, published[one.run.id]) for one in ours if published.get(one.run.id) is not None
    )
    return {"simumax": rows, "simumax-a100": tuple(_a100(measured))} if rows else {}


def _a100(measured: Measured) -> Iterator[Beside]:
    speed = measured.servers["a100"].speed
    for run in measured.of("a100"):
        if run.step_s is not None:
            yield Beside(
                id=f"simumax-a100-{run.id}",
                measured_s=run.step_s,
                ours_s=measured.estimated(run, speed).step_time_s,
                theirs_s=run.their_step_s,
            )
