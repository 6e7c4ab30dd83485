"""A whole run: steps, days, price, energy, emissions; what is unknown stays so."""

import json
import math

import numpy as np
import pytest

from rows import each_row
from shardwise import InputError, compare, estimate, estimate_training_time
from shardwise.analysis.training_run.time import training_columns
from shardwise.cli import run
from shardwise.config.model import Model
from shardwise.config.system import Site, System
from shardwise.planning.training_time import checkpoint_bytes
from shardwise.units import parse_quantity

GPT3 = ("gpt3-175b", "a100-80gb-sxm")
PLAN = {"gpus": 1024, "tp": 8, "pp": 16, "gbs": 1536}
SMALL = ("llama3-8b", "h100-sxm", {"gpus": 8, "tp": 2, "gbs": 64})
FLAGS = ["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--tp", "2", "--gbs", "64"]
FAILING = {"accelerator_mtbf": "500 h", "checkpoint_time": "60 s", "restart_time": "10 min"}


@each_row(
    ("text", "tokens"),
    [
        ("1T", 1e12),
        ("300B", 3e11),
        ("1.5e12", 1.5e12),
        ("300 billion", 3e11),
        ("300 billion tokens", 3e11),
        ("2 million", 2e6),
        ("15 trillion", 1.5e13),
        ("1000", 1000.0),
        (1e9, 1e9),
    ],
)
def test_tokens_are_read_as_people_write_them(text, tokens):
    """Letters and words for powers of a thousand."""
    assert parse_quantity(text, "tokens") == tokens


def test_carbon_intensity_has_units():
    """Grams or kilograms, with or without the name of the gas."""
    for text in ("380 g/kWh", "380 gCO2/kWh", "380 gCO2eq/kWh", "0.38 kg/kWh", 0.38):
        assert Site.load({"carbon_intensity": text}).carbon_intensity == pytest.approx(0.38)
    with pytest.raises(InputError, match="more than any fuel"):
        Site.load({"carbon_intensity": 380})


def test_a_run_by_hand():
    """1,001 tokens at 100 each: 11 steps of 3,600 s on 4 accelerators of 500 W and 2 USD."""
    columns = training_columns(
        1001.0,
        tokens_per_step=100,
        step_time_s=3600.0,
        gpus=4,
        usd_per_accelerator_hour=2.0,
        accelerator_power=500.0,
        pue=1.5,
        carbon_intensity=0.4,
    )
    assert {name: float(value) for name, value in columns.items()} == pytest.approx(
        {
            "steps": 11,
            "tokens": 1100,
            "seconds": 39600,
            "days": 39600 / 86400,
            "gpu_hours": 44,
            "usd": 88,
            "kwh": 22,
            "facility_kwh": 33,
            "co2_kg": 13.2,
        }
    )


def test_columns_of_runs_and_what_is_missing():
    """Many rows at once; without a price or a place there is no figure."""
    columns = training_columns(
        np.array([1e9, 1e9]),
        tokens_per_step=np.array([1e6, 3e6]),
        step_time_s=np.array([1.0, 2.0]),
        gpus=np.array([8, 16]),
        accelerator_power=1000.0,
    )
    assert columns["steps"].tolist() == [1000, 334]
    assert columns["kwh"] == pytest.approx([1000 * 8 / 3600, 668 * 16 / 3600])
    assert np.isnan(columns["usd"]).all()
    assert np.isnan(columns["co2_kg"]).all()


def test_gpt3_on_1024_a100_takes_about_34_days():
    """300 B tokens at batch 1536 took 34 days (arXiv 2104.04473, section 5.1), recomputing all."""
    old = {"recompute": "full", "stack": "megatron-lm-2022", "tp_exchange": "ar", "zero": 0}
    found = estimate_training_time(*GPT3, PLAN | old | {"dtype": "fp16"}, tokens="300B")
    assert found.days.expected == pytest.approx(34, rel=0.1)
    assert found.days.low < 34 < found.days.high
    assert found.steps == math.ceil(300e9 / (1536 * 2048)) == 95368
    # Software of today needs no recompute there, and hides exchanges.
    assert estimate_training_time(*GPT3, PLAN, tokens="300B").days.expected < 25


