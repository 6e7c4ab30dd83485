"""Any module becomes a profile: its calls, its segments, its bytes and its seconds."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from shardwise import Model, System, estimate
from shardwise.errors import InputError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is
from torch.utils.checkpoint import checkpoint  # noqa: E402

from shardwise.fsdp.trace import load_module, trace  # noqa: E402

BF16 = 2


class Mlp(nn.Module):
    """Two products with a ReLU between."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16, bias=False)
        self.act = nn.ReLU()
        self.down = nn.Linear(16, 4, bias=False)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


def mlp(batch):
    return Mlp(), torch.zeros(batch, 8)


def traced(source, *, batch=2, seq_len=16, **given):
    return trace(source, system="h100-sxm", batch=batch, seq_len=seq_len, **given)


def runs(profile, name):
    return [module for module in profile.modules if module.name == name]


def only(profile, name):
    (found,) = runs(profile, name)
    return found


def weight(profile, name):
    (found,) = [one for one in profile.parameters if one.name == name]
    return found


def check_ranges(profile):
    """What holds of every profile."""
    segments = len(profile.seconds)
    assert len(profile.held_bytes) == len(profile.left_bytes) == segments
    assert np.all(profile.held_bytes >= profile.left_bytes)
    assert np.all(profile.held_bytes[1:] >= profile.left_bytes[:-1])
    assert np.all(profile.seconds >= 0)
    assert np.all(profile.left_bytes >= 0)
    for place, module in enumerate(profile.modules):
        assert place < module.end <= len(profile.modules)
        assert 0 <= module.forward[0] < module.forward[1] <= profile.forward_segments
        assert profile.forward_segments <= module.backward[0] <= module.backward[1] <= segments
        if module.late:
            assert module.backward[1] == segments
        for child in profile.children(place):
            inner = profile.modules[child]
            assert inner.parent == place
            assert module.forward[0] < inner.forward[0]
            assert inner.forward[1] < module.forward[1]
    for parameter in profile.parameters:
        for holder in parameter.holders:
            begin, after = profile.modules[holder].backward
            if len(parameter.holders) == 1 and parameter.gradient_segment >= 0 and begin < after:
                assert begin <= parameter.gradient_segment < after


