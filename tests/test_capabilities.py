"""What the release of a stack can run: its data, and the rule that refuses the rest."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import samples
from profiles import sampled
from rows import each_row
from shardwise import InputError, Model, System, catalog, estimate, estimate_many, search
from shardwise.cli import run
from shardwise.config.enums import PLACEMENTS
from shardwise.config.stack import Stack
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import CONSTRAINTS, first_violation, illegal_faults
from shardwise.parallel.constraints.software import SOFTWARE_CONSTRAINTS
from shardwise.validate.measured.runs import NotModeledError, load_runs

NOT_BOUND = {
    "calculon",
    "simumax",
    "unknown",
    "unknown-eager",
    "pytorch-cpu",
    "pytorch-cuda",
}  # the last two: scripts of PyTorch
CORE = "megatron-core-2025"
DUALPIPE = {"stack": CORE, "gpus": 64, "tp": 8, "pp": 2, "gbs": 128, "schedule": "dualpipe"}
ONE = {"when": {"tp": 2}, "then": {"pp": 1}, "because": "x"}
REPORT = ONE | {"source": "x", "date": "2026-01"}
MODEL = samples.model(position="rope", tied_embeddings=False)
EXPERTS = samples.deepseek()
SYSTEM = samples.system()


def stack(**capabilities: Any) -> Stack:
    """Software with capabilities."""
    return samples.stack(release="Plain 1.0", capabilities=capabilities)


def refused(model: Model, of: Stack, **columns: Any) -> str:
    """The refusal of a strategy for what its stack can run; empty if there is none."""
    table = Table.of(model, {"dp": 1, "gbs": 16, "stack": of} | columns)
    fault = illegal_faults(model, SYSTEM, table).get("software")
    masks = [bool(one.violated(model, SYSTEM, table)[0]) for one in SOFTWARE_CONSTRAINTS]
    assert any(masks) or fault is None
    return "" if fault is None else str(fault)


@each_row(
    ("capabilities", "shown"),
    [
        ({"fields": {"shedule": "1f1b"}}, ("shedule", "did you mean 'schedule'")),
        ({"fields": {"any_software": True}}, ("any_software", "no field")),
        ({"fields": {"schedule": ["1f1b", "dualpip"]}}, ("'dualpip'", "mean 'dualpipe'")),
        ({"fields": {"recompute_parts": "mla_up+mlq"}}, ("mla_up+mlq", "allowed: core_attention")),
        ({"fields": {"zero": True}}, ("zero: true", "numbers")),
        ({"fields": {"zero": "one"}}, ("'one'", "> 1")),
        ({"fields": {"zero": None}}, ("zero: null", "numbers")),
        ({"fields": {"expert_overlap": 1}}, ("expert_overlap: 1", "true or false")),
        ({"fields": {"schedule": []}}, ("at least 1 item",)),
        ({"rules": {"even_stage": True}}, ("even_stage", "even_stages")),
        (
            {"combinations": {"a": {"when": {"tpp": 1}, "then": {"pp": 1}, "because": "x"}}},
            ("tpp",),
        ),
        ({"combinations": {"a": {"when": {"tp": 1}, "then": {"pp": 1}}}}, ("because", "missing")),
        ({"combinations": {"a": ONE | {"machine": {"vendor": "x"}}}}, ("vendor", "generation")),
        ({"combinations": {"a": ONE | {"machine": {"generation": "h"}}}}, ("'h'", "hopper")),
        ({"combinations": {"a": ONE | {"machine": {"domain": True}}}}, ("true", "> 1")),
        ({"reported": {"a": ONE | {"source": "x", "date": "soon"}}}, ("date", "soon")),
        ({"reported": {"a": ONE | {"date": "2026-01"}}}, ("source", "missing")),
        ({"reported": {"a": REPORT | {"then": {"tp": "in domain"}}}}, ("tp: 'in domain'",)),
        ({"combinations": {"a": {"when": {}, "then": {"pp": 1}, "because": "x"}}}, ("when",)),
        ({"like": "calculon"}, ("calculon", "lists no capabilities")),
        ({"feilds": {}}, ("feilds", "fields")),
    ],
)
def test_wrong_data_is_one_clear_error(
    capabilities: dict[str, Any], shown: tuple[str, ...]
) -> None:
    """It names the place in the stack, what is wrong, and what is allowed."""
    with pytest.raises(InputError) as error:
        stack(**capabilities)
    assert len(error.value.faults) == 1
    assert str(error.value).startswith("capabilities")
    assert [word for word in shown if word not in str(error.value)] == []


def test_a_derived_stack_changes_single_entries(tmp_path: Path) -> None:
    """Words free a field and drop a combination or a rule; `replace` ignores the base."""
    base = Stack.load("megatron-core-2025").capabilities
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nbase: megatron-core-2025\nrelease: Mine 2\ncapabilities:\n"
        "  fields: {schedule: any, zero: [0, 1]}\n"
        "  combinations: {ring_overlap: null}\n  rules: {even_stages: false}\n"
    )
    mine = Stack.load(path)
    assert mine.release == "Mine 2"
    assert mine.capabilities is not None
    assert base is not None
    assert mine.capabilities.fields == base.fields | {"schedule": ("any",), "zero": (0, 1)}
    row = {"tp": 2, "pp": 2, "tp_overlap": "ring", "tp_exchange": "all_reduce"}
    core = Stack.load("megatron-core-2025")
    assert "sequence parallelism" in refused(MODEL, core, **row)
    assert refused(MODEL, mine, **row) == ""
    assert refused(MODEL, mine, pp=3, schedule="gpipe") == ""
    assert "zero: 3" in refused(MODEL, mine, dp=2, zero=3)
    path.write_text(
        "name: new\nbase: megatron-core-2025\ncapabilities: {replace: true, fields: {zero: 0}}\n"
    )
    assert Stack.load(path).to_dict()["capabilities"]["fields"] == {"zero": [0]}
    path.write_text("name: none\nbase: megatron-core-2025\ncapabilities: null\n")
    assert refused(MODEL, Stack.load(path), pp=2, schedule="gpipe") == ""


def test_a_stack_is_written_and_read_as_the_same(tmp_path: Path) -> None:
    """With its capabilities, those of another stack filled in."""
    for name in ("megatron-bridge-2025", "torchtitan-2024"):
        Stack.load(name).to_file(tmp_path / "one.yaml")
        assert Stack.load(tmp_path / "one.yaml") == Stack.load(name)


@each_row(
    ("values", "field", "allowed", "others"),
    [
        (["1f1b", "gpipe"], "schedule", ["1f1b", "gpipe"], ["zb-h1", "dualpipe"]),
        ([0, 2], "zero", [0, 2], [1, 3]),
        ("> 1", "zero", [2, 3], [0, 1]),
        ([0, ">= 3"], "zero", [0, 3], [1, 2]),
        (["< 2"], "zero", [0, 1], [2, 3]),
        (["<= 2"], "zero", [0, 1, 2], [3]),
        (False, "fused_activation", [False], [True]),
        ([True, False], "fused_activation", [False, True], []),
        (None, "recompute_layers", [None], [1, 4]),
        ("set", "recompute_layers", [1, 4], [None]),
        ([None, 2], "recompute_layers", [None, 2], [1]),
        (None, "stage_layers", [None], [(2, 2)]),
        ("set", "stage_layers", [(2, 2)], [None]),
        (None, "frozen", [()], [("embedding",)]),
        ("mlp", "frozen", [(), ("mlp",)], [("mlp", "norms")]),
        ("any", "schedule", ["zb-h1"], []),
        (
            ["core_attention", "attention_norm+mlp_norm"],
            "recompute_parts",
            [
                ("core_attention",),
                ("attention_norm", "mlp_norm"),
                ("core_attention", "attention_norm", "mlp_norm"),
            ],
            [("attention_norm",), ("core_attention", "mlp_norm"), ("core_attention", "mlp")],
        ),
    ],
)
def test_a_field_may_have_the_values_that_are_listed(
    values: Any, field: str, allowed: list[Any], others: list[Any]
) -> None:
    """And no others; where the field has an effect."""
    one = stack(fields={field: values})
    base: dict[str, Any] = {"pp": 2, "dp": 4, "tp": 2}
    if field == "recompute_parts":
        base["recompute"] = "selective"
    if field == "recompute_layers":
        base["recompute"] = "full"
    for value in allowed:
        assert refused(MODEL, one, **base, **{field: value}) == "", value
    for value in others:
        message = refused(MODEL, one, **base, **{field: value})
        assert message.startswith(f"strategy: {field}: "), value
        assert "plain (Plain 1.0)" in message
        assert message.endswith("; --any-software lifts this")
        assert refused(MODEL, one, **base, **{field: value}, any_software=True) == ""


def test_a_field_without_effect_breaks_nothing() -> None:
    """Nothing is exchanged on one rank, nothing is scheduled on one stage."""
    none = stack(
        fields={
            "tp_exchange": "rs_ag",
            "cp_exchange": "ring",
            "schedule": "interleaved",
            "zero": 0,
            "dp_overlap": False,
            "recompute_parts": "mlp",
            "etp": 2,
            "dispatcher": "hybridep",
            "fsdp_prefetch": 2,
        }
    )
    assert refused(MODEL, none, tp_exchange="all_reduce", cp_exchange="all_gather") == ""
    assert "tp_exchange" in refused(MODEL, none, tp=2, tp_exchange="all_reduce")
    assert "schedule" in refused(MODEL, none, pp=2)
    assert "zero" in refused(MODEL, none, dp=2, zero=1)
    assert "zero: 3" in refused(MODEL, none, zero=3)  # weights are gathered layer by layer
    assert "etp" in refused(EXPERTS, none, dp=2, etp=1)


def test_combinations_ask_for_other_fields() -> None:
    """All of `when` together, then all of `then`; of a set one of its words is enough."""
    one = stack(
        combinations={
            "a": {
                "when": {"pp": "> 1", "recompute_parts": ["mlp", "attention"]},
                "then": {"zero": [0, 1], "dp_overlap": False},
                "because": "of this",
            },
            "b": {"when": {"placement": "tp-cp-pp-dp"}, "then": {"pp": 2}, "because": "of that"},
        }
    )
    wrong = {
        "pp": 2,
        "dp": 4,
        "recompute": "selective",
        "recompute_parts": ("core_attention", "mlp"),
    }
    assert refused(MODEL, one, **wrong, zero=1, dp_overlap=False) == ""
    for changed in ({"zero": 2, "dp_overlap": False}, {"zero": 1}, {"zero": 3}):
        shown = refused(MODEL, one, **wrong | changed)
        assert "pp: 2" in shown
        assert "zero 0, 1 and dp_overlap false only: of this" in shown
    assert refused(MODEL, one, **wrong | {"pp": 1, "zero": 3}) == ""
    assert refused(MODEL, one, **wrong | {"recompute_parts": "core_attention", "zero": 3}) == ""
    assert refused(MODEL, one, **wrong | {"recompute": "none", "recompute_parts": None}) == ""
    swapped = {"dp": 2, "placement": "tp-cp-pp-dp"}
    assert "of that" in refused(MODEL, one, **swapped, pp=4)
    assert refused(MODEL, one, **swapped, pp=2) == ""


def test_a_stack_that_captures_the_step_sends_tokens_as_its_graph_needs() -> None:
    """What a strategy leaves to its stack is in effect, too."""
    captures = Stack.load(
        {"base": "megatron-bridge-fused", "name": "captures", "cuda_graphs": "full"}
    )
    both = {"dp": 2, "ep": 2, "expert_overlap": False, "etp": 1}
    shown = refused(EXPERTS, captures, **both, dispatcher="all_to_all")
    assert "with dispatcher hybridep only" in shown
    assert refused(EXPERTS, captures, **both, dispatcher="hybridep") == ""
    plain = Stack.load("megatron-bridge-fused")
    assert refused(EXPERTS, plain, **both, dispatcher="all_to_all") == ""


def test_orders_of_ranks_are_those_of_axes_that_have_several() -> None:
    """Every placement with every set of axes, against the orders written out."""
    wanted = ("tp-cp-dp-pp", "tp-cp-pp-dp")
    one = stack(fields={"placement": list(wanted)})
    degrees = list(product((1, 2), repeat=4))
    columns = {
        axis: [d[n] for d in degrees for _ in PLACEMENTS]
        for n, axis in enumerate(("tp", "cp", "dp", "pp"))
    }
    columns["placement"] = [*PLACEMENTS] * len(degrees)
    table = Table.of(MODEL, {"gbs": 16, "stack": one} | columns)
    found = np.any([c.violated(MODEL, SYSTEM, table) for c in SOFTWARE_CONSTRAINTS], axis=0)
    for row, broken in enumerate(found):
        several = [axis for axis in ("tp", "cp", "dp", "pp") if getattr(table, axis)[row] > 1]
        order = [axis for axis in columns["placement"][row].split("-") if axis in several]
        allowed = [[a for a in text.split("-") if a in several] for text in wanted]
        assert broken == (order not in allowed), (columns["placement"][row], several)


def test_extents_are_legal_where_an_order_gives_them() -> None:
    """In 8 accelerators a domain, tp 2 leaves room for 4 of dp."""
    one, eight = stack(fields={"placement": "tp-cp-dp-pp"}), System.load("h100-sxm")

    def field(**columns: Any) -> str:
        table = Table.of(MODEL, {"tp": 2, "dp": 8, "pp": 2, "gbs": 16, "stack": one} | columns)
        faults = illegal_faults(MODEL, eight, table)
        assert set(faults) <= {"software"}
        return faults["software"].field if faults else ""

    assert field() == ""
    assert field(extents="tp=2+dp=4") == ""
    assert field(extents="tp=2+dp=2+pp=2") == "extents"
    assert field(extents="tp=1+dp=8") == "extents"
    assert field(tp_tier=0) == ""
    assert field(tp_tier=1, dp_tier=0) == "tp_tier"
    assert field(placement="dp-tp-cp-pp") == "placement"


def test_catalog_stacks_name_release_capabilities_and_source() -> None:
    """All but those that stand for no software."""
    for name in catalog.names("stacks"):
        one = Stack.load(name)
        assert (one.capabilities is None) == (name in NOT_BOUND), name
        if one.capabilities is not None:
            assert one.release, name
            assert one.source_of("capabilities") is not None, name


def test_rows_of_several_stacks_each_follow_their_own() -> None:
    """In one table, with rows that lift the rule among them."""
    core, titan = "megatron-core-2025", "torchtitan-2024"
    columns = {
        "zero": [1, 1, 3, 1, 1],
        "stack": [core, titan, titan, titan, "calculon"],
        "any_software": [False, False, False, True, False],
        "schedule": ["1f1b", "1f1b", "1f1b", "1f1b", "dualpipe"],
    }
    table = Table.of(MODEL, {"dp": 4, "pp": 2, "gbs": 16} | columns)
    found = np.any([c.violated(MODEL, SYSTEM, table) for c in SOFTWARE_CONSTRAINTS], axis=0)
    assert found.tolist() == [False, True, False, False, False]


@pytest.mark.needs("launchers")
def test_every_verb_refuses_what_a_stack_cannot_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With one line that names stack, release, field, value and what it can do; a flag lifts it."""
    line = (
        "schedule: 'dualpipe': megatron-core-2025 (Megatron-Core 0.12) supports schedule "
        "1f1b, interleaved only; "
        "--any-software lifts this"
    )
    flags = ["--gpus", "64", "--tp", "8", "--pp", "2", "--gbs", "128", "--schedule", "dualpipe"]
    flags += ["--stack", CORE]
    pair = ["llama3-70b", "h100-sxm"]
    (tmp_path / "one.json").write_text(
        json.dumps({"model": pair[0], "system": pair[1], "strategy": DUALPIPE})
    )
    one = str(tmp_path / "one.json")
    commands = [
        ["estimate", *pair, *flags],
        ["trace", *pair, *flags, "--output", str(tmp_path / "trace.json")],
        ["export", "gemms", *pair, *flags, "--output", str(tmp_path / "gemms.csv")],
        ["sweep", *pair, *flags, "--fixed", "--vary", "nvlink.bandwidth=1x,2x"],
        ["compare", one, one],
    ]
    for command in commands:
        code = run(command)
        captured = capsys.readouterr()
        assert code in (1, 2), command
        assert line in " ".join((captured.err + captured.out).split()), command
        if command[0] != "compare":
            assert run([*command, "--any-software"]) != 2, command  # whether or not it fits
            captured = capsys.readouterr()
            assert "any-software" not in captured.err, command
    with pytest.raises(InputError, match="supports schedule 1f1b, interleaved only"):
        estimate(*pair, DUALPIPE)
    both = [DUALPIPE, DUALPIPE | {"any_software": True}, DUALPIPE | {"stack": "calculon"}]
    table = estimate_many(*pair, both)
    assert [table.reason(row) for row in range(3)] == ["software", None, None]


