"""NERSC's systems and models: what becomes of their figures, and what is refused."""

import json
from types import NoneType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from profiles import examples
from rows import each_row
from samples import column
from shardwise import InputError, Model, System, estimate
from shardwise.config.strategy_table import Table
from shardwise.cost.collective import collective_time, transfer_time
from shardwise.cost.kernels import KernelRates
from shardwise.ops.operation import CollectiveKind, FlashAttention, Matmul, MemoryBound, Phase
from shardwise.ops.param_count import count_parameters
from shardwise.predecessors.nersc.files import looks_like
from test_catalog_systems import numeric_fields

# systems/config-*.json of transformer-perf-estimates, commit 54278b0: peaks of matrices and vectors
# [TFLOP/s], HBM [GB/s, GB], NVLink and InfiniBand [GB/s, efficiency, s], size of the domain.
FIGURES: dict[str, tuple[float, ...]] = {
    "a100": (312, 78, 19.5, 1555, 80, 300, 0.7, 2.5e-6, 25, 0.7, 5e-6, 4),
    "h200": (989.4, 133.8, 66.9, 4800, 141, 450, 0.7, 2.5e-6, 50, 0.7, 5e-6, 64),
    "b200": (2500, 339, 169, 8000, 192, 900, 0.7, 2.5e-6, 100, 0.7, 5e-6, 4),
    "b200-next": (3750, 508.5, 253.5, 16000, 384, 3600, 0.8, 5e-6, 200, 0.8, 1e-5, 64),
}
GENERATIONS = {"a100": "ampere", "h200": "hopper", "b200": "blackwell", "b200-next": "blackwell"}
KEYS = (
    "matrix_flops_fp16",
    "vector_flops_fp16",
    "vector_flops_fp32",
    "hbm_bandwidth",
    "hbm_capacity",
    "nvlink_bandwidth",
    "nvlink_eff",
    "nvlink_latency",
    "ib_bandwidth",
    "ib_eff",
    "ib_latency",
    "nvlink_size",
)
REST = {
    "nic_factor": 1,
    "empirical": False,
    "summa_nb": 4,
    "element_size": 2e-9,
    "mask_element_size": 1e-9,
    "flops_units": 1e-12,
}
FILES = {name: dict(zip(KEYS, row, strict=True)) | REST for name, row in FIGURES.items()}
A100 = FILES["a100"]
VIT = {"l": 64800, "e": 12288, "h": 64, "depth": 48}
AR, AG, RS = (CollectiveKind(kind) for kind in ("all_reduce", "all_gather", "reduce_scatter"))
fast = examples(60)


def a100(**changes: Any) -> System:
    return System.load(A100 | changes)


@each_row("name", FILES)
def test_the_catalog_has_their_figures(name: str) -> None:
    """Figure by figure; names, generation and sources apart. Their files name no generation."""
    ours, theirs = System.load(f"nersc-{name}"), System.load(FILES[name])
    assert theirs.accelerator.generation == "other"
    assert ours.accelerator.generation == GENERATIONS[name]
    for field in ("accelerator", "node", "network"):
        pairs = zip(*(leaves(system.to_dict()[field]) for system in (ours, theirs)), strict=True)
        for mine, own in pairs:
            assert mine == (own if isinstance(own[1], (str, NoneType)) else approximately(own))
    numbers = list(numeric_fields(ours.model_dump(exclude={"sources"})))
    assert [field for field in numbers if ours.source_of(field) is None] == []
    for prefix in ours.sources:
        assert any(f"{field}.".startswith(f"{prefix}.") for field in numbers), prefix


def approximately(leaf: tuple[str, float]) -> tuple[str, Any]:
    return leaf[0], pytest.approx(leaf[1], rel=1e-12)


def leaves(value: Any, path: str = "") -> Any:
    """Values of a record by their place, names and generation apart."""
    items = dict(enumerate(value)) if isinstance(value, (list, tuple)) else value
    if isinstance(items, dict):
        for key, item in items.items():
            yield from leaves(item, f"{path}.{key}")
    elif not path.endswith((".name", ".generation")):
        yield path, items


def seconds(system: System, kernel: Any) -> tuple[float, ...]:
    """Compute, memory and whole time in fp16."""
    table = Table.of(
        samples.model(), {"dp": 1, "gbs": 1, "dtype": "fp16", "stack": samples.stack()}
    )
    return tuple(float(part[0]) for part in KernelRates.of(system, table).times(kernel))


@fast
@given(
    m=st.integers(1, 10**5),
    n=st.integers(1, 10**5),
    k=st.integers(1, 10**5),
    phase=st.integers(0, 2),
)
def test_a_product_is_the_larger_of_its_two_times(m: int, n: int, k: int, phase: int) -> None:
    """20 us + FLOPs / (0.8 x 312 TFLOP/s), bytes / 1,555 GB/s; no padding, no slower phase."""
    kernel = Matmul(
        phase=list(Phase)[phase],
        m=column(m),
        n=column(n),
        k=column(k),
        input_bytes=column(2),
        output_bytes=column(2),
        batch=column(1),
    )
    compute = 20e-6 + 2 * m * n * k / (0.8 * 312e12)
    memory = float(kernel.bytes[0]) / 1555e9
    assert seconds(a100(), kernel) == pytest.approx((compute, memory, max(compute, memory)))


