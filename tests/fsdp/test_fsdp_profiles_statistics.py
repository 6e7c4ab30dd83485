"""Profiles from module statistics, and ties that these cannot tell."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rows import each_row
from shardwise import InputError
from shardwise.fsdp.from_statistics import profile_of_statistics
from shardwise.predecessors.fsdp_ilp.files import module_info

DATA = Path(__file__).parents[1] / "data"


def stored(name):
    """Module information as scyther writes it."""
    golden = json.loads((DATA / "fsdp_ilp.json").read_text(encoding="utf-8"))
    one = golden["module_infos"][name]
    names, columns = one["names"], one["columns"]
    rows = zip(*columns.values(), strict=True)
    stats = [dict(zip(columns, row, strict=True)) for row in rows]
    stats = [{"fqn": n, **row} for n, row in zip(names, stats, strict=True)]
    for row in stats:
        row["grad_per_module"] = row["param_per_module"]
    post = [names[i] for i in one["fw_post_order"]]
    return {"fw_pre_order": names, "fw_post_order": post, "modstats": stats}


@cache
def golden(name):
    """Statistics and their profile."""
    info = module_info(stored(name), source=name)
    return info, profile_of_statistics(info)


@each_row("name", ["seed_gpt6", "llama4", "tiny12"])
def test_statistics_become_segments(name):
    """A pair for each module; times and weights add up to the root's."""
    info, profile = golden(name)
    count = len(info.names)
    assert profile.forward_segments == len(profile.seconds) / 2 == count
    assert profile.seconds[:count].sum() == pytest.approx(info.forward_ms[0] / 1e3)
    assert profile.seconds[count:].sum() == pytest.approx(info.backward_ms[0] / 1e3)
    held = sum(p.numel * p.element_bytes for p in profile.parameters)
    assert held == info.parameter_bytes[0]
    leaves = np.flatnonzero(info.end == np.arange(count) + 1)
    for place in range(count):  # what is alive at a module's end is held in its last segment
        last = leaves[leaves < info.end[place]].max()
        assert profile.resident_bytes[last] >= info.activation_total_bytes[place]
    assert profile.resident_bytes[:count].max() == info.activation_total_bytes.max()
    assert profile.modules[0].kind == info.names[0]
    assert profile.modules[1].name == info.names[1].split(".", 1)[1]
    assert profile.source == name
    assert {p.element_bytes for p in profile.parameters} == {4}


@each_row("name", ["seed_gpt6", "llama4"])
def test_gradients_so_far_are_those_of_the_statistics(name):
    """TG of every module of two traced models, and with it the fullest moment max(TA + AG + TG)."""
    info, profile = golden(name)
    begins = [module.backward[0] for module in profile.modules]
    before = [profile.gradient_bytes[begin - 1] for begin in begins]
    assert before == info.gradient_total_bytes.tolist()
    parts = (info.activation_total_bytes, info.activation_gradient_bytes, before)
    assert profile.resident_bytes.max() == np.sum(parts, axis=0).max()


def test_modules_of_statistics_take_what_they_say():
    """Layers and forward passes exactly; k_proj's hook counts others' backward, and is scaled."""
    info, profile = golden("llama4")
    for place, module in enumerate(profile.modules):
        ahead = profile.seconds[slice(*module.forward)].sum() * 1e3
        assert ahead == pytest.approx(info.forward_ms[place])
        end = module.backward[0] + module.end - place
        back = profile.seconds[module.backward[0] : end].sum() * 1e3
        known = info.backward_ms[place]
        assert back <= known * (1 + 1e-12)
        if not module.name.endswith("_proj"):
            assert back == pytest.approx(known)
    attention, projections = info.backward_ms[4], info.backward_ms[5:9]
    assert projections.sum() > attention
    key = profile.modules[6]
    scaled = profile.seconds[key.backward[0]] * 1e3
    assert scaled == pytest.approx(projections[1] * attention / projections.sum())
    reduced_last = [module.name for module in profile.modules if module.reduced_last]
    assert reduced_last == ["", "embed_tokens"]


def test_tied_weights_are_found_in_statistics():
    """GPT's head and table: the root has their 96 MiB once, the modules twice."""
    _, profile = golden("seed_gpt6")
    (tied,) = profile.shared
    assert [profile.modules[h].name for h in tied.holders] == ["transformer.wte", "lm_head"]
    assert tied.numel == 8192 * 3072
    assert not golden("llama4")[1].shared


def hand(*rows):
    """Statistics of modules: name, bytes of weights, ms forward, ms backward; pre-order."""
    names = [row[0] for row in rows]
    stats = [
        {
            "fqn": name,
            "param_per_module": size,
            "grad_per_module": size if name != "R.frozen" else 0,
            "grad_total": 0,
            "act_total": 1000,
            "act_grad_per_module": 10,
            "input_per_module": 8,
            "fw_runtime_per_module": ahead,
            "bw_runtime_per_module": back,
        }
        for name, size, ahead, back in rows
    ]
    orders = {"fw_pre_order": names, "fw_post_order": [*names[1:], names[0]]}
    return module_info({**orders, "modstats": stats}, source="by hand")


def test_identity_modules_are_held_to_three_times_their_forward():
    """A dropout that returns its input says 90 of 100 ms: 3 x 1 are believed."""
    profile = profile_of_statistics(
        hand(("R", 400, 10, 100), ("R.a", 400, 4, 8), ("R.drop", 0, 1, 90))
    )
    assert profile.seconds == pytest.approx(np.array([5, 4, 1, 89, 3, 8]) / 1e3)


def test_three_may_share_a_tensor_and_some_may_be_frozen():
    """Three leaves of 120 bytes in 120; a frozen one gets no gradient; 9 bytes are two numbers."""
    leaves = [(f"R.{name}", 120, 1, 1) for name in ("a", "b", "c")]
    rows = [("R", 120 + 40 + 9, 9, 9), *leaves, ("R.frozen", 40, 1, 1), ("R.odd", 9, 1, 1)]
    profile = profile_of_statistics(hand(*rows))
    found = {p.name: p for p in profile.parameters}
    assert found["a.weight"].holders == (1, 2, 3)
    assert found["frozen.weight"].gradient_segment == -1
    assert not found["frozen.weight"].trainable
    odd = found["odd.weight"]
    assert odd.numel * odd.element_bytes == 9


@each_row(
    "leaves",
    [
        [("R.a", 100, 1, 1), ("R.b", 100, 1, 1), ("R.c", 100, 1, 1), ("R.d", 60, 1, 1)],
        [("R.a", 100, 1, 1), ("R.b", 108, 1, 1)],
    ],
)
def test_ties_that_cannot_be_told_are_refused(leaves):
    """Which two of three leaves of one size, or leaves of different sizes (a bias beside)."""
    whole = sum(leaf[1] for leaf in leaves) - 100
    with pytest.raises(InputError, match=r"by hand: R.param_per_module: .* has 100 bytes less"):
        profile_of_statistics(hand(("R", whole, 9, 9), *leaves))
