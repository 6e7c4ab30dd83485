"""Lengths of data: quantiles, padded micro-batches, waiting ranks, packed rows."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rows import each_row
from shardwise import InputError, Strategy, estimate, estimate_many, search
from shardwise.analysis.data_lengths import data_lengths
from shardwise.config.data_lengths import PACKED_FILL, expected_longest, log_normal


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
    assert "--data-lengths 512," in text


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


PLAN: dict[str, Any] = {
    "finetune": "lora",
    "gpus": 4,
    "mbs": 2,
    "gbs": 32,
    "stack": "accelerate-2026",
}
DATA = (500, 2000, 4000)


def estimated(**fields: Any) -> Any:
    """A small model on four H100."""
    return estimate("qwen3-0.6b", "h100-sxm", **PLAN, **fields)


@each_row("batching", ["padded", "padding_free"])
@each_row("zero", [0, 3])
def test_equal_lengths_are_a_sequence_length(batching: str, zero: int) -> None:
    """If all sequences are of one length, nothing is padded and nobody waits."""
    found = estimated(seq_len=4096, zero=zero, data_lengths=(1024,) * 3, batching=batching)
    plain = estimated(seq_len=1024, zero=zero)
    assert found.step_time_s == pytest.approx(plain.step_time_s)
    assert found.memory_bytes == plain.memory_bytes
    assert found.tokens_per_s == pytest.approx(plain.tokens_per_s)
    assert found.mfu == pytest.approx(plain.mfu)


def test_packed_rows_are_full_and_attend_inside_documents() -> None:
    """Time and memory are those of rows with documents of that length, less what is not filled."""
    packed = estimated(seq_len=4096, data_lengths=(512,) * 3, batching="packed")
    plain = estimated(seq_len=4096, document_len=512)
    assert packed.step_time_s == pytest.approx(plain.step_time_s)
    assert packed.memory_bytes == plain.memory_bytes
    assert packed.tokens_per_s == pytest.approx(PACKED_FILL * plain.tokens_per_s)


def test_padded_batches_by_hand() -> None:
    """Time is that of the expected longest, memory that of the longest, tokens those of the mean.

    Ranks of ZeRO-3 wait for the longest of 4 x 2 sequences at each micro-batch, others once per
    step, after four micro-batches: half as long.
    """
    known = data_lengths(log_normal(*DATA), mbs=2, ranks=4)
    for zero, share in ((0, 0.5), (3, 1.0)):
        found = estimated(seq_len=8192, data_lengths=DATA, zero=zero)
        usual = estimated(seq_len=round(known.padded_len), zero=zero)
        longest = estimated(seq_len=4000, zero=zero)
        assert found.memory_bytes == longest.memory_bytes
        slower = 1 + share * (known.wait - 1)
        for part in ("forward", "backward", "recompute"):
            assert found.time_s[part] == pytest.approx(slower * usual.time_s[part], rel=0.01)
        assert found.tokens_per_s == pytest.approx(32 * known.mean / found.step_time_s)
        assert found.cost.usd_per_billion_tokens == pytest.approx(
            found.cost.usd_per_step / (32 * known.mean) * 1e9
        )


def test_data_without_padding_by_hand() -> None:
    """Tokens of a micro-batch are those of its sequences, attention that of each of them."""
    found = estimated(seq_len=8192, data_lengths=DATA, batching="padding_free")
    padded = estimated(seq_len=8192, data_lengths=DATA)
    assert found.tokens_per_step == padded.tokens_per_step
    assert found.step_time_s < padded.step_time_s
    assert found.memory_bytes == padded.memory_bytes


def test_rows_of_a_table_are_single_estimates() -> None:
    """Rows with lengths next to rows without them."""
    rows = {
        "seq_len": 4096,
        "data_lengths": [None, DATA, DATA, (100, 200, 300)],
        "batching": ["padded", "padded", "packed", "padding_free"],
    }
    found = estimate_many("qwen3-0.6b", "h100-sxm", {"gpus": 4, "gbs": 32} | rows)
    for row in range(4):
        own = {n: v[row] if isinstance(v, list) else v for n, v in rows.items()}
        one = estimate("qwen3-0.6b", "h100-sxm", gpus=4, gbs=32, **own)
        assert found.step_time_s[row] == one.step_time_s
        assert found.memory_reserved_bytes[row] == one.memory_bytes.reserved
        assert found.tokens_per_s[row] == one.tokens_per_s


def test_a_search_ranks_by_the_lengths_of_the_data() -> None:
    """Its plans have the times and the memory of single estimates, and its best no plan beats."""
    own = {"seq_len": 4096, "data_lengths": DATA, "gbs": 8}
    fixed = {"stack": "trl", "recompute": ["none", "full"], "zero": [0, 3], "mbs": [1, 2]}
    found = search("qwen3-0.6b", "h100-sxm", gpus=4, **own, **fixed)
    best = found.best[0]
    one = estimate("qwen3-0.6b", "h100-sxm", best.strategy)
    assert (best.step_time_s, best.memory_bytes) == (one.step_time_s, one.memory_bytes)
    every = [
        estimate("qwen3-0.6b", "h100-sxm", gpus=4, stack="trl", recompute=r, zero=z, mbs=m, **own)
        for r in ("none", "full") for z in (0, 3) for m in (1, 2)
    ]  # fmt: skip
    assert best.step_time_s == min(one.step_time_s for one in every if one.fits)


def test_lengths_of_a_file(tmp_path: Path, shardwise: Any) -> None:
    """A strategy reads what `shardwise lengths` writes, and says what else it reads."""
    data, written = tmp_path / "data.jsonl", tmp_path / "lengths.json"
    data.write_text("\n".join(json.dumps({"length": n}) for n in (100, 300, 900)))
    assert shardwise("lengths", data, "-o", written)[0] == 0
    found = Strategy(gpus=1, gbs=1, data_lengths=str(written)).data_lengths
    assert found == (300, 840, 900)
    assert Strategy(gpus=1, gbs=1, data_lengths="300, 840, 900").data_lengths == found
    with pytest.raises(InputError, match="in ascending order"):
        Strategy.validated({"gpus": 1, "gbs": 1, "data_lengths": "3,2,1"})
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(InputError, match="shardwise lengths DATA -o"):
        Strategy.validated({"gpus": 1, "gbs": 1, "data_lengths": str(other)})


def test_the_plan_says_the_lengths(shardwise: Any) -> None:
    """In its words, and as flags of a command."""
    words = ["qwen3-0.6b", "h100-sxm", "--gpus", "1", "--finetune", "lora", "--seq-len", "4096"]
    code, text, _ = shardwise(
        "estimate", *words, "--data-lengths", "500,2000,4000", "--batching", "padding_free"
    )
    assert code == 0
    assert "lengths 500, 2,000, 4,000 padding-free" in " ".join(text.split())
