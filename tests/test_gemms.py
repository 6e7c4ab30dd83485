"""Every matrix product of a step: shapes by hand, counts over stages, sums without rounding.

The sample: width 64, 8 heads of 8, inner 256, 1000 words, 4 layers, 2 sequences of 32 tokens.
"""

import csv
import io
import json
from fractions import Fraction
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from samples import run
from shardwise import InputError, Model, estimate
from shardwise.analysis.results import Estimate, Gemm
from shardwise.cli import run as command
from shardwise.cli.estimate import Destination
from shardwise.cost.optimizer import newton_schulz_flops
from shardwise.report.tables.gemms import SHAPE_COLUMNS, gemms_csv

pytestmark = pytest.mark.any_software

FP8 = {"matrix": {"bf16": 1e14, "fp8": 2e14}}


def listed(model: Model | None = None, **given: Any) -> Estimate:
    machine = samples.system(**given.pop("machine", {}))
    return estimate(
        model or samples.model(),
        machine,
        {"dp": 1, "mbs": 2, "gbs": 2, "stack": samples.stack(**given.pop("software", {}))} | given,
        gemms=True,
    )


def rows(result: Estimate, operation: str, direction: str = "forward") -> list[Gemm]:
    assert result.gemms is not None
    return [g for g in result.gemms if (g.operation, g.direction) == (operation, direction)]


def shape(gemm: Gemm) -> tuple[float, ...]:
    return gemm.batch, gemm.m, gemm.k, gemm.n


def multiplied(gemm: Gemm) -> Fraction:
    sizes = (*shape(gemm), gemm.share, gemm.count)
    return 2 * prod((Fraction(size) for size in sizes), start=Fraction(1))


STRATEGIES: list[tuple[str, dict[str, Any]]] = [
    ("llama3-70b", {"gpus": 64, "tp": 8, "pp": 2, "gbs": 128}),
    ("gpt3-175b", {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "recompute": "selective"}),
    ("gpt3-175b", {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "recompute": "full"}),
    ("llama3-8b", {"gpus": 16, "cp": 4, "gbs": 8, "recompute": "full", "recompute_layers": 5}),
    ("llama3-8b", {"gpus": 8, "tp": 8, "gbs": 8, "training": False}),
    ("llama3-8b", {"gpus": 8, "gbs": 8, "seq_len": 6000, "quantization": "fp8_tensor"}),
    (
        "gpt3-175b",
        {"gpus": 64, "tp": 4, "tp2": 2, "tp_exchange": "summa", "summa_panels": 8, "gbs": 64},
    ),
    ("mixtral-8x7b", {"gpus": 16, "ep": 8, "gbs": 16, "expert_imbalance": 1.3}),
    (
        "deepseek-v3",
        {"gpus": 128, "pp": 16, "ep": 8, "gbs": 512, "schedule": "dualpipe", "zero": 1}
        | {"quantization": "fp8_block", "optimizer": "muon", "seq_len": 4095},
    ),
    ("gemma3-4b", {"gpus": 8, "tp": 2, "gbs": 8, "seq_len": 4100, "attention": "model"}),
    (
        "qwen3-30b-a3b",
        {"gpus": 16, "tp": 2, "ep": 8, "gbs": 16, "recompute": "selective"}
        | {"recompute_parts": ["every_other"], "lora_rank": 8},
    ),
]


@each_row(("model", "strategy"), STRATEGIES)
def test_flops_add_up_to_the_step_without_rounding(model: str, strategy: dict[str, Any]) -> None:
    """Sum of rows == matrix FLOPs of the step, as whole numbers; each row is its own shape's."""
    result = estimate(model, "h100-sxm", strategy, gemms=True, operations=True)
    assert result.gemms
    assert sum(gemm.flops for gemm in result.gemms) == result.matrix_flops
    for gemm in result.gemms:
        assert float(gemm.flops) == pytest.approx(float(multiplied(gemm)), rel=1e-14, abs=1.01)
        assert gemm.time_s == pytest.approx(gemm.count * gemm.run_s)
        assert 0 < gemm.efficiency < 1
    if "recompute_layers" not in strategy:
        kinds = ("matmul", "attention")
        every = [row for row in result.operations or () if row.part != "step"]
        rows = [row for row in every if row.kind in kinds]
        kernels = sum(row.count * result.micro_batches * row.time_s for row in rows)
        products = sum(gemm.time_s for gemm in result.gemms if gemm.direction != "optimizer")
        assert products == pytest.approx(kernels)
    replicas = result.strategy["gpus"] / result.strategy["pp"]
    again = sum(g.flops for g in result.gemms if g.direction == "recompute")
    if "lora_rank" not in strategy:
        hfu_again = (result.hfu / result.mfu - 1) * result.model_tflops_per_gpu * 1e12
        on_all = hfu_again * result.step_time_s * result.strategy["gpus"]
        assert again * replicas == pytest.approx(on_all, abs=1e6, rel=1e-9)


