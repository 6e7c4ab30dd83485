"""Prices: what they depend on, how to set one, and what would break even."""

import math
from typing import Any

import pytest

from shardwise import InputError, System, compare, estimate
from shardwise.cli import run
from shardwise.config.prices import Price, PriceBook
from shardwise.planning.cluster_choice import ClusterOption, Limits, choice_within
from shardwise.planning.methods import compare_methods

UNLIMITED = Limits(deadline_s=math.inf, budget_usd=math.inf)
PLAN = {"gpus": 8, "tp": 2, "gbs": 64}


def option(system: str, gpus: int, days: float, usd: float | None) -> ClusterOption:
    """A run of so many days and USD."""
    fields: dict[str, Any] = dict.fromkeys(("plan", "run", "software", "problem"))
    fields |= {"meets_deadline": None, "within_budget": None, "on_front": False}
    fields |= {"candidates": 1, "feasible": 1, "rejected": {}, "global_batch_size": 8}
    return ClusterOption(system=system, gpus=gpus, days=days, usd=usd, **fields)


def test_the_break_even_price_makes_two_systems_cost_the_same() -> None:
    """A: 240 GPU-hours at $2, at best; B: 480 at $3; C: 120 without a price."""
    options = [
        option("a", 1, 10, 480.0),
        option("a", 2, 6, 576.0),
        option("b", 2, 10, 1440.0),
        option("c", 1, 5, None),
    ]
    found = choice_within(options, UNLIMITED)["break_even"]
    assert found == {"a": 1440 / 240, "b": 480 / 480, "c": 480 / 120}
    deadline = Limits(deadline_s=7 * 86400, budget_usd=math.inf)
    assert choice_within(options, deadline)["break_even"] == {"c": 576 / 120}


def test_a_comparison_has_the_break_even_price_of_each_system() -> None:
    """At that price of one system, both cost the same for a token; on one system there is none."""
    one, other = (estimate("llama3-8b", name, PLAN) for name in ("h100-sxm", "h20-sxm"))
    found = compare(one, other).break_even
    assert set(found) == {"h20-sxm"}  # which has no price
    priced = estimate("llama3-8b", System.load("h20-sxm").with_price(found["h20-sxm"]), PLAN)
    cost = one.cost.usd_per_billion_tokens
    assert priced.cost.usd_per_billion_tokens == pytest.approx(cost)
    assert compare(one, priced).break_even["h100-sxm"] == pytest.approx(
        System.load("h100-sxm").price.usd_per_accelerator_hour  # type: ignore[union-attr]
    )
    assert compare(one, estimate("llama3-8b", "h100-sxm", PLAN)).break_even == {}


def test_each_method_has_its_break_even_prices() -> None:
    """By the cost of the same method: what each costs at its price is what the other one costs."""
    systems = ("a100-80gb-sxm", "l40s")
    found = compare_methods(["qwen3-1.7b"], systems, finetune=["lora", "qlora"]).plans
    for one, other in ((0, 1), (1, 0), (2, 3), (3, 2)):
        price = System.load(found[one].system).price
        assert price is not None
        usd = found[one].usd_per_million_tokens
        at = found[one].break_even_usd
        assert usd is not None
        assert at is not None
        at_even = usd * at / price.usd_per_accelerator_hour
        assert at_even == pytest.approx(found[other].usd_per_million_tokens)
    (alone,) = compare_methods(["qwen3-1.7b"], ["l40s"]).plans
    assert alone.break_even_usd is None


def test_a_price_says_what_it_depends_on() -> None:
    """Provider, region, term and date; what is not known is left out."""
    fields = {"usd_per_accelerator_hour": 2, "as_of": "2026-11-01", "source": "list"}
    assert Price(**fields).in_words == "$2 per GPU-hour (2026-11-01)"
    words = {"provider": "Acme", "region": "EU", "term": "spot"}
    assert Price(**fields, **words).in_words == "$2 per GPU-hour (Acme, EU, spot, 2026-11-01)"
    book = PriceBook(prices=[{"system": "H100", **fields, **words}])
    assert book.of("h100-sxm") == Price(**fields, **words)
    assert book.of("l4") is None


def test_every_price_of_the_catalog_names_provider_and_term() -> None:
    """So that two prices can be compared."""
    for name in ("h100-sxm", "a100-80gb-pcie", "mi300x", "gb200-nvl72"):
        price = System.load(name).price
        assert price is not None
        assert price.provider
        assert price.term == "on demand"


def test_estimates_say_which_price_they_rest_on(capsys: pytest.CaptureFixture[str]) -> None:
    """With its date, or how to set one."""
    cost = estimate("llama3-8b", "h100-sxm", PLAN).cost
    price = System.load("h100-sxm").price
    assert price is not None
    assert cost.price == price.in_words
    assert str(price.as_of) in cost.price_line
    assert "no price: set --price" in estimate("llama3-8b", "h20-sxm", PLAN).cost.price_line
    words = [
        "estimate",
        "llama3-8b",
        "h20-sxm",
        "--gpus",
        "8",
        "--tp",
        "2",
        "--gbs",
        "64",
        "--price",
    ]
    assert run([*words, "1.5"]) == 0
    assert "price: $1.5 per GPU-hour (set)" in capsys.readouterr().out
    assert run([*words, "free"]) == 2
    assert "--price: 'free': must be a number above 0" in capsys.readouterr().err


def test_a_price_is_set_for_a_system() -> None:
    """In Python, within the bounds of a price."""
    system = System.load("h20-sxm").with_price(3)
    assert estimate("llama3-8b", system, PLAN).cost.price == "$3 per GPU-hour (set)"
    with pytest.raises(InputError, match="usd_per_accelerator_hour"):
        system.with_price(1e9)


def test_the_cheapest_of_three_systems_takes_one_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Task 6: H100, B200 and MI300X for 7B on 1 T tokens, with dated prices and break-even."""
    words = "search llama2-7b --systems h100-sxm,b200-sxm,mi300x --gpus 64 --gbs 512 --tokens 1T"
    fixed = "--fix tp=1,pp=1,cp=1,zero=1,recompute=none,mbs=1,placement=tp-cp-dp-pp"
    assert run([*words.split(), *fixed.split()]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "cheapest: 64 x mi300x" in text
    for name in ("h100-sxm", "b200-sxm", "mi300x"):
        price = System.load(name).price
        assert price is not None
        assert f"{name} {price.in_words}" in text
    assert "break-even with the cheapest run on another system, per GPU-hour: h100-sxm $" in text