class TestByHand:
    def test_the_calls_of_an_mlp(self):
        """Four modules run; FSDP2 reduces those last whose inputs need no gradient."""
        profile = traced(mlp, batch=4)
        check_ranges(profile)
        told = [(m.name, m.kind, m.parent, m.end, m.run, m.late) for m in profile.modules]
        assert told == [
            ("", "Mlp", -1, 4, 0, True),
            ("up", "Linear", 0, 2, 0, True),
            ("act", "ReLU", 0, 3, 0, False),
            ("down", "Linear", 0, 4, 0, False),
        ]
        assert [m.forward for m in profile.modules] == [(0, 7), (1, 2), (3, 4), (5, 6)]
        assert profile.forward_segments == 8
        assert [m.output_bytes for m in profile.modules] == [32, 128, 128, 32]

    def test_the_weights_of_an_mlp(self):
        """Each has one holder, and its gradient in the last segment of that holder's backward."""
        profile = traced(mlp, batch=4)
        up, down = profile.parameters
        assert (up.name, up.shape, up.holders, up.element_bytes) == ("up.weight", (16, 8), (1,), 2)
        assert (down.name, down.shape, down.holders) == ("down.weight", (4, 16), (3,))
        assert down.gradient_segment == only(profile, "down").backward[1] - 1
        assert up.gradient_segment == len(profile.seconds) - 1
        assert profile.gradient_bytes[-1] == BF16 * (16 * 8 + 4 * 16)

    def test_the_bytes_of_an_mlp_forward(self):
        """ReLU keeps its result, 4 x 16 numbers; the loss is 4 x 4 in fp32, summed to one."""
        profile = traced(mlp, batch=4)
        hidden, out = 4 * 16 * BF16, 4 * 4 * BF16
        held = [0, hidden, hidden, 2 * hidden, 2 * hidden, hidden + out, hidden + out]
        held += [hidden + out + 2 * out + 4]
        assert profile.held_bytes[: profile.forward_segments].tolist() == held
        assert profile.left_bytes[profile.forward_segments - 1] == hidden + 4
        assert profile.fixed_bytes == 4 * 8 * BF16

    def test_the_bytes_of_an_mlp_backward(self):
        """In `down`: loss and its gradient, ReLU's result and gradient, and that of the weights."""
        profile = traced(mlp, batch=4)
        hidden, out, ends = 4 * 16 * BF16, 4 * 4 * BF16, 2 * 4
        begin, after = only(profile, "down").backward
        assert after == begin + 1
        assert profile.held_bytes[begin] == ends + out + 3 * hidden
        begin, _ = only(profile, "act").backward
        assert profile.held_bytes[begin] == ends + 4 * hidden
        assert profile.left_bytes[-1] == 4 + BF16 * (16 * 8 + 4 * 16)

    def test_element_wise_kernels_take_the_time_of_their_bytes(self):
        """ReLU of 4096 x 16384: read and write 2 bytes of each at 89 % of 3.35 TB/s, and 1.5 us."""
        profile = traced(
            lambda: (nn.Sequential(nn.Linear(8, 16384), nn.ReLU()), torch.zeros(4096, 8))
        )
        begin, _ = only(profile, "1").forward
        expected = 1.5e-6 + 4096 * 16384 * 2 * 2 / (0.89 * 3.35e12)
        assert profile.seconds[begin] == pytest.approx(expected)

    def test_large_products_reach_the_share_of_the_peak(self):
        """A product of 8192 cubed takes 2 m n k / (0.6758 x 989.4 TFLOP/s), within 5 %."""
        profile = traced(lambda: (nn.Linear(8192, 8192, bias=False), torch.zeros(8192, 8192)))
        expected = 2 * 8192**3 / (0.6758 * 989.4e12)
        assert profile.seconds[0] == pytest.approx(expected, rel=0.05)

    def test_a_convolution_is_a_product(self):
        """256 channels in and out, 3 x 3, 64 x 64 places of 8 images: k = 9 x 256.

        Backward has two; that of the weights has few tiles for the chip.
        """

        def convolution():
            data = torch.zeros(8, 256, 64, 64, requires_grad=True)
            return nn.Conv2d(256, 256, 3, padding=1, bias=False), data

        profile = traced(convolution)
        one = 2 * 8 * 64 * 64 * 256 * 9 * 256 / (0.6758 * 989.4e12)
        assert profile.seconds[0] == pytest.approx(one, rel=0.2)
        begin, after = profile.modules[0].backward
        assert 2 * one < profile.seconds[begin:after].sum() < 3 * one


class Odd(nn.Module):
    """Much of what trackers stumble over."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.rotary = Rotary()
        self.drop = nn.Dropout(0.0)
        self.twice = nn.Linear(32, 32)
        self.inplace = nn.ReLU(inplace=True)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.scales = nn.ParameterList([nn.Parameter(torch.zeros(32))])
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.zeros(5))

    def forward(self, ids):
        x = self.drop(self.embed(ids))
        x = self.twice(self.inplace(self.twice(x)))
        x = x * self.rotary(ids) * self.scales[0]
        return self.head(self.frozen(x))


class Rotary(nn.Module):
    """Its output needs no gradient."""

    def forward(self, ids):
        return ids[..., None].float().cos().to(torch.bfloat16)


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
        assert not drop.late

    def test_a_module_without_gradients_has_no_backward(self, profile):
        rotary = only(profile, "rotary")
        assert rotary.backward[0] == rotary.backward[1]
        assert not rotary.late

    def test_frozen_weights_get_no_gradient(self, profile):
        frozen = weight(profile, "frozen.weight")
        assert (frozen.trainable, frozen.gradient_segment) == (False, -1)
        begin, after = only(profile, "frozen").backward
        assert begin < after

    def test_what_never_ran_is_told(self, profile):
        """Its weights belong to the nearest module around it, which gathers them."""
        assert profile.unrun == ("unused", "scales")
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
        assert profile.unrun == ("out_proj",)
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
        assert not only(profile, "splits").late
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


class Block(nn.Module):
    def __init__(self, width, *, cross=False):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(width, 4, batch_first=True) if cross else None
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x, memory=None):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        if self.cross is not None:
            x = x + self.cross(x, memory, memory, need_weights=False)[0]
        return x + self.mlp(x)


class Captions(nn.Module):
    """A vision encoder, and a decoder of text that looks at it in every layer."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.encoder = nn.ModuleList(Block(32) for _ in range(2))
        self.words = nn.Embedding(50, 32)
        self.decoder = nn.ModuleList(Block(32, cross=True) for _ in range(2))
        self.head = nn.Linear(32, 50)

    def forward(self, image, ids):
        seen = self.patches(image).flatten(2).transpose(1, 2)
        for block in self.encoder:
            seen = block(seen)
        x = self.words(ids)
        for block in self.decoder:
            x = block(x, memory=seen)
        return self.head(x)

    def example_inputs(self, batch, seq_len):
        ids = torch.zeros((batch, seq_len), dtype=torch.int64)
        return {"image": torch.zeros(batch, 3, 32, 32), "ids": ids}


