"""Fits: they find the figures that made a table, and leave everything else as it was."""

import builtins
import json

import numpy as np
import polars as pl
import pytest

from kernel_samples import ATTENTION, EXPERTS, MATMUL, machine, saved
from shardwise.config.system import System
from shardwise.config.system_columns import figures_of, with_figures
from shardwise.errors import InputError
from shardwise.validate.calibrate.fit import Errors, calibrated, folds
from shardwise.validate.calibrate.predictions import predictions
from shardwise.validate.calibrate.tables import read_table

THROTTLE = {"slowdown": 0.1, "after": 1e-3, "sustained": 0.1}
CLOSED = {"efficiency": 0.8, "fill_depth": 100, "fill_tiles": 0.3, "fill_exponent": 1.5}
CLOSED |= {"memory_efficiency": 0.8, "launch": 3e-6}
NEAR = {"efficiency": 0.6, "fill_depth": 50, "fill_tiles": 0.5, "fill_exponent": 2}
NEAR |= {"memory_efficiency": 1, "launch": 5e-6, "throttle": {"slowdown": 0.05, "after": 2e-3}}


def grid(**values):
    """Every combination of some values, as a table."""
    meshed = np.meshgrid(*map(np.asarray, values.values()), indexing="ij")
    return pl.DataFrame({name: m.ravel() for name, m in zip(values, meshed, strict=True)})


def products(dtype="bf16"):
    sizes = [128, 512, 1024, 4096, 16_384]
    rows = grid(m=sizes, n=[256, 1024, 8192], k=[256, 2048, 8192], mode=["burst", "sustained"])
    return rows.with_columns(gpu=pl.lit("mine"), dtype=pl.lit(dtype))


def made_by(system, folder, kind, rows):
    """A table whose times are what the system says."""
    path = saved(folder, kind, rows.with_columns(latency_us=pl.lit(1.0)))
    (found,) = predictions(read_table(path), {"mine": system})
    path = saved(folder, kind, rows.with_columns(latency_us=found.predicted_us))
    return read_table(path)


def test_a_fit_finds_the_figures_that_made_a_table(tmp_path):
    """From other ones, in all of its rows; the source tells the file, the rows and the error."""
    true = CLOSED | {"throttle": THROTTLE}
    table = made_by(machine(matmul={"bf16": true}), tmp_path, "gemm", products())
    start = machine(matmul={"bf16": NEAR})
    found = calibrated(start, [table])
    (fit,) = found.fits
    assert fit.before.mean > 0.15
    assert fit.after.mean < 0.01
    fitted = found.system.accelerator.benchmark.matmul["bf16"]
    for name, value in CLOSED.items():
        assert getattr(fitted, name) == pytest.approx(value, rel=0.15), name
    assert fitted.throttle.sustained == pytest.approx(0.1, rel=0.2)
    source = found.system.sources["accelerator.benchmark.matmul.bf16"]
    assert source.kind == "fitted"
    assert source.text.startswith("by shardwise calibrate on 90 rows of gemm.csv; mean error 0.")


def test_a_fit_changes_nothing_else(tmp_path):
    """The system has the fitted figures and their sources, else what it had."""
    table = made_by(
        machine(matmul={"fp8": CLOSED | {"throttle": THROTTLE, "cast_bytes": 5}}),
        tmp_path,
        "gemm",
        products("fp8"),
    )
    start = machine(matmul={"fp8": MATMUL | {"cast_bytes": 3}, "bf16": MATMUL})
    found = calibrated(start, [table])
    (fit,) = found.fits
    assert found.system.accelerator.benchmark.matmul["fp8"].cast_bytes == pytest.approx(5, rel=0.1)
    changed = with_figures(found.system, dict.fromkeys(fit.figures, 1.0))
    before = with_figures(start, dict.fromkeys(fit.figures, 1.0))
    assert changed.model_copy(update={"sources": {}}) == before.model_copy(update={"sources": {}})
    assert figures_of(found.system) == figures_of(start)
    assert set(found.system.sources) - set(start.sources) == {fit.prefix}
    assert found.system.sources.items() >= start.sources.items()


def test_a_system_without_figures_begins_with_those_of_training(tmp_path):
    """Kinds that the rows have are there afterwards, others not."""
    true = machine(matmul={"bf16": CLOSED | {"throttle": THROTTLE}})
    table = made_by(true, tmp_path, "gemm", products())
    found = calibrated(machine(), [table])
    assert set(found.system.accelerator.benchmark.matmul) == {"bf16"}
    assert found.fits[0].after.mean < 0.01


