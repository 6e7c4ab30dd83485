"""`shardwise stacks`."""

from shardwise.cli.listing import ExplainFlag, NameArgument, list_or_show
from shardwise.cli.options import JsonFlag, OutputOption
from shardwise.config.stack import Stack
from shardwise.report.tables.catalog import print_figures, print_stacks


def command(
    name: NameArgument = None,
    explain: ExplainFlag = False,
    json: JsonFlag = False,
    output: OutputOption = None,
) -> int:
    """List the software stacks of the catalog, or show one: every figure with its source.

    With --output, write the stack to a file to start one of your own from.
    """
    return list_or_show(
        Stack,
        name,
        json=json,
        output=output,
        explain=explain,
        record=Stack.to_dict,
        print_all=print_stacks,
        print_one=print_figures,
    )