def test_vectors_and_attention_are_timed_alike() -> None:
    """Vectors at 0.8 of 78 TFLOP/s; attention as a product of its FLOPs; nothing takes nothing."""
    for moved, flops in ((1e9, 1e6), (1e6, 4e10), (1e6, 0.0)):
        kernel = MemoryBound(phase=Phase.FORWARD, bytes=column(moved), flops=column(flops))
        compute, memory = 20e-6 + flops / (0.8 * 78e12), moved / 1555e9
        assert seconds(a100(), kernel) == pytest.approx((compute, memory, max(compute, memory)))
    none = MemoryBound(phase=Phase.FORWARD, bytes=column(0), flops=column(0))
    assert seconds(a100(), none) == (0, 0, 0)
    sizes = {"sequences": 1, "seq_len": 4096, "keys": 4096, "heads": 8, "kv_heads": 8}
    flash = FlashAttention(
        phase=Phase.FORWARD,
        **{name: column(size) for name, size in sizes.items()},
        head_dim=128,
        v_head_dim=128,
        causal=False,
        element_bytes=column(2),
    )
    flops = 4 * 4096 * 4096 * 8 * 128
    assert seconds(a100(), flash)[2] == pytest.approx(20e-6 + flops / (0.8 * 312e12))


def exchange(system: System, kind: CollectiveKind, inside: int, members: int, size: float) -> float:
    extents = np.array([[inside], [members]])
    return float(collective_time(system, kind, column(size), extents)[0])


@each_row(
    ("kind", "inside", "members", "told"),
    [
        # One domain: lf (n - 1) + c V / bf, c = (n - 1) / n.
        (AG, 4, 4, 3 * 2.5e-6 + 0.75 * 1e9 / 210e9),
        (RS, 2, 2, 2.5e-6 + 0.5 * 1e9 / 210e9),
        # One member in each: ls (n - 1) + c V / bs.
        (AG, 1, 16, 15 * 5e-6 + 15 / 16 * 1e9 / 17.5e9),
        # Several in several: max(c V / (t bs), c V / bf) + ls (D - 1) + lf (t - 1).
        (RS, 4, 16, 3 * 5e-6 + 3 * 2.5e-6 + 15 / 16 * 1e9 / 70e9),
        # Twice the bytes, also where NERSC forgets it; steps between domains by doublings.
        (AR, 4, 4, 3 * 2.5e-6 + 2 * 0.75 * 1e9 / 210e9),
        (AR, 4, 16, 2 * 5e-6 + 3 * 2.5e-6 + 2 * 15 / 16 * 1e9 / 70e9),
    ],
)
def test_collectives_by_hand(kind: CollectiveKind, inside: int, members: int, told: float) -> None:
    """1 GB over 4 to a domain at 0.7 of 300 GB/s, a NIC each at 0.7 of 25."""
    assert exchange(a100(), kind, inside, members, 1e9) == pytest.approx(told)


def test_messages_pass_one_link() -> None:
    """Latency and V / b of the tier."""
    for extents, told in (([2, 2], 2.5e-6 + 1e9 / 210e9), ([1, 2], 5e-6 + 1e9 / 17.5e9)):
        reached = np.array(extents)[:, None]
        assert transfer_time(a100(), column(1e9), reached)[0] == pytest.approx(told)


def test_nics_per_gpu_count() -> None:
    """Half a NIC for each of 4 are 2 for the domain; two are 8."""
    for factor, links in ((0.5, 2), (1, None), (1.5, 6), (2, 8)):
        system = a100(nic_factor=factor)
        assert system.network[1].links_per_node == links
        assert system.tier_bandwidth(1) == pytest.approx(factor * 25e9)
    assert a100(nic_factor=0.29, nvlink_size=100).network[1].links_per_node == 29


def test_what_its_solver_never_reads_may_be_missing() -> None:
    """fp32 has no rate then; units and panels are those of all files."""
    unread = {"vector_flops_fp32", "summa_nb", *REST}
    short = System.load({key: value for key, value in A100.items() if key not in unread})
    assert "fp32" not in short.accelerator.vector
    assert short.network == a100().network