def test_attention_experts_and_collectives_are_fitted_too(tmp_path):
    """Shares by head width; what moves tokens; rates by members of a group."""
    wide = ATTENTION | {"efficiency": {"64": 0.4, "128": 0.7}, "copy_bytes": 4, "launch": 5e-6}
    rows = grid(seq=[512, 2048, 8192], heads=[8, 32], head_dim=[64, 128], batch=[1, 8])
    rows = rows.with_columns(
        gpu=pl.lit("mine"),
        dtype=pl.lit("bf16"),
        causal=1,
        kv_heads=8,
        head_dim_v=pl.col("head_dim"),
    )
    attention = made_by(machine(attention={"bf16_causal": wide}), tmp_path, "attention", rows)
    experts = CLOSED | {"throttle": THROTTLE, "row_step": 128, "pair_bytes": 9, "token_bytes": 3}
    experts |= {"inner_bytes": 4, "choice_bytes": 20}
    rows = grid(tokens=[512, 2048, 8192], topk=[2, 8], ep=[1, 4], inter=[768, 2048])
    rows = rows.with_columns(
        gpu=pl.lit("mine"),
        dtype=pl.lit("bf16"),
        distribution=pl.lit("balanced"),
        gated=1,
        hidden=4096,
        experts=64,
        tp=1,
    )
    blocks = made_by(machine(experts={"bf16": EXPERTS | experts}), tmp_path, "moe", rows)
    fields = System.load("h100-sxm").to_dict()
    rates = fields["network"][0]["collectives"]["all_gather"]
    rates |= {"latency": 9e-6, "efficiency": {"2": 0.4, "4": 0.5, "8": 0.6}}
    rows = grid(gpus_per_node=[2, 4, 8], size_bytes=[2**10, 2**20, 2**24, 2**28])
    rows = rows.with_columns(gpu=pl.lit("mine"), op=pl.lit("all_gather"), nodes=1)
    gathers = made_by(System.validated(fields), tmp_path, "collective", rows)
    found = calibrated(machine(), [attention, blocks, gathers])
    assert [fit.prefix for fit in found.fits] == [
        "accelerator.benchmark.attention.bf16_causal",
        "accelerator.benchmark.experts.bf16",
        "network.0.collectives.all_gather",
    ]
    assert all(fit.after.mean < 0.02 for fit in found.fits)
    shares = found.system.accelerator.benchmark.attention["bf16_causal"].efficiency
    assert shares == pytest.approx({64: 0.4, 128: 0.7}, rel=0.1)
    gathered = found.system.network[0].collectives["all_gather"]
    assert gathered.efficiency == pytest.approx({2: 0.4, 4: 0.5, 8: 0.6}, rel=0.02)
    assert gathered.latency == pytest.approx(9e-6, rel=0.02)


def test_tiers_of_a_pcie_server_are_fitted_to_the_groups_that_they_join(tmp_path):
    """Two and four cards are in a socket, eight in both, which have a rate of their own."""
    fields = System.load("a100-80gb-pcie").to_dict()
    socket, both = (fields["network"][tier]["collectives"]["all_gather"] for tier in (0, 1))
    socket["efficiency"] = {"2": 0.6, "4": 0.7}
    both["efficiency"] = both["efficiency"] | {"4": 0.3}
    rows = grid(gpus_per_node=[2, 4, 8], size_bytes=[2**10, 2**20, 2**24, 2**28])
    rows = rows.with_columns(gpu=pl.lit("mine"), op=pl.lit("all_gather"), nodes=1)
    gathers = made_by(System.validated(fields), tmp_path, "collective", rows)
    found = calibrated(System.load("a100-80gb-pcie"), [gathers])
    assert [fit.prefix for fit in found.fits] == [
        "network.0.collectives.all_gather",
        "network.1.collectives.all_gather",
    ]
    socket, both = (tier.collectives["all_gather"] for tier in found.system.network[:2])
    assert socket.efficiency == pytest.approx({2: 0.6, 4: 0.7}, rel=0.03)
    assert both.efficiency[4] == pytest.approx(0.3, rel=0.05)


def test_parts_are_of_configurations(tmp_path):
    """Both modes of a product are in one part, and parts are about equal."""
    true = machine(matmul={"bf16": CLOSED | {"throttle": THROTTLE}})
    table = made_by(true, tmp_path, "gemm", products())
    number = folds(table, 3)
    of = table.columns
    keys = {}
    for key, place in zip(zip(of["m"], of["n"], of["k"], strict=True), number, strict=True):
        keys.setdefault(key, set()).add(int(place))
    assert all(len(places) == 1 for places in keys.values())
    assert set(number.tolist()) == {0, 1, 2}
    assert np.bincount(number).min() > len(number) / 6
    (fit,) = calibrated(machine(matmul={"bf16": NEAR}), [table], parts=3).fits
    assert fit.left_out.n == fit.after.n
    assert fit.left_out.mean < 0.02