def test_a_search_finds_what_the_stack_can_run() -> None:
    """The plans obey the rule, what it drops is counted, and all of it comes with any_software."""
    space = {"gpus": 8, "gbs": 32, "vpp": 1, "mbs": 1, "zero": [0, 1], "tp_regather": [True, False]}
    space |= {"schedule": ["1f1b", "gpipe", "zb-h1"], "fused_activation": [False], "stack": CORE}
    space |= {"placement": ["tp-cp-dp-pp", "tp-cp-pp-dp", "dp-tp-cp-pp"]}
    found = search("llama3-8b", "h100-sxm", space=space, top=2)
    lifted = search("llama3-8b", "h100-sxm", space=space | {"any_software": True}, top=1)
    assert found.rejected["software"] > 0
    assert "software" not in lifted.rejected
    for plan in found.best:
        assert estimate("llama3-8b", "h100-sxm", plan.strategy).step_time_s == plan.step_time_s
    assert lifted.best[0].step_time_s <= found.best[0].step_time_s
    several = search("llama3-8b", "h100-sxm", space=space | {"any_software": [False, True]}, top=1)
    assert several.best[0].step_time_s == lifted.best[0].step_time_s
    stacks = ["megatron-core-2025", "calculon"]
    either = search("llama3-8b", "h100-sxm", space=space | {"stack": stacks}, top=1)
    alone = search("llama3-8b", "h100-sxm", space=space | {"stack": "calculon"}, top=1)
    assert either.best[0].step_time_s == min(p.best[0].step_time_s for p in (found, alone))


