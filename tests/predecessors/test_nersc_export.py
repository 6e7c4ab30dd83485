"""Systems and models of ours as NERSC's files, and what they have no word for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise import InputError, Model, System
from shardwise.predecessors.nersc.translation import nersc_model, nersc_system
from test_nersc_files import FILES, KEYS, REST, VIT

fast = examples(60)


@fast
@given(
    peaks=st.tuples(*[st.floats(1e-3, 1e5)] * 8),
    shares=st.tuples(*[st.floats(1e-4, 1)] * 2),
    waits=st.tuples(*[st.floats(0, 1e-2)] * 2),
    size=st.integers(1, 100),
    links=st.integers(1, 300),
)
def test_a_system_comes_back(
    peaks: tuple[float, ...],
    shares: tuple[float, ...],
    waits: tuple[float, ...],
    size: int,
    links: int,
) -> None:
    """File to system to file: the same figures."""
    file = dict(zip(KEYS, (*peaks[:6], shares[0], waits[0], peaks[6]), strict=False))
    file |= {"ib_eff": shares[1], "ib_latency": waits[1], "nvlink_size": size}
    file |= REST | {"nic_factor": links / size}
    again = nersc_system(System.load(file)).to_dict()
    assert again == pytest.approx(file, rel=1e-12)


def test_convert_writes_their_files(shardwise: Any, tmp_path: Any) -> None:
    """Figures of the catalog as their files have them, printed or in a file; which is read."""
    for name, theirs in (*((f"nersc-{n}", f) for n, f in FILES.items()), ("vit-era5", VIT)):
        path = tmp_path / f"{name}.json"
        code, out, _ = shardwise("convert", name, "--to", "nersc")
        assert code == 0
        assert json.loads(out) == theirs | ({"f": 49152} if name == "vit-era5" else {})
        assert shardwise("convert", name, path, "--to", "nersc")[0] == 0
        assert json.loads(path.read_text()) == json.loads(out)
    code, out, _ = shardwise("convert", path)
    assert code == 0
    assert "hidden: 12288" in out


@each_row(
    ("name", "told"),
    [
        (
            "h100-sxm",
            "h100-sxm: accelerator.matmul: NERSC times kernels by one share of the peak, not by cl",
        ),
        ("calculon-a100-80g", "accelerator.memory: 2: NERSC knows one tier of memory"),
        ("llama2-7b", "layers[0].mlp.activation: 'swiglu': NERSC's model knows no gated MLP"),
        ("mixtral-8x7b", "kv_heads: 8: NERSC's model has keys and values of its own for each head"),
        ("simumax", "simumax: contains a stack, for which NERSC has no format"),
    ],
)
def test_what_they_cannot_say_is_refused(shardwise: Any, name: str, told: str) -> None:
    """By name, with exit code 2."""
    code, out, err = shardwise("convert", name, "--to", "nersc")
    assert (code, out) == (2, "")
    assert told in err


HOST = {"link_share": 0.5, "bandwidth": 1e10, "shared_by": 4}
SYSTEM, MODEL = System.load("nersc-a100").to_dict(), Model.load("vit-era5").to_dict()


@each_row(
    ("path", "value", "told"),
    [
        ("accelerator/speed", 0.5, "accelerator.speed: 0.5: NERSC has no word"),
        ("accelerator/compute_latency", 0, "compute_latency: 0.0: NERSC has no word for it; all"),
        ("accelerator/vector/bf16", 1e12, "accelerator.vector.bf16: 1000000000000.0: NERSC has"),
        ("accelerator/memory_bound/launch", 1e-6, "memory_bound.launch: 1e-06: NERSC has no word"),
        ("network/1/join_exponent", 0.6, "network[1].join_exponent: 0.6: NERSC has no word for it"),
        ("network/1/domain", 64, "network[1].domain: 64: NERSC has no word for it; allowed: None"),
        ("network/1/rate_spread", 1.5, "network[1].rate_spread: 1.5: NERSC has no word for it; al"),
        ("network/1/through_host", HOST, "network[1].through_host: "),
        ("network/0/collectives/p2p/latency", 1.0, "network[0].collectives.p2p.latency: 1.0: NER"),
    ],
)
def test_figures_they_have_no_word_for(path: str, value: Any, told: str) -> None:
    """Whatever would not come back is named; all-to-all, which they have not, may be anything."""
    fields = json.loads(json.dumps(SYSTEM))
    *parents, last = path.split("/")
    target = fields
    for key in parents:
        target = target[int(key) if key.isdecimal() else key]
    target[last] = value
    with pytest.raises(InputError) as error:
        nersc_system(System.load(fields))
    (fault,) = error.value.faults
    assert told in str(fault)
    fields = json.loads(json.dumps(SYSTEM))
    fields["network"][0]["collectives"]["all_to_all"]["latency"] = 1.0
    assert nersc_system(System.load(fields)) == nersc_system(System.load(SYSTEM))


@each_row(
    ("place", "field", "value", "told"),
    [
        ("model", "mtp", 1, "mtp: 1: NERSC's model knows no multi-token prediction"),
        ("model", "seq_len", None, "seq_len: null: NERSC's model needs the length"),
        (
            "layer",
            "parallel",
            True,
            "layers[0].parallel: true: NERSC's model knows no parallel blocks",
        ),
        ("attention", "window", 128, "attention.window: 128: NERSC's model does not know it"),
        ("attention", "head_dim", 64, "attention.head_dim: 64: NERSC's model divides hidden"),
        ("attention", "kv_heads", 8, "attention.kv_heads: 8: NERSC's model has keys"),
    ],
)
def test_layers_they_have_no_word_for(place: str, field: str, value: Any, told: str) -> None:
    """Of a model."""
    fields = json.loads(json.dumps(MODEL)) | ({"vocab": 64, "left_out": []} if value == 1 else {})
    layer = fields["layers"][0]
    {"model": fields, "layer": layer, "attention": layer["attention"]}[place][field] = value
    with pytest.raises(InputError) as error:
        nersc_model(Model.load(fields))
    assert told in str(error.value)
    twice = MODEL | {"layers": MODEL["layers"] * 2}
    with pytest.raises(InputError, match="layers: 2: NERSC's model knows one kind of layer"):
        nersc_model(Model.load(twice))