def test_errors_of_a_few_rows():
    """+10, -30 and +20 %."""
    errors = Errors.of(np.array([1.1, 0.7, 1.2]), np.ones(3))
    assert errors.n == 3
    assert errors.mean == pytest.approx(0.2)
    assert errors.median == pytest.approx(0.2)
    assert errors.bias == pytest.approx(0.0)
    assert errors.p90 == pytest.approx(0.28)


def test_a_few_wild_rows_do_not_move_a_fit(tmp_path):
    """One in ten takes three times as long: the others are still predicted within 4 %."""
    true = CLOSED | {"throttle": THROTTLE}
    made_by(machine(matmul={"bf16": true}), tmp_path, "gemm", products())
    frame = pl.read_csv(tmp_path / "gemm.csv").with_row_index("row")
    tame = frame["latency_us"].to_numpy()
    wild = pl.when(pl.col("row") % 10 == 0).then(3.0).otherwise(1.0)
    path = saved(tmp_path, "gemm", frame.with_columns(latency_us=pl.col("latency_us") * wild))
    table = read_table(path)
    found = calibrated(machine(matmul={"bf16": true}), [table])
    (told,) = predictions(table, {"mine": found.system})
    assert np.abs(told.predicted_us / tame - 1)[table.large].mean() < 0.04


def test_the_verb_writes_a_system(tmp_path, shardwise):
    """One GPU of a table, errors before and after, and a file that loads."""
    true = machine(matmul={"bf16": CLOSED | {"throttle": THROTTLE}})
    made_by(true, tmp_path, "gemm", products())
    system, new = tmp_path / "mine.yaml", tmp_path / "new.yaml"
    machine().to_file(system)
    words = ("calibrate", system, "--from-table", tmp_path / "gemm.csv")
    code, out, err = shardwise(*words, "--out", new)
    assert (code, err) == (0, "")
    assert "accelerator.benchmark.matmul.bf16" in out
    fitted = System.load(new)
    assert fitted.accelerator.benchmark.matmul["bf16"].efficiency == pytest.approx(0.8, rel=0.1)
    _, out, _ = shardwise(*words, "--json", "--folds", 2)
    (fit,) = json.loads(out)["fits"]
    assert fit["after"]["mean"] < fit["before"]["mean"]
    assert fit["left_out"]["n"] == fit["after"]["n"]


def test_the_verb_refuses_in_one_line(tmp_path, shardwise, monkeypatch):
    """A table of something else, several GPUs, a bad ending, no scipy."""
    cast = saved(tmp_path, "cast_fp8", {"gpu": ["x"], "m": [1], "k": [1], "cast_us": [1.0]})
    code, _, err = shardwise("calibrate", "h100-sxm", "--from-table", cast)
    kinds = "gemm, attention, moe, collective, moe_alltoall, elementwise, train_gemm"
    problem = f"only {kinds} and train_attention can be fitted to"
    assert (code, err) == (2, f"error: {cast}: {problem}\n")
    rows = products().with_columns(latency_us=pl.lit(100.0))
    both = pl.concat([rows, rows.with_columns(gpu=pl.lit("yours"))])
    path = saved(tmp_path, "gemm", both)
    _, _, err = shardwise("calibrate", "h100-sxm", "--from-table", path)
    assert err == (f"error: {path}: column gpu: select a GPU with --gpu; allowed: mine, yours\n")
    _, _, err = shardwise("calibrate", "h100-sxm", "--from-table", path, "--out", "new.txt")
    assert "allowed endings: .json, .yaml" in err
    _, _, err = shardwise("calibrate", "h100-sxm", "--from-table", path, "--folds", 1)
    assert "must be a whole number of at least 2" in err
    imported = builtins.__import__

    def without_scipy(name, *given, **more):
        if name.startswith("scipy"):
            raise ImportError(name)
        return imported(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    _, _, err = shardwise("calibrate", "h100-sxm", "--from-table", path, "--gpu", "mine")
    assert err == (
        "error: calibrate: fits need scipy; install it with: pip install 'shardwise[calibrate]'\n"
    )


def test_unknown_kinds_are_left_alone(tmp_path):
    """A type without figures is no reason to fail, as long as others can be fitted."""
    true = machine(matmul={"bf16": CLOSED | {"throttle": THROTTLE}})
    made_by(true, tmp_path, "gemm", products())
    frame = pl.read_csv(tmp_path / "gemm.csv")
    both = pl.concat([frame, frame.with_columns(dtype=pl.lit("int3"))])
    table = read_table(saved(tmp_path, "gemm", both))
    assert [fit.rows for fit in calibrated(machine(), [table]).fits] == [90]
    only = read_table(saved(tmp_path, "gemm", frame.with_columns(dtype=pl.lit("int3"))))
    with pytest.raises(InputError, match="only gemm, attention, moe, collective, moe_alltoall"):
        calibrated(machine(), [only])
