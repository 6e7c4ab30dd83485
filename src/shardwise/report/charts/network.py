"""The network of a strategy: domains of each tier, and the ranks in them."""

from pathlib import Path

from shardwise.parallel.process_groups import Peers
from shardwise.report.charts.common import GREY, MEMORY_COLORS, PAPER, Figure, plotly, styled, write

_MOST_BOXES = 2048
"""More boxes than this are too small to see: inner tiers are drawn for the first domain alone."""


def write_chart(peers: Peers, path: str | Path) -> None:
    """Write the chart of the network to a file."""
    write(network_boxes(peers), path)


def network_boxes(peers: Peers) -> Figure:
    """Draw each domain of a tier in the domain that contains it, down to single ranks.

    The box of a rank names its coordinates. Where there are too many boxes, only the first domain
    of a tier is divided further.
    """
    ranks, outermost = len(peers), peers.network[-1].name
    ids, parents, labels, values, colors = (
        ["all"],
        [""],
        [f"{outermost}: {ranks:,} GPUs"],
        [ranks],
        [GREY],
    )
    palette = list(MEMORY_COLORS.values())
    sizes = [tier.domain for tier in peers.network if tier.domains > 1]
    tiers = [tier for tier in peers.network if tier.domains > 1]
    for place in reversed(range(len(tiers))):
        size, outer = sizes[place], sizes[place + 1] if place + 1 < len(sizes) else ranks
        within = ranks if ranks // size <= _MOST_BOXES else outer
        for first in range(0, within, size):
            ids.append(f"{place} {first}")
            parents.append("all" if outer == ranks else f"{place + 1} {first // outer * outer}")
            labels.append(f"{tiers[place].name} {first // size}")
            values.append(min(size, ranks - first))
            colors.append(palette[place % len(palette)])
    inner = sizes[0] if sizes else ranks
    for rank in range(ranks if ranks <= _MOST_BOXES else inner):
        at = ", ".join(f"{a} {c[rank]}" for a, c in peers.coordinates.items() if c.max() > 0)
        ids.append(f"rank {rank}")
        parents.append(f"0 {rank // inner * inner}" if sizes else "all")
        labels.append(f"{rank}<br>{at}")
        values.append(1)
        colors.append(palette[-1])
    figure = plotly().Figure(
        plotly().Icicle(
            ids=ids,
            parents=parents,
            labels=labels,
            values=values,
            branchvalues="total",
            marker={"colors": colors, "line": {"color": PAPER, "width": 1}},
            tiling={"orientation": "v"},
            hovertemplate="%{label}<extra></extra>",
        )
    )
    rates = [f"{tier.name} {tier.bandwidth / 1e9:,.4g} GB/s per GPU" for tier in peers.network]
    return styled(figure, f"{peers.model} on {peers.system}", "; ".join(rates))
