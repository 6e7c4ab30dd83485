"""Module information in both layouts, files of communication times; what is refused and how."""

import copy
import json

import numpy as np
import pytest

from fsdp_ilp_samples import GOLDEN, flat, golden_info, nested
from rows import each_row
from shardwise import InputError
from shardwise.predecessors.fsdp_ilp.files import looks_like, module_info, read_module_info
from shardwise.predecessors.fsdp_ilp.reference import comm_times, parse_comm, read_comm


def same(one, other):
    """Whether two sets of module information agree, wherever they were read."""
    fields = [field for field in one.__dataclass_fields__ if field != "source"]
    return all(np.array_equal(getattr(one, f), getattr(other, f)) for f in fields)


@pytest.mark.parametrize("name", list(GOLDEN["module_infos"]))
def test_both_layouts_hold_the_same_in_any_order_of_statistics(name, tmp_path):
    """From a file as well; the statistics of torch's Llama are not in pre-order."""
    shuffled = nested(name)
    shuffled["mod_stats"].reverse()
    for row in shuffled["mod_stats"]:
        row |= {"slopes": [], "tradeoff_curve": {"0.01": 0.0}, "index": 3, "pos_fw_post_order": 1}
    path = tmp_path / "GPT_modules_info.json"
    path.write_text(json.dumps(shuffled))
    assert looks_like(shuffled)
    assert looks_like(flat(name))
    assert not looks_like({"mod_orders": {}, "units": []})
    found = read_module_info(path)
    assert same(found, golden_info(name))
    assert found.source == str(path)


def test_modules_have_their_places_and_figures():
    """Of tiny12, whose pre-order is a chain of five, a pair and a small tree."""
    info = golden_info("tiny12")
    assert info.names[:6] == (
        "R",
        "R.m1",
        "R.m1.m2",
        "R.m1.m2.m3",
        "R.m1.m2.m3.m4",
        "R.m5",
    )
    assert info.end.tolist() == [12, 5, 5, 5, 5, 7, 7, 12, 11, 11, 11, 12]
    assert info.post_position.tolist() == [11, 3, 2, 1, 0, 5, 4, 10, 8, 7, 6, 9]
    assert np.flatnonzero(info.is_leaf).tolist() == [4, 6, 10, 11]
    assert info.parameter_bytes[5] == info.gradient_bytes[5] == 106954752
    assert info.gradient_total_bytes[4] == 1239416832
    assert info.activation_total_bytes[4] == 852905848
    assert info.activation_gradient_bytes[4] == 144260470
    assert (info.forward_ms[11], info.backward_ms[11]) == (4.401660769904144, 8.308714846972595)
    gpt = golden_info("seed_gpt6")
    drop = gpt.names.index("GPT.transformer.drop")
    assert gpt.input_bytes[drop] == gpt.output_bytes[drop] == 100663296
    assert gpt.activation_forward_bytes[drop] == 100663296
    assert (gpt.recompute_ms[0], gpt.recomputable_bytes[0]) == (425.57847088625516, 26088378416)
    assert gpt.recompute_ms[drop] == 0


def test_a_container_without_a_forward_pass_is_no_module():
    """`GPT.transformer` is never called: its children are the root's."""
    gpt = golden_info("seed_gpt6")
    assert "GPT.transformer" not in gpt.names
    assert gpt.end[gpt.names.index("GPT.transformer.h.0")] == 16


def test_a_name_inside_another_is_no_descendant():
    """The original's test for "R.a." anywhere would have "R.b.R.a.c" below "R.a"."""
    names = ["R", "R.a", "R.b", "R.b.R", "R.b.R.a"]
    stats = [dict(flat("tiny12")["modstats"][0], fqn=name) for name in names]
    post = ["R.a", "R.b.R.a", "R.b.R", "R.b", "R"]
    info = module_info({"fw_pre_order": names, "fw_post_order": post, "modstats": stats})
    assert info.end.tolist() == [5, 2, 5, 5, 5]


