"""`shardwise config`."""

from rich.text import Text

from shardwise import catalog
from shardwise.cli.help import with_help
from shardwise.cli.options import JSON_FLAG, OUTPUT_OPTION
from shardwise.cli.output import show
from shardwise.config import team
from shardwise.report import console


@with_help(examples=["shardwise config"])
def command(*, json: bool = JSON_FLAG, output: str | None = OUTPUT_OPTION) -> int:
    """Show the defaults of your team that are in force, and the file that sets each.

    A configuration file names catalog folders, a price book, a stack and failure rates. It is the
    file of SHARDWISE_CONFIG, or shardwise/config.yaml in XDG_CONFIG_HOME or ~/.config.
    SHARDWISE_CATALOG lists catalog folders.
    """
    settings = team.settings()

    def tables() -> None:
        table = console.plain_table("setting", "value", "set by", left=3, wraps=("value", "set by"))
        for one in settings:
            table.add_row(*(Text(str(one[key] or "-")) for key in ("setting", "value", "set_by")))
        console.show(table)

    variables = {"config": catalog.CONFIG, "catalog": catalog.CATALOG}
    show(lambda: {"settings": settings, "variables": variables}, tables, json=json, output=output)
    return 0