def test_a_run_is_its_steps():
    """The figures of a step, as often as there are steps; the interval goes along."""
    step = estimate(*SMALL)
    found = estimate_training_time(*SMALL, tokens="1B")
    assert found.steps == math.ceil(1e9 / step.tokens_per_step)
    assert found.tokens == found.steps * step.tokens_per_step >= 1e9
    assert found.days.expected * 86400 == pytest.approx(found.steps * step.step_time_s)
    assert found.days.low * 86400 == pytest.approx(found.steps * step.interval.low_s)
    assert found.usd.expected == pytest.approx(found.steps * step.cost.usd_per_step)
    assert found.kwh.expected == pytest.approx(found.steps * step.cost.kwh_per_step)
    assert found.usd.high / found.usd.expected == pytest.approx(
        step.interval.high_s / step.step_time_s
    )
    assert step.whole_run is None


def test_what_is_unknown_is_said():
    """No default for carbon intensity, PUE, price or failures."""
    found = estimate_training_time(*SMALL, tokens="1B", site={"carbon_intensity": "400 g/kWh"})
    assert (found.co2_kg, found.facility_kwh, found.goodput) == (None, None, None)
    assert found.unknown["co2_kg"] == "no PUE"
    bare = System.load("h100-sxm").model_copy(update={"price": None, "board_power": None})
    bare = bare.model_copy(update={"node": bare.node.model_copy(update={"power": None})})
    nothing = estimate_training_time("llama3-8b", bare, SMALL[2], tokens="1B")
    assert (nothing.usd, nothing.kwh) == (None, None)
    assert set(nothing.unknown) == {"usd", "kwh", "co2_kg", "goodput"}
    assert str(nothing).count("unknown") == 4


def test_a_price_told_beside_a_base_is_not_said_by_who_said_the_bases():
    """Its own source, or that it has none; one that is told with it stands."""
    figure = {"value": 3, "source": {"kind": "published", "text": "an invoice"}}
    for price, source in (
        ({"usd_per_accelerator_hour": 3}, "set in addition to the base, without a source"),
        ({"usd_per_accelerator_hour": figure}, "an invoice"),
        ({"usd_per_accelerator_hour": 3, "source": "a friend", "as_of": "2026-01-02"}, "a friend"),
    ):
        mine = System.load({"name": "mine", "base": "h100-sxm", "price": price})
        found = estimate_training_time("llama3-8b", mine, SMALL[2], tokens="1B")
        assert found.sources["price"].removesuffix(" (as of 2026-01-02)") == source


def test_the_systems_place_counts_unless_another_is_given():
    """Flags stand over the file, field by field."""
    system = System.load("h100-sxm")
    placed = system.model_copy(update={"site": Site(carbon_intensity=0.4, pue=1.25)})
    own = estimate_training_time("llama3-8b", placed, SMALL[2], tokens="1B")
    other = estimate_training_time("llama3-8b", placed, SMALL[2], tokens="1B", site={"pue": 1.0})
    assert own.co2_kg.expected == pytest.approx(own.kwh.expected * 1.25 * 0.4)
    assert other.co2_kg.expected == pytest.approx(own.kwh.expected * 0.4)
    assert own.sources["pue"] == "system h100-sxm"
    assert other.sources["pue"] == "given"
    assert "CoreWeave" in other.sources["price"]
    assert System.load(placed.to_dict(units=True)) == placed


def test_no_system_of_the_catalog_guesses_its_place():
    """Figures of a place belong to one cluster; ours are of kinds of machines."""
    assert System.load("h100-sxm").site is None


