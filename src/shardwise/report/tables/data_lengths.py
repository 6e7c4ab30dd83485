"""Lengths of a data set, and what batches of them cost, as text."""

from shardwise.analysis.data_lengths import DataLengths
from shardwise.report.console import percent, show


def print_lengths(found: DataLengths) -> None:
    """Print quantiles, what padded and packed batches cost, and the flags that follow."""
    number = "a distribution" if found.sequences is None else f"{found.sequences:,} sequences"
    show(
        f"\n{number}: mean {found.mean:,.0f} tokens, median {found.p50:,.0f}, 95 % up to "
        f"{found.p95:,.0f}, longest {found.longest:,}\n"
    )
    batch = f"micro-batch of {found.mbs}" + (f" on {found.ranks} ranks" if found.ranks > 1 else "")
    show(
        f"padded, {batch}: {found.padded_len:,.0f} tokens a sequence, {percent(found.padding)} of "
        f"them padding; the slowest rank takes {found.wait:.2f} of the mean time"
    )
    show(
        f"packed, rows of {found.seq_len:,}: {found.packed_rows:.1f} sequences each, attention as "
        f"of documents of {found.attention_len:,.0f}"
    )
    lengths = f"{found.p50:.0f},{found.p95:.0f},{found.longest}"
    show(f"  --seq-len {found.seq_len} --data-lengths {lengths}, with --batching packed if packed")
