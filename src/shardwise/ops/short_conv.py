"""Gated short convolution (LFM2): y = C * conv(B * x) between two projections."""

from shardwise.config.mixer import ShortConv
from shardwise.config.model import Model
from shardwise.ops.mixer_parts import Inner, convolution
from shardwise.ops.operation import RankWork
from shardwise.records import replace


def short_conv_operations(model: Model, mixer: ShortConv, work: RankWork) -> Inner:
    """Projection to B, C and x; both gates and the convolution in one kernel; projection back.

    Each way B, C and x are read and the gated result is written: 4 h elements forward, 8 backward.
    Saved: B, C and x, and the input of the convolution.
    """
    width = model.hidden
    middle = convolution(
        "mixer.conv", work, width, mixer.conv, bias=mixer.bias, gates=True, neighbors=True
    )
    middle = replace(middle, saved_bytes=4 * middle.saved_bytes)  # B, C, x and B * x
    return Inner(inputs=3 * width / work.tp, operations=[middle], outputs=width)