def test_a_checkpoint_holds_weights_and_state_once():
    """bf16 weights, fp32 copies and two moments: 14 bytes; every plan writes the same."""
    one, other = (
        estimate("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 64} | more)
        for more in ({"tp": 2}, {"pp": 4, "zero": 1, "recompute": "full"})
    )
    count = Model.load("llama3-8b")
    assert checkpoint_bytes(one) == checkpoint_bytes(other) == 14 * one.parameters
    assert count.name == one.model


def test_failures_lengthen_the_run():
    """Shares add up to one; days and price go with what is useful."""
    known = FAILING | {"spares": 1, "repair_time": "1 d"}
    found = estimate_training_time(*SMALL, tokens="1B", reliability=known)
    whole = found.goodput
    assert sum(whole.share.values()) == pytest.approx(1)
    assert whole.days.expected * whole.goodput == pytest.approx(found.days.expected)
    assert whole.usd.expected * whole.goodput == pytest.approx(found.usd.expected)
    assert whole.job_mtbf_s == 500 * 3600 / 8
    assert whole.interval_s == whole.best_interval_s
    assert found.effective_days == whole.days.expected > found.days.expected
    assert "waiting" not in found.unknown


def test_without_repairs_waiting_is_unknown():
    """It is left out of the days, and that is said."""
    found = estimate_training_time(*SMALL, tokens="1B", reliability=FAILING | {"spares": 1})
    assert "waiting" not in found.goodput.share
    assert found.unknown["waiting"] == "no repair time"
    assert 0 < found.goodput.spares_cover <= 1


def test_storage_bandwidth_gives_the_time_of_a_checkpoint():
    """14 bytes a weight over 10 GB/s."""
    fields = FAILING | {"storage_bandwidth": "10 GB/s"}
    del fields["checkpoint_time"]
    found = estimate_training_time(*SMALL, tokens="1B", reliability=fields).goodput
    assert found.checkpoint_time_s == pytest.approx(14 * estimate(*SMALL).parameters / 1e10)


def test_asynchronous_checkpoints_lose_less():
    """A stop of 2 s, one written at a time."""
    beside = FAILING | {"asynchronous": True, "checkpoint_stall": "2 s"}
    blocking, beside = (
        estimate_training_time(*SMALL, tokens="1B", reliability=known).goodput
        for known in (FAILING, beside)
    )
    assert beside.goodput > blocking.goodput
    assert beside.interval_s >= beside.checkpoint_time_s
    late = FAILING | {"asynchronous": True, "checkpoint_stall": 2, "checkpoint_interval": 30}
    with pytest.raises(InputError, match="at least the 60 s"):
        estimate_training_time(*SMALL, tokens="1B", reliability=late)


def test_a_run_that_never_ends_says_so(tmp_path, capsys):
    """It has no days and no price; it is read back, and what ends is better."""
    flags = ["--tokens", "1B", "--mtbf", "60s", "--checkpoint-time", "1h", "--restart-time", "2d"]
    assert run([*FLAGS, *flags]) == 0
    told = capsys.readouterr().out
    assert "never" in told
    assert "inf" not in told
    assert run([*FLAGS, *flags, "--report", "-"]) == 0
    assert "Effective time to train ----- never" in capsys.readouterr().out
    assert run([*FLAGS, *flags, "--output", str(tmp_path / "never.json")]) == 0
    found = json.loads((tmp_path / "never.json").read_text())["whole_run"]["goodput"]
    assert [found[name] for name in ("failures", "days", "gpu_hours", "usd")] == [None] * 4
    assert found["goodput"] == 0
    files = [str(tmp_path / "never.json"), str(tmp_path / "ends.json")]
    assert run([*FLAGS, *flags, "--mtbf", "5e4h", "--output", files[1]]) == 0
    assert compare(*files).best["effective_days"] == "ends"
    never = compare(files[0], files[0])
    assert never.best["effective_days"] is None
    assert json.dumps(never.to_dict(), allow_nan=False)
    assert run(["compare", *files]) == 0
    assert "never" in capsys.readouterr().out


def test_the_command_line_tells_the_same(tmp_path, capsys):
    """Flags, a file of a reliability, and flags over its fields."""
    path = tmp_path / "cluster.yaml"
    path.write_text("accelerator_mtbf: 500 h\ncheckpoint_time: 60 s\nrestart_time: 10 min\n")
    place = ["--pue", "1.2", "--carbon-intensity", "380 g/kWh"]
    more = ["--reliability", str(path), "--spares", "2", "--storage-bandwidth", "1 GB/s"]
    assert run([*FLAGS, "--tokens", "1B", *place, *more, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["whole_run"]
    known = {k: v for k, v in FAILING.items() if k != "checkpoint_time"}
    known |= {"spares": 2, "storage_bandwidth": "1 GB/s"}
    expected = estimate_training_time(
        *SMALL,
        tokens="1B",
        reliability=known,
        site={"pue": 1.2, "carbon_intensity": "380 g/kWh"},
    )
    assert record == expected.to_dict()
    assert run([*FLAGS, "--tokens", "1B", *place]) == 0
    out = capsys.readouterr().out
    assert "time to train on 1 B tokens" in out
    assert "no failure and checkpoint data" in out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--pue", "1.1"], "pue: '1.1': needs --tokens"),
        (["--tokens", "12 apples"], "tokens: '12 apples': unit 'apples'"),
        (["--tokens", "0"], "must be at least 1 tokens"),
        (["--tokens", "1T", "--pue", "0.5"], "pue: '0.5'"),
        (["--tokens", "1T", "--spares", "4"], "--restart-time is missing"),
        (["--tokens", "1T", "--no-training"], "forward only"),
        (["--tokens", "1T", "--reference", "calculon"], "has no effect with --reference"),
    ],
)
def test_bad_input_is_one_line(flags, told, capsys):
    """Exit code 2, and what is wrong."""
    assert run([*FLAGS, *flags]) == 2
    assert told in capsys.readouterr().err
