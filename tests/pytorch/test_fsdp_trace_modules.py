"""Any module becomes a profile: what runs twice, is shared, frozen, checkpointed or never run."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is
from torch.utils.checkpoint import checkpoint  # noqa: E402

from traced_modules import (  # noqa: E402
    BF16,
    Block,
    Captions,
    Odd,
    Rotary,
    check_ranges,
    only,
    runs,
    traced,
    weight,
)


@pytest.fixture(scope="module")
def odd():
    return traced(Odd)


class TestOddModules:
    @pytest.fixture
    def profile(self, odd):
        return odd

    def test_all_ranges_hold(self, profile):
        check_ranges(profile)

    def test_a_module_that_runs_twice_stands_there_twice(self, profile):
        """Its weights have both runs as holders, and one gradient, complete in the first run's."""
        first, second = runs(profile, "twice")
        assert (first.run, second.run) == (0, 1)
        assert second.backward[1] <= first.backward[0]
        places = [place for place, module in enumerate(profile.modules) if module.name == "twice"]
        assert list(weight(profile, "twice.weight").holders) == places
        gradient = weight(profile, "twice.weight").gradient_segment
        assert first.backward[0] <= gradient < first.backward[1]

    def test_tied_weights_are_one(self, profile):
        """Embedding and head hold it; its gradient is complete when the embedding's is."""
        tied = weight(profile, "embed.weight")
        assert [profile.modules[place].name for place in tied.holders] == ["embed", "head"]
        begin, after = only(profile, "embed").backward
        assert begin <= tied.gradient_segment < after

    def test_a_module_that_hands_on_its_input_lasts_no_longer(self, profile):
        """Dropout of nothing: one segment each way, in which nothing runs."""
        drop = only(profile, "drop")
        assert drop.backward[1] == drop.backward[0] + 1
        assert profile.seconds[drop.backward[0]] == 0
        assert not drop.reduced_last

    def test_a_module_without_gradients_has_no_backward(self, profile):
        rotary = only(profile, "rotary")
        assert rotary.backward[0] == rotary.backward[1]
        assert not rotary.reduced_last

    def test_frozen_weights_get_no_gradient(self, profile):
        frozen = weight(profile, "frozen.weight")
        assert (frozen.trainable, frozen.gradient_segment) == (False, -1)
        begin, after = only(profile, "frozen").backward
        assert begin < after

    def test_what_never_ran_is_told(self, profile):
        """Its weights belong to the nearest module around it, which gathers them."""
        assert profile.never_run == ("unused", "scales")
        assert weight(profile, "unused.weight").holders == (0,)
        assert weight(profile, "unused.weight").gradient_segment == -1
        assert weight(profile, "scales.0").holders == (0,)
        assert weight(profile, "scales.0").gradient_segment >= 0

    def test_buffers_and_inputs_are_fixed(self, profile):
        assert profile.fixed_bytes == 5 * BF16 + 2 * 16 * 8

    def test_parameters_of_a_module_that_is_not_called(self):
        """`nn.MultiheadAttention` reads the weights of its `out_proj` without calling it."""

        def attention():
            module = nn.MultiheadAttention(32, 4, batch_first=True)
            data = torch.zeros(2, 5, 32)
            return module, {"query": data, "key": data, "value": data, "need_weights": False}

        profile = traced(attention)
        assert profile.never_run == ("out_proj",)
        assert weight(profile, "out_proj.weight").holders == (0,)
        assert weight(profile, "out_proj.weight").gradient_segment >= 0

    def test_outputs_of_any_kind(self):
        """Mappings, dataclasses and named tuples are looked into."""

        @dataclasses.dataclass
        class Pair:
            left: object
            right: object

        class Splits(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(8, 8)

            def forward(self, pair):
                return {"sum": Pair(self.inner(pair.left), [pair.right])}

        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.splits = nn.Linear(8, 8), Splits()

            def forward(self, x):
                x = self.first(x)
                out = self.splits(Pair(x, x * 2))["sum"]
                return out.left + out.right[0]

        profile = traced(lambda: (Whole(), torch.zeros(3, 8)))
        check_ranges(profile)
        assert not only(profile, "splits").reduced_last
        assert only(profile, "splits").backward[0] < only(profile, "splits").backward[1]

    def test_what_the_loss_reads_from_the_middle(self):
        """A call whose output is kept beside begins backward before the calls after it."""

        class Skips(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

            def forward(self, x):
                kept = self.a(x)
                return (self.b(kept).sum() + kept.sum()).float()

        profile = traced(lambda: (Skips(), torch.zeros(3, 8)))
        check_ranges(profile)


class TestTwoTowers:
    def test_the_encoder_waits_for_all_of_the_decoder(self):
        """Its output is read in every decoder layer, so its gradient comes after all of them."""
        profile = traced(Captions)
        check_ranges(profile)
        last = only(profile, "encoder.1").backward[0]
        assert all(only(profile, f"decoder.{n}").backward[1] <= last for n in range(2))
        assert only(profile, "patches").reduced_last
        assert only(profile, "words").reduced_last
        assert not only(profile, "decoder.0").reduced_last

    def test_the_order_of_layers_turns_round(self):
        profile = traced(Captions)
        first, second = only(profile, "decoder.0"), only(profile, "decoder.1")
        assert first.forward[1] <= second.forward[0]
        assert second.backward[1] <= first.backward[0]


class Stack(nn.Module):
    """Blocks that are checkpointed, or not."""

    def __init__(self, checkpointed=None):
        super().__init__()
        self.embed = nn.Embedding(64, 128)
        self.blocks = nn.ModuleList(Block(128) for _ in range(4))
        self.checkpointed = checkpointed

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            if self.checkpointed is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.checkpointed)
        return x


class TestCheckpointing:
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_computing_again_makes_no_new_calls(self, reentrant):
        plain = traced(Stack, seq_len=256)
        again = traced(lambda: Stack(reentrant), seq_len=256)
        check_ranges(again)
        assert [m.name for m in again.modules] == [m.name for m in plain.modules]
        assert [(m.parent, m.end, m.run) for m in again.modules] == [
            (m.parent, m.end, m.run) for m in plain.modules
        ]
        for name in ("blocks.0", "blocks.3", "blocks.3.mlp.0"):
            begin, after = only(again, name).backward
            assert begin < after < len(again.seconds)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_less_is_held_and_more_is_computed(self, reentrant):
        """Forward leaves an input for each block; backward takes a forward pass more."""
        plain = traced(Stack, seq_len=256)
        again = traced(lambda: Stack(reentrant), seq_len=256)
        end = plain.forward_segments - 1
        state = 2 * 256 * 128 * BF16
        assert again.end_bytes[end] < 7 * state < plain.end_bytes[end]
        assert again.resident_bytes.max() < plain.resident_bytes.max()
        forward = plain.seconds[: plain.forward_segments].sum()
        more = again.seconds.sum() - plain.seconds.sum()
        assert 0.7 * forward < more <= forward

    def test_blocks_begin_backward_before_they_are_computed_again(self):
        """All that a block computes again lies in its own backward range."""
        plain = traced(Stack, seq_len=256)
        again = traced(lambda: Stack(False), seq_len=256)

        def backward(profile, name):
            return profile.seconds[slice(*only(profile, name).backward)].sum()

        for n in range(4):
            assert backward(again, f"blocks.{n}") > 1.2 * backward(plain, f"blocks.{n}")

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_what_has_no_gradient_gets_no_backward_when_computed_again(self, reentrant):
        class Rotates(nn.Module):
            def __init__(self):
                super().__init__()
                self.rotary, self.inner = Rotary(), nn.Linear(8, 8)

            def forward(self, x, ids):
                return self.inner(x) * self.rotary(ids)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed, self.block = nn.Embedding(9, 8), Rotates()

            def forward(self, ids):
                return checkpoint(self.block, self.embed(ids), ids, use_reentrant=reentrant)

        profile = traced(Model)
        check_ranges(profile)
        rotary = only(profile, "block.rotary")
        assert rotary.backward[0] == rotary.backward[1]
        begin, after = only(profile, "block.inner").backward
        outer = only(profile, "block").backward
        assert outer[0] <= begin < after <= outer[1] < len(profile.seconds)