def drop(data, *names):
    """Take modules out of the statistics."""
    data["modstats"] = [row for row in data["modstats"] if row["fqn"] not in names]


def swap(order, one, other):
    """Let two modules change places."""
    order[one], order[other] = order[other], order[one]


BAD = {
    "statistics missing": (
        lambda d: drop(d, "R.m5.m6"),
        "fw_pre_order: 'R.m5.m6': has no statistics in modstats",
    ),
    "no forward order": (
        lambda d: d["fw_pre_order"].remove("R.m5.m6"),
        "modstats: 'R.m5.m6': has statistics, but is not in fw_pre_order",
    ),
    "not in post-order": (
        lambda d: d["fw_post_order"].remove("R.m5"),
        "modstats: 'R.m5': has statistics, but is not in fw_post_order",
    ),
    "unknown in a backward order": (
        lambda d: d["bw_pre_order"].append("R.m99"),
        "bw_pre_order: 'R.m99': has no statistics in modstats",
    ),
    "twice in an order": (
        lambda d: d["fw_pre_order"].append("R.m5"),
        "fw_pre_order: 'R.m5': is there twice",
    ),
    "twice in the statistics": (
        lambda d: d["modstats"].append(d["modstats"][3]),
        "modstats: 'R.m1.m2.m3': is there twice",
    ),
    "negative": (
        lambda d: d["modstats"][2].update(param_per_module=-1),
        "modstats[2].param_per_module: -1: must be at least 0",
    ),
    "NaN": (
        lambda d: d["modstats"][2].update(fw_runtime_per_module=float("nan")),
        "modstats[2].fw_runtime_per_module: nan: must be",
    ),
    "infinite": (
        lambda d: d["modstats"][2].update(act_total=float("inf")),
        "modstats[2].act_total: inf: must be",
    ),
    "absurdly large": (
        lambda d: d["modstats"][2].update(grad_total=10**400),
        "a number has more than 308 digits",
    ),
    "text": (
        lambda d: d["modstats"][2].update(grad_per_module="12"),
        "modstats[2].grad_per_module: '12': must be a number",
    ),
    "a flag": (
        lambda d: d["modstats"][2].update(act_total=True),
        "modstats[2].act_total: true: must be a number",
    ),
    "a field missing": (
        lambda d: d["modstats"][2].pop("act_total"),
        "modstats[2].act_total: is missing and has no default",
    ),
    "a field misspelt": (
        lambda d: d["modstats"][2].update(act_totel=3),
        "modstats[2].act_totel: unknown key; did you mean 'act_total'?",
    ),
    "an order is no list": (
        lambda d: d.update(fw_pre_order="R"),
        "fw_pre_order: 'R': must be a list",
    ),
    "a name is no text": (
        lambda d: d["fw_pre_order"].__setitem__(3, 3),
        "fw_pre_order[3]: 3: must be text",
    ),
    "an order is missing": (
        lambda d: d.pop("fw_post_order"),
        "fw_post_order: is missing and has no default",
    ),
    "empty": (lambda d: d.update(fw_pre_order=[]), "fw_pre_order: []: must have at least 1 item"),
    "statistics are no list": (
        lambda d: d.update(modstats={"R": 1}),
        "modstats: {'R': 1}: must be a list",
    ),
    "not below the root": (
        lambda d: swap(d["fw_pre_order"], 0, 5),
        "fw_pre_order: 'R.m1': is not below the root 'R.m5', which comes first",
    ),
    "interrupted": (
        lambda d: swap(d["fw_pre_order"], 4, 5),
        "fw_pre_order: 'R.m1.m2.m3.m4': is not called inside 'R.m1.m2.m3', but apart from",
    ),
    "returns at another time": (
        lambda d: swap(d["fw_post_order"], 0, 1),
        "fw_post_order: 'R.m1.m2.m3': is at place 0, but calls nested as in fw_pre_order have it",
    ),
}


