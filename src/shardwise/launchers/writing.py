"""Plans written as the files of a launcher, and why one cannot be."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from itertools import product

from shardwise.config.capabilities import ANY
from shardwise.config.enums import CudaGraphs, Quantization, Recompute
from shardwise.config.model import Model
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, check_word, refuse
from shardwise.launchers.launch import Launcher, LaunchFile, LaunchPlan, captured_graphs
from shardwise.parallel.constraints import illegal_faults
from shardwise.parallel.constraints.software import LIFTS

_REMEDY = "; leave it out"


def known_release(launcher: Launcher, release: str | None) -> str:
    """Return a release of a launcher; the first without a name.

    Raises
    ------
    InputError
        If its options are not known.
    """
    if release is None:
        return launcher.releases[0]
    check_word("release", release, launcher.releases)
    return release


def launch_files(
    launcher: Launcher, plan: LaunchPlan, *, release: str | None = None, ending: str | None = None
) -> tuple[LaunchFile, ...]:
    """Return the files of a plan, by default for the first release and with the first ending.

    Raises
    ------
    InputError
        If the launcher cannot express the plan, or has no such release or file ending.
    """
    used = known_release(launcher, release)
    form = launcher.endings[0] if ending is None else ending
    return written_by_release(launcher, plan, release=used, ending=form)[1]


def written_by_release(
    launcher: Launcher, plan: LaunchPlan, *, release: str | None = None, ending: str | None = None
) -> tuple[str, tuple[LaunchFile, ...]]:
    """Return the release and the files of a plan.

    Raises
    ------
    InputError
        If the launcher cannot express the plan, or has no such release or file ending.
    """
    known_release(launcher, release)
    if ending is not None and not (isinstance(ending, str) and ending in launcher.endings):
        problem = f"allowed endings: {', '.join(launcher.endings)}"
        raise InputError(Fault.of("output", ending, problem))
    refuse(_software_faults(launcher, plan))
    refuse(launcher.faults(plan.model, plan.strategy))
    refuse(_precision_faults(launcher, plan))
    refuse(refused(launcher, plan.strategy))
    releases = launcher.releases if release is None else (release,)
    endings = launcher.endings if ending is None else (ending,)
    refusal: InputError | None = None
    for used, form in product(releases, endings):
        try:
            return used, launcher.write(plan, used, form)
        except InputError as error:
            refusal = refusal or error
    assert refusal is not None  # noqa: S101 - there is a release and an ending
    raise refusal


def bound_fields(launcher: Launcher) -> frozenset[str]:
    """Return the fields that the rules of a launcher's stack bind, always or in combinations."""
    capabilities = Stack.load(launcher.stack).capabilities
    if capabilities is None:
        return frozenset()
    bound = {name for name, values in capabilities.fields.items() if ANY not in values}
    combinations = [one for one in capabilities.combinations.values() if one is not None]
    return frozenset(bound.union(*(one.then for one in combinations)))


def refused(launcher: Launcher, strategy: Strategy) -> Iterator[Fault]:
    """Yield fields that a launcher neither says nor ignores, with values that are not its default.

    Fields that its stack binds are left to the rules of the stack, which know where they count.
    """
    known = {*launcher.says, *launcher.ignores, *bound_fields(launcher)}
    for name, info in type(strategy).model_fields.items():
        value = getattr(strategy, name)
        if name not in known and value != info.default:
            yield Fault.of(name, value, f"{launcher.title} has no option for it{_REMEDY}")


def _precision_faults(launcher: Launcher, plan: LaunchPlan) -> Iterator[Fault]:
    """Yield layers in 16 bits next to a recipe, where a launcher has no option for them."""
    quantizes = plan.strategy.quantization != Quantization.NONE and not launcher.layer_precision
    for number, layer in enumerate(plan.model.layers):
        if quantizes and not layer.quantized:
            problem = f"{launcher.title} has no option for it; allowed: true"
            yield Fault.of(f"layers[{number}].quantized", False, problem)


def _software_faults(launcher: Launcher, plan: LaunchPlan) -> Iterable[Fault]:
    """What the launcher's own stack cannot run, of a plan with another stack."""
    own = Stack.load(launcher.stack)
    if plan.strategy.loaded_stack().name in (own.name, *launcher.other_stacks):
        return ()
    # Defaults of the other stack count as set, too: they are written.
    fields = {name: getattr(plan.strategy, name) for name in type(plan.strategy).model_fields}
    if plan.strategy.recompute != Recompute.SELECTIVE:  # nobody set parts that have no effect
        fields["recompute_parts"] = Strategy.model_fields["recompute_parts"].default
    if (graphs := captured_graphs(plan.model, plan.strategy)) != CudaGraphs.NONE:
        fields["cuda_graphs"] = graphs
    strategy = plan.strategy.model_copy(update=fields | {"stack": own})
    found = illegal_faults(plan.model, plan.system, Table.of(plan.model, [strategy])).values()
    return [replace(one, problem=one.problem.removesuffix(LIFTS)) for one in found]


def faults_of_plan(
    launcher: Launcher, plan: LaunchPlan, *, release: str | None = None, ending: str | None = None
) -> tuple[Fault, ...]:
    """Return why a launcher cannot express a plan; nothing if it can."""
    try:
        written_by_release(launcher, plan, release=release, ending=ending)
    except InputError as error:
        return error.faults
    return ()


def why_not_written(launcher: str, model: Model, system: System, strategy: Strategy) -> str:
    """Return why a launcher has no options for a resolved strategy; empty if it has."""
    # That of one launcher: reading the modules of all takes longer than the rest of a search.
    used = import_module(f"{__package__}.{launcher.replace('-', '_')}").LAUNCHER
    faults = faults_of_plan(used, LaunchPlan(model=model, system=system, strategy=strategy))
    if not faults:
        return ""
    why = f"{launcher} cannot write it: {str(faults[0]).removesuffix(_REMEDY)}"
    others = any(one.field not in Strategy.model_fields for one in faults)  # of the model
    return why if others else f"{why}; --for {launcher} lists plans that it can"
