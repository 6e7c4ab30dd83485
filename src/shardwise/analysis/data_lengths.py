"""Lengths of the sequences of a data set, and what batches of them cost."""

from collections.abc import Sequence

import numpy as np

from shardwise.analysis import Result
from shardwise.arrays import Floats
from shardwise.config.data_lengths import PACKED_FILL, expected_longest
from shardwise.errors import Fault, InputError


class DataLengths(Result):
    """Lengths of a data set [token], and batches of them."""

    sequences: int | None
    """Number of sequences that were measured; None: stated by quantiles."""
    mean: float
    p50: float
    p95: float
    longest: int
    attention_len: float
    """sum l^2 / sum l: the `document_len` with which attention inside of documents costs the
    same."""
    mbs: int
    ranks: int
    padded_len: float
    """Expected length of a padded micro-batch of `mbs` sequences."""
    padding: float
    """Share of its tokens that is padding."""
    wait: float
    """Time of the slowest rank over the mean: expected longest of all micro-batches that wait for
    each other over the expected length of one, where times grow with the length."""
    packed_rows: float
    """Sequences of a packed row of `seq_len` tokens."""
    seq_len: int


def data_lengths(
    lengths: Sequence[float] | Floats,
    *,
    mbs: int = 1,
    ranks: int = 1,
    seq_len: int | None = None,
    measured: bool = True,
) -> DataLengths:
    """Summarize lengths, and what padded and packed batches of them cost.

    Parameters
    ----------
    lengths
        Lengths of sequences, or quantiles of their distribution [token].
    mbs, ranks
        Sequences of a micro-batch, and replicas whose micro-batches wait for each other: those of
        ZeRO-3 and FSDP for each micro-batch, others once per step.
    seq_len
        Longer sequences are cut off there; rows of packed batches have so many tokens. None: the
        longest.
    measured
        Whether they are sequences of the data, not quantiles.
    """
    known = np.asarray(lengths, dtype=np.float64)
    if not known.size or not np.all(known > 0):
        raise InputError(Fault.of("lengths", None, "must be positive, and at least one"))
    limit = float(seq_len or known.max())
    cut = np.minimum(known, limit)
    mean, padded = float(cut.mean()), expected_longest(cut, mbs)
    return DataLengths(
        sequences=len(known) if measured else None,
        mean=mean,
        p50=float(np.quantile(cut, 0.5)),
        p95=float(np.quantile(cut, 0.95)),
        longest=int(cut.max()),
        attention_len=float(np.sum(cut**2) / np.sum(cut)),
        mbs=mbs,
        ranks=ranks,
        padded_len=padded,
        padding=1 - mean / padded,
        wait=expected_longest(cut, mbs * ranks) / padded,
        packed_rows=PACKED_FILL * limit / mean,
        seq_len=int(limit),
    )
