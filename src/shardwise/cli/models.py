"""`shardwise models`."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from shardwise import catalog, registry
from shardwise.cli.help import with_help
from shardwise.cli.listing import EXPLAIN_FLAG, list_or_show
from shardwise.cli.options import (
    JSON_FLAG,
    OUTPUT_OPTION,
    arg,
    missing_flag,
    opt,
    refuse_options,
    used,
    with_options,
)
from shardwise.cli.output import emit_json, note, printed, show
from shardwise.config.arguments import whole_number
from shardwise.config.files import (
    SUFFIXES,
    check_result_ending,
    check_writable_ending,
    is_folder,
)
from shardwise.config.model import Model
from shardwise.errors import Fault, InputError
from shardwise.report.tables.catalog import model_record, print_model, print_models

_PANEL = "Largest model that fits (with --largest-for)"
_NEEDS_LARGEST = "needs --largest-for SYSTEM"
_NOT_A_FOLDER = "explains one model: add its name or file"
_NO_NAME = "has no effect with --largest-for"
_ALONE = "has no effect with --coverage"


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestOptions:
    """Options of `models --largest-for`."""

    gpus: str | None = opt("--gpus N", "Number of GPUs.", _PANEL)
    gbs: str | None = opt("--gbs N", "Global batch [sequences]. Default: one per GPU.", _PANEL)
    seq_len: str | None = opt("--seq-len N", "Tokens per sequence. Default: 2048.", _PANEL)
    dtype: str | None = opt("--dtype NAME", "Default: bf16, or what the system has.", _PANEL)
    space: str | None = opt(
        "--space FILE", "Search space file: strategies to try, as in search.", _PANEL
    )
    max_memory: str | None = opt("--max-memory SIZE", "Upper limit of usable memory.", _PANEL)
    reserve: str | None = opt("--reserve SIZE", "Memory to leave free.", _PANEL)
    shapes: str | None = opt(
        "--shapes gpt|calculon",
        "Proportions of GPT-3 (default), or the shapes of Calculon's study of huge models; "
        "without --largest-for, list the latter.",
        _PANEL,
    )
    count: str | None = opt("--count K", "Shapes to list around the limit. Default: 12.", _PANEL)


@with_help(
    "explain coverage largest_for gpus json output",
    examples=["shardwise models llama3-8b", "shardwise models --largest-for h100-sxm --gpus 64"],
)
@with_options
def command(
    *,
    name: str | None = arg(
        "[MODEL]", "Catalog name, file or folder; all if omitted.", default=None
    ),
    largest_for: str | None = opt(
        "--largest-for SYSTEM", "Find the largest dense GPT that fits on --gpus of SYSTEM.", _PANEL
    ),
    largest: LargestOptions,
    explain: bool = EXPLAIN_FLAG,
    coverage: bool = opt("--coverage", "List families of transformers: read, or refused and why."),
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """List the models of the catalog, or show one: its shape and its parameters by component.

    With part of a name, list those whose names contain it, as in `models llama3`.

    With a folder, list every model file in it; a file that is not a model gets an error line, and
    the exit code is 2. With --output, write the model to a file, as a template for your own.

    With --largest-for, find the largest dense GPT that fits: in practice, and as a limit with
    everything allowed; exit code 1 if none does. --output writes the practical model.

    With --coverage, list the families of the newest release of transformers that was compared:
    which config.json files are read, and why others are not.
    """
    if coverage:
        refuse_options(_ALONE, name=name, explain=explain, largest_for=largest_for)
        refuse_options(_ALONE, **asdict(largest))
        found = registry.function("coverage")()
        show(found.to_dict, printed("coverage:print_coverage", found), json=json, output=output)
        return 0
    if largest_for is not None:
        refuse_options(_NO_NAME, name=name, explain=explain)
        return _show_largest(largest_for, largest, json=json, output=output)
    if largest.shapes == "calculon" and name is None:
        refuse_options(_NEEDS_LARGEST, **asdict(replace(largest, shapes=None)), explain=explain)
        return _list_shapes(json=json, output=output)
    refuse_options(_NEEDS_LARGEST, **asdict(largest))
    if name is not None and catalog.find("models", name) is None and is_folder(name):
        refuse_options(_NOT_A_FOLDER, explain=explain)
        _list_folder(Path(name), json=json, output=output)
        return 0
    return list_or_show(
        Model,
        name,
        json=json,
        output=output,
        explain=explain,
        record=model_record,
        print_all=print_models,
        print_one=print_model,
    )


def _show_largest(system: str, options: LargestOptions, *, json: bool, output: str | None) -> int:
    """Find the largest model, print it and its neighbors, or write it to a file."""
    from shardwise.planning.search.largest_model import largest_model  # noqa: PLC0415 - slow to import

    if output is not None:
        check_writable_ending(output)
    values = used(options)
    if options.count is not None:
        values["count"] = whole_number("count", options.count)
    if options.gpus is None:
        raise missing_flag("gpus")
    found = largest_model(system, **values)
    model = found.practical.model or found.model
    if output is not None and model is not None:
        Model.validated(model).to_file(output)
        if found.practical.model is None:
            note(f"{output}: fits the limit only, not in practice")
    if json:
        emit_json(found.to_dict())
    elif output is None or model is None:
        printed("largest_model:print_largest", found)()
    if json and found.largest is None:
        note("none of these shapes fits")
    return 0 if found.largest is not None else 1


def _list_shapes(*, json: bool, output: str | None) -> int:
    """List the shapes of Calculon's study, without a system."""
    from shardwise.planning.search.largest_model import calculon_rows  # noqa: PLC0415 - slow to import

    rows = calculon_rows()
    if output is not None:
        check_result_ending(output)
    show(
        lambda: {"shapes": rows},
        printed("largest_model:print_shapes", rows),
        json=json,
        output=output,
    )
    return 0


def _list_folder(folder: Path, *, json: bool, output: str | None) -> None:
    """List the models of a folder; then raise one fault for each file that is not a model."""
    models: dict[str, Model] = {}
    refused: dict[str, Fault] = {}
    for path in _model_files(folder):
        try:
            models[path.name] = Model.load(path)
        except InputError as error:
            first, *others = error.faults
            more = f" (and {len(others)} more)" if others else ""
            refused[path.name] = replace(first, problem=first.problem + more)
    if json or output is not None:
        records: dict[str, object] = {file: model_record(model) for file, model in models.items()}
        if refused:
            records["refused"] = {file: str(fault) for file, fault in refused.items()}
        emit_json(records, output, written=False)
    elif models:
        print_models(list(models.values()), list(models))
    if refused:
        raise InputError(list(refused.values()))


def _model_files(folder: Path) -> list[Path]:
    """Files of a folder with an ending of model files, by name, without hidden files."""
    try:
        entries = sorted(path for path in folder.iterdir() if not path.is_dir())
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise InputError.at(str(folder), problem) from None
    named = [path for path in entries if not path.name.startswith(".")]
    found = [path for path in named if path.name.lower().removesuffix(".gz").endswith(SUFFIXES)]
    if not found:
        problem = f"no model file in this folder; endings: {', '.join(SUFFIXES)}, each also .gz"
        raise InputError.at(str(folder), problem)
    return found
