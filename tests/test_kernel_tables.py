"""Tables of measured kernels: how they are read, predicted and scored."""

import json

import numpy as np
import polars as pl
import pytest

from kernel_samples import ATTENTION, DEEPGEMM_H100, EXPERTS, MATMUL, machine, saved
from shardwise.config.system import System
from shardwise.cost.collective import collective_time
from shardwise.errors import InputError, shorten
from shardwise.ops.operation import CollectiveKind
from shardwise.validate.calibrate import tables
from shardwise.validate.calibrate.predictions import predictions
from shardwise.validate.calibrate.tables import KINDS, read_folder, read_table
from shardwise.validate.kernels import GPU_SYSTEMS, kernel_scores

PRODUCT = {"gpu": ["x"], "dtype": ["bf16"], "m": [1280], "n": [640], "k": [1000]}
TIME = {"latency_us": [20.0]}
HEADS = {"batch": [2], "seq": [256], "heads": [8], "kv_heads": [4]}
MASKED = {"gpu": ["x"], "dtype": ["bf16"], "causal": [1], **HEADS, "head_dim": [64]}
BLOCK = {
    "gpu": ["x"],
    "dtype": ["bf16"],
    "gated": [1],
    "tokens": [640],
    "hidden": [1024],
    "inter": [512],
    "topk": [2],
    "experts": [4],
    "tp": [2],
    "ep": [2],
    "distribution": ["balanced"],
}


def told(folder, kind, rows, system):
    """Predictions [us] and reasons of the rows of a table."""
    table = read_table(
        saved(folder, kind, rows | {name: [1.0] * len(rows["gpu"]) for name in KINDS[kind].times})
    )
    found = predictions(table, {"x": system})[0]
    return found.predicted_us.tolist(), found.reason.tolist()


def refusal(path, kind=None):
    with pytest.raises(InputError) as caught:
        read_table(path, kind)
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".csv.gz"])
def test_a_table_is_read_from_any_format(tmp_path, ending):
    """Numbers are floats, even where some are written with an exponent; the mode is burst."""
    path = saved(tmp_path, "gemm", PRODUCT | TIME, ending)
    (table,) = read_folder(tmp_path)
    assert (table.kind, table.source, len(table)) == ("gemm", str(path), 1)
    assert table.columns["m"].tolist() == [1280.0]
    assert table.columns["mode"].tolist() == ["burst"]
    assert table.large.tolist() == [True]


def test_a_bad_table_is_refused_in_one_line(tmp_path):
    """File, column, row, what is there and what is allowed."""
    path = saved(tmp_path, "gemm", {k: v for k, v in (PRODUCT | TIME).items() if k != "k"})
    allowed = "gpu, dtype, m, n, k, latency_us"
    assert refusal(path) == f"FILE: column k: is missing; allowed: {allowed}"
    for value in (0, -1, None, float("nan"), float("inf")):
        path = saved(tmp_path, "gemm", PRODUCT | {"latency_us": [value]}, ".parquet")
        shown = shorten(value)
        assert (
            refusal(path) == f"FILE: column latency_us: row 1 has {shown}; allowed: numbers above 0"
        )
    path = saved(tmp_path, "gemm", PRODUCT | TIME | {"m": ["many"]})
    assert "column m: row 1 has 'many'; allowed: numbers above 0" in refusal(path)
    path = saved(tmp_path, "gemm", PRODUCT | TIME | {"mode": ["hot"]})
    assert refusal(path) == "FILE: column mode: row 1 has 'hot'; allowed: burst, sustained"
    path = saved(tmp_path, "attention", MASKED | TIME | {"head_dim_v": [64], "causal": [-1]})
    assert refusal(path) == "FILE: column causal: row 1 has -1; allowed: numbers from 0"
    path = saved(tmp_path, "gemm", pl.DataFrame(PRODUCT | TIME).clear())
    assert refusal(path) == "FILE: has no rows"
    (tmp_path / "gemm.parquet").write_text("no parquet")
    assert refusal(tmp_path / "gemm.parquet").startswith("FILE: cannot be read: ")
    assert refusal(tmp_path / "gemm.txt").startswith("FILE: cannot tell the format")
    assert refusal(tmp_path / "moe.csv") == "FILE: no such file"
    assert "no table is called 'other'" in refusal(tmp_path / "other.csv")


