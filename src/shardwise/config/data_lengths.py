"""Lengths of the sequences of a data set, and the micro-batches that they make.

A micro-batch that is padded is as long as its longest sequence. Packed and padding-free ones have
no padding, and attention stays inside a sequence. Ranks that synchronize wait for the micro-batch
that takes longest. Lengths are described by their median, their 95th percentile and the longest.
"""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from shardwise.arrays import Floats
from shardwise.config import files
from shardwise.config.enums import Batching
from shardwise.config.plain import separated
from shardwise.errors import Fault, InputError
from shardwise.records import dataclass

N_LENGTHS = 3
PACKED_FILL = 0.97
"""Share of the tokens of packed rows that are not padding, with best-fit packing of sequences of up
to a quarter of a row: 0.95 to 0.99; assumed."""
_P95 = NormalDist().inv_cdf(0.95)
_QUANTILES = 4096
_IN_FILE = ("p50", "p95", "longest")


def lengths_in(text: str) -> object:
    """Return the lengths that a text lists, or those of a file of `shardwise lengths`."""
    if not files.is_file_name(text):
        return separated(text)
    found = files.read_mapping(text)
    if missing := [name for name in _IN_FILE if not isinstance(found.get(name), (int, float))]:
        problem = f"has no {', '.join(missing)}: shardwise lengths DATA -o FILE.json writes it"
        raise InputError(Fault(source=text, problem=problem))
    return tuple(round(found[name]) for name in _IN_FILE)


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
    return np.asarray(np.minimum(p50 * np.exp(sigma * _deviations()), longest))


@lru_cache(1)
def _deviations() -> Floats:
    """Quantiles of the normal distribution."""
    share = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return np.array([NormalDist().inv_cdf(one) for one in share.tolist()])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The usual micro-batch of a data set: equal sequences that take as long on average."""

    sequences: float
    seq_len: float
    """Tokens of each, with padding."""
    document_len: float
    """Tokens that attention of a token stays inside of."""
    trained: float
    """Tokens of each sequence of the batch, or packed row, without padding."""
    attention_len: float
    """sum l^2 / sum l: the length at which attention inside of sequences costs the same."""
    longest: float
    """Tokens of each in the longest micro-batch, which memory must hold."""
    cut: tuple[float, ...]
    """Quantiles of the lengths, cut off at the length of a row."""
    batching: Batching

    def wait(self, ranks: int) -> float:
        """Time of the slowest of several ranks over that of the usual one, less 1.

        E[max over ranks of tokens] / E[tokens] - 1; without padding over the square root of the
        sequences of a micro-batch. Packed rows have equal tokens. Times are taken to grow with
        tokens.
        """
        lengths = np.array(self.cut)
        if self.batching is Batching.PADDED:
            return expected_longest(lengths, round(self.sequences) * ranks) / self.seq_len - 1
        if self.batching is Batching.PACKED:
            return 0.0
        count = self.sequences * self.seq_len / self.trained
        return (expected_longest(lengths, ranks) / self.trained - 1) / math.sqrt(count)


@lru_cache(1024)
def micro_batch(
    lengths: tuple[int, ...], batching: Batching, seq_len: int, count: int
) -> MicroBatch:
    """Return the usual micro-batch of sequences drawn at random.

    Padded: b sequences of E[max of b]. Without padding: sequences of sum l^2 / sum l, so many that
    tokens and attention are those of b sequences. Packed: b rows with attention at that length.

    Parameters
    ----------
    lengths
        Median, 95th percentile and maximum [token].
    seq_len
        Longer sequences are cut off there; packed rows have so many tokens.
    count
        Sequences, or packed rows, of the micro-batch: b.
    """
    cut = np.minimum(log_normal(*lengths), seq_len)
    mean = float(cut.mean())
    square = float(np.sum(cut**2) / np.sum(cut))
    sequences, length, document, trained = {
        Batching.PADDED: (count, longest := expected_longest(cut, count), longest, mean),
        Batching.PADDING_FREE: (count * mean / square, square, square, mean),
        Batching.PACKED: (count, seq_len, square, PACKED_FILL * seq_len),
    }[batching]
    return MicroBatch(
        sequences=float(sequences),
        seq_len=float(length),
        document_len=float(document),
        trained=trained,
        attention_len=square,
        longest=float(seq_len if batching is Batching.PACKED else min(seq_len, lengths[-1])),
        cut=tuple(cut.tolist()),
        batching=batching,
    )
