"""`shardwise models`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwise import catalog
from shardwise.cli.listing import ExplainFlag, list_or_show
from shardwise.cli.options import JsonFlag, OutputOption, emit_json, refuse_options, whole_number
from shardwise.config.files import SUFFIXES, check_writable_ending
from shardwise.config.model import Model
from shardwise.errors import Fault, InputError
from shardwise.ops.param_count import count_parameters
from shardwise.report.tables.catalog import print_model, print_models

_PANEL = "The largest that fits"
_NEEDS_LARGEST = "needs --largest-for SYSTEM"
_NOT_A_FOLDER = "tells of one model: give its name or file"
_NO_NAME = "has no effect beside --largest-for; leave it out"


def _option(flag: str, metavar: str, told: str) -> Any:
    """A flag of the search for the largest model."""
    return typer.Option(flag, metavar=metavar, help=told, rich_help_panel=_PANEL)


NameOrFolder = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Catalog name, file or folder; all if omitted."),
]


def command(
    name: NameOrFolder = None,
    largest_for: Annotated[
        str | None,
        _option(
            "--largest-for",
            "SYSTEM",
            "Find the largest dense GPT that some strategy fits onto --gpus of a system.",
        ),
    ] = None,
    gpus: Annotated[str | None, _option("--gpus", "N", "Accelerators.")] = None,
    gbs: Annotated[
        str | None,
        _option("--gbs", "N", "Global batch [sequences]. Default: one for each accelerator."),
    ] = None,
    seq_len: Annotated[
        str | None, _option("--seq-len", "N", "Tokens per sequence. Default: 2048.")
    ] = None,
    dtype: Annotated[str | None, _option("--dtype", "NAME", "Default: bf16.")] = None,
    space: Annotated[
        str | None,
        _option("--space", "FILE", "File of a space: strategies to try, as in search."),
    ] = None,
    max_memory: Annotated[
        str | None, _option("--max-memory", "SIZE", "Use at most so much of the memory.")
    ] = None,
    reserve: Annotated[
        str | None, _option("--reserve", "SIZE", "Keep so much of the memory free.")
    ] = None,
    count: Annotated[
        str | None,
        _option("--count", "K", "Shapes to show around the limit. Default: 12."),
    ] = None,
    explain: ExplainFlag = False,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """List the models of the catalog, or show one: its shape and its parameters by part.

    With a folder, list every model file in it; a file that is not a model has an error line, and
    the exit code is 2. With --output, write the model to a file to start one of your own from.

    With --largest-for, find the largest dense GPT that fits; exit code 1 if none does. --output
    writes that model.
    """
    asked: dict[str, Any] = {"gpus": gpus, "gbs": gbs, "seq_len": seq_len, "dtype": dtype}
    asked |= {"space": space, "max_memory": max_memory, "reserve": reserve}
    asked["count"] = whole_number("count", count)
    if largest_for is not None:
        refuse_options(_NO_NAME, name=name, explain=explain)
        return _show_largest(largest_for, asked, json=json, output=output)
    refuse_options(_NEEDS_LARGEST, **asked)
    if name is not None and catalog.find("models", name) is None and _is_folder(name):
        refuse_options(_NOT_A_FOLDER, explain=explain)
        _list_folder(Path(name), json=json, output=output)
        return 0
    return list_or_show(
        Model,
        name,
        json=json,
        output=output,
        explain=explain,
        record=_record,
        print_all=print_models,
        print_one=print_model,
    )


def _show_largest(system: str, asked: Mapping[str, Any], *, json: bool, output: str | None) -> int:
    """Find the largest model, print it and its neighbours, or write it to a file."""
    from shardwise.planning.search.largest_model import largest_model  # noqa: PLC0415 - only where asked for

    if output is not None:
        check_writable_ending(output)
    given = {field: value for field, value in asked.items() if value is not None}
    if "gpus" not in given:
        fault = Fault(source="command line", field="gpus", problem="is missing: give it")
        raise InputError(fault)
    found = largest_model(system, **given)
    if output is not None and found.model is not None:
        Model.validated(found.model).to_file(output)
    if json:
        emit_json(found.to_dict())
    elif output is None or found.model is None:
        from shardwise.report.tables.largest_model import print_largest  # noqa: PLC0415

        print_largest(found)
    return 0 if found.largest is not None else 1


def _list_folder(folder: Path, *, json: bool, output: str | None) -> None:
    """List the models of a folder; raise one fault for each file that is none, at the end."""
    models: dict[str, Model] = {}
    refused: dict[str, Fault] = {}
    for path in _model_files(folder):
        try:
            models[path.name] = Model.load(path)
        except InputError as error:
            refused[path.name] = _in_one_line(error)
    if json or output is not None:
        records: dict[str, Any] = {file: _record(model) for file, model in models.items()}
        if refused:
            records["refused"] = {file: str(fault) for file, fault in refused.items()}
        if output is not None:
            emit_json(records, output)
        if json:
            emit_json(records)
    elif models:
        print_models(list(models.values()), list(models))
    if refused:
        raise InputError(list(refused.values()))


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):  # too long, or with a zero byte
        return False


def _model_files(folder: Path) -> list[Path]:
    """Files of a folder whose ending may be a model's, by name; hidden ones are not looked at."""
    try:
        entries = sorted(path for path in folder.iterdir() if not path.is_dir())
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise InputError(Fault(source=str(folder), problem=problem)) from None
    named = [path for path in entries if not path.name.startswith(".")]
    found = [path for path in named if path.name.lower().removesuffix(".gz").endswith(SUFFIXES)]
    if not found:
        problem = f"no model file in this folder; endings: {', '.join(SUFFIXES)}, each also .gz"
        raise InputError(Fault(source=str(folder), problem=problem))
    return found


def _in_one_line(error: InputError) -> Fault:
    """Why a file is not a model; shown alone, the file tells all."""
    first, *others = error.faults
    more = f" (and {len(others)} more)" if others else ""
    return replace(first, problem=first.problem + more)


def _record(model: Model) -> dict[str, Any]:
    counted = count_parameters(model)
    return {
        "name": model.name,
        "parameters": counted.total,
        "active_parameters": counted.active,
        "embedding_parameters": counted.embedding,
        "mtp_parameters": counted.mtp,
        "breakdown": counted.breakdown,
        "model": model.to_dict(),
    }