@each_row(
    ("changes", "told"),
    [
        ({"nvlink_eff": 5.0}, "nvlink_eff: 5.0: must be at most 1"),
        ({"ib_eff": 0}, "ib_eff: 0: must be at least 0.0001"),
        ({"hbm_bandwidth": 0}, "hbm_bandwidth: 0: must be at least 0.000001"),
        ({"ib_bandwidth": -3}, "ib_bandwidth: -3: must be at least 0.000001"),
        ({"hbm_capacity": float("nan")}, "hbm_capacity: nan: must be a finite number"),
        (
            {"hbm_bandwidth": 1e300},
            "hbm_bandwidth: 1e+300: must be at most 1000000000000",
        ),
        ({"hbm_bandwith": 3}, "hbm_bandwith: unknown key; did you mean 'hbm_bandwidth'?"),
        ({"ib_latency": -1}, "ib_latency: -1: must be at least 0"),
        ({"ib_latency": "5us"}, "ib_latency: '5us': must be a number"),
        ({"nvlink_size": 0}, "nvlink_size: 0: must be at least 1"),
        ({"nvlink_size": 4.5}, "nvlink_size: 4.5: must be a whole number"),
        ({"matrix_flops_fp16": True}, "matrix_flops_fp16: true: must be a number"),
        (
            {"empirical": True},
            "empirical: true: must be false: its measured tables were never published",
        ),
        (
            {"nic_factor": 0.3},
            "nic_factor: 0.3 x nvlink_size 4 = 1.2 must be a whole number of NICs per domain",
        ),
        (
            {"element_size": 4e-9},
            "element_size: must be 2e-09, the unit of the other figures, not 4e-09",
        ),
    ],
)
def test_bad_figures_are_refused(changes: dict[str, Any], told: str) -> None:
    """One line that names the file, the field, the value and what is allowed."""
    with pytest.raises(InputError) as error:
        a100(**changes)
    assert str(error.value) == f"system: {told}"


def test_a_missing_figure_is_named(tmp_path: Any) -> None:
    """By the file that lacks it; the file is known all the same."""
    path = tmp_path / "config-mine.json"
    path.write_text(json.dumps({k: v for k, v in A100.items() if k != "ib_eff"}))
    with pytest.raises(InputError) as error:
        System.load(path)
    assert str(error.value) == f"{path}: ib_eff: is missing and has no default"
    with pytest.raises(InputError, match="holds a NERSC system, not a model"):
        Model.load(path)


def test_a_model_is_its_layers() -> None:
    """Parameters: 3 e^2 + e^2 + e, 2 e f + f + e and two norms of 2 e for each layer."""
    model = Model.load(VIT)
    assert model.vocab == 0
    assert not model.layers[0].attention.causal
    assert model.layers[0].mlp is not None
    assert model.layers[0].mlp.ffn == 4 * 12288
    e, f = 12288, 49152
    counted = count_parameters(model)
    assert counted.total == 48 * (4 * e * e + e + 2 * e * f + f + e + 4 * e)
    assert counted.embedding == 0
    wide = Model.load(VIT | {"f": 1000})
    assert count_parameters(wide).total == 48 * (4 * e * e + e + 2 * e * 1000 + 1000 + e + 4 * e)


def test_the_catalog_has_their_models() -> None:
    """`models.py` of the same commit; GPT-3 of the catalog is the whole model, and causal."""
    sizes = {"vit_era5": VIT}
    sizes["nersc_gpt3_1T"] = {"l": 2048, "e": 25600, "h": 160, "depth": 128, "f": 102400}
    sizes["nersc_gpt3_175b"] = {"l": 2048, "e": 12288, "h": 96, "depth": 96}
    for name, theirs in sizes.items():
        plain = {"name": "", "description": "", "sources": {}, "left_out": ()}
        ours = Model.load(name).model_copy(update=plain)
        assert ours == Model.load(theirs).model_copy(update=plain)
    ours, theirs = (Model.load(name).layers[0] for name in ("gpt3_1T", "nersc-gpt3-1t"))
    assert ours.attention.causal
    assert ours.mlp == theirs.mlp
    assert (ours.count, ours.attention.heads) == (theirs.count, theirs.attention.heads)


@each_row(
    ("changes", "told"),
    [
        ({"h": 7}, "h: 7: must divide e 12288, of which NERSC drops the rest"),
        ({"f": 0}, "f: 0: must be at least 1"),
        ({"depth": 10001}, "depth: 10001: must be at most 10000"),
        ({"l": 2.5}, "l: 2.5: must be a whole number"),
        ({"deph": 3}, "deph: unknown key; did you mean 'depth'?"),
    ],
)
def test_bad_models_are_refused(changes: dict[str, Any], told: str) -> None:
    """One line for each."""
    with pytest.raises(InputError) as error:
        Model.load(VIT | changes)
    assert str(error.value) == f"model: {told}"


def test_only_their_files_are_taken_for_theirs() -> None:
    """Three of their keys tell a file."""
    assert looks_like(A100) == "system"
    assert looks_like(VIT) == "model"
    assert looks_like({"l": 1, "e": 2}) is None
    assert looks_like(System.load("nersc-a100").to_dict()) is None
    assert looks_like(Model.load("vit-era5").to_dict()) is None


def test_an_estimate_of_theirs_runs() -> None:
    """On their own system, with the step near what their solver says of the same strategy."""
    strategy = {"gpus": 512, "tp": 16, "pp": 32, "gbs": 4096, "dtype": "fp16", "zero": 1}
    found = estimate("nersc-gpt3-1t", "nersc-a100", strategy | {"stack": samples.stack()})
    # 614.2 s in the stored results of the same commit, 412 s of them compute.
    assert found.step_time_s == pytest.approx(614.2, rel=0.15)
