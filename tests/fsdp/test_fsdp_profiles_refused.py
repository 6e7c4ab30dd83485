"""Profiles that contradict themselves are refused."""

from dataclasses import replace

import numpy as np
import pytest

from profile_samples import one_layer, sample
from rows import each_row
from shardwise import InputError
from shardwise.fsdp.profile import check


def changed(place, **fields):
    """The hand-computed profile with another module."""
    profile = sample(one_layer())
    modules = list(profile.modules)
    modules[place] = replace(modules[place], **fields)
    return replace(profile, modules=tuple(modules))


def swapped(name, at, value):
    """The same with another figure of a segment."""
    profile = sample(one_layer())
    values = getattr(profile, name).copy()
    values[at] = value
    return replace(profile, **{name: values})


def tensor(**fields):
    """The same with another first parameter."""
    profile = sample(one_layer())
    first, *rest = profile.parameters
    return replace(profile, parameters=(replace(first, **fields), *rest))


BROKEN = {
    r"modules\[3\] 'layers.0.input_layernorm'.parent: 1: must be 2": lambda: changed(3, parent=1),
    r"modules\[2\] 'layers.0'.end: 99: must be 3 to 16": lambda: changed(2, end=99),
    r"modules\[0\] ''.end: 5: must be 16": lambda: changed(0, end=5),
    r"modules\[0\] ''.forward: .* must begin at 0 and end by 19": lambda: changed(
        0, forward=(1, 19)
    ),
    r"modules\[4\] .*forward: \[1, 9\]: must lie in \(2, 16\)": lambda: changed(4, forward=(1, 9)),
    r"modules\[4\] .*backward: .* must be empty or lie": lambda: changed(4, backward=(19, 36)),
    r"modules\[1\] 'embed_tokens'.run: 2: must be 0": lambda: changed(1, run=2),
    r"seconds\[3\]: nan: must be finite": lambda: swapped("seconds", 3, np.nan),
    r"resident_bytes\[2\]: -1.0: must be finite": lambda: swapped("resident_bytes", 2, -1.0),
    r"resident_bytes\[6\]: .* is less than the": lambda: swapped("resident_bytes", 6, 1.0),
    r"resident_bytes\[7\]: .* left by the segment": lambda: swapped("end_bytes", 6, 28672.0 - 1),
    r"forward_segments: 0: must be 1 to 38": lambda: replace(changed(0), forward_segments=0),
    r"end_bytes: \[3\]: must have one": lambda: replace(changed(0), end_bytes=np.zeros(3)),
    r"fixed_bytes: inf": lambda: replace(changed(0), fixed_bytes=np.inf),
    r"modules: 0: must have one module": lambda: replace(changed(0), modules=()),
    r"holders: \[\]: must be one position": lambda: tensor(holders=()),
    r"holders: \[2, 1\]: .* ascending": lambda: tensor(holders=(2, 1)),
    r"holders: \[1, 16\]: must be positions": lambda: tensor(holders=(1, 16)),
    r"shape: \[0, 64\]: must have no": lambda: tensor(shape=(0, 64)),
    r"element_bytes: 0: must be finite": lambda: tensor(element_bytes=0),
    r"gradient_segment: 4: must be -1 or .* 19 to 37": lambda: tensor(gradient_segment=4),
    r"gradient_segment: 37: .* not trained": lambda: tensor(trainable=False),
    r"'norm.weight': 'norm.weight': is there twice": lambda: tensor(name="norm.weight"),
}


@each_row("problem", BROKEN)
def test_profiles_that_contradict_themselves_are_refused(problem):
    """With what is wrong, where, and what it must be."""
    with pytest.raises(InputError, match=problem):
        check(BROKEN[problem]())