@each_row("recompute", ["none", "full"])
def test_the_sum_is_that_of_layers_and_head(recompute: str) -> None:
    """Layers as `layers` adds them up, and 6 x tokens x width x words of the head."""
    result = listed(samples.llama(), pp=2, gbs=6, recompute=recompute, zero=0)
    (layer,) = result.layers
    passes = (layer.forward, layer.input_grad, layer.weight_grad, layer.recompute)
    per_layer = sum(int(one.matrix_flops) for one in passes)
    head = 6 * 64 * 64 * 1000
    assert result.micro_batches == 3
    assert result.matrix_flops == 3 * (4 * per_layer + head)


def test_products_of_a_layer_by_hand() -> None:
    """Forward and both gradients of every linear layer; runs are layers x micro-batches."""
    result = listed(gbs=6)
    assert {g.part for g in result.gemms or ()} == {"layer 0", "head"}
    wide = {"attention.qkv": 192, "attention.out": 64, "mlp.up": 256}
    for name, outputs in wide.items():
        assert [shape(g) for g in rows(result, name)] == [(1, 64, 64, outputs)]
        assert [shape(g) for g in rows(result, name, "input_grad")] == [(1, 64, outputs, 64)]
        (back,) = rows(result, name, "weight_grad")
        assert (shape(back), back.product) == ((1, 64, 64, outputs), "dW = X^T dY")
        assert (back.count, back.flops) == (4 * 3, 2 * 64 * 64 * outputs * 12)
    (head,) = rows(result, "head")
    assert (head.part, shape(head), head.count) == ("head", (1, 64, 64, 1000), 3)
    assert head.efficiency == pytest.approx(head.flops / (head.time_s * 1e14))


def test_flash_attention_by_the_products_inside() -> None:
    """Two forward, five backward, half of each; the kernel's time by their FLOPs."""
    result = listed(samples.deepseek(), software={"attention_kernel": "best"})
    ahead = rows(result, "attention.core")
    # 2 sequences x 8 heads, 32 queries and keys; widths 12 (queries, keys) and 8 (values).
    assert [(g.product, *shape(g), g.share) for g in ahead[:2]] == [
        ("S = Q K^T", 16, 32, 12, 32, 0.5),
        ("O = P V", 16, 32, 32, 8, 0.5),
    ]
    assert ahead[0].run_s / ahead[1].run_s == pytest.approx(12 / 8)
    back = rows(result, "attention.core", "input_grad")[:5]
    assert [(g.product, *shape(g)) for g in back] == [
        ("S = Q K^T", 16, 32, 12, 32),
        ("dP = dO V^T", 16, 32, 8, 32),
        ("dV = P^T dO", 16, 32, 32, 8),
        ("dQ = dS K", 16, 32, 32, 12),
        ("dK = dS^T Q", 16, 32, 32, 12),
    ]
    kernels = estimate(
        samples.deepseek(),
        samples.system(),
        {"dp": 1, "mbs": 2, "gbs": 2, "stack": samples.stack(attention_kernel="best")},
        operations=True,
    ).operations
    core = [o for o in kernels or () if o.operation == "attention.core" and o.kind == "attention"]
    assert sum(g.run_s for g in ahead[:2]) == pytest.approx(core[0].time_s)
    assert sum(g.run_s for g in back) == pytest.approx(core[1].time_s)


