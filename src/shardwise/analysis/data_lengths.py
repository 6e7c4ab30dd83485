"""Lengths of the sequences of a data set, and what batches of them cost.

A micro-batch that is padded is as long as its longest sequence. Ranks that synchronize wait for the
longest micro-batch of all. Packed and padding-free batches have no padding; attention of a document
is that of its own length.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from shardwise.analysis import Result
from shardwise.arrays import Floats
from shardwise.errors import Fault, InputError

_P95 = NormalDist().inv_cdf(0.95)
_QUANTILES = 4096
PACKED_FILL = 0.97
"""Share of the tokens of packed rows that are not padding, with best-fit packing of sequences of up
to a quarter of a row: 0.95 to 0.99; assumed."""


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


def log_normal(p50: float, p95: float, longest: float) -> Floats:
    """Quantiles of a log-normal distribution that is cut off at the longest; shape (4096,).

    sigma = ln(p95 / p50) / 1.645

    Parameters
    ----------
    p50, p95, longest
        Median, 95th percentile and maximum [token].

    Raises
    ------
    InputError
        If they are not in this order, or not positive.
    """
    if not 0 < p50 <= p95 <= longest:
        problem = "must be p50 <= p95 <= max, all positive"
        raise InputError(Fault.of("lengths", f"{p50:g}, {p95:g}, {longest:g}", problem))
    sigma = math.log(p95 / p50) / _P95
    standard = NormalDist()
    share = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    deviations = np.array([standard.inv_cdf(one) for one in share.tolist()])
    return np.asarray(np.minimum(p50 * np.exp(sigma * deviations), longest))


def expected_longest(lengths: Floats, count: int) -> float:
    """Return the expected longest of `count` sequences drawn at random.

    E[max] = sum_i l_i ((i / n)^count - ((i - 1) / n)^count), with l_i in ascending order.

    Parameters
    ----------
    lengths
        Lengths of n sequences [token]; shape (n,).

    Examples
    --------
    >>> import numpy as np
    >>> expected_longest(np.array([1.0, 3.0]), 2)
    2.5
    """
    ordered = np.sort(lengths)
    share = np.arange(len(ordered) + 1) / len(ordered)
    return float(np.sum(ordered * np.diff(share**count)))


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
