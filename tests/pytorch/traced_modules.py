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
