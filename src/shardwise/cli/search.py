"""`shardwise search`."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from shardwise.cli.options import JsonFlag, ModelArgument, OutputOption, SystemArgument, emit_json
from shardwise.comparison import known_reference, model_for_calculon, system_for_calculon
from shardwise.errors import Fault, InputError
from shardwise.formats.calculon import DTYPES
from shardwise.reference import calculon
from shardwise.strategy import Strategy

_PANEL = "Calculon's space"
Progress = Callable[[int, int], None]


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
    known_reference(_given("reference", reference), "reference")
    the_model, the_system = model_for_calculon(model), system_for_calculon(system)
    space: dict[str, Any] = {
        "num_procs": _given("gpus", gpus),
        "max_batch_size": _given("gbs", gbs),
        "datatype": _datatype(dtype),
        "fused_activation": fused_activation,
        "tp_overlap": tp_overlap,
        "dp_overlap": dp_overlap,
    }
    started = time.perf_counter()
    if count:
        size = calculon.count(the_model, the_system, **space)
        record: dict[str, Any] = {
            "candidates": size.candidates,
            "network_feasible": size.network_feasible,
        }
        found: list[tuple[Any, Any]] = []
        feasible = True
    else:
        with _progress() as progress:
            result = calculon.search(
                the_model, the_system, **space, mbs_break=mbs_break, top_n=top, progress=progress
            )
        found = [(execution.to_dict(), stats) for execution, stats in result.best]
        feasible = bool(found) or ok_if_none
        record = {
            "candidates": result.candidates,
            "network_feasible": result.network_feasible,
            "good": result.good,
            "bad": result.bad,
            "rejected": result.rejected,
        }
    record |= {"reference": "calculon", "elapsed_s": time.perf_counter() - started}
    if not count:
        record["best"] = [{"execution": execution, "stats": stats} for execution, stats in found]
    if layers and not count:
        for entry, (execution, _) in zip(record["best"], result.best, strict=True):
            entry["layers"] = calculon.layer_statistics(the_model, the_system, execution)
    if output is not None:
        emit_json(record, output)
    if json:
        emit_json(record)
    elif output is None:
        _print(record, found)
    return 0 if feasible else 1


def _given(flag: str, value: Any) -> Any:
    if value is None:
        problem = "is missing; allowed: calculon" if flag == "reference" else "is missing: give it"
        raise InputError(Fault(source="command line", field=flag, problem=problem))
    return value


def _datatype(name: str) -> str:
    """Calculon's name of a type, by its own or ours."""
    if name in DTYPES:
        return name
    names = {ours: theirs for theirs, ours in DTYPES.items()}
    if name.lower() in names:
        return names[name.lower()]
    dtype = Strategy.validated({"dtype": name}, source="command line").dtype
    return names[dtype]


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


def _print(record: dict[str, Any], found: list[tuple[Any, Any]]) -> None:
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
    print_executions(found, summary)
    for entry in record.get("best", []):
        if "layers" in entry:
            print_layers(entry["layers"])