class TestTwoTowers:
    def test_the_encoder_waits_for_all_of_the_decoder(self):
        """Its output is read in every decoder layer, so its gradient comes after all of them."""
        profile = traced(Captions)
        check_ranges(profile)
        last = only(profile, "encoder.1").backward[0]
        assert all(only(profile, f"decoder.{n}").backward[1] <= last for n in range(2))
        assert only(profile, "patches").late
        assert only(profile, "words").late
        assert not only(profile, "decoder.0").late

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
        assert again.left_bytes[end] < 7 * state < plain.left_bytes[end]
        assert again.held_bytes.max() < plain.held_bytes.max()
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


class TestAsOnAnAccelerator:
    def test_dropout_keeps_a_byte_for_each_number(self):
        """And nothing of its input; the result is the next layer's to keep."""

        def made():
            data = torch.zeros(64, 64, requires_grad=True)
            return nn.Dropout(0.1), data

        profile = traced(made)
        assert profile.held_bytes[0] == 64 * 64 * (BF16 + 1)

    @pytest.mark.parametrize("dropout", [0.0, 0.1])
    def test_attention_never_writes_its_scores(self, dropout):
        """Two sequences of 256 tokens, 4 heads: 512 x 256 scores a head would be 1 MiB in bf16."""

        class Attends(nn.Module):
            def forward(self, x):
                return nn.functional.scaled_dot_product_attention(
                    x, x, x, dropout_p=dropout, is_causal=True
                )

        data = (2, 4, 256, 16)
        profile = traced(lambda: (Attends(), torch.zeros(data, requires_grad=True)))
        assert profile.held_bytes[0] == 2 * 4 * 256 * (16 * BF16 + 4)
        assert "attention in one fused kernel" in profile.assumed

    def test_a_trained_mask_has_a_gradient(self):
        class Biased(nn.Module):
            def __init__(self):
                super().__init__()
                self.bias = nn.Parameter(torch.zeros(4, 32, 32))

            def forward(self, x):
                return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=self.bias)

        data = (2, 4, 32, 16)
        profile = traced(lambda: (Biased(), torch.zeros(data, requires_grad=True)))
        assert weight(profile, "bias").gradient_segment >= 0

    def test_values_may_be_narrower(self):
        class Latent(nn.Module):
            def forward(self, q, v):
                return nn.functional.scaled_dot_product_attention(q, q, v, is_causal=True)

        def made():
            shape = (2, 4, 256)
            return Latent(), (
                torch.zeros(*shape, 96, requires_grad=True),
                torch.zeros(*shape, 64, requires_grad=True),
            )

        profile = traced(made)
        assert profile.held_bytes[0] == 2 * 4 * 256 * (64 * BF16 + 4)

    def test_rms_norm_is_one_kernel(self):
        """It keeps its input and one number in fp32 a row."""
        profile = traced(lambda: (nn.RMSNorm(64), torch.zeros(8, 64, requires_grad=True)))
        assert profile.held_bytes[0] == 8 * (64 * BF16 + 4)

    def test_nothing_is_left_changed(self):
        """Numbers come out as before."""
        data = torch.ones(2, 8)
        norm = nn.RMSNorm(8)
        before = norm(data)
        traced(lambda: (nn.RMSNorm(64), torch.zeros(8, 64)))
        assert torch.equal(norm(data), before)
        assert torch.get_default_dtype() == torch.float32
        assert torch.equal(nn.functional.dropout(data, 1.0), torch.zeros(2, 8))


