"""Result of `plan_fsdp`: the plan, its proof, alternatives, and its forms as code."""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, get_args

from shardwise.errors import Fault, InputError, allowed_words
from shardwise.frozen import FrozenRecord
from shardwise.fsdp.emit import Form, huggingface_form, python_code, torchtitan_form
from shardwise.fsdp.plan import Setting
from shardwise.fsdp.planner.evaluate import Evaluated
from shardwise.fsdp.planner.planner import NamedPlan, Planned, Planner
from shardwise.fsdp.profile import Profile
from shardwise.fsdp.sources import Kind
from shardwise.shown import Charted
from shardwise.units import readable

if TYPE_CHECKING:
    from shardwise.fsdp.trace import LoadedModel
    from shardwise.fsdp.verify import Verified


FormName = Literal["python", "torchtitan", "huggingface"]
FORMS: tuple[FormName, ...] = get_args(FormName)
_MIB = 2**20
_NAMES_NOTE = (
    "names are those of a decoder of Hugging Face without its prefix `model.`; "
    "projections that a model fuses have other names there"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Fewest GPUs and largest batch that fit."""

    gpus: int | None
    """Fewest GPUs; None: none of those tried."""
    batch: int | None
    """Most sequences on a GPU; None: not even one, or not known."""
    tried: tuple[int, ...]
    """Numbers of GPUs."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Predicted peak memory compared with that of PyTorch's own FSDP2 on fake tensors."""

    predicted_bytes: float
    tracked_bytes: int
    """Peak of forward, backward and the optimizer's step."""
    forward_bytes: int
    backward_bytes: int
    optimizer_bytes: int
    """Peak of the optimizer's step, the same with any wrapping."""
    phase: str
    place: str
    elapsed_s: float
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """Predicted over tracked, minus one."""
        return self.predicted_bytes / self.tracked_bytes - 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self) | {"notes": list(self.notes), "error": self.error}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FsdpPlan(FrozenRecord, Charted):
    """The best wrapping of a model within a budget.

    Examples
    --------
    >>> from shardwise import plan_fsdp
    >>> plan = plan_fsdp("llama3-8b", "h100-sxm", gpus=8)
    >>> plan.feasible, plan.fits(plan.best().plan)
    (True, True)
    """

    kind: Kind
    """Kind of source: module statistics, a torch module or shardwise's own operations."""
    system: str | None
    batch: int | None
    """Sequences on a GPU; None: as in the statistics."""
    seq_len: int | None
    planner: Planner
    budget_bytes: float
    """Infinite where there is none."""
    budget_from: str
    planned: Planned | None
    """None: nothing fits."""
    usual: tuple[NamedPlan, ...]
    """Common wrappings."""
    own: NamedPlan | None
    """The user's wrapping."""
    front: tuple[Planned, ...] | None
    """Best wrappings from the fastest to the least memory; None: not requested."""
    what_if: WhatIf | None
    load: "Callable[[], LoadedModel] | None"
    verified: Checked | None = None
    """Memory of torch's FSDP2; None: not requested, or nothing fits."""
    assumed: tuple[str, ...]
    profile_s: float
    """Time that tracing or profiling took [s]."""

    @property
    def profile(self) -> Profile:
        """The unsharded step."""
        return self.planner.profile

    @property
    def setting(self) -> Setting:
        """How FSDP2 is set up."""
        return self.planner.setting

    @property
    def feasible(self) -> bool:
        """Whether any wrapping fits the budget."""
        return self.planned is not None

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.profile.name or self.profile.source

    @cached_property
    def least_budget_bytes(self) -> float:
        """Smallest budget that any wrapping fits in [byte]."""
        return self.planner.least_peak_bytes

    @property
    def reason(self) -> str:
        """Why there is no plan; empty if there is one."""
        if self.planned is not None:
            return ""
        budget = readable(self.budget_bytes, "bytes", 4)
        least = ceil(self.least_budget_bytes / _MIB)
        which = (
            "that one fits in" if self.planner.least_peak_proven else "found within the time limit"
        )
        reason = f"no wrapping fits in {budget}; the least memory {which} is {least} MiB"
        reason += f" ({readable(self.least_budget_bytes, 'bytes', 4)})"
        if self.planner.checkpoint == "none" and self.planner.checkpointable:
            reason += "; with blocks checkpointed (checkpoint choose) it may be less"
        return reason

    def best(self) -> Planned:
        """The plan.

        Raises
        ------
        InputError
            If nothing fits.
        """
        if self.planned is None:
            raise InputError(Fault(field="memory_budget", problem=self.reason))
        return self.planned

    def emitted(self, form: str = "python") -> Form:
        """The plan as code: `python`, `torchtitan` or `huggingface`."""
        form = known_form(form)
        wrapping, setting = self.best().plan.wrapping, self.setting
        modules, keyed = self._names
        notes = (_NAMES_NOTE,) if self.kind == "operations" else ()
        if form == "huggingface":
            made = huggingface_form(wrapping, setting, modules=modules)
            return Form(text=made.text, notes=(*made.notes, *notes))
        named: dict[str, Any] = {"model_name": self.model, "modules": modules}
        if form == "torchtitan":
            made = torchtitan_form(wrapping, setting, **named)
            return Form(text=made.text, notes=(*made.notes, *notes))
        text = python_code(wrapping, setting, **named, keyed=keyed)
        return Form(text=text, notes=notes)

    @cached_property
    def _names(self) -> tuple[Collection[str], Collection[str]]:
        """Names of all modules, and of those that are dictionaries of modules."""
        if self.load is not None:
            torch = import_module("torch")
            fake = import_module("torch._subclasses.fake_tensor").FakeTensorMode
            with fake(allow_non_fake_inputs=True):
                found = dict(self.load().build().named_modules(remove_duplicate=False))
            keyed = [name for name, one in found.items() if isinstance(one, torch.nn.ModuleDict)]
            return list(found), keyed
        return [*self.profile.positions, *self.profile.never_run], ()

    def verify(self) -> Checked:
        """Run the plan on fake tensors under PyTorch's FSDP2, counting every byte.

        Raises
        ------
        InputError
            If torch is missing, the source is no module, or nothing fits.
        """
        if self.load is None:
            problem = "needs a torch module: package.module:factory or a config of Hugging Face"
            raise InputError(Fault(field="verify", problem=problem))
        verify = import_module("shardwise.fsdp.verify").verify
        plan = self.best().plan
        found: Verified = verify(
            self.load(),
            plan.wrapping,
            self.setting,
            batch=self.batch or 1,
            seq_len=self.seq_len or 1,
        )
        return Checked(
            predicted_bytes=plan.peak.total_bytes,
            tracked_bytes=found.peak_bytes,
            forward_bytes=found.forward.total_bytes,
            backward_bytes=found.backward.total_bytes,
            optimizer_bytes=found.optimizer.total_bytes,
            phase=found.peak.phase,
            place=found.peak.place,
            elapsed_s=found.elapsed_seconds,
            notes=found.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        record: dict[str, Any] = {
            "model": self.model,
            "source": self.profile.source,
            "kind": self.kind,
            "system": self.system,
            "gpus": self.setting.gpus,
            "batch": self.batch,
            "seq_len": self.seq_len,
            "setting": asdict(self.setting),
            "space": {
                "reshard": self.planner.reshard,
                "checkpoint": self.planner.checkpoint,
                "group": self.planner.most_grouped,
                "modules": len(self.profile.modules),
            },
            "memory_budget_bytes": self.budget_bytes,
            "memory_budget_from": self.budget_from,
            "feasible": self.feasible,
            "reason": self.reason,
        }
        if self.planned is None:
            record |= {"least_memory_budget_bytes": self.least_budget_bytes}
            record |= {"units": [], "unit_details": [], "checkpointed": [], "memory": None}
            nothing = ("peak_memory_bytes", "exposed_s", "step_s", "bound_s", "elapsed_s")
            record |= dict.fromkeys(nothing) | {"optimal": False}
        else:
            plan = self.planned.plan
            details = [asdict(unit) | {"modules": list(unit.modules)} for unit in plan.units]
            record |= _planned(self.planned)
            record |= {"unit_details": details, "exposed_end_s": plan.exposed_end_s}
            record["memory"] = {
                "phase": plan.peak.phase,
                "module": plan.peak.module,
                "total": plan.peak.total_bytes,
                "bytes": dict(plan.peak.bytes),
            }
            record["units"] = self._source_names(record["units"])
        record |= {
            "profile_s": self.profile_s,
            "usual": [self._named(one) for one in self.usual],
            "own": None if self.own is None else self._named(self.own),
        }
        if self.front is not None:
            record["front"] = [_planned(one) for one in self.front]
        if self.what_if is not None:
            record["what_if"] = asdict(self.what_if)
        if self.verified is not None:
            record["verified"] = self.verified.to_dict()
        return record | {"assumed": list(self.assumed)}

    def _source_names(self, units: list[str | list[str]]) -> list[str | list[str]]:
        """Units by their names in the source: in statistics with the class of the model first."""
        if self.kind != "statistics":
            return units
        root = self.profile.modules[0].kind
        return [
            f"{root}.{unit}" if isinstance(unit, str) else [f"{root}.{name}" for name in unit]
            for unit in units
        ]

    def fits(self, plan: Evaluated) -> bool:
        """Whether a wrapping fits the budget."""
        return plan.peak.total_bytes <= self.budget_bytes

    def _named(self, one: NamedPlan) -> dict[str, Any]:
        return {"name": one.name, "fits": self.fits(one.plan), **_costs(one.plan)}


def known_form(name: str) -> FormName:
    """The canonical name of a form of code."""
    for form in FORMS:
        if name.strip().lower() == form:
            return form
    raise InputError.of("emit", name, allowed_words(name, FORMS))


def _costs(plan: Evaluated) -> dict[str, object]:
    """Costs of a wrapping; its units by name, groups as lists."""
    names = [list(unit.modules) for unit in plan.wrapping.units]
    return {
        "units": [one[0] if len(one) == 1 else one for one in names],
        "checkpointed": list(plan.wrapping.checkpointed),
        "peak_memory_bytes": plan.peak.total_bytes,
        "exposed_s": plan.exposed_s,
        "compute_s": plan.compute_s,
        "recompute_s": plan.recompute_s,
        "step_s": plan.step_s,
    }


def _planned(planned: Planned) -> dict[str, object]:
    """A best wrapping and its proof."""
    return _costs(planned.plan) | {
        "optimal": planned.optimal,
        "cost_s": planned.cost_s,
        "bound_s": planned.bound_s,
        "elapsed_s": planned.elapsed_s,
        "labels": planned.labels,
    }