@pytest.mark.parametrize("ending", [".parquet", ".csv.gz"])
def test_a_table_that_unfolds_into_too_many_rows_is_refused(tmp_path, monkeypatch, ending):
    """A few bytes of Parquet or gzip can be any number of equal rows."""
    monkeypatch.setattr(tables, "_MOST_ROWS", 10)
    frame = pl.DataFrame(PRODUCT | TIME)
    assert len(read_table(saved(tmp_path, "gemm", pl.concat([frame] * 10), ending))) == 10
    path = saved(tmp_path, "gemm", pl.concat([frame] * 11), ending)
    assert refusal(path) == "FILE: has more than 10 rows"


def test_a_folder_must_have_tables_each_once(tmp_path):
    """An empty folder, none, and one table in two formats."""
    with pytest.raises(InputError, match="holds no table; allowed: gemm, attention, moe"):
        read_folder(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_folder(tmp_path / "none")
    saved(tmp_path, "gemm", PRODUCT | TIME)
    saved(tmp_path, "gemm", PRODUCT | TIME, ".parquet")
    with pytest.raises(InputError, match=r"gemm\.csv: its table is there in another format too"):
        read_folder(tmp_path)


def test_a_product_is_timed_with_its_cast_and_clocks(tmp_path):
    """2 m n k / (P e); throttled by half at its mark; slower when repeated; q m k / B beside it."""
    whole = 2 * 1280 * 640 * 1000 / 1e14 * 1e6
    moved = 2 * (1280 * 1000 + 640 * 1000 + 1280 * 640) / 1e12 * 1e6
    joined = (whole**2.3 + moved**2.3) ** (1 / 2.3)

    def time(name="bf16", mode="burst", **given):
        system = machine(matmul={name: MATMUL | given})
        (value,), _ = told(tmp_path, "gemm", PRODUCT | {"dtype": [name], "mode": [mode]}, system)
        return value

    assert time() == pytest.approx(joined)
    assert time(launch=1e-6) == pytest.approx(joined + 1)
    throttle = {"slowdown": 0.4, "after": joined * 1e-6, "sustained": 1}
    assert time(throttle=throttle) == pytest.approx(1.2 * joined)
    assert time(throttle=throttle, launch=1e-6) == pytest.approx(1.2 * joined + 1)
    repeated = ((2 * whole) ** 2.3 + moved**2.3) ** (1 / 2.3)
    assert time(throttle=throttle, mode="sustained") == pytest.approx(repeated)
    assert time(cast_bytes=3) == pytest.approx(joined + 3 * 1.28e6 / 1e12 * 1e6)
    # 1280 x 1000 are 10,000 groups of 128, of which 16 divide them; 1281 has 10,008 (8).
    assert time(cast_bytes=3, cast_grouping=0.5) == time(cast_bytes=3)
    odd = PRODUCT | {"m": [1281], "k": [1024]}
    bare, grouped = (
        told(tmp_path, "gemm", odd, machine(matmul={"bf16": MATMUL | {"cast_bytes": 3} | more}))[0]
        for more in ({}, {"cast_grouping": 0.5})
    )
    cast = 3 * 1281 * 1024 / 1e12 * 1e6
    assert grouped[0] - bare[0] == pytest.approx(cast * 0.5 * (16 / 8 - 1))
    small = 1 * (1280 * 1000 + 640 * 1000) + 2 * 1280 * 640
    eighth = ((whole / 2) ** 2.3 + (small / 1e6) ** 2.3) ** (1 / 2.3)
    assert time("fp8") == pytest.approx(eighth)


def test_attention_is_timed_with_copies_of_keys_and_casts_of_queries(tmp_path):
    """w kv_heads (d + v) and q heads d for each token, beside the kernel of each head width."""
    rows = MASKED | {"head_dim_v": [64]}
    bare = machine(attention={"bf16_causal": ATTENTION})
    (plain,), _ = told(tmp_path, "attention", rows, bare)
    even = 2 * 8 * 2 * 192 * 4 * 128 * 64 / 1e14 * 1e6
    moved = 2 * 256 * 2 * (8 * 128 + 4 * 128) / 1e12 * 1e6
    assert plain == pytest.approx((even**1.2 + moved**1.2) ** (1 / 1.2))
    more = ATTENTION | {"copy_bytes": 4, "cast_bytes": 2, "fill_keys": 32}
    (beside,), _ = told(tmp_path, "attention", rows, machine(attention={"bf16_causal": more}))
    filled = even * (192 + 32) / 192
    copied = 2 * 256 * (4 * 4 * 128 + 2 * 8 * 64) / 1e12 * 1e6
    assert beside == pytest.approx((filled**1.2 + moved**1.2) ** (1 / 1.2) + copied)


def test_attention_has_figures_by_mask_and_kernel(tmp_path):
    """Unequal widths are mla, unless a table names another kernel; the type comes first."""
    system = machine(attention={"bf16_causal": ATTENTION})
    for rows, lacking in (
        ({"head_dim_v": [64], "causal": [0]}, "bf16_dense"),
        ({"head_dim": [192], "head_dim_v": [128]}, "bf16_mla"),
        ({"head_dim_v": [64], "kernel": ["trtllm_mla_context"]}, "bf16_mla"),
        ({"head_dim_v": [64], "dtype": ["fp8"]}, "fp8_causal"),
    ):
        _, (reason,) = told(tmp_path, "attention", MASKED | rows, system)
        assert reason == f"h100-sxm has no accelerator.benchmark.attention.{lacking}"
    widths = MASKED | {"head_dim": [192], "head_dim_v": [128], "kernel": ["fa3"]}
    assert told(tmp_path, "attention", widths, system)[1] == [""]


def test_a_block_of_experts_is_two_grouped_products_and_what_moves(tmp_path):
    """640 tokens of 2 / 2 experts on 2: 320 rows each; 2 x 256 columns, then 1024."""
    bare = machine(experts={"bf16": EXPERTS})
    (plain,), _ = told(tmp_path, "moe", BLOCK, bare)

    def product(n, k):
        compute = 2 * 2 * 320 * n * k / 1e14 * 1e6
        moved = 2 * 2 * (320 * k + n * k + 320 * n) / 1e12 * 1e6
        return (compute**2.3 + moved**2.3) ** (1 / 2.3)

    whole = product(512, 1024) + product(1024, 256)
    assert plain == pytest.approx(whole)
    moving = {"pair_bytes": 3, "inner_bytes": 5, "token_bytes": 7, "choice_bytes": 11}
    more = machine(experts={"bf16": EXPERTS | moving | {"launch": 1e-6}})
    moved = 640 * (3 * 1024 + 5 * 256) + 640 * (7 * 1024 + 11 * 4)
    assert told(tmp_path, "moe", BLOCK, more)[0] == pytest.approx([whole + 1 + moved / 1e6])
    # Ungated experts have figures of their own, as the kernel of least latency has.
    ungated = told(tmp_path, "moe", BLOCK | {"gated": [0]}, bare)[1]
    assert ungated == ["h100-sxm has no accelerator.benchmark.experts.bf16_ungated"]
    two = machine(experts={"bf16_ungated": EXPERTS})
    both = product(256, 1024) + product(1024, 256)
    assert told(tmp_path, "moe", BLOCK | {"gated": [0]}, two)[0] == pytest.approx([both])
    quick = BLOCK | {"kernel": ["moe_torch_flow_min_latency"]}
    assert told(tmp_path, "moe", quick, bare)[1][0].endswith("bf16_min_latency")
    # min(2, 2 x 2 / 2) = 2 for each token instead of 1: twice the rows.
    repeated = machine(experts={"bf16": EXPERTS | {"choices": "repeated", "row_step": 640}})
    padded = machine(experts={"bf16": EXPERTS | {"row_step": 640}})
    twice = told(tmp_path, "moe", BLOCK, repeated)[0]
    assert twice == pytest.approx(told(tmp_path, "moe", BLOCK, padded)[0])
    assert twice[0] > plain
    # min(2, 4 / 2) = 2 of the experts here; of two on two ranks the one that is here.
    local = machine(experts={"bf16": EXPERTS | {"choices": "local", "row_step": 640}})
    assert told(tmp_path, "moe", BLOCK, local)[0] == pytest.approx(twice)
    few, many = BLOCK | {"experts": [2]}, BLOCK | {"experts": [2], "topk": [1], "ep": [2]}
    alone = told(tmp_path, "moe", few, local)[0]
    assert alone == pytest.approx(told(tmp_path, "moe", many, local)[0])


def test_collectives_are_those_of_estimates(tmp_path):
    """Inside a node and between nodes, by `collective_time`; no more members than there are."""
    system = System.load("h100-sxm")
    rows = {
        "gpu": ["x"] * 3,
        "op": ["all_gather", "alltoall", "all_reduce"],
        "nodes": [1, 4, 1],
        "gpus_per_node": [8, 8, 16],
        "size_bytes": [2**20] * 3,
    }
    found, reasons = told(tmp_path, "collective", rows, system)
    inside = collective_time(
        system, CollectiveKind.ALL_GATHER, np.array([2.0**20]), np.array([[8], [8]])
    )
    between = collective_time(
        system, CollectiveKind.ALL_TO_ALL, np.array([2.0**20]), np.array([[8], [32]])
    )
    assert found[:2] == pytest.approx([inside[0] * 1e6, between[0] * 1e6])
    assert np.isnan(found[2])
    assert reasons[2] == "h100-sxm has no nvlink of so many accelerators"


def test_casts_and_training_layouts_use_the_figures_of_training(tmp_path):
    """3 bytes at the share of element-wise kernels; weight gradients at 0.95 of the efficiency."""
    system = machine()
    (cast,), _ = told(tmp_path, "cast_fp8", {"gpu": ["x"], "m": [1000], "k": [1000]}, system)
    assert cast == pytest.approx(1.5 + 3e6 / 0.89e12 * 1e6)
    rows = {"gpu": ["x"] * 2, "layout": ["TN", "NT"], "out_dtype": ["bf16", "fp32"]}
    rows |= {"groups": [1, 1], "accumulate": [0, 1]}
    rows |= {"m": [8192] * 2, "n": [8192] * 2, "k": [8192] * 2, "latency_us": [1.0] * 2}
    table = read_table(saved(tmp_path, "train_gemm", rows))
    (found,) = predictions(table, {"x": system})
    forward, gradient = found.predicted_us.tolist()
    assert 1.0 < gradient / forward < 1.1
    table = {"gpu": ["x"], "direction": ["fwd"], **HEADS, "head_dim": [128], "head_dim_v": [128]}
    one = told(tmp_path, "train_attention", table, system)[0][0]
    back = told(tmp_path, "train_attention", table | {"direction": ["bwd"]}, system)[0][0]
    assert 1.0 < back / one < 3.0


def test_dispatches_by_hand(tmp_path):
    """2 of 8 experts reach 2 of 8 ranks; between nodes half of what each node gets crosses."""
    figures = {"latency": 1e-5, "rate": 1e10, "link_efficiency": 1, "fabric_efficiency": 0.5}
    kernels = {"deepep": {"dispatch": figures, "combine": figures | {"token_share": 1}}}
    system = System.load("h100-sxm").to_dict() | {"expert_kernels": kernels}
    system = System.validated(system, source="x")
    rows = {"gpu": ["x"] * 2, "nodes": [1, 2], "tokens": [1000] * 2, "hidden": [1024] * 2}
    rows |= {"topk": [2] * 2, "experts": [8, 16], "sms": [20] * 2}
    rows |= {"dispatch_us": [1.0] * 2, "combine_us": [2.0] * 2}
    table = read_table(saved(tmp_path, "moe_alltoall", rows))
    dispatch, combine = predictions(table, {"x": system})
    out = 1000 * (1024 + 32)  # fp8, and a scale of 4 bytes for each 128 elements

    def cubes(*times):
        return 10 + 1e6 * sum(time**3 for time in times) ** (1 / 3)

    near = cubes(2 * out / 2e11, 2 * out * 7 / 8 / 450e9)
    assert dispatch.predicted_us[0] == pytest.approx(near)
    back = 1000 * 2048
    assert combine.predicted_us[0] == pytest.approx(
        cubes(3 * back / 2e11, 2 * back * 7 / 8 / 450e9)
    )
    nodes = 2 * (1 - 28 / 120)  # of 16 experts 8 are on each: C(8, 2) / C(16, 2) are on one only
    far = cubes(2 * out / 2e11, 2 * out * 7 / 8 / 450e9, nodes * out / 2 / 25e9)
    assert dispatch.predicted_us[1] == pytest.approx(far)
    assert [dispatch.kind[0], combine.kind[1]] == [
        "deepep dispatch",
        "deepep combine between nodes",
    ]


def test_dispatches_name_their_library(tmp_path):
    """DeepEP on one node of the accelerators of the system; others are refused with the reason."""
    rows = {"gpu": ["x"], "nodes": [1], "tokens": [4096], "hidden": [7168]}
    rows |= {"topk": [8], "experts": [256], "dispatch_us": [1.0], "combine_us": [2.0]}
    table = read_table(saved(tmp_path, "moe_alltoall", rows))
    tray, rack = (
        predictions(read_table(saved(tmp_path, "moe_alltoall", one)), {"x": System.load(name)})[0]
        for name in ["gb200-nvl72"]
        for one in (rows, rows | {"gpus_per_node": [8]})
    )
    assert tray.predicted_us < rack.predicted_us
    (refused, _) = predictions(table, {"x": System.load("a100-80gb-sxm")})
    assert refused.reason[0] == "a100-80gb-sxm has no expert_kernels.deepep"


def test_dispatches_of_the_catalog_are_within_ten_percent(tmp_path):
    """4,096 tokens by 24 multiprocessors, of DeepSeek-V3's width (ai-dynamo/aiconfigurator)."""
    rows = {"gpu": ["h100_sxm", "b200_sxm", "gb200"], "nodes": [1] * 3, "tokens": [4096] * 3}
    rows |= {"hidden": [7168] * 3, "topk": [8] * 3, "experts": [256] * 3, "sms": [24] * 3}
    rows |= {"dispatch_us": [498.4, 440.1, 359.6], "combine_us": [960.6, 756.1, 597.2]}
    saved(tmp_path, "moe_alltoall", rows)
    scores = kernel_scores(tmp_path).to_dict()["summary"]["moe_alltoall"]
    assert scores["n"] == 6
    assert scores["max"] < 0.1


def test_deepgemm_falls_off_its_cliff_where_it_was_measured(tmp_path):
    """A row more halves the time: the catalog's H100 within 15 % of five measured products."""
    saved(tmp_path, "gemm", DEEPGEMM_H100)
    (group,) = [g for g in kernel_scores(tmp_path).groups if g.region == "large"]
    assert (group.gpu, group.dtype, group.kind, group.score.n) == (
        "h100_sxm",
        "fp8_block",
        "burst",
        5,
    )
    assert group.score.max < 0.15


def test_systems_of_gpus_are_in_the_catalog():
    """Every name that stands for a GPU's system is one."""
    assert all(System.load(name).name == name for name in GPU_SYSTEMS.values())


def test_the_verb_scores_a_folder(tmp_path, shardwise):
    """By GPU, type and kind, for people and machines; what cannot be predicted is counted."""
    frame = pl.concat(
        [DEEPGEMM_H100, DEEPGEMM_H100[:2].with_columns(gpu=pl.lit("rtx_none"))], how="vertical"
    )
    saved(tmp_path, "gemm", frame, ".parquet")
    code, out, err = shardwise("validate", "kernels", "--data", tmp_path)
    assert (code, err) == (0, "")
    assert "m >= 1024; n, k >= 512" in out
    assert "the catalog has no system for gpu 'rtx_none'" in out
    _, out, _ = shardwise("validate", "kernels", "--data", tmp_path, "--json")
    record = json.loads(out)
    assert "rows" not in record
    (whole, large) = record["summary"]["gemm"]["groups"]
    assert (whole["region"], large["region"], large["n"]) == ("all", "large", 5)
    assert set(whole) >= {"gpu", "dtype", "kind", "n", "mape", "median_ape", "bias", "p90"}
    assert record["summary"]["gemm"]["refused"] == 2
    assert record["refused"][0]["n"] == 2
    _, out, _ = shardwise("validate", "kernels", "--data", tmp_path, "--json", "--rows")
    rows = json.loads(out)["rows"]
    assert len(rows) == 7
    assert rows[0]["id"] == "gemm/0"
    assert rows[0]["error"] == pytest.approx(rows[0]["predicted_us"] / 111.3 - 1)
    assert rows[6]["refused"].startswith("the catalog has no system")


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".csv.gz"])
def test_rows_go_to_a_file(tmp_path, shardwise, ending):
    """One table of all rows, with measured and predicted times."""
    saved(tmp_path, "gemm", DEEPGEMM_H100)
    path = tmp_path / f"rows{ending}"
    assert shardwise("validate", "kernels", "--data", tmp_path, "--out", path)[0] == 0
    frame = pl.read_parquet(path) if ending == ".parquet" else pl.read_csv(path)
    assert frame["measured_us"].to_list() == DEEPGEMM_H100["latency_us"].to_list()
    assert frame["predicted_us"].is_finite().all()
    assert frame["large"].all()


def test_the_verb_says_what_to_give(tmp_path, shardwise):
    """Without data, with rows and nowhere to put them, with data for a suite of ours."""
    code, _, err = shardwise("validate", "kernels")
    assert code == 2
    problem = "is missing: set it to a folder with gemm.parquet, collective.csv.gz, ..."
    assert err == f"error: --data {problem}\n"
    _, _, err = shardwise("validate", "kernels", "--data", tmp_path, "--rows")
    assert err.startswith("error: --rows: needs --json or --output")
    code, _, err = shardwise("validate", "seqsel", "--data", tmp_path)
    assert (code, "is for the suites runs and kernels only" in err) == (2, True)
    saved(tmp_path, "gemm", DEEPGEMM_H100)
    code, _, err = shardwise("validate", "kernels", "--data", tmp_path, "--out", "rows.txt")
    assert (code, "allowed endings: .parquet" in err) == (2, True)
