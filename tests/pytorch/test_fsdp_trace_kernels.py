"""Bytes and seconds of a traced module: worked out by hand, and as on an accelerator."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is

from traced_modules import BF16, check_ranges, mlp, only, traced, weight  # noqa: E402


class TestByHand:
    def test_the_calls_of_an_mlp(self):
        """Four modules run; FSDP2 reduces those last whose inputs need no gradient."""
        profile = traced(mlp, batch=4)
        check_ranges(profile)
        told = [(m.name, m.kind, m.parent, m.end, m.run, m.reduced_last) for m in profile.modules]
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
        assert profile.resident_bytes[: profile.forward_segments].tolist() == held
        assert profile.end_bytes[profile.forward_segments - 1] == hidden + 4
        assert profile.fixed_bytes == 4 * 8 * BF16

    def test_the_bytes_of_an_mlp_backward(self):
        """In `down`: loss and its gradient, ReLU's result and gradient, and that of the weights."""
        profile = traced(mlp, batch=4)
        hidden, out, ends = 4 * 16 * BF16, 4 * 4 * BF16, 2 * 4
        begin, after = only(profile, "down").backward
        assert after == begin + 1
        assert profile.resident_bytes[begin] == ends + out + 3 * hidden
        begin, _ = only(profile, "act").backward
        assert profile.resident_bytes[begin] == ends + 4 * hidden
        assert profile.end_bytes[-1] == 4 + BF16 * (16 * 8 + 4 * 16)

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


class TestAsOnAnAccelerator:
    def test_dropout_keeps_a_byte_for_each_number(self):
        """And nothing of its input; the result is the next layer's to keep."""

        def made():
            data = torch.zeros(64, 64, requires_grad=True)
            return nn.Dropout(0.1), data

        profile = traced(made)
        assert profile.resident_bytes[0] == 64 * 64 * (BF16 + 1)

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
        assert profile.resident_bytes[0] == 2 * 4 * 256 * (16 * BF16 + 4)
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
        assert profile.resident_bytes[0] == 2 * 4 * 256 * (64 * BF16 + 4)

    def test_rms_norm_is_one_kernel(self):
        """It keeps its input and one number in fp32 a row."""
        profile = traced(lambda: (nn.RMSNorm(64), torch.zeros(8, 64, requires_grad=True)))
        assert profile.resident_bytes[0] == 8 * (64 * BF16 + 4)

    def test_nothing_is_left_changed(self):
        """Numbers come out as before."""
        data = torch.ones(2, 8)
        norm = nn.RMSNorm(8)
        before = norm(data)
        traced(lambda: (nn.RMSNorm(64), torch.zeros(8, 64)))
        assert torch.equal(norm(data), before)
        assert torch.get_default_dtype() == torch.float32
        assert torch.equal(nn.functional.dropout(data, 1.0), torch.zeros(2, 8))
