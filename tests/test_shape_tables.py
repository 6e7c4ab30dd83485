"""Tables of measured kernels by shape: lookup by hand, kernels timed by them, tables refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from samples import column
from shardwise import InputError, System
from shardwise.config.strategy_table import Table
from shardwise.config.system import ShapeTable
from shardwise.cost import kernels
from shardwise.cost.kernels import KernelRates, MeasuredShapes, RowTables
from shardwise.ops.operation import FlashAttention, Matmul, MemoryBound, Phase

fast = examples(60)

PRODUCT = ["batch", "m", "n", "k"]
GROUPED = ["groups", "m", "n", "k"]
HEADS = ["sequences", "seq_len", "heads", "kv_heads", "head_dim", "v_head_dim"]
THOUSAND = [1, 1000, 1000, 1000]


def shape_table_of(rows: Any, **fields: Any) -> ShapeTable:
    """A table of products, by default of forward ones, with a fallback of 0.1."""
    phases = rows if isinstance(rows, dict) else {"forward": rows}
    return ShapeTable.validated({"sizes": PRODUCT, "rows": phases, "fallback": 0.1} | fields)


def look_up(
    table: ShapeTable, shapes: Any, phase: Phase = Phase.FORWARD
) -> tuple[list[float], list[bool]]:
    """Shares of the peak of some shapes, and which missed."""
    shares, missed = MeasuredShapes.of(table, phase).shares(list(np.array(shapes, dtype=float).T))
    return shares.tolist(), missed.tolist()


def by_m(*points: tuple[float, float]) -> ShapeTable:
    """Products that differ in m only, each with its share."""
    return shape_table_of([[1, m, 64, 64, share] for m, share in points])


def at_m(table: ShapeTable, *sizes: float) -> list[float]:
    return look_up(table, [[1, m, 64, 64] for m in sizes])[0]


def test_a_measured_shape_has_exactly_its_share() -> None:
    """Whatever lies beside it, and however near."""
    table = by_m((1000, 0.3), (1000.001, 0.9), (1001, 0.7))
    assert at_m(table, 1000, 1001, 1000.001) == [0.3, 0.7, 0.9]


def test_between_two_shapes_the_nearer_weighs_more_by_the_square() -> None:
    """Half way in the logarithm the mean; a quarter of the way 9 to 1."""
    table = by_m((1024, 0.4), (4096, 0.7))
    found = at_m(table, 2048, 1024 * 2**0.5, 4096 / 2**0.5)
    assert found == pytest.approx([0.55, (9 * 0.4 + 0.7) / 10, (0.4 + 9 * 0.7) / 10])


def test_distance_is_that_of_all_sizes_together() -> None:
    """Twice the m and twice the k is sqrt(2) as far as twice the n: weights 1/2 and 1."""
    table = shape_table_of([[1, 2, 1, 2, 0.3], [1, 1, 2, 1, 0.6]])
    assert look_up(table, [[1, 1, 1, 1]])[0] == pytest.approx([(0.3 / 2 + 0.6) / 1.5])


def test_the_three_nearest_count_and_what_is_as_near_as_the_third() -> None:
    """From 8: 8 x 2^0.1, 2^-0.2 and 2^0.3 count, 2^0.4 not; a second at 2^-0.3 counts too."""
    places = {2**3.1: 0.2, 2**2.8: 0.4, 2**3.3: 0.6, 2**3.4: 0.9}
    weights = np.array([100, 25, 100 / 9])
    three = weights @ [0.2, 0.4, 0.6] / weights.sum()
    assert at_m(by_m(*places.items()), 8) == pytest.approx([three])
    tied = (weights @ [0.2, 0.4, 0.6] + 0.8 * weights[2]) / (weights.sum() + weights[2])
    assert at_m(by_m(*places.items(), (2**2.7, 0.8)), 8) == pytest.approx([tied])


def test_a_shape_far_from_all_in_any_size_misses() -> None:
    """A factor of 4 in every size is near, a little more in one is not; then the fallback."""
    table = shape_table_of([[1, 100, 100, 100, 0.5]])
    shapes = [[4, 25, 400, 25], [4.01, 100, 100, 100], [1, 24.9, 100, 100], [1, 100, 100, 401]]
    assert look_up(table, shapes) == ([0.5, 0.1, 0.1, 0.1], [False, True, True, True])


def test_distant_shapes_do_not_count_where_there_are_near_ones() -> None:
    """3.9 is near 3 only, as though there were no 16; 80 is near neither."""
    assert at_m(by_m((3, 0.5), (16, 0.8)), 80, 3.9) == pytest.approx([0.1, 0.5])


def test_no_kernel_misses_nothing() -> None:
    """Sizes of 0 stand for work that a row does not do."""
    table = shape_table_of([[*THOUSAND, 0.5]])
    assert look_up(table, [[0, 1000, 1000, 1000], [1, 0, 9, 9]]) == ([0.1, 0.1], [False, False])


def test_phases_are_separate() -> None:
    """Backward does not see forward's rows; all see those of any phase."""
    rows = {"forward": [[*THOUSAND, 0.5]], "weight_grad": [[*THOUSAND, 0.4]]}
    table = shape_table_of(rows | {"any": [[2, 1000, 1000, 1000, 0.8]]})
    near = [THOUSAND, [2, 1000, 1000, 1000]]
    assert look_up(table, near, Phase.FORWARD) == ([0.5, 0.8], [False, False])
    assert look_up(table, near, Phase.WEIGHT_GRAD) == ([0.4, 0.8], [False, False])
    assert look_up(table, near, Phase.INPUT_GRAD) == ([0.8, 0.8], [False, False])
    assert look_up(shape_table_of(rows), near, Phase.INPUT_GRAD) == ([0.1, 0.1], [True, True])


