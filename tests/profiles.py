"""How many examples Hypothesis draws: few in the profile `dev`, many in `nightly`.

`pytest --hypothesis-profile=nightly` chooses; without it, `dev` holds, which draws the same
examples in every run. Neither looks at a clock.
"""

from hypothesis import HealthCheck, settings

__all__ = ["drawn", "examples", "sampled"]

_USUAL = 100
"""Examples of a property that names no number, where `examples` counts neither up nor down."""
_FEW, _MANY = 20, 1000
_UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("dev", max_examples=_FEW, derandomize=True, **_UNTIMED)
settings.register_profile("nightly", max_examples=_MANY, **_UNTIMED)
settings.load_profile("dev")


def examples(count, **changes):
    """Settings of a property that draws `count` examples, times what the profile asks for."""
    scaled = max(1, round(count * settings.default.max_examples / _USUAL))
    return settings(max_examples=scaled, **changes)


def drawn(count, part=3):
    """How many of `count` cases that a test draws by itself: all in `nightly`, else a part."""
    return count if _is_nightly() else -(-count // part)


def sampled(cases, part=3):
    """Those of some cases that a test looks at: all in `nightly`, else every third or so."""
    return list(cases)[:: 1 if _is_nightly() else part]


def _is_nightly():
    return settings.default.max_examples >= _MANY
