"""Weights that two stages hold: how long it takes to add up the gradients of both copies, by hand.

Of the sample: 64 wide, 1000 words, gradients of 4 bytes; links of 100 GB/s within 8 accelerators,
of 10 GB/s beyond, without latency.
"""

import pytest

import samples
from samples import run

pytestmark = pytest.mark.any_software


def test_copies_for_multi_token_prediction_are_added_up_too() -> None:
    """Untied, both stages hold the words (padded to 8 x 128 rows); both ends of a V need none."""
    model = samples.model(samples.layer(count=8), tied_embeddings=False, mtp=1)
    padded = samples.stack(vocab_multiple=128)
    shared = run(model, pp=2, tp=8, stack=padded)
    assert shared.comm_s["dp"].total == pytest.approx(1024 / 8 * 64 * 4 / 10e9)
    alone = samples.model(samples.layer(count=8), tied_embeddings=False)
    for columns in ({"architecture": alone}, {"architecture": model, "schedule": "zb-v"}):
        assert run(pp=2, tp=8, **columns).comm_s["dp"].total == 0
    assert run(model, pp=2, frozen=("embedding",)).comm_s["dp"].total == 0


def test_first_and_last_stage_add_up_tied_words() -> None:
    """64,000 shared weights of 4-byte gradients all-reduced by a pair; untied: nothing."""
    tied = run(pp=2, dp=2, gbs=8, zero=0)
    untied = run(samples.model(tied_embeddings=False), pp=2, dp=2, gbs=8, zero=0)
    extra = tied.comm_s["dp"].total - untied.comm_s["dp"].total
    assert extra == pytest.approx(64_000 * 4 / 100e9)
    # Two members, whatever the stages between them: one latency.
    slow = samples.system(network=[samples.tier(latency=1, latency_per_member=1)])
    assert run(machine=slow, pp=4).comm_s["dp"].total == pytest.approx(1, rel=1e-2)
    # On stages of different nodes, over the slow links.
    tied = run(tp=8, pp=2)
    assert tied.comm_s["dp"].total == pytest.approx(64_000 / 8 * 4 / 10e9)


def test_mirrored_ranks_add_up_their_gradients() -> None:
    """Both do both stages: 4-byte gradients all-reduced by a pair; of two replicas' sum each half.

    With one replica that is all; with two these add up before, in as long as one pair takes.
    """
    model = samples.model(vocab=10, max_positions=32)
    weights = 4 * (12 * 64**2 + 13 * 64) + (10 + 32) * 64 + 2 * 64
    for dp, turns in ((1, 1), (2, 1 + 1 / 2)):
        result = run(model, pp=2, dp=dp, gbs=8 * dp, zero=0, schedule="dualpipe")
        assert result.comm_s["dp"].total == pytest.approx(turns * 4 * weights / 100e9)
    assert run(model, pp=2, gbs=8, training=False).comm_s["dp"].total == 0
