"""Our nouns in NERSC's words: what comes back as it was, means the same, or is refused."""

from pathlib import Path

import pytest

from nersc_runs import RUNS, nersc_model, nersc_system, our_model, our_system
from rows import each_row
from shardwise import InputError, Model, System, estimate
from shardwise.predecessors.nersc.translation import model_for_nersc, nersc_case, system_for_nersc

SHORT = {"gpus": 64, "tp": 8, "gbs": 64}


@each_row("name", list(RUNS["systems"]))
def test_its_systems_come_back_as_they_were(name):
    """Every figure of its file, to the last bit, through our units."""
    domain = RUNS["systems"][name]["nvlink_size"]
    assert system_for_nersc(our_system(name, domain)) == nersc_system(name)


def test_its_models_come_back_as_they_were():
    """The catalog has one of them."""
    assert model_for_nersc("gpt3-1t") == nersc_model("gpt3_1T")
    assert model_for_nersc(our_model("vit_era5")) == nersc_model("vit_era5")
    assert model_for_nersc("gpt3-1t", seq_len=4096).l == 4096


def test_shared_links_become_nics_per_accelerator():
    """4 NICs for 8 accelerators; of figures by size those of the largest group."""
    fields = our_system("A100", 8).to_dict()
    fields["network"][1]["links_per_node"] = 4
    assert system_for_nersc(System.load(fields)).nic_factor == 0.5
    h100 = system_for_nersc("h100-sxm")
    gather = System.load("h100-sxm").network[1].collectives["all_gather"]
    assert (h100.nic_factor, h100.nvlink_size, h100.ib_bandwidth) == (1, 8, 50)
    assert h100.ib_eff == gather.efficiency[max(gather.efficiency)]
    assert h100.ib_latency == gather.latency_per_member
    a100 = System.load("calculon-a100-80g")
    assert system_for_nersc(a100).ib_latency == a100.network[1].collectives["all_gather"].latency


@each_row(
    ("fields", "expected"),
    [
        ({}, {"method": "1d", "m1": 8, "m2": 1, "nb": 1, "t1": 8, "t_dp": 1}),
        (
            {"cp": 2, "cp_exchange": "all_gather", "placement": "cp-tp-dp-pp"},
            {"method": "2d-seqp", "m1": 8, "m2": 2, "nb": 1, "t1": 4, "t2": 2},
        ),
        (
            {"tp": 2, "tp2": 4, "tp_exchange": "summa"},
            {"method": "2d", "m1": 2, "m2": 4, "nb": 4, "t1": 2, "t2": 4},
        ),
        (
            {"tp": 2, "tp2": 2, "tp_exchange": "summa", "summa_panels": 16, "pp": 2},
            {"method": "2d", "nb": 16, "t1": 2, "t2": 2, "t_dp": 2, "t_pp": 1},
        ),
        ({"tp": 1, "extents": "dp=4+pp=2", "pp": 2}, {"t_dp": 4, "t_pp": 2, "dp": 32}),
        ({"tp": 2, "mbs": 2, "pp": 4, "placement": "pp-tp-dp"}, {"b": 2, "t_pp": 4, "t1": 2}),
    ],
)
def test_strategies_become_configurations(fields, expected):
    """Method by what exchanges, groups by degrees, parts in a domain by placement."""
    case = nersc_case("gpt3-1t", our_system("B200", 8), SHORT | {"dtype": "fp16"} | fields)
    found = case.configuration.to_dict()
    assert {name: found[name] for name in expected} == expected
    assert case.configuration.gpus == 64
    assert found["global_batch"] == 64


@each_row(
    ("fields", "told"),
    [
        (
            {"dtype": "fp32"},
            "dtype: 'fp32': NERSC's model has 2 bytes per element; allowed: fp16, bf16",
        ),
        ({"zero": 3}, "zero: 3: NERSC's model does not know it; allowed: 1"),
        ({"recompute": "full"}, "recompute: 'full': NERSC's model does not know it; allowed: none"),
        ({"training": False}, "training: false: NERSC's model does not know it; allowed: on"),
        (
            {"stage_layers": (60, 68), "pp": 2},
            "[60, 68]: NERSC's model does not know it; allowed: none",
        ),
        (
            {"tp_exchange": "all_reduce"},
            "'all_reduce': NERSC's model knows sequence parallelism and 2D products; allowed: rs_",
        ),
        (
            {"tp_overlap": "ring"},
            "'ring': NERSC's model hides panels of 2D products only; allowed: stack, none",
        ),
        (
            {"cp": 2},
            "cp_exchange: 'ring': NERSC's model gathers keys and values; allowed: all_gather",
        ),
        (
            {"cp": 2, "tp_exchange": "summa"},
            "cp: 2: NERSC's model splits the sequence of 2D products by tp2; allowed: 1",
        ),
        (
            {"tp": 4, "tp2": 2},
            "tp2: 2: NERSC's model needs tp_exchange summa; allowed without: 1",
        ),
        ({"gbs": 4}, "b 1 x dp 8 is more than global_batch 4"),
        ({"gpus": 192, "tp": 1, "pp": 3}, "pp: 3: must divide depth 128"),
    ],
)
def test_strategies_it_has_no_word_for_are_refused(fields, told):
    """One clear line each."""
    with pytest.raises(InputError) as caught:
        nersc_case("gpt3-1t", our_system("B200", 8), SHORT | fields)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("strategy: ")
    assert told in line


def test_one_replica_has_no_sharding_or_overlap_to_refuse():
    """Where dp is 1 neither has an effect."""
    fields = {"gpus": 8, "tp": 8, "gbs": 8, "zero": 0, "dp_overlap": False}
    case = nersc_case("gpt3-1t", our_system("B200", 8), fields)
    assert case.configuration.dp == 1