def test_every_estimate_names_its_software(capsys: pytest.CaptureFixture[str]) -> None:
    """In JSON and in the title."""
    flags = "--gpus 8 --gbs 8 --stack torchtitan-2025 --zero 3"
    command = ["estimate", "llama3-8b", "h100-sxm", *flags.split()]
    assert run([*command, "--json"]) == 0
    software = {"stack": "torchtitan-2025", "release": "torchtitan 0.2", "checked": True}
    assert software.items() <= json.loads(capsys.readouterr().out)["software"].items()
    assert run(command) == 0
    assert "llama3-8b on h100-sxm with torchtitan-2025 (torchtitan 0.2)" in capsys.readouterr().out
    ran = estimate("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 8, "any_software": True})
    assert not ran.software.checked
    assert not estimate(
        "llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 8, "stack": "calculon"}
    ).software.checked


def test_stacks_shows_what_a_release_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """As a table and as JSON."""
    assert run(["stacks", "megatron-core-2025"]) == 0
    out = capsys.readouterr().out
    assert "release: Megatron-Core 0.12" in out
    assert re.search(r"schedule +1f1b, interleaved", out)
    assert re.search(r"grouped_half_flops +[0-9.]+ GFLOP ", out)
    assert "chunked_micro_batches" in out
    assert run(["stacks", "megatron-core-2025", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["release"] == "Megatron-Core 0.12"
    assert record["capabilities"]["fields"]["schedule"] == ["1f1b", "interleaved"]


def test_stacks_run_what_was_published_with_them() -> None:
    """Every grade-A run is one that its stack can run; of the others these are not.

    torchtitan: every second layer in full, counted as half of the layers. MaxText: a run whose
    report does not say how experts are split. MLPerf: submissions that are not of NeMo, with the
    stack of those that are, since their rows do not say what ran them. Gaudi: Intel's fork has fp8,
    which its releases do not list. FlashAttention's own script replicates weights, with the stack
    of torchtitan's kernels, and KempnerForge has 16-bit states with them. torchtune's optimizer of
    one GPU is paged, and moves nothing else.
    """
    exceptions = {
        ("B", "torchtitan-2024", "recompute_layers"),
        ("B", "torchtitan-2025", "optimizer"),
        ("B", "maxtext-2024", "etp"),
        ("C", "mlperf-2024", "quantized_weights"),
        ("C", "gaudi-2025", "quantization"),
        ("B", "torchtitan-2024", "zero"),
        ("C", "torchtune-2024", "offload_optimizer"),
    }
    found = set()
    for one in sampled(load_runs(), 10):
        try:
            translated = one.case()
        except NotModeledError:
            continue
        strategy = translated.strategy.model_copy(update={"any_software": False})
        table = Table.of(translated.model, [strategy.resolved(translated.model)])
        first = first_violation(translated.model, translated.system, table, SOFTWARE_CONSTRAINTS)
        if first[0] >= 0:
            constraint = CONSTRAINTS[first[0]]
            assert constraint.blame is not None
            field = constraint.blame(translated.model, translated.system, table)
            found.add((one.grade, table.stacks[0].name, field))
        assert translated.strategy.any_software
    assert found <= exceptions


def test_fields_of_any_value_are_not_listed() -> None:
    """What no data binds is free: a stack that lists nothing runs everything."""
    one = stack()
    for name, field in COLUMNS.items():
        if field.words and isinstance(field.default, str):
            for word in field.words:
                assert refused(MODEL, one, pp=2, dp=2, tp=2, **{name: word}) == ""


STREAMS: dict[str, Any] = {"recompute": "selective", "recompute_parts": "streams"}
SPLIT: dict[str, Any] = {"gpus": 64, "ep": 32, "mbs": 1, "gbs": 64, "seq_len": 4096}
ON_HOST = {"offload_activations": True, "offload_parts": "mlp_norm"}


@each_row(
    ("stack", "fields", "problem"),
    [
        ("megatron-bridge-2026", {"recompute_parts": ["streams", "mlp"]}, "excludes that of mlp"),
        ("megatron-lm-2026", ON_HOST, "excludes offloaded"),
    ],
)
def test_recompute_of_residual_streams(stack: str, fields: dict[str, Any], problem: str) -> None:
    """What Megatron-Core excludes from mhc (transformer_config.py of d98e8a6)."""
    with pytest.raises(InputError, match=problem):
        estimate("glm-5.3-flash", "gb300-nvl72", stack=stack, **SPLIT | STREAMS | fields)
    with pytest.raises(InputError, match="4 residual streams by part"):
        estimate("glm-5.3-flash", "gb300-nvl72", stack=stack, recompute="full", **SPLIT)


def test_recompute_of_residual_streams_next_to_others() -> None:
    """Of experts, and offloading as the recipe of Megatron-Bridge for DeepSeek-V4 Pro does it."""
    parts = STREAMS | {"recompute_parts": ["streams", "moe"]}
    for stack, fields in (
        ("megatron-bridge-2026", parts | ON_HOST),
        ("megatron-lm-2026", parts),
        ("primus-2026", {"recompute": "full"}),
    ):
        one = estimate("glm-5.3-flash", "gb300-nvl72", stack=stack, **SPLIT | fields)
        assert one.step_time_s > 0