def test_a_table_without_rows_is_its_fallback() -> None:
    """Every kernel that runs misses."""
    assert look_up(shape_table_of({}), [THOUSAND, [0, 1, 1, 1]]) == ([0.1, 0.1], [True, False])


def test_shares_over_all_pairs_count_half() -> None:
    """Those of causal kernels, whose FLOPs are half of them; the fallback too."""
    table = shape_table_of([[*THOUSAND, 1.2]], counts_all_pairs=True)
    assert look_up(table, [THOUSAND, [9, 9, 9, 9]]) == ([0.6, 0.05], [False, True])


def test_many_shapes_are_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated and in pieces, rows stay in their order."""
    random = np.random.default_rng(3)
    known = random.integers(1, 60, (40, 4)).tolist()
    table = shape_table_of([[*sizes, 0.2 + 0.01 * i] for i, sizes in enumerate(known)])
    shapes = random.integers(0, 200, (300, 4))[random.integers(0, 300, 500)].tolist()
    shares, missed = look_up(table, shapes)
    assert 50 < sum(missed) < 450
    monkeypatch.setattr(kernels, "_DISTANCES_AT_ONCE", 1000)
    assert look_up(table, shapes) == (shares, missed)
    alone = [look_up(table, [shape]) for shape in shapes]
    assert [part[0][0] for part in alone] == pytest.approx(shares)
    assert [part[1][0] for part in alone] == missed


shapes = st.lists(st.integers(1, 50), min_size=4, max_size=4)
tables = st.dictionaries(shapes.map(tuple), st.floats(0.01, 2), min_size=1, max_size=12)


@fast
@given(tables, shapes, st.randoms(use_true_random=False))
def test_a_share_lies_among_its_neighbours_in_any_order_of_the_rows(
    known: dict[tuple[int, ...], float], shape: list[int], random: Any
) -> None:
    """Between the least and largest share within reach; shuffling the table changes nothing."""
    rows = [[*sizes, share] for sizes, share in known.items()]
    shuffled = random.sample(rows, len(rows))
    (share,), (missed,) = look_up(shape_table_of(rows), [shape])
    again, missed_again = look_up(shape_table_of(shuffled), [shape])
    assert again == pytest.approx([share])
    assert missed_again == [missed]
    near = [
        share
        for sizes, share in known.items()
        if all(max(a, b) <= 4 * min(a, b) for a, b in zip(sizes, shape, strict=True))
    ]
    assert missed == (not near)
    low, high = (min(near), max(near)) if near else (0.1, 0.1)
    assert low * (1 - 1e-12) <= share <= high * (1 + 1e-12)


def test_each_row_has_the_table_of_its_type() -> None:
    """Type 0 has none; types 1 and 2 one each; a single shape is that of all rows."""
    one, two = by_m((100, 0.5)), by_m((100, 0.7), (200, 0.9))
    rows = RowTables.of((None, one, two), np.array([0, 1, 2, 2, 1]))
    sizes: Any = {
        "batch": 1.0,
        "m": column(100, 100, 100, 200, 900),
        "n": column(64),
        "k": column(64),
    }
    shares, missed = rows.shares(sizes, Phase.FORWARD)
    assert shares.tolist() == [1, 0.5, 0.7, 0.9, 0.1]
    assert missed.tolist() == [False, False, False, False, True]
    assert rows.present.tolist() == [False, True, True, True, True]
    shares, _ = rows.shares(sizes | {"m": column(200)}, Phase.FORWARD)
    assert shares.tolist() == [1, 0.5, 0.9, 0.9, 0.5]


def machine(**fields: Any) -> System:
    """100 TFLOP/s of bf16 by tables, of fp16 by a closed form; 1 TB/s of which kernels get half."""
    plain = samples.system().to_dict()
    table = {"sizes": PRODUCT, "rows": {"any": [[*THOUSAND, 0.5]]}, "fallback": 0.25}
    heads = {"sizes": HEADS, "rows": {"any": [[2, 256, 8, 4, 64, 32, 0.8]]}, "fallback": 0.2}
    chip = plain["accelerator"] | {
        "matrix": {"bf16": 1e14, "fp16": 1e14},
        "matmul": {"fp16": plain["accelerator"]["matmul"]["fp16"]},
        "matmul_table": {"bf16": table},
        "attention_table": {"bf16": heads},
        "memory_bound": {"efficiency": 0.5, "launch": 20e-6},
        "processing": "roofline",
    }
    return System.validated(plain | {"accelerator": chip | fields})


def rates(described: System, *dtypes: str, **stack: Any) -> KernelRates:
    columns = {"dp": 1, "gbs": 1, "dtype": list(dtypes), "stack": samples.stack(**stack)}
    return KernelRates.of(described, Table.of(samples.model(), columns))


def matmul(
    m: float, n: float, k: float, *, batch: float = 1, phase: Phase = Phase.FORWARD, out: float = 2
) -> Matmul:
    sides: dict[str, Any] = {"m": column(m), "n": column(n), "k": column(k), "batch": column(batch)}
    return Matmul(phase=phase, **sides, input_bytes=column(2), output_bytes=column(out))


def flash(*, heads: float = 8, phase: Phase = Phase.FORWARD) -> FlashAttention:
    """2 sequences of 256 tokens, queries and keys 64 wide, values 32."""
    return FlashAttention(
        phase=phase,
        sequences=column(2),
        seq_len=column(256),
        keys=column(256),
        heads=column(heads),
        kv_heads=column(heads / 2),
        head_dim=64.0,
        v_head_dim=32.0,
        causal=True,
        element_bytes=column(2),
    )


def times(kernel: Any, described: System | None = None, **stack: Any) -> list[float]:
    """Compute, memory and whole time in bf16."""
    return [float(part[0]) for part in rates(described or machine(), "bf16", **stack).times(kernel)]


def test_product_on_a_table_takes_its_measured_share() -> None:
    """2e9 FLOPs at half of 100 TFLOP/s, 40 us; 6 MB at 0.5 TB/s and the floor of 20 us, 32 us."""
    assert times(matmul(1000, 1000, 1000)) == pytest.approx([40e-6, 32e-6, 40e-6])
    # A tenth as large it misses, and the floor is longer than 0.08 us at a quarter of the peak.
    small = times(matmul(100, 100, 100))
    assert small == pytest.approx([2e6 / 0.25e14, 20e-6 + 6e4 / 0.5e12, 20e-6 + 6e4 / 0.5e12])
    # The table has it for any phase as measured: no loss for the layout of weight gradients.
    gradient = matmul(1000, 1000, 1000, phase=Phase.WEIGHT_GRAD)
    assert times(gradient)[0] == pytest.approx(40e-6)
    assert times(matmul(1000, 1000, 0)) == [0, 0, 0]


def test_times_on_a_table_join_as_the_machine_says() -> None:
    """40 us and 32 us: their sum, or joined as products are."""
    summed = times(matmul(1000, 1000, 1000), machine(processing="no_overlap"))
    assert summed[2] == pytest.approx(72e-6)
    joined = times(matmul(1000, 1000, 1000), machine(processing="measured"))
    assert joined[2] == pytest.approx((40**2.3 + 32**2.3) ** (1 / 2.3) * 1e-6)


def test_each_type_goes_its_own_way() -> None:
    """In one table of rows: bf16 by shape, fp16 by the closed form, which moves 1 TB/s at once."""
    both = rates(machine(), "bf16", "fp16", "bf16")
    compute, memory, whole = both.times(matmul(1024, 1024, 1024))
    flops = 2 * 1024**3
    slow, quick = flops / 0.5e14, flops / 1e14
    np.testing.assert_allclose(compute, [slow, quick, slow])
    moved = 6 * 1024**2
    np.testing.assert_allclose(memory, [20e-6 + moved / 0.5e12, moved / 1e12, memory[0]])
    np.testing.assert_allclose(whole, [slow, quick, slow])
    assert both.missed(matmul(10, 10, 10)).tolist() == [True, False, True]
    assert both.missed(matmul(1024, 1024, 1024)).tolist() == [False, False, False]


def test_attention_on_a_table_takes_its_measured_share() -> None:
    """0.8 of the peak forward and backward; over all pairs half of it; a slower stack longer."""
    done = 2 * 2 * 8 * 256**2 / 2 * (64 + 32)
    assert times(flash())[0] == pytest.approx(done / 0.8e14)
    backward = flash(phase=Phase.INPUT_GRAD)
    assert times(backward)[0] == pytest.approx(done * 256 / 96 / 0.8e14)
    assert times(flash(), attention_time_factor=1.25)[0] == pytest.approx(done / 0.64e14)
    fields = machine().to_dict()["accelerator"]["attention_table"]["bf16"]
    pairs = machine(attention_table={"bf16": fields | {"counts_all_pairs": True}})
    assert times(flash(), pairs)[0] == pytest.approx(done / 0.4e14)
    assert times(flash(heads=64))[0] == pytest.approx(8 * done / 0.2e14)
    assert rates(machine(), "bf16", "fp16").missed(flash(heads=64)).tolist() == [True, False]
    assert times(flash(heads=0)) == [0, 0, 0]
    assert not rates(machine(), "bf16").missed(flash(heads=0)).any()


def test_products_take_the_time_of_their_library() -> None:
    """On a table and by the closed form, 1.25 times as much compute; bytes take as long."""
    product = matmul(1000, 1000, 1000)
    usual = rates(machine(), "bf16", "fp16").times(product)
    slower = rates(machine(), "bf16", "fp16", matmul_time_factor=1.25).times(product)
    np.testing.assert_allclose(slower[0], 1.25 * usual[0])
    np.testing.assert_allclose(slower[1], usual[1])


def test_the_type_of_the_result_counts_where_a_table_names_it() -> None:
    """Gradients of 2 and of 8 bytes an element at 0.4 and 0.2; half way between, 0.3."""
    rows = [[*THOUSAND, 2, 0.4], [*THOUSAND, 8, 0.2]]
    table = {"sizes": [*PRODUCT, "output_bytes"], "rows": {"any": rows}, "fallback": 0.1}
    described = machine(matmul_table={"bf16": table})
    found = [times(matmul(1000, 1000, 1000, out=out), described)[0] for out in (2, 4, 8)]
    assert found == pytest.approx([2e9 / 0.4e14, 2e9 / 0.3e14, 2e9 / 0.2e14])


def test_element_wise_kernels_miss_no_table() -> None:
    """Their time is that of their bytes."""
    kernel = MemoryBound(phase=Phase.FORWARD, bytes=column(1e6), flops=column(1))
    assert not rates(machine(), "bf16").missed(kernel).any()
    assert times(kernel)[2] == pytest.approx(20e-6 + 2e-6)


def test_a_machine_of_tables_is_read_back_as_it_was_written() -> None:
    """And needs no multiprocessors where nothing is on a closed form."""
    only = {"matrix": {"bf16": 1e14}, "matmul": {}, "attention": None, "multiprocessors": None}
    described = machine(**only)
    assert System.validated(described.to_dict()) == described
    assert times(flash(), described)[0] == pytest.approx(times(flash())[0])


def faults(**fields: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        machine(**fields)
    return [str(fault) for fault in caught.value.faults]


def table_of(**fields: Any) -> dict[str, Any]:
    plain = {"sizes": PRODUCT, "rows": {"any": [[*THOUSAND, 0.5]]}, "fallback": 0.2}
    return {"bf16": plain | fields}


TWICE = {"forward": [[*THOUSAND, 0.5], [2, 2, 2, 2, 0.5], [*THOUSAND, 0.6]]}
ROW = [[*THOUSAND, 0.5]]
PLACE = "accelerator.matmul_table.bf16"


@each_row(
    ("fields", "told"),
    [
        (
            {"rows": {"forward": [[*THOUSAND, 0.5], THOUSAND]}},
            f"{PLACE}: rows.forward[1]: must have 5 figures (batch, m, n, k, share), not 4",
        ),
        (
            {"rows": {"any": [[*THOUSAND, 2.5]]}},
            f"{PLACE}: rows.any[0]: the share must be from 0.0001 to 2, not 2.5",
        ),
        (
            {"rows": {"any": [[*THOUSAND, 1e-5]]}},
            f"{PLACE}: rows.any[0]: the share must be from 0.0001 to 2, not 1e-05",
        ),
        ({"rows": TWICE}, f"{PLACE}: rows.forward[2]: has the shape of rows.forward[0]"),
        ({"rows": {"any": ROW, "forward": ROW}}, "rows.forward[0]: has the shape of rows.any[0]"),
        ({"rows": {"forward": ROW, "any": ROW}}, "rows.any[0]: has the shape of rows.forward[0]"),
        ({"rows": {"any": [[1, 0, 1, 1, 0.5]]}}, f"{PLACE}.rows.any[0][1]: 0: must be at least"),
        ({"rows": {"backward": []}}, "allowed: any, forward, input_grad, weight_grad"),
        ({"fallback": 0}, f"{PLACE}.fallback: 0: must be at least 0.0001"),
        ({"fallback": 2.1}, f"{PLACE}.fallback: 2.1: must be at most"),
    ],
)
def test_a_wrong_row_is_one_fault_that_names_it(fields: Any, told: str) -> None:
    """Rows have all sizes and a share that can be, and stand once among those looked up."""
    (fault,) = faults(matmul_table=table_of(**fields))
    assert told in fault


ONE = "bf16: each type of matrix must be in one of matmul, matmul_curve and matmul_table, but is in"
NAMES = "matmul_table.bf16.sizes: must name batch, m, n, k, and may name output_bytes, not"
GROUPS = "grouped_table.bf16.sizes: must name groups, m, n, k, and may name output_bytes, not"
PAIRS = "counts_all_pairs: only kernels of attention_table have pairs of queries and keys"
NULL = "must have bf16: attention is null, and a table of products has no share of it"
WIDTHS = ", ".join(HEADS)


@each_row(
    ("fields", "told"),
    [
        ({"matmul_table": {}}, f"{ONE} none"),
        ({"matmul_curve": {"bf16": {"points": [[0, 1]]}}}, f"{ONE} matmul_curve and matmul_table"),
        (
            {"matmul_table": table_of() | {"fp8": table_of()["bf16"]}},
            "matmul_table: matrix has no rate for fp8",
        ),
        (
            {"grouped_table": {"fp8": table_of(sizes=GROUPED)["bf16"]}},
            "grouped_table: matrix has no rate for fp8",
        ),
        ({"matmul_table": table_of(sizes=GROUPED)}, f"{NAMES} groups, m, n, k"),
        ({"grouped_table": table_of()}, f"{GROUPS} batch, m, n, k"),
        ({"matmul_table": table_of(sizes=[*PRODUCT, "m"], rows={})}, f"{NAMES} batch, m, n, k, m"),
        ({"matmul_table": table_of(sizes=[], rows={})}, f"{NAMES} nothing"),
        (
            {"attention_table": table_of(sizes=[*HEADS, "output_bytes"], rows={})},
            f"attention_table.bf16.sizes: must name {WIDTHS}, not {WIDTHS}, output_bytes",
        ),
        ({"matmul_table": table_of(counts_all_pairs=True)}, f"matmul_table.bf16.{PAIRS}"),
        ({"attention": None, "attention_table": {}}, f"attention_table: {NULL}"),
    ],
)
def test_a_table_in_the_wrong_place_is_one_fault(fields: Any, told: str) -> None:
    """Each type has one way to be timed, and each table the sizes of its kernels."""
    (fault,) = faults(**fields)
    assert fault.endswith(told)
