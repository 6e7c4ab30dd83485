"""`shardwise search`."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import typer

from shardwise import files
from shardwise.cli.options import (
    JsonFlag,
    ModelArgument,
    OutputOption,
    SystemArgument,
    emit_json,
    refuse_given,
)
from shardwise.comparison import known_reference, model_for_calculon, system_for_calculon
from shardwise.errors import Fault, InputError, nearest
from shardwise.formats.calculon import DTYPES
from shardwise.formats.calculon_files import CalculonModel, CalculonSystem
from shardwise.reference import calculon
from shardwise.strategy import Strategy

_COMMAND_LINE = "command line"
_PANEL = "Calculon's space"
_FLAG_OF = {"num_procs": "gpus", "max_batch_size": "gbs", "datatype": "dtype"}
Progress = Callable[[int, int], None]
_NEEDS_SEARCH = "needs a search; --count only counts the whole space"


def command(
    model: ModelArgument,
    system: SystemArgument,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", metavar="NAME", help="Search with a predecessor's rules: calculon."
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="Processors.", min=1)] = None,
    gbs: Annotated[
        int | None, typer.Option("--gbs", help="Largest global batch [sequences].", min=1)
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", metavar="NAME", help="Datatype.")] = "fp16",
    top: Annotated[int, typer.Option("--top", metavar="K", help="How many to show.", min=1)] = 1,
    count: Annotated[bool, typer.Option("--count", help="Count the candidates and stop.")] = False,
    ok_if_none: Annotated[
        bool, typer.Option("--ok-if-none", help="Exit with 0 even if nothing is feasible.")
    ] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Statistics of every operation of the best.")
    ] = False,
    tp_overlap: Annotated[
        bool,
        typer.Option("--tp-overlap/--no-tp-overlap", help="Try it.", rich_help_panel=_PANEL),
    ] = True,
    dp_overlap: Annotated[
        bool,
        typer.Option("--dp-overlap/--no-dp-overlap", help="Try it.", rich_help_panel=_PANEL),
    ] = True,
    fused_activation: Annotated[
        str,
        typer.Option(
            "--fused-activation", metavar="true|false|both", help="Fused activations, or not."
        ),
    ] = "true",
    mbs_break: Annotated[
        bool,
        typer.Option(
            "--mbs-break", help="Stop growing the micro-batch after the first that is infeasible."
        ),
    ] = False,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """Find the best way to run a model on a number of GPUs in a predecessor's own space.

    Each candidate runs the largest batch up to --gbs that its replicas can share, as Calculon
    does; the best has the highest sample rate. Exit code 1 if none is feasible.
    """
    name = known_reference(_given("reference", reference), "reference")
    if output is not None:
        files.check_writable_ending(output)
    if count:
        refuse_given(_NEEDS_SEARCH, layers=layers, mbs_break=mbs_break)
    space: dict[str, Any] = {
        "num_procs": _given("gpus", gpus),
        "max_batch_size": _given("gbs", gbs),
        "datatype": _datatype(dtype),
        "fused_activation": fused_activation,
        "tp_overlap": tp_overlap,
        "dp_overlap": dp_overlap,
    }
    run = model_for_calculon(model), system_for_calculon(system)
    started = time.perf_counter()
    with _faults_name_flags(dtype):
        if count:
            record = _counted(*run, space)
        else:
            record = _searched(*run, space, top=top, mbs_break=mbs_break, layers=layers)
    record |= {"reference": name, "elapsed_s": time.perf_counter() - started}
    if output is not None:
        emit_json(record, output)
    if json:
        emit_json(record)
    elif output is None:
        _print(record)
    return 0 if count or ok_if_none or record["best"] else 1


def _counted(
    model: CalculonModel, system: CalculonSystem, space: Mapping[str, Any]
) -> dict[str, Any]:
    """Size of the space."""
    size = calculon.count(model, system, **space)
    return {"candidates": size.candidates, "network_feasible": size.network_feasible}


def _searched(
    model: CalculonModel,
    system: CalculonSystem,
    space: Mapping[str, Any],
    *,
    top: int,
    mbs_break: bool,
    layers: bool,
) -> dict[str, Any]:
    """Counts of a search, and the best executions with their statistics."""
    with _progress() as progress:
        result = calculon.search(
            model, system, **space, mbs_break=mbs_break, top_n=top, progress=progress
        )
    best = []
    for execution, statistics in result.best:
        entry: dict[str, Any] = {"execution": execution.to_dict(), "stats": statistics}
        if layers:
            entry["layers"] = calculon.layer_statistics(model, system, execution)
        best.append(entry)
    return {
        "candidates": result.candidates,
        "network_feasible": result.network_feasible,
        "good": result.good,
        "bad": result.bad,
        "rejected": result.rejected,
        "best": best,
    }


def _given(flag: str, value: Any) -> Any:
    if value is None:
        problem = "is missing; allowed: calculon" if flag == "reference" else "is missing: give it"
        raise InputError(Fault(source=_COMMAND_LINE, field=flag, problem=problem))
    return value


def _datatype(name: str) -> str:
    """Calculon's name of a type, by its own or ours."""
    word = name.strip().lower()
    if word in DTYPES:
        return word
    names = {ours: theirs for theirs, ours in DTYPES.items()}
    try:
        dtype = word if word in names else Strategy.validated({"dtype": name}).dtype
    except InputError:
        problem = f"allowed: {', '.join(names)}{nearest(word, names)}"
        fault = Fault(
            source=_COMMAND_LINE, field="dtype", value=name, has_value=True, problem=problem
        )
        raise InputError(fault) from None
    return names[dtype]


@contextmanager
def _faults_name_flags(dtype: str) -> Iterator[None]:
    """Say what is wrong with a space by the flags that it was given by."""
    try:
        yield
    except InputError as error:
        faults = [
            replace(
                fault,
                source=_COMMAND_LINE,
                field=_FLAG_OF.get(fault.field, fault.field),
                value=dtype if fault.field == "datatype" else fault.value,
            )
            for fault in error.faults
        ]
        raise InputError(faults) from None


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on stderr, if someone looks at it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import Progress as Bar  # noqa: PLC0415

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("candidates", total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def _print(record: Mapping[str, Any]) -> None:
    from shardwise.report.reference import (  # noqa: PLC0415 - slow to import
        print_executions,
        print_layers,
    )

    seconds = f"{record['elapsed_s']:.2f} s"
    summary = f"Calculon's space: {record['candidates']:,} candidates, "
    summary += f"{record['network_feasible']:,} of them fit the networks"
    if "good" in record:
        rejected = ", ".join(f"{name} {n:,}" for name, n in record["rejected"].items() if n)
        summary += f"; {record['good']:,} are feasible, found in {seconds}"
        summary += f"\nrejected: {rejected}" if rejected else ""
    best = record.get("best", [])
    print_executions([(entry["execution"], entry["stats"]) for entry in best], summary)
    for entry in best:
        if "layers" in entry:
            print_layers(entry["layers"])