class TestSources:
    def test_a_module_that_exists_already(self):
        """Its weights are not touched; the profile is that of the compute type."""
        module = Mlp()
        module.example_inputs = lambda batch, _: torch.zeros(batch, 8)
        before = module.up.weight.clone()
        profile = traced(module, batch=4)
        assert profile.parameters[0].element_bytes == BF16
        assert torch.equal(module.up.weight, before)
        assert module.up.weight.grad is None
        assert np.array_equal(profile.held_bytes, traced(mlp, batch=4).held_bytes)

    def test_weights_on_the_meta_device(self):
        """As large models are made before they are sharded."""

        def made(batch):
            with torch.device("meta"):
                module = Mlp()
            return module, torch.zeros(batch, 8)

        assert np.array_equal(traced(made, batch=4).held_bytes, traced(mlp, batch=4).held_bytes)

    def test_a_factory_by_name(self, tmp_path, monkeypatch):
        """Found in the working folder too."""
        code = "import torch\ndef made(seq_len):\n"
        code += "    return torch.nn.Linear(4, 4), (torch.zeros(seq_len, 4),)\n"
        (tmp_path / "traced_factories.py").write_text(code)
        monkeypatch.chdir(tmp_path)
        profile = traced("traced_factories:made", seq_len=3)
        assert (profile.name, profile.source) == ("Linear", "traced_factories:made")
        assert profile.fixed_bytes == 3 * 4 * BF16
        assert str(tmp_path) not in sys.path

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("nowhere.json", "no such file"),
            ("nowhere", "no such file; must be a config.json"),
            ("no_such_package:made", "cannot be imported: ModuleNotFoundError"),
            ("collections:nothing", "collections has no nothing"),
            ("math:pi", "pi is a float"),
            (3, "must be a config.json"),
            (dict, "makes a dict"),
            (lambda: 1 / 0, "cannot be built: ZeroDivisionError"),
            (lambda: nn.Linear(2, 2), "has no embedding"),
            (lambda: (nn.Linear(2, 2), torch.zeros(3)), "does not run: RuntimeError"),
        ],
    )
    def test_refusals_say_what_is_wrong(self, source, said):
        with pytest.raises(InputError, match=said):
            traced(source)

    def test_torch_may_be_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(InputError, match="needs the extra torch"):
            traced("collections:OrderedDict")

    def test_a_model_with_nothing_to_train(self):
        frozen = Odd().requires_grad_(False)
        with pytest.raises(InputError, match="no trainable weight"):
            traced(frozen)

    def test_control_flow_that_needs_numbers(self):
        class Branches(nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        with pytest.raises(InputError, match="needs a number of a tensor"):
            traced(lambda: (Branches(), torch.zeros(3)))

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"batch": 0}, "batch: 0: must be a whole number"),
            ({"seq_len": 1.5}, "seq_len: 1.5"),
            ({"dtype": "fp8"}, "dtype: 'fp8': no such type; allowed: fp32, bf16, fp16"),
            ({"system": None}, "system: is missing"),
            ({"system": "nvl-none"}, "no such system"),
        ],
    )
    def test_settings_that_are_wrong(self, given, said):
        with pytest.raises(InputError, match=said):
            trace(mlp, **({"system": "h100-sxm", "batch": 1, "seq_len": 1} | given))

    def test_an_accelerator_without_the_type(self):
        data = System.load("h100-sxm").to_dict()
        for part in ("matrix", "matmul"):
            del data["accelerator"][part]["fp16"]
        data["sources"] = {"": {"kind": "assumed", "text": "a test"}}
        with pytest.raises(InputError, match="fp16"):
            trace(mlp, system=System.load(data), batch=1, seq_len=1, dtype="fp16")

    def test_a_model_can_be_loaded_alone(self):
        load = load_module(mlp, batch=3)
        module = load.build()
        args, kwargs = load.inputs(module, 3, 1)
        assert load.loss(module(*args, **kwargs)).requires_grad


def config(tmp_path, **fields):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return tmp_path


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
QWEN3_MOE = LLAMA | {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "head_dim": 16,
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
}