def test_unfused_attention_multiplies_all_scores() -> None:
    """Six whole products: two forward, four backward."""
    result = listed(software={"attention_kernel": "unfused"})
    names = [
        g.product for d in ("forward", "input_grad") for g in rows(result, "attention.core", d)
    ]
    assert names == [
        "S = Q K^T",
        "O = P V",
        "dP = dO V^T",
        "dV = P^T dO",
        "dQ = dS K",
        "dK = dS^T Q",
    ]
    scores = rows(result, "attention.core")[0]
    assert (shape(scores), scores.share) == ((16, 32, 8, 32), 1)
    xl = listed(samples.model(position="relative-xl"))
    assert [g.product for g in rows(xl, "attention.core")][:2] == ["S = Q K^T", "S' = Q R^T"]
    assert sum(g.flops for g in xl.gemms or ()) == xl.matrix_flops


def test_experts_panels_and_types() -> None:
    """Grouped products have a batch of experts; panels run one by one; recipes say the type."""
    sparse = listed(samples.deepseek(), machine=FP8, quantization="fp8_tensor")
    up = next(g for g in rows(sparse, "moe.up"))
    # 64 tokens, two of 8 experts each: 16 rows for every expert; gate and up of 32 each.
    assert (up.part, shape(up), up.dtype, up.count) == ("layer 1", (8, 16, 64, 64), "fp8", 3)
    assert [g.dtype for g in rows(sparse, "moe.router")] == ["bf16"]
    assert up.efficiency == pytest.approx(up.flops / (up.time_s * 2e14))
    grid = {"tp": 2, "tp2": 2, "tp_exchange": "summa", "summa_panels": 4}
    panel = rows(listed(samples.llama(), **grid), "mlp.up")[0]
    assert (shape(panel), panel.count) == ((1, 32, 16, 192), 4 * 4)


def test_recompute_is_a_direction_of_its_own() -> None:
    """Full: every forward product again, of so many layers; every_other: half of up."""
    full = listed(samples.llama(), recompute="full", recompute_layers=3, software={})
    ahead = [g for g in full.gemms or () if g.part == "layer 0" and g.direction == "forward"]
    again = [g for g in full.gemms or () if g.direction == "recompute"]
    assert [(shape(g), g.count) for g in again] == [(shape(g), 3) for g in ahead]
    parts = {"recompute": "selective", "recompute_parts": ["every_other"]}
    (half,) = rows(listed(samples.llama(), **parts), "mlp.up", "recompute")
    assert (half.share, half.flops) == (0.5, 4 * 64 * 64 * 384)


def test_muon_multiplies_in_its_update() -> None:
    """Five iterations of three products for each matrix; a fourth of them with four ranks."""
    whole = listed(samples.llama(), optimizer="muon", zero=0)
    steps = rows(whole, "mlp.down", "optimizer")
    assert [shape(g) for g in steps] == [(1, 64, 192, 64), (1, 64, 64, 64), (1, 64, 64, 192)]
    assert {g.count for g in steps} == {4 * 5}
    flops = newton_schulz_flops(samples.column(192), samples.column(64))[0]
    assert sum(g.flops for g in steps) == 4 * flops
    split = listed(samples.llama(), optimizer="muon", zero=1, dp=4, gbs=8)
    assert {g.count for g in rows(split, "mlp.down", "optimizer")} == {5}
    assert sum(g.flops for g in split.gemms or ()) == split.matrix_flops
    for result in (whole, split):
        muon = sum(g.flops for g in result.gemms or () if g.direction == "optimizer")
        assert muon == pytest.approx(4 * result.layers[0].optimizer.matrix_flops)


