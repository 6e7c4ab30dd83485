"""Searches whose plans must fit with a probability."""

import json
from typing import Any

import pytest

import samples
from shardwise import InputError, Model, Strategy, System, estimate, search, sweep
from shardwise.planning.nearest import change_to_fit
from shardwise.planning.search.query import probability_of
from shardwise.planning.search.results import SearchResult
from shardwise.report.tables.search import closing

DENSE: dict[str, Any] = {"gpus": 8, "gbs": 64, "tp": [1, 2, 4], "pp": [1, 2], "cp": 1, "vpp": 1}
DENSE |= {"zero": 1, "recompute": ["none", "full"], "tp_overlap": "stack", "dp_overlap": True}
EXPERTS: dict[str, Any] = {"gpus": 16, "gbs": 64, "tp": 1, "pp": [1, 2], "cp": 1, "vpp": 1}
EXPERTS |= {"ep": [4, 8], "zero": 1, "recompute": ["none", "full"], "mbs": [1, 2]}
EXPERTS |= {"dispatcher": "all_to_all", "expert_overlap": False, "dp_overlap": True}
CASES = {"llama3-8b": DENSE, "qwen3-30b-a3b": EXPERTS}


def every(model: str, fits: float | None, **more: Any) -> SearchResult:
    """All plans of a small space."""
    asked = {"all_variants": True, "counts": True, "top": 200, "fits": fits}
    return search(model, "h100-sxm", **CASES[model], **(asked | more))


@pytest.mark.parametrize("model", CASES)
def test_a_search_lists_what_fits_with_the_probability(model: str) -> None:
    """Of all plans that fit as predicted those that surely do, in the same order, and no others."""
    everything = every(model, None)
    values = sorted({plan.fits_probability for plan in everything.best})
    middle = len(values) // 2
    for required in {(values[i - 1] + values[i]) / 2 for i in (1, middle)}:
        likely = [plan for plan in everything.best if plan.fits_probability >= required]
        assert 0 < len(likely) < len(everything.best) == everything.feasible
        found = every(model, required)
        assert [plan.strategy for plan in found.best] == [plan.strategy for plan in likely]
        assert [plan.fits_probability for plan in found.best] == [
            plan.fits_probability for plan in likely
        ]
        assert found.rejected["may_not_fit"] == len(everything.best) - len(likely)
        assert found.rejected["memory"] == everything.rejected["memory"]


@pytest.mark.parametrize("model", CASES)
def test_bounds_do_not_change_what_is_found(model: str) -> None:
    """By default 90 % are required; layouts, scales and the front are those of all candidates."""
    fields = CASES[model] | {"pareto": "memory", "axes": ("tp", "pp"), "top": 5}
    bounded, full = (search(model, "h100-sxm", **fields, bounds=one) for one in (True, False))
    assert bounded.fits_required == 0.9
    plans = [(one.best, one.pareto, one.cells) for one in (bounded, full)]
    assert plans[0] == plans[1]
    listed = [*bounded.best, *(bounded.pareto or ()), *(cell.plan for cell in bounded.cells)]
    assert all(0.9 <= plan.fits_probability <= 1 for plan in listed)


def test_a_sweep_requires_the_same() -> None:
    """Of every point the plan of the search, with its probability."""
    fields = CASES["qwen3-30b-a3b"]
    (point,) = sweep("qwen3-30b-a3b", "h100-sxm", **fields).points
    best = search("qwen3-30b-a3b", "h100-sxm", **fields, top=1, all_variants=True).best[0]
    assert point.best[0].strategy == best.strategy
    assert point.best[0].fits_probability == pytest.approx(best.fits_probability, rel=1e-12)
    loose = sweep("qwen3-30b-a3b", "h100-sxm", **fields, fits=None).points[0].best[0]
    assert loose.step_time_s < best.step_time_s
    assert loose.fits_probability < 0.9


def test_a_stated_load_of_experts_is_that_of_the_test() -> None:
    """With an even load stated, plans need less memory and none is assumed."""
    fields = CASES["qwen3-30b-a3b"]
    usual = search("qwen3-30b-a3b", "h100-sxm", **fields)
    even = search("qwen3-30b-a3b", "h100-sxm", **fields, expert_imbalance=1.0)
    assert dict(usual.fits_assumes) == {"expert_imbalance": 1.5}
    assert not even.fits_assumes
    assert not even.best[0].fits_assumes
    assert even.best[1].step_time_s < usual.best[1].step_time_s
    assert even.best[0].fits_probability >= 0.9


