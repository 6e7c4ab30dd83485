"""`peers --reference calculon`: ranks as Calculon numbers them."""

from collections.abc import Callable, Mapping

from shardwise.cli.output import show
from shardwise.config.inputs import Inputs
from shardwise.predecessors.calculon import reference as calculon
from shardwise.predecessors.calculon.translation import CalculonCase
from shardwise.predecessors.cli.estimate import case_of


def show_calculon_peers(
    inputs: Inputs, number_of: Callable[[int], int | None], *, json: bool, output: str | None
) -> None:
    """Print Calculon's peers of all ranks or of one."""
    case = case_of("calculon", inputs)
    assert isinstance(case, CalculonCase)  # noqa: S101 - of that name
    execution = case.execution
    number = number_of(execution.num_procs)
    one = None if number is None else calculon.peers_of_rank(execution, number)

    def tables() -> None:
        from shardwise.predecessors.calculon.tables import print_peers, print_rank  # noqa: PLC0415 - slow

        if number is None or one is None:
            print_peers(execution)
        else:
            print_rank(number, one)

    def record() -> Mapping[str, object]:
        return calculon.peers(execution) if one is None else {str(number): one}

    show(record, tables, json=json, output=output, written=False)