@examples(12)
@given(
    sequence=st.integers(3, 90),
    window=st.one_of(st.none(), st.integers(1, 40)),
    experts=st.integers(3, 9),
    imbalance=st.sampled_from([1.0, 1.1, 1.37]),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
def test_odd_shapes_lose_no_flop(
    sequence: int, window: int | None, experts: int, imbalance: float, recompute: str
) -> None:
    """Tokens that experts do not divide, windows of any width: whole FLOPs that add up exactly."""
    plain = samples.layer(attention={"window": window, "bias": "none"})
    moe = {"experts": experts, "top_k": 2, "ffn": 33, "activation": "swiglu"}
    layers = [plain, {**plain, "mlp": None, "moe": moe}]
    model = samples.llama(layers=layers, seq_len=sequence)
    result = listed(
        model,
        mbs=1,
        gbs=3,
        expert_imbalance=imbalance,
        recompute=recompute,
        software={"attention_kernel": "best"},
    )
    assert sum(gemm.flops for gemm in result.gemms or ()) == result.matrix_flops


def test_nothing_is_listed_unless_requested() -> None:
    """The sum is always there, the list only with `gemms`."""
    plain = run()
    assert plain.gemms is None
    assert plain.matrix_flops == listed().matrix_flops


COMMAND = "estimate llama3-8b h100-sxm --gpus 8 --tp 8 --gbs 8 --gemms"


def test_as_json_csv_and_table(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`--gemms` shows a table; JSON and CSV hold the same rows."""
    assert command([*COMMAND.split(), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert sum(row["flops"] for row in record["gemms"]) == record["matrix_flops"]
    file = tmp_path / "gemms.csv"
    assert command([*COMMAND.split(), "-o", str(file)]) == 0
    assert capsys.readouterr().out == ""
    read = list(csv.DictReader(io.StringIO(file.read_text())))
    assert [int(row["flops"]) for row in read] == [row["flops"] for row in record["gemms"]]
    assert {row["m"] for row in read if row["operation"] == "mlp.up"} == {"8192", "4096"}
    assert command(COMMAND.split()) == 0
    out = capsys.readouterr().out
    assert "GEMMs of a step" in out
    assert "dW = X^T dY" in out


def test_a_narrow_table_tells_products_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their names, and what part of them is computed, outlast times and rates."""
    monkeypatch.setenv("COLUMNS", "100")
    words = ["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--gbs", "8", "--gemms"]
    command(words)
    table = capsys.readouterr().out.split("GEMMs of a step")[1]
    rows = [line for line in table.splitlines() if "attention.core" in line]
    assert len(set(rows)) == len(rows) == 7
    assert all("x 0.5" in row and len(row.rstrip()) <= 100 for row in rows)


def test_the_narrowest_table_keeps_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 80 columns a shape is one column, and no line is wider."""
    monkeypatch.setenv("COLUMNS", "80")
    command(["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--gbs", "8", "--gemms"])
    table = capsys.readouterr().out.split("GEMMs of a step")[1]
    row = next(line for line in table.splitlines() if "mlp.up" in line and "wgrad" in line)
    assert "total time" in table
    assert row.split()[-3:-2] == ["1x4096x8192x28672"]
    assert row.split()[-1] in ("us", "ms", "s")
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 80


def test_shapes_alone() -> None:
    """Some columns, in the order asked for."""
    head, first, *_ = gemms_csv(listed(), SHAPE_COLUMNS).splitlines()
    assert head == "part,operation,direction,batch,m,k,n,dtype,count"
    assert first == "layer 0,attention.qkv,forward,1,64,64,192,bf16,4"


def test_csv_has_the_products_or_the_estimate(tmp_path: Any) -> None:
    """With --gemms a line for each product, else one line."""
    words, path = COMMAND.removesuffix(" --gemms").split(), tmp_path / "out.csv"
    assert command([*words, "-o", str(path)]) == 0
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2
    assert command([*words, "--gemms", "-o", str(path)]) == 0
    assert len(path.read_text(encoding="utf-8").splitlines()) > 2


def test_nothing_is_written_where_one_file_cannot_be(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """All places are looked at before any work."""
    graph = tmp_path / "graph.dot"
    for wrong in (tmp_path / "no" / "gemms.csv", tmp_path / "no" / "all.json", tmp_path / "all.md"):
        assert command([*COMMAND.split(), "--graph", str(graph), "-o", str(wrong)]) == 2
        assert str(wrong) in capsys.readouterr().err
    assert not graph.exists()
    inside = Destination(
        out=str(tmp_path / "new"),
        output=str(tmp_path / "new" / "all.json"),
        **dict.fromkeys(("plot", "report", "graph")),
        json=False,
    )
    with pytest.raises(InputError, match="no such folder: new"):  # it is made with its own files
        inside.check()
    assert list(tmp_path.iterdir()) == []