class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("transformers")

    @pytest.mark.parametrize(
        "fields", [LLAMA, GPT2, QWEN3_MOE, MIXTRAL], ids=lambda f: f["model_type"]
    )
    def test_a_config_is_all_that_is_needed(self, tmp_path, fields):
        """Each layer runs once; every weight is trained in the segments of its holder."""
        profile = traced(config(tmp_path, **fields))
        check_ranges(profile)
        assert profile.unrun == ()
        assert all(one.gradient_segment >= 0 for one in profile.parameters)
        assert profile.source == str(tmp_path / "config.json")
        assert len(profile.positions) == len(profile.modules)

    def test_layers_are_alike(self, tmp_path):
        """Each holds as much more, and takes as long."""
        profile = traced(config(tmp_path, **(LLAMA | {"num_hidden_layers": 4})))
        layers = [only(profile, f"model.layers.{n}") for n in range(1, 4)]
        for way in ("forward", "backward"):
            ranges = [slice(*getattr(layer, way)) for layer in layers]
            assert profile.seconds[ranges[1]] == pytest.approx(profile.seconds[ranges[2]])
        ends = [profile.left_bytes[layer.forward[1] - 1] for layer in layers]
        assert ends[2] - ends[1] == ends[1] - ends[0] > 0

    def test_rotary_embeddings_have_no_backward(self, tmp_path):
        rotary = only(traced(config(tmp_path, **LLAMA)), "model.rotary_emb")
        assert rotary.backward[0] == rotary.backward[1]

    def test_no_mask_is_made_of_whole_sequences(self, tmp_path):
        """A mask of 512 x 512 would stand in for causal attention, which needs none."""
        path = config(tmp_path, **(LLAMA | {"num_hidden_layers": 1}))
        short, long = traced(path, seq_len=512), traced(path, seq_len=1024)
        assert long.held_bytes.max() < 2.01 * short.held_bytes.max()

    def test_tied_heads(self, tmp_path):
        profile = traced(config(tmp_path, **GPT2))
        tied = weight(profile, "transformer.wte.weight")
        names = [profile.modules[place].name for place in tied.holders]
        assert names == ["transformer.wte", "lm_head"]

    def test_experts_share_the_tokens(self, tmp_path):
        profile = traced(config(tmp_path, **QWEN3_MOE))
        assert any("every expert takes as many tokens" in text for text in profile.assumed)

    def test_a_config_that_is_none(self, tmp_path):
        with pytest.raises(InputError, match="no config that transformers knows"):
            traced(config(tmp_path, model_type="nothing-known"))

    @pytest.mark.parametrize("fields", [LLAMA, GPT2], ids=lambda f: f["model_type"])
    @pytest.mark.parametrize("again", [False, True])
    def test_the_peak_is_that_of_torch(self, tmp_path, fields, again):
        """Byte for byte what `torch.distributed._tools.MemTracker` counts."""
        mem_tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")
        fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
        load = load_module(config(tmp_path, **fields))

        def made():
            module = load.build()
            if again:
                module.activation_checkpointing_enable()
            return module

        profile = traced(made)
        with fake_tensor.FakeTensorMode(), load.stand_ins():
            torch.set_default_dtype(torch.bfloat16)
            try:
                module = made()
                _, called = load.inputs(module, 2, 16)
                tracker = mem_tracker.MemTracker()
                tracker.track_external(module, *called.values())
                with tracker:
                    load.loss(module(**called)).backward()
            finally:
                torch.set_default_dtype(torch.float32)
        (counted,) = tracker.get_tracker_snapshot("peak").values()
        weights = sum(one.numel * one.element_bytes for one in profile.parameters)
        assert profile.held_bytes.max() + weights + profile.fixed_bytes == counted["Total"]

    def test_seconds_are_near_an_estimate(self, tmp_path):
        """Four layers of Llama 2 7B, 4096 tokens, on an H100: within 15 % of `estimate`."""
        fields = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}
        fields |= {"num_key_value_heads": 32, "num_hidden_layers": 4, "vocab_size": 32000}
        profile = traced(config(tmp_path, **(LLAMA | fields)), batch=1, seq_len=4096)
        data = Model.load("llama2-7b").to_dict()
        data["layers"][0]["count"] = 4
        run = {"gpus": 1, "gbs": 1, "mbs": 1, "seq_len": 4096, "stack": "torchtitan-eager"}
        expected = estimate(Model.load(data), "h100-sxm", run).time_s
        whole = expected["forward"] + expected["backward"]
        assert profile.seconds.sum() == pytest.approx(whole, rel=0.15)

    def test_a_vision_model_is_given_images(self, tmp_path):
        """Its rates of dropped paths are read off a tensor while it is built."""
        fields = {"model_type": "convnext", "hidden_sizes": [8, 8, 8, 8], "drop_path_rate": 0.1}
        profile = traced(config(tmp_path, depths=[1, 1, 1, 1], image_size=64, **fields))
        check_ranges(profile)
        assert profile.fixed_bytes == 2 * 3 * 64 * 64 * BF16

    def test_an_encoder_and_a_decoder(self, tmp_path):
        fields = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
        fields |= {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 2}
        profile = traced(config(tmp_path, vocab_size=100, **fields))
        check_ranges(profile)
        assert only(profile, "encoder").forward[1] <= only(profile, "decoder").forward[0]
