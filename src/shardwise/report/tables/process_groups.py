"""Communication groups as tables: all of them by axis, or those of one rank."""

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from shardwise.config.strategy_fields import PARALLELISM
from shardwise.parallel.process_groups import EXPERT_AXES, Peers, RankPeers
from shardwise.report.console import is_narrow, plain_table, show

_LABELS = {
    **PARALLELISM,
    "ep": "experts",
    "edp": "data, of experts",
}
_GIGA = 1e9
_SHOWN_GROUPS = 3
# Columns that three groups of every axis take.
_WIDE = 120
# Of more ranges than this, the first three and the last are shown.
_SHOWN_RANGES = 5
_HEAD = 3
# Consecutive ranks from this many on are a range.
_RUN = 3


def print_peers(peers: Peers) -> None:
    """Print the groups of each axis: how many, how they lie on the network, the first of them."""
    show(_headline(peers))
    show(_network(peers))
    split = [axis for axis, described in peers.axes.items() if described.degree > 1]
    if not split:
        show(Text("\none rank, no groups"))
        return
    tiers = [f"in {escape(tier)}" for tier in peers.tiers]
    heads = ("groups", "count", "members", *tiers, "first ranks")
    table = plain_table(*heads, texts=heads[-1:], wraps=heads[-1:])
    for axis in split:
        described = peers.axes[axis]
        extents = (str(extent) for extent in described.extents)
        count, members = str(len(described.groups)), str(described.degree)
        table.add_row(
            _label(axis), count, members, *extents, first_groups(described.groups.tolist())
        )
    if peers.embedding_groups.size:
        pairs = peers.embedding_groups.tolist()
        blank = ("" for _ in peers.tiers)
        table.add_row("embedding copies", str(len(pairs)), "2", *blank, first_groups(pairs))
    note = "in a network tier: members of a group that share one of its domains"
    show(table, Text(note, style="dim"))


def _network(peers: Peers) -> Table:
    """The tiers of the network, outermost first, each inside the one above it."""
    heads = ("network", "domains", "GPUs of each", "GB/s per GPU", "links of a node", "carries")
    table = plain_table(*heads, texts=heads[-1:], optional=heads[4:5])
    for depth, tier in enumerate(reversed(peers.network)):
        rate, links = f"{tier.bandwidth / _GIGA:,.4g}", tier.links_per_node
        carries = ", ".join(_label(axis) for axis in tier.carries) or "-"
        name = Text(f"{'  ' * depth}{tier.name}")
        cells = (f"{tier.domains:,}", f"{tier.domain:,}", rate, str(links or "own"), carries)
        table.add_row(name, *cells)
    return table


def print_rank(peers: Peers, one: RankPeers) -> None:
    """Print the place of one rank and the ranks that it communicates with."""
    show(_headline(peers))
    place = one.rank % peers.accelerators_per_node
    show(Text(f"\nrank {one.rank}: accelerator {place} of node {one.node}", style="bold"))
    heads = ("group", "coordinate", "ranks of the group")
    table = plain_table(*heads, texts=heads[-1:], wraps=heads[-1:])
    for axis, described in peers.axes.items():
        if described.degree > 1:
            at = f"{getattr(one, axis)} of 0-{described.degree - 1}"
            table.add_row(_label(axis), at, as_ranges(peers.group(axis, one.rank)))
    if table.row_count:
        show(table)
    if peers.axes["pp"].degree > 1:
        neighbours = f"previous stage: {_rank(one.previous_rank)}, next: {_rank(one.next_rank)}"
        show(Text(f"pipeline stage {one.stage}; {neighbours}"))
    if one.embedding_peer is not None:
        show(Text(f"copy of the embedding shared with rank {one.embedding_peer}"))


def as_ranges(ranks: Sequence[int]) -> str:
    """Show rising ranks in a few words: `0-7`, `0, 8, 16, ... 56`, `0-3, 8-11`."""
    parts = list(_runs(ranks))
    if len(parts) > _SHOWN_RANGES:
        return f"{', '.join(parts[:_HEAD])}, ... {parts[-1]}"
    return ", ".join(parts)


def _runs(ranks: Sequence[int]) -> Iterator[str]:
    start = 0
    for end in range(1, len(ranks) + 1):
        if end < len(ranks) and ranks[end] == ranks[end - 1] + 1:
            continue
        if end - start >= _RUN:
            yield f"{ranks[start]}-{ranks[end - 1]}"
        else:
            yield from map(str, ranks[start:end])
        start = end


def first_groups(groups: Sequence[Sequence[int]]) -> str:
    """Show the ranks of the first groups in a few words."""
    most = 1 if is_narrow(_WIDE) else _SHOWN_GROUPS
    shown = [as_ranges(group) for group in groups[:most]]
    return " | ".join([*shown, "..."] if len(groups) > most else shown)


def _label(axis: str) -> str:
    return f"{_LABELS.get(axis, axis)} ({axis})"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _rank(rank: int | None) -> str:
    return "none" if rank is None else f"rank {rank}"


def _headline(peers: Peers) -> Text:
    split = [(axis, one.degree) for axis, one in peers.axes.items() if one.degree > 1]
    degrees = [f"{axis} {degree}" for axis, degree in split if axis not in EXPERT_AXES]
    experts = [f"{axis} {degree}" for axis, degree in split if axis in EXPERT_AXES]
    nodes, chunks = int(peers.node[-1]) + 1, peers.strategy["vpp"]
    parts = [
        _counted(len(peers), "GPU") + (f" = {' x '.join(degrees)}" if degrees else ""),
        *([f"experts {' x '.join(experts)}"] if experts else []),
        f"{_counted(nodes, 'node')} of {peers.accelerators_per_node}",
        f"placement {peers.strategy['placement']}"
        if peers.strategy["extents"] is None
        else f"extents {peers.strategy['extents']}",
        peers.strategy["schedule"] + (f" x {chunks}" if chunks > 1 else ""),
    ]
    text = Text("\n")
    text.append(f"{peers.model} on {peers.system}", style="bold")
    text.append("\n" + ", ".join(parts))
    return text
