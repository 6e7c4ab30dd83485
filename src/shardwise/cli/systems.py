"""`shardwise systems`."""

from shardwise.cli.listing import ExplainFlag, NameArgument, list_or_show
from shardwise.cli.options import JsonFlag, OutputOption
from shardwise.config.system import System
from shardwise.report.tables.catalog import print_figures, print_systems


def command(
    name: NameArgument = None,
    explain: ExplainFlag = False,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """List the systems of the catalog, or show one: every figure with its source.

    With --output, write the system to a file to start one of your own from.
    """
    return list_or_show(
        System,
        name,
        json=json,
        output=output,
        explain=explain,
        record=System.to_dict,
        print_all=print_systems,
        print_one=print_figures,
    )
