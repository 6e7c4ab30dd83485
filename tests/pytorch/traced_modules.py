"""Small modules of PyTorch, their profiles, and what holds of every profile; needs torch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is

from shardwise.fsdp.trace import trace  # noqa: E402

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


class Block(nn.Module):
    """Self-attention, in a decoder attention to the pictures too, and an MLP."""

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

    def __init__(self, width=32, layers=2, words=50, side=32):
        super().__init__()
        self.side = side
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.encoder = nn.ModuleList(Block(width) for _ in range(layers))
        self.words = nn.Embedding(words, width)
        self.decoder = nn.ModuleList(Block(width, cross=True) for _ in range(layers))
        self.head = nn.Linear(width, words)

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
        return {"image": torch.zeros(batch, 3, self.side, self.side), "ids": ids}


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
    assert len(profile.resident_bytes) == len(profile.end_bytes) == segments
    assert np.all(profile.resident_bytes >= profile.end_bytes)
    assert np.all(profile.resident_bytes[1:] >= profile.end_bytes[:-1])
    assert np.all(profile.seconds >= 0)
    assert np.all(profile.end_bytes >= 0)
    for place, module in enumerate(profile.modules):
        assert place < module.end <= len(profile.modules)
        assert 0 <= module.forward[0] < module.forward[1] <= profile.forward_segments
        assert profile.forward_segments <= module.backward[0] <= module.backward[1] <= segments
        if module.reduced_last:
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
