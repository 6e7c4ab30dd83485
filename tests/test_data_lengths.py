"""Lengths of data: quantiles, padded micro-batches, waiting ranks, packed rows."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rows import each_row
from shardwise import InputError
from shardwise.analysis.data_lengths import data_lengths, expected_longest, log_normal


def test_the_expected_longest_by_hand() -> None:
    """Of two drawn from 1 and 3: 3 in three of four cases; of one the mean; of many the longest."""
    lengths = np.array([3.0, 1.0])
    assert expected_longest(lengths, 1) == 2
    assert expected_longest(lengths, 2) == 0.75 * 3 + 0.25 * 1
    assert expected_longest(lengths, 1000) == pytest.approx(3)


@each_row("count", [1, 2, 8])
def test_the_expected_longest_of_samples(count: int) -> None:
    """As the mean of many draws."""
    random = np.random.default_rng(5)
    lengths = np.exp(random.normal(6, 1, 500))
    drawn = random.choice(lengths, (20000, count)).max(axis=1).mean()
    assert expected_longest(lengths, count) == pytest.approx(drawn, rel=0.03)


def test_a_log_normal_has_its_quantiles() -> None:
    """Mean p50 exp(s^2 / 2), attention length mean exp(s^2), unless cut off."""
    sigma = math.log(2048 / 512) / 1.6449
    lengths = log_normal(512, 2048, 1e9)
    assert np.quantile(lengths, 0.5) == pytest.approx(512, rel=1e-3)
    assert np.quantile(lengths, 0.95) == pytest.approx(2048, rel=1e-2)
    found = data_lengths(lengths, measured=False)
    assert found.mean == pytest.approx(512 * math.exp(sigma**2 / 2), rel=0.01)
    assert found.attention_len == pytest.approx(found.mean * math.exp(sigma**2), rel=0.05)
    assert log_normal(512, 2048, 4096).max() == 4096


def test_batches_by_hand() -> None:
    """Half of 1 and half of 3: two of them pad to 2.5; of two ranks the slower to 2.875."""
    found = data_lengths([1, 3], mbs=2, ranks=2)
    assert (found.mean, found.padded_len, found.padding) == (2, 2.5, pytest.approx(0.2))
    assert found.wait == pytest.approx((3 * 15 / 16 + 1 / 16) / 2.5)
    assert found.attention_len == (1 + 9) / 4
    assert data_lengths([1, 3], seq_len=2).longest == 2


RECORDS = [
    {"text": "a b c d"},
    {"messages": [{"role": "user", "content": "abcd"}, {"role": "assistant", "content": "abc"}]},
    {"input_ids": [1, 2, 3]},
    {"length": 7},
    {"prompt": "abcd", "completion": "abc"},
    "abcdabcd",
]


def test_lines_of_json(tmp_path: Path, shardwise: Any) -> None:
    """Texts and turns are counted by characters, or by a tokenizer; ids and lengths as they are."""
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(map(json.dumps, RECORDS)) + "\n\n")
    code, text, errors = shardwise("lengths", file, "--json")
    assert code == 0
    found = json.loads(text)
    assert (found["sequences"], found["longest"]) == (6, 7)
    assert found["mean"] == pytest.approx((7 / 4 + 2 + 3 + 7 + 2 + 2) / 6)
    assert "4 characters" in errors
    code, text, _ = shardwise("lengths", "--quantiles", "512,2048,8192", "--mbs", "4")
    assert code == 0
    assert "--document-len" in text


@each_row(
    ("words", "problem"),
    [
        ((), "set a file of data, or --quantiles"),
        (("--quantiles", "5,3,9"), "p50 <= p95 <= max"),
        (("--quantiles", "5,9"), "P50,P95,MAX"),
        (("nothing.jsonl",), "cannot be read"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], problem: str, shardwise: Any) -> None:
    """Of the command line and of files."""
    code, _, errors = shardwise("lengths", *words)
    assert code == 2
    assert problem in errors
    with pytest.raises(InputError):
        data_lengths([])