@pytest.mark.parametrize("case", list(BAD))
def test_what_is_wrong_is_one_clear_line(case, tmp_path):
    """Each names the file, the field and the value, and says what is wrong with it."""
    spoil, told = BAD[case]
    data = copy.deepcopy(flat("tiny12"))
    spoil(data)
    path = tmp_path / "info.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        read_module_info(path)
    assert str(caught.value.faults[0]).startswith(f"{path}: {told}")


def test_faults_of_torchs_layout_name_its_own_fields():
    """And all of them at once."""
    data = nested("tiny12")
    data["mod_order"]["fw_pre_order"].remove("R.m5.m6")
    data["mod_order"]["fw_post_order"].remove("R.m5")
    with pytest.raises(InputError) as caught:
        module_info(data, source="info.json")
    assert str(caught.value).splitlines() == [
        "info.json: mod_stats: 'R.m5.m6': has statistics, but is not in mod_order.fw_pre_order",
        "info.json: mod_stats: 'R.m5': has statistics, but is not in mod_order.fw_post_order",
    ]
    with pytest.raises(InputError, match="mod_order: is missing and has no default"):
        module_info({"mod_stats": []})
    with pytest.raises(InputError, match="is no module information"):
        module_info({"units": []})


@each_row(
    ("gpus", "latency_us", "rate_gb"),
    [(8, 10.8, 100.2), (16, 23.3, 13.3), (32, 42.7, 12.9), (64, 81.5, 12.7)],
)
def test_the_rule_gives_the_published_latencies_and_bandwidths(gpus, latency_us, rate_gb):
    """Nodes of eight A100; section 1.6."""
    found = comm_times(gpus)
    assert found.all_gather.latency_ms * 1e3 == pytest.approx(latency_us, rel=1e-12)
    assert found.all_gather.bytes_per_ms * 1e3 / 2**30 == pytest.approx(rate_gb, abs=0.05)
    assert found.reduce_scatter == found.all_gather


@each_row(
    ("gpus", "small_ms", "large_ms"), [(8, 0.254, 4.259), (16, 1.854, 31.96), (64, 2.004, 33.61)]
)
def test_an_all_gather_takes_what_the_original_says(gpus, small_ms, large_ms):
    """25 MiB and a layer of Llama 8B, 436 MiB, on nodes of eight H100; section 1.6."""
    line = comm_times(gpus, generation="hopper").all_gather
    assert line.time_ms(25 * 2**20) == pytest.approx(small_ms, abs=5e-4)
    assert line.time_ms(436 * 2**20) == pytest.approx(large_ms, rel=2e-4)


@each_row(("case", "gpus"), [(0, 8), (1, 32), (3, 16)])
def test_the_rule_gives_the_times_of_the_stored_cases(case, gpus):
    """To rounding: a GB is 2^30 bytes."""
    stored = parse_comm(GOLDEN["cases"][case]["comm"])
    found = comm_times(gpus)
    assert GOLDEN["cases"][case]["world_size"] == gpus
    for one, other in (
        (found.all_gather, stored.all_gather),
        (found.reduce_scatter, stored.reduce_scatter),
    ):
        assert one.latency_ms == pytest.approx(other.latency_ms, rel=1e-12)
        assert one.bytes_per_ms == pytest.approx(other.bytes_per_ms, rel=1e-12)


def test_volta_is_bound_by_its_protocol_inside_a_node():
    """39 GB/s by 8 / 7; across nodes all generations are bound by the network."""
    rate = comm_times(8, generation="volta").all_gather.bytes_per_ms
    assert rate == pytest.approx(39 * 8 / 7 * 2**30 / 1e3)
    assert comm_times(16, generation="volta") == comm_times(16, generation="hopper")


