"""A profile from the module statistics of fsdp_ilp (`GPT_modules_info.json`), without the model.

Each module has one segment forward and one backward, at which it begins: forward in pre-order,
backward in reversed post-order, so that those of a module and all below it stand together. A
segment has the bytes that the statistics have for its module, and takes the module's own time.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.arrays import Floats, Ints
from shardwise.errors import InputError
from shardwise.fsdp.profile import Parameter, Profile, ProfiledModule, check
from shardwise.predecessors.fsdp_ilp.files import ModuleInfo

_NUMBER_BYTES = 4
# Backward of an element-wise kernel moves 3 tensors for 2 of forward, that of fused attention does
# 5 products for 2 (arXiv 2205.14135); a slower one includes the backward of other modules.
_MOST_BACKWARD_OVER_FORWARD = 3.0
_ASSUMED = (
    "weights are one fp32 vector for each module that holds any: statistics have no shapes",
    "backward of a module without weights takes at most 3 times its forward",
    "modules that take longer together than the one they are in are scaled to it",
    "loss and optimizer are not in the statistics",
)


def profile_of_statistics(info: ModuleInfo) -> Profile:
    """Turn module statistics into a profile.

    A module has total activations TA_i, activation gradients AG_i, and G_i, the gradients of
    weights from modules that run after it. Its segment has TA_i forward (at its end) and
    TA_i + AG_i + G_i backward. Its end has TA + G of the next module, or its own bytes if less.
    """
    count = len(info.names)
    parent = np.full(count, -1, dtype=np.int64)
    for place, end in enumerate(info.end):  # inner modules come later and overwrite
        parent[place + 1 : end] = place
    begins = _backward_order(info.end, parent)
    parameters = _parameters(info, parent, begins)
    made = np.zeros(count)
    for parameter in parameters:
        if parameter.gradient_segment >= 0:
            made[parameter.gradient_segment - count] += parameter.numel * parameter.element_bytes
    order = np.argsort(begins)
    alive, working = info.activation_total_bytes, info.activation_gradient_bytes[order]
    forward = _forward_bytes(info)
    so_far = np.cumsum(made)
    # Gradients of a segment are among its temporaries, if these are correct.
    backward = np.maximum(alive[order] + working + so_far - made, so_far)
    following = np.append(alive[order][1:], 0.0) + so_far
    profile = Profile(
        name=info.names[0],
        source=info.source,
        modules=_modules(info, parent, begins),
        parameters=parameters,
        forward_segments=count,
        seconds=_seconds(info, parent, order),
        resident_bytes=np.concatenate([forward, backward]),
        end_bytes=np.concatenate(
            [
                np.minimum(forward, np.append(forward[1:], backward[0])),
                np.minimum(backward, following),
            ]
        ),
        assumed=_ASSUMED,
    )
    check(profile)
    return profile


def _forward_bytes(info: ModuleInfo) -> Floats:
    """Resident bytes of the forward segment at which each module begins [byte].

    TA is that at the end of a module: for a module with others inside it belongs to the last of
    them, and at its beginning no more is resident than after the first of them.
    """
    alive = info.activation_total_bytes.copy()
    count = len(alive)
    for place in range(count - 1, -1, -1):
        if info.end[place] > place + 1:
            last = info.end[place] - 1
            alive[last] = max(alive[last], alive[place])
            alive[place] = min(alive[place], alive[place + 1])
    return alive


def _backward_order(end: Ints, parent: Ints) -> Ints:
    """Place of each module in reversed post-order, in which backward begins.

    The post-order place of a module is its pre-order place, plus its descendants, less its depth.
    """
    count = len(end)
    depth = np.zeros(count, dtype=np.int64)
    for place in range(1, count):
        depth[place] = depth[parent[place]] + 1
    post = end - 1 - depth
    return count - 1 - post


def _modules(info: ModuleInfo, parent: Ints, begins: Ints) -> tuple[ProfiledModule, ...]:
    count, root = len(info.names), info.names[0]
    # Tokens are not tracked: a module with weights but no tracked inputs is an embedding.
    reduced_last = (
        (info.input_bytes == 0) & (info.parameter_bytes > 0) & np.any(info.input_bytes > 0)
    )
    reduced_last[0] = True
    last = 2 * count
    modules = []
    for place, (name, end) in enumerate(zip(info.names, info.end.tolist(), strict=True)):
        start = count + int(begins[place])
        modules.append(
            ProfiledModule(
                name=name.removeprefix(root).removeprefix("."),
                kind="Module" if place else root,
                parent=int(parent[place]),
                end=end,
                forward=(place, end),
                backward=(start, last if reduced_last[place] else start + end - place),
                output_bytes=float(info.output_bytes[place]),
                reduced_last=bool(reduced_last[place]),
            )
        )
    return tuple(modules)


def _seconds(info: ModuleInfo, parent: Ints, order: Ints) -> Floats:
    """Own time of each module, forward and then backward [s]."""
    forward = _own_ms(info.forward_ms, parent)
    capped = np.where(
        info.parameter_bytes > 0,
        info.backward_ms,
        np.minimum(info.backward_ms, _MOST_BACKWARD_OVER_FORWARD * info.forward_ms),
    )
    return np.concatenate([forward, _own_ms(capped, parent)[order]]) / 1e3


def _own_ms(total_ms: Floats, parent: Ints) -> Floats:
    """Time of a module without those inside it, t_i - sum of t_c over its children c [ms].

    Children that take longer together than their parent are scaled to it, so that the sum over a
    module and its descendants never exceeds its own time and the sum over the root equals it.
    """
    inside = np.zeros(len(total_ms))
    np.add.at(inside, parent[1:], total_ms[1:])
    ratio = np.minimum(total_ms, inside) / np.where(inside > 0, inside, 1.0)
    fits = np.where(inside > total_ms, ratio, 1.0)
    share = np.ones(len(total_ms))
    for place in range(1, len(total_ms)):
        share[place] = share[parent[place]] * fits[parent[place]]
    own = total_ms * share
    np.subtract.at(own, parent[1:], (total_ms * share)[1:])
    return np.maximum(own, 0.0)


def _parameters(info: ModuleInfo, parent: Ints, begins: Ints) -> tuple[Parameter, ...]:
    """One tensor for the weights of each module itself, and one for weights that several share."""
    own = _own(info.parameter_bytes, parent)
    trained = _own(info.gradient_bytes, parent)
    tied: dict[int, list[int]] = {}
    for place in np.flatnonzero(own < 0).tolist():
        holders = _tied(info, place, float(-own[place]))
        tied[holders[0]] = holders
        own[holders[1:]] = 0.0
    found = []
    for place in np.flatnonzero(own > 0).tolist():
        holders = tied.get(place, [place])
        found.append(_parameter(info, float(own[place]), trained[place] > 0, holders, begins))
    return tuple(found)


def _own(total_bytes: Floats, parent: Ints) -> Floats:
    own = total_bytes.copy()
    np.subtract.at(own, parent[1:], total_bytes[1:])
    return own


def _parameter(
    info: ModuleInfo, size: float, trainable: bool, holders: Sequence[int], begins: Ints
) -> Parameter:
    """A tensor of so many bytes; its gradient is complete as backward of its last holder ends."""
    numbers = max(int(size // _NUMBER_BYTES), 1)
    root = info.names[0]
    ends = [begins[place] + info.end[place] - place - 1 for place in holders]
    return Parameter(
        name=f"{info.names[holders[0]]}.weight".removeprefix(root).removeprefix("."),
        shape=(numbers,),
        holders=tuple(holders),
        element_bytes=size / numbers,
        trainable=bool(trainable),
        gradient_segment=len(info.names) + int(max(ends)) if trainable else -1,
    )


def _tied(info: ModuleInfo, place: int, missing: float) -> list[int]:
    """Leaves inside a module that share a tensor: k of b bytes each where (k - 1) b are missing."""
    inside = np.arange(place, int(info.end[place]))
    leaves = inside[info.end[inside] == inside + 1]
    sizes, counts = np.unique(info.parameter_bytes[leaves], return_counts=True)
    explains = (sizes > 0) & ((counts - 1) * sizes == missing)
    if np.any(sizes == missing):  # two of them, and no three smaller ones by chance
        explains &= sizes == missing
    if explains.sum() == 1:
        return leaves[info.parameter_bytes[leaves] == sizes[explains][0]].tolist()
    problem = (
        f"has {missing:.0f} bytes less than the modules inside it; no leaves of one size that share"
        " a tensor explain that"
    )
    field = f"{info.names[place]}.param_per_module"
    value = float(info.parameter_bytes[place])
    raise InputError.of(field, value, problem, info.source)
