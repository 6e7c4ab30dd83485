"""The page on launchers: what each can express is generated from the capabilities of its stack."""

from pathlib import Path

from generated import check
from page_tables import table
from shardwise.config.capabilities import described
from shardwise.config.stack import Stack
from shardwise.config.strategy_fields import COLUMNS
from shardwise.launchers.registry import LAUNCHERS
from shardwise.parallel.constraints import software

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "launchers.md"
BEGIN, END = "<!-- generated: what each launcher can express -->\n", "\n<!-- end -->"


def _cell(stack, name):
    """Values of a field that the release of a stack lists, or all."""
    field = COLUMNS[name]
    values = (False, True) if isinstance(field.default, bool) else (*field.role.every, *field.words)
    values = tuple(dict.fromkeys(values))
    if isinstance(field.default, tuple) and not software.can_run(stack, name, values[:1]):
        values = (None, *values)
    if not values:
        listed = software.capabilities_of(stack).fields.get(name, ("any",))
        return "any" if "any" in listed else described(listed)
    runs = [value for value in values if software.can_run(stack, name, value)]
    if len(runs) == len(values):
        return "all"
    return ", ".join(described((one,)) for one in runs) or "-"


def _table():
    stacks = [Stack.load(one.stack) for one in LAUNCHERS]
    rows = [[f"`{name}`", *(_cell(stack, name) for stack in stacks)] for name in COLUMNS]
    shown = [row for row in rows if len({*row[1:]}) > 1]
    heads = ["field", *(one.name for one in LAUNCHERS)]
    about = [
        ["release", *(", ".join(one.releases) for one in LAUNCHERS)],
        ["files", *(", ".join(f"`{end}`" for end in one.endings) for one in LAUNCHERS)],
        ["stack", *(f"`{one.stack}`" for one in LAUNCHERS)],
    ]
    return table(heads, about + shown, left=len(heads))


def test_the_table_of_the_page_is_that_of_the_capabilities():
    """Between its marks; the rest of the page is prose."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    check(PAGE, f"{before}{BEGIN}{_table()}{END}{after}")


def test_every_launcher_has_a_column_and_capabilities():
    """A stack without capabilities would allow everything."""
    heads = _table().splitlines()[0]
    for one in LAUNCHERS:
        assert f" {one.name} " in heads
        assert software.capabilities_of(Stack.load(one.stack)) is not None