@each_row(
    ("words", "told"),
    [
        ({"gpus": 1}, "gpus: 1: must be at least 2: one GPU shards nothing"),
        ({"gpus": 0}, "gpus: 0: must be a whole number of at least 2"),
        ({"gpus": 2.5}, "gpus: 2.5: must be a whole number of at least 2"),
        ({"gpus": 8, "gpus_per_node": 0}, "gpus_per_node: 0: must be a whole number of at least 1"),
        ({"gpus": 8, "generation": "turing"}, "generation: 'turing': allowed: volta, ampere"),
    ],
)
def test_the_rule_refuses_what_it_does_not_know(words, told):
    """One GPU would be divided by no bandwidth in the original."""
    with pytest.raises(InputError) as caught:
        comm_times(**words)
    assert str(caught.value).startswith(told)


HUMAN = {"latency": "10.8 us", "bandwidth": "100 GB/s"}
PLAIN = {"latency_ms": 0.0108, "bandwidth_bytes_per_ms": 1e8}


def test_times_are_read_in_both_forms(tmp_path):
    """With and without units, wrapped and not, YAML and JSON; and as they are written."""
    human = parse_comm({"all_gather": HUMAN, "reduce_scatter": HUMAN})
    assert human.all_gather.latency_ms == pytest.approx(0.0108, rel=1e-12)
    assert human.all_gather.bytes_per_ms == pytest.approx(1e8, rel=1e-12)
    path = tmp_path / "comm.yaml"
    path.write_text(json.dumps({"comm": {"all_gather": PLAIN, "reduce_scatter": HUMAN}}))
    mixed = read_comm(path)
    assert mixed.all_gather.bytes_per_ms == 1e8
    assert mixed.reduce_scatter == human.reduce_scatter
    tiny = parse_comm(GOLDEN["cases"][4]["comm"])
    assert tiny.all_gather.latency_ms == 0.05
    assert (tiny.reduce_scatter.latency_ms, tiny.reduce_scatter.bytes_per_ms) == (0.08, 4e7)
    assert parse_comm(tiny.to_dict()) == tiny


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"all_gather": PLAIN}, "reduce_scatter: is missing and has no default"),
        (
            {"all_gather": PLAIN, "reduce_scatter": {**PLAIN, "latency": "1 us"}},
            "reduce_scatter: latency and latency_ms are both set; set one",
        ),
        (
            {"all_gather": PLAIN, "reduce_scatter": {"latency_ms": 1}},
            "reduce_scatter: bandwidth and bandwidth_bytes_per_ms are missing; set one",
        ),
        (
            {"all_gather": PLAIN, "reduce_scatter": {**PLAIN, "latency_ms": -1}},
            "reduce_scatter.latency_ms: -1: must be at least 0",
        ),
        (
            {"all_gather": PLAIN, "reduce_scatter": {**PLAIN, "bandwidth_bytes_per_ms": 0}},
            "reduce_scatter.bandwidth_bytes_per_ms: 0: must be at least",
        ),
        (
            {"all_gather": PLAIN, "reduce_scatter": {**HUMAN, "bandwidth": "100 GB"}},
            "reduce_scatter.bandwidth: '100 GB': unit 'GB' is not one of",
        ),
        ({"comm": 3}, "comm: 3: must be a mapping of all_gather and reduce_scatter"),
        (
            {"comm": {"all_gather": PLAIN, "reduce_scatter": PLAIN}, "gpus": 3},
            "has gpus in addition",
        ),
        ({"all_gather": PLAIN, "reduce_scatter": PLAIN, "allgather": 1}, "allgather: unknown key"),
    ],
)
def test_wrong_times_are_one_clear_line(given, told, tmp_path):
    """Which names the file and the field."""
    path = tmp_path / "comm.json"
    path.write_text(json.dumps(given))
    with pytest.raises(InputError) as caught:
        read_comm(path)
    assert str(caught.value).startswith(f"{path}: {told}")
