"""`shardwise show`."""

from collections.abc import Mapping

from shardwise.analysis import Result
from shardwise.analysis.saved import MOST_BYTES, read_saved
from shardwise.analysis.saved_plan import read_plan, split_plan
from shardwise.cli.help import with_help
from shardwise.cli.options import JSON_FLAG, OUTPUT_OPTION, arg
from shardwise.cli.output import note, show
from shardwise.config import files
from shardwise.errors import InputError
from shardwise.foreign import is_launch
from shardwise.planning.recipes import RecipeNote
from shardwise.planning.search.results import Explanation

_ADDED: Mapping[str, type[Result]] = {"explanation": Explanation, "recipe": RecipeNote}
"""What commands add to a result, and show."""


@with_help(examples=["shardwise show found.json", "shardwise show found.json#3"])
def command(
    file: str = arg(
        "FILE[#N]", "Saved result (--json, --output; also .gz); with #N, plan N of a search."
    ),
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """Show a saved result with the tables of the command that wrote it.

    Results of estimate, search, sweep, compare, diagnose, recipes RECIPE and models --largest-for
    can be shown. Nothing is estimated again. Exit code 0 also for a plan that does not fit.
    """
    if output is not None:
        files.check_result_ending(output)
    path, number = split_plan(file)
    if number is not None:
        plan = read_plan(file).estimate
        show(plan.to_dict, lambda: _print(plan), json=json, output=output)
        return 0
    if is_launch(path):
        problem = "is a launch file: read it with shardwise import"
        raise InputError.at(path, problem)
    data = files.read_mapping(path, most_bytes=MOST_BYTES)
    found = read_saved(data, path)
    added = {name: _added(name, data[name], path) for name in found.ADDED if name in data}

    def tables() -> None:
        if isinstance(explained := added.get("explanation"), Result):
            _print(explained)
        _print(found)
        if isinstance(recipe := added.get("recipe"), RecipeNote):
            from shardwise.report.tables.recipes import print_measured  # noqa: PLC0415 - slow

            print_measured(recipe.to_dict())
        if others := [name for name, one in added.items() if one is None]:
            note(f"{path} also has {', '.join(others)}: see --json")

    show(lambda: data, tables, json=json, output=output)
    return 0


def _added(name: str, data: object, source: str) -> Result | None:
    """What a command added, if it has a record."""
    record = _ADDED.get(name)
    if record is None:
        return None
    if not isinstance(data, Mapping):
        raise InputError.at(source, "must be a mapping", name)
    return record.read(data, source=source, field=name)


def _print(found: Result) -> None:
    from shardwise.report.views import print_tables  # noqa: PLC0415 - slow to import

    print_tables(found)