@each_row(
    ("name", "told"),
    [
        ("llama2-7b", "layers[0].mlp.activation: 'swiglu': NERSC's model knows no gated MLP"),
        ("mixtral-8x7b", "NERSC's model knows no mixture of experts"),
        ("deepseek-v2", "layers: 2: NERSC's model knows one kind of layer"),
        (
            Path(__file__).parents[1] / "data" / "huggingface" / "starcoder2-3b.json",
            "NERSC's model has keys and values of its own for each head; allowed: 24",
        ),
    ],
)
def test_models_it_has_no_word_for_are_refused(name, told):
    """Gated MLPs, experts, several kinds of layers, grouped heads."""
    with pytest.raises(InputError) as caught:
        model_for_nersc(name, seq_len=2048)
    assert told in str(caught.value)


def _changed(**fields):
    data = Model.load("gpt3-1t").to_dict()
    attention = {k: v for k, v in fields.items() if k in data["layers"][0]["attention"]}
    layer = {k: v for k, v in fields.items() if k in data["layers"][0]}
    whole = {k: v for k, v in fields.items() if k in data}
    data["layers"][0]["attention"] |= attention
    data["layers"][0] |= layer
    return Model.load(data | whole)


@each_row(
    ("fields", "told"),
    [
        ({"mtp": 1}, "mtp: 1: NERSC's model knows no multi-token prediction"),
        ({"window": 128}, "layers[0].attention.window: 128: NERSC's model does not know it"),
        ({"qk_norm": "head"}, "qk_norm: 'head': NERSC's model knows no norm of queries and keys"),
        ({"parallel": True}, "layers[0].parallel: true: NERSC's model knows no parallel blocks"),
        (
            {"norms": "post"},
            "layers[0].norms: 'post': NERSC's model knows norms before blocks only",
        ),
        (
            {"head_dim": 128},
            "head_dim: 128: NERSC's model divides hidden 25600 among the heads, 160",
        ),
        ({"seq_len": None, "position": "rope"}, "seq_len: null: NERSC's model needs the length"),
    ],
)
def test_features_it_has_no_word_for_are_refused(fields, told):
    """By field, value and what it knows."""
    with pytest.raises(InputError) as caught:
        model_for_nersc(_changed(**fields))
    (line,) = str(caught.value).splitlines()
    assert told in line


def test_systems_it_has_no_word_for_are_refused():
    """One network, no rate of fp16."""
    fields = our_system("A100", 8).to_dict()
    with pytest.raises(
        InputError, match="network: 1: NERSC's model knows a fast network and a slow"
    ):
        system_for_nersc(System.load(fields | {"network": fields["network"][1:]}))
    chip = fields["accelerator"]
    chip["matrix"], chip["matmul_curve"] = {"bf16": 1e14}, {"bf16": {"points": [[0, 1]]}}
    with pytest.raises(InputError, match="matrix: 'bf16': NERSC's model needs the rate of fp16"):
        system_for_nersc(System.load(fields))


@each_row(
    "strategy",
    [
        {"gpus": 512, "tp": 8, "pp": 64},
        {"gpus": 1024, "tp": 4, "pp": 32, "cp": 2, "cp_exchange": "all_gather", "mbs": 2},
    ],
)
def test_what_means_the_same_is_the_same(strategy):
    """Bytes and times exchanged in a layer, bytes between stages, weights but three biases.

    Times are those of a network alone, as its are.
    """
    given = strategy | {"gbs": 512, "dtype": "fp16", "tp_regather": True}
    given["stack"] = {"base": "megatron-core-2025", "exchange_time_factor": 1}
    ours = estimate("gpt3-1t", our_system("B200", 8), given).layers[0]
    case = nersc_case("gpt3-1t", our_system("B200", 8), given)
    layers = {layer["name"]: layer for layer in case.layers()}
    core, stages, replicas = (layers.pop(name) for name in ("fusedla", "pp_comms", "dp_comms"))

    def of_all(name):
        return sum(layer[name] for layer in layers.values())

    assert ours.tp_forward.volume_bytes == pytest.approx(of_all("comm_fwd") * 1e9)
    assert ours.tp_backward.volume_bytes == pytest.approx(of_all("comm_bwd") * 1e9)
    assert ours.tp_forward.time_s == pytest.approx(of_all("t_fwd_comm"))
    assert ours.tp_backward.time_s == pytest.approx(of_all("t_bwd_comm"))
    gathered = core["comm_fwd"] + (sum(core["comm_bwd"]) if "cp" in strategy else 0)
    assert ours.cp.volume_bytes == pytest.approx(gathered * 1e9)
    assert ours.cp.time_s == pytest.approx(core["t_fwd_comm"] + core["t_bwd_comm"])
    assert ours.boundary_bytes == pytest.approx(stages["comm_fwd"] * 1e9)
    # It has no biases of query, key and value, and in 2d-seqp a part of the one after attention.
    width, tp, context = 25600, strategy["tp"], strategy.get("cp", 1) > 1
    biases = 3 * width / tp + (width - width / tp) * context
    assert ours.weight_bytes == pytest.approx(replicas["comm_fwd"] * 1e9 + 2 * biases, rel=1e-12)


@each_row("name", RUNS["systems"])
def test_the_catalog_has_its_systems(name):
    """In its words they are what its files say."""
    theirs = nersc_system(name)
    assert system_for_nersc(f"nersc-{name.lower()}") == theirs


@each_row(("ours", "theirs"), [("nersc-gpt3-1t", "gpt3_1T"), ("vit-era5", "vit_era5")])
def test_the_catalog_has_its_models(ours, theirs):
    """Likewise."""
    assert model_for_nersc(ours) == nersc_model(theirs)