def test_where_nothing_fits_surely_the_likeliest_plan_is_named() -> None:
    """With its probability, and the flag that accepts it; more GPUs surely do."""
    fields = {"gpus": 8, "gbs": 64, "tp": 8, "pp": 1, "cp": 1, "mbs": 1, "zero": 1}
    fields |= {"recompute": "none", "seq_len": 4096}
    loose = search("llama3-8b", "h100-sxm", **fields, fits=None, max_memory="80 GiB")
    assert loose.best
    room = loose.best[0].memory_bytes.reserved * 1.001
    described = System.load("h100-sxm").to_dict()
    described["accelerator"]["memory"][0]["capacity"] = room
    system = System.validated(described)
    found = search("llama3-8b", system, **fields, offload_optimizer=False, offload_weights=False)
    assert not found.best
    assert found.nearest is not None
    likely = found.nearest.fits_probability
    assert likely is not None
    assert 0.1 < likely < 0.9
    assert found.nearest.excess_bytes > 0
    percent = int(100 * likely)
    assert f"--fits {percent}% accepts it" in "\n".join(closing(found))
    accepted = search(
        "llama3-8b",
        system,
        **fields,
        offload_optimizer=False,
        offload_weights=False,
        fits=f"{percent}%",
    )
    assert accepted.best[0].fits_probability == pytest.approx(likely)
    assert found.smallest is not None
    if found.smallest.gpus is not None:
        more = fields | {"gpus": found.smallest.gpus}
        assert search("llama3-8b", system, **more).best[0].fits_probability >= 0.9


def test_probabilities_as_text() -> None:
    """A share, a percentage, or none."""
    assert probability_of("90%") == probability_of(" 90 % ") == probability_of("0.9") == 0.9
    assert probability_of(None) is probability_of("none") is None
    for wrong in ("90", 1.0, 0, "0%", "often", True, "nan"):
        with pytest.raises(InputError, match=r"must be a probability between 0 and 1"):
            probability_of(wrong)


def test_forward_passes_fit_as_predicted() -> None:
    """No peaks of them were measured, so there is no probability."""
    fields = {"gpus": 8, "gbs": 8, "tp": [1, 2], "pp": 1, "cp": 1, "training": False}
    found, plain = (
        search("llama3-8b", "h100-sxm", **fields, fits=fits, counts=True) for fits in (0.9, None)
    )
    assert (found.best, found.rejected) == (plain.best, plain.rejected)
    assert found.best[0].fits_probability is None


EDGE = {
    "dense": ("llama3-70b", {"gpus": 64, "tp": 4, "pp": 4, "gbs": 128, "zero": 1}),
    "experts": ("qwen3-30b-a3b", {"gpus": 64, "ep": 8, "gbs": 256, "zero": 1, "mbs": 2}),
    "too large": ("llama3-8b", {"gpus": 8, "gbs": 64, "tp": 2, "mbs": 4, "zero": 1}),
}


@pytest.mark.parametrize("name", EDGE)
def test_one_change_makes_a_plan_fit(name: str, shardwise: Any) -> None:
    """JSON and text of a plan that may not fit name the change with which it surely fits."""
    model, fields = EDGE[name]
    own = Strategy(**{"micro_batch_size" if k == "mbs" else k: v for k, v in fields.items()})
    now = estimate(model, "h100-sxm", own)
    assert now.verdict == ("does not fit" if name == "too large" else "on the edge")
    change = change_to_fit(Model.load(model), System.load("h100-sxm"), own)
    assert change is not None
    assert len(change.changes) == 1
    after = estimate(model, "h100-sxm", change.strategy)
    assert after.verdict == "fits"
    assert after.fits_probability == pytest.approx(change.fits_probability, rel=1e-9)
    assert after.step_time_s == pytest.approx(change.step_time_s, rel=1e-12)
    flags = [part for key, value in fields.items() for part in (f"--{key}", str(value))]
    code, text, _ = shardwise("estimate", model, "h100-sxm", *flags, "--json")
    assert code == (0 if now.fits else 1)
    data = json.loads(text)
    assert data["verdict"] == now.verdict
    assert data["change_to_fit"]["changes"][0]["field"] == change.changes[0].field
    _, text, _ = shardwise("estimate", model, "h100-sxm", *flags)
    assert text.index(f"{now.verdict}: ") < text.index("step time")
    assert f"fits with {change.changes[0].field} " in text


def test_a_plan_that_fits_has_no_change(shardwise: Any) -> None:
    """Nothing is searched, and the verdict with its probability stands first."""
    flags = ["llama3-8b", "h100-sxm", "--gpus", "8", "--gbs", "8", "--tp", "2"]
    code, text, _ = shardwise("estimate", *flags, "--json")
    assert code == 0
    assert "change_to_fit" not in json.loads(text)
    _, text, _ = shardwise("estimate", *flags)
    assert text.index("fits: ") < text.index(" sure") < text.index("step time")


def test_any_software_can_be_searched() -> None:
    """Software of which no memory was measured has a wide range, and plans that surely fit."""
    memory = [{"name": "hbm", "capacity": 2e6, "bandwidth": 1e12}]
    fields = {"gpus": 4, "gbs": 8, "scope": "full", "any_software": True, "recompute": "full"}
    found = search(samples.model(), samples.system(memory=memory), tp=[1, 2], **fields)
    assert all(plan.fits_probability >= 0.9 for plan in found.best)
