"""Our operations beside NERSC's layers: eight configurations of its code, quantity by quantity.

Equal where both mean the same. Its FLOPs of a sum of k terms are 2 k - 1, here 2 k; it keeps
gathered inputs, which is `tp_regather` false here.
"""

from typing import Any

import pytest

from nersc_runs import RUNS
from samples import exchanges, flops, moved
from shardwise.config.model import Model
from shardwise.config.strategy_table import Table
from shardwise.ops.layer import layer_operations, rank_work
from shardwise.ops.operation import FlashAttention, Matmul, Operation, Phase

NAMES = {"gpt3_1T": "nersc-gpt3-1t", "vit_era5": "vit-era5"}
PRODUCTS = {"fc1": "mlp.up", "fc2": "mlp.down", "qkv": "attention.qkv", "vproj": "attention.out"}
GB, TERA = 1e9, 1e12
CASES = [pytest.param(c, id=f"{c['model']}-{c['strategy']}-{c['system']}") for c in RUNS["layers"]]


def theirs(case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Layers by name."""
    return {one["name"]: one for one in (*case["mlp_layers"], *case["attention_layers"])}


def ours(case: dict[str, Any]) -> dict[str, Operation]:
    """Operations of one layer on one rank, by name."""
    model, at = Model.load(NAMES[case["model"]]), case["params"]
    split: dict[str, dict[str, Any]] = {
        "1d": {"tp_exchange": "rs_ag"},
        "2d": {"tp_exchange": "summa", "tp2": at["m2"], "summa_panels": at.get("nb")},
        "2d-seqp": {"tp_exchange": "rs_ag", "cp": at["m2"], "cp_exchange": "all_gather"},
    }
    fields = {"tp": at["m1"], "mbs": at["b"], "gbs": at["b"], "dp": 1, "dtype": "fp16"}
    table = Table.of(model, fields | split[case["strategy"]] | {"tp_regather": False})
    return {o.name: o for o in layer_operations(model, model.layers[0], rank_work(table))}


def lengths(case: dict[str, Any]) -> tuple[int, dict[str, tuple[float, float]]]:
    """Tokens of a product, and its reduction and columns on one rank, by name."""
    model, at = RUNS["models"][case["model"]], case["params"]
    e, f, m1 = model["e"], model["f"], at["m1"]
    rows = ("fc2", f), ("vproj", e)
    if case["strategy"] == "2d":
        shapes = {name: (k, e / m1) for name, k in rows}
    else:
        shapes = {name: (k / m1, e) for name, k in rows}
    shapes |= {"fc1": (e, f / m1), "qkv": (e, 3 * e / m1)}
    return at["b"] * model["l"] // at["m2"], shapes


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(case, name):
    """FLOPs of both passes, weights with biases, kept inputs, least bytes moved forward."""
    layer, one = theirs(case)[name], ours(case)[PRODUCTS[name]]
    tokens, shapes = lengths(case)
    k, columns = shapes[name]
    per_sum = 1 if case["strategy"] == "2d" else (2 * k - 1) / (2 * k)
    assert layer["flops_fwd"] * TERA == pytest.approx(flops(one, Phase.FORWARD) * per_sum)
    backward = flops(one, Phase.INPUT_GRAD) * (2 * columns - 1) / (2 * columns)
    backward += flops(one, Phase.WEIGHT_GRAD) * (2 * tokens - 1) / (2 * tokens)
    assert layer["flops_bwd"] * TERA == pytest.approx(backward)
    assert layer["activation_buffer"] * GB == pytest.approx(one.saved_bytes[0])
    bias = theirs(case).get(f"{name}-bias")
    weights = layer["weights_mem"] + (bias["weights_mem"] if bias else 0)
    if (case["strategy"], name) == ("2d-seqp", "vproj"):  # its bias has 1 / m1 of the width
        weights += bias["weights_mem"] * (case["params"]["m1"] - 1)
    assert weights * GB == pytest.approx(2 * one.parameters[0])
    if case["strategy"] != "2d":  # panels pass memory otherwise: tests/test_summa_ops.py
        rate = RUNS["systems"][case["system"]]["hbm_bandwidth"] * GB
        memory_s = layer["t_fwd_comp"] / layer["intensity_fwd"]
        assert memory_s * rate == pytest.approx(moved(one, Phase.FORWARD, Matmul))


@pytest.mark.parametrize("case", CASES)
def test_attention(case):
    """Matrix FLOPs forward but for 2 k - 1, what is kept, and keys and values exchanged.

    Its FLOPs have softmax and dropout in them, as many as the matrix units could do meanwhile. It
    counts the output here and as the input of the next product, of which one is kept.
    """
    at, model = case["params"], RUNS["models"][case["model"]]
    system, layer, found = RUNS["systems"][case["system"]], theirs(case)["fusedla"], ours(case)
    heads, keys = at["b"] * model["h"] / at["m1"], model["l"]
    queries, width = keys // at["m2"], model["e"] // model["h"]
    pairs = heads * queries * keys
    vector = system["matrix_flops_fp16"] / system["vector_flops_fp16"]
    softmax = vector * (4 * pairs - heads * queries)
    core = found["attention.core"]
    (forward,) = (
        kernel
        for kernel in core.kernels
        if isinstance(kernel, FlashAttention) and kernel.phase is Phase.FORWARD
    )
    left_out = pairs + heads * queries * width
    assert forward.flops[0] - left_out + softmax == pytest.approx(layer["flops_fwd"] * TERA)
    kept = core.saved_bytes[0] + found["attention.softmax"].saved_bytes[0]
    output = 2 * heads * queries * width
    assert kept + output == pytest.approx(layer["activation_buffer"] * GB)
    gathered = 2 * 2 * heads * keys * width if at["m2"] > 1 else 0
    told = [size for *_, size in exchanges(core) if size]
    assert told == pytest.approx([gathered] * (3 if gathered else 0))


@pytest.mark.parametrize("case", CASES)
def test_element_wise_layers(case):
    """What activation, masks and norms keep, and what the ranks of tp exchange around them.

    Norms of 2d have the wrong width there; the dropout inside the MLP is none here. It drops the
    remainder of 64,800 tokens over 64 ranks.
    """
    whole_tokens = {"rel": 1e-3}
    layers, found = theirs(case), ours(case)
    kept = found["mlp.activation"].saved_bytes[0]
    assert layers["act1"]["activation_buffer"] * GB == pytest.approx(kept)
    for drop, name in (("dpr2", "mlp.residual"), ("dpr_v", "attention.residual")):
        kept = found[name].saved_bytes[0]
        assert layers[drop]["activation_buffer"] * GB == pytest.approx(kept, **whole_tokens)
    if case["strategy"] != "2d":
        for norm, name in (("ln1", "mlp.norm"), ("ln2", "attention.norm")):
            kept = found[name].saved_bytes[0]
            assert layers[norm]["activation_buffer"] * GB == pytest.approx(kept, **whole_tokens)
            weights = 2 * found[name].parameters[0]
            assert layers[norm]["weights_mem"] * GB == pytest.approx(weights)
        whole = layers["fc2"]["comm_fwd"] * GB
        for name in ("mlp.up", "mlp.down", "attention.qkv", "attention.out"):
            sizes = [size for *_, size in exchanges(found[name]) if size]
            assert sizes == pytest.approx([whole] * len(sizes))
            assert sizes
