"""Overrides of Hydra, references of OmegaConf, and sections that write over others."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from shardwise import InputError, Model, Strategy
from shardwise.errors import Fault
from shardwise.frozen import frozen
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.megatron_bridge import LAUNCHER
from shardwise.launchers.megatron_bridge.adapters import read_adapters
from shardwise.launchers.megatron_bridge.neutral import has_effect, is_neutral
from shardwise.launchers.megatron_bridge.overlap import effective_overlap, is_ring
from shardwise.launchers.megatron_bridge.precision import PRESETS, effective_precision
from shardwise.launchers.megatron_bridge.sections import read_sections
from shardwise.launchers.megatron_bridge.trees import (
    apply_overrides,
    is_override,
    leaves,
    overrides,
    plain,
    put,
    read_value,
    remove,
    resolved,
    written_value,
)
from shardwise.launchers.registry import recognised_launcher

Fields = dict[str, Any]
WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
NUMBERS = st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6)
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS
KEYS = st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True).filter(str.isascii)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)


@given(VALUES)
@examples(60)
def test_a_value_reads_back(value: Any) -> None:
    """Numbers, words with any character, lists and mappings."""
    assert read_value(written_value(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("True", True),
        ("1_000", 1000),
        ("-2.5e-3", -0.0025),
        ("torch.bfloat16", "torch.bfloat16"),
        ("[mla_up_proj,mlp]", ["mla_up_proj", "mlp"]),
        ("[]", []),
        ("{a:1,b:[x, 'y,z']}", {"a": 1, "b": ["x", "y,z"]}),
        (r"'Et*2|(t\'s)'", "Et*2|(t's)"),
        ("/data/x y", "/data/x y"),
        ("", ""),
    ],
)
def test_values_of_overrides(text: str, value: Any) -> None:
    assert read_value(text) == value


def test_overrides_are_applied_in_order() -> None:
    """Added, changed, deleted; a section takes the place of a word."""
    tree: Fields = {"mixed_precision": "bf16_mixed", "model": {"num_layers": 2}}
    words = ["model.num_layers=4", "++mixed_precision.bf16=true", "+train.seed=1", "~train.seed"]
    apply_overrides(tree, words, "job.sh")
    assert tree == {"mixed_precision": {"bf16": True}, "model": {"num_layers": 4}, "train": {}}
    assert list(overrides({"a": {"b": 1}, "c": {"d": None}}, ("c",))) == ["a.b=1", "++c.d=null"]
    assert is_override("model.tp=1")
    assert not is_override("--model.tp=1")
    assert not is_override("train.py")


@pytest.mark.parametrize("value", ["[1,2", "{a:1", "{a}", "'open", "[1] x", "[" * 50])
def test_a_wrong_override_names_its_field(value: str) -> None:
    with pytest.raises(InputError, match=r"^job.sh: model.x: "):
        apply_overrides({}, [f"model.x={value}"], "job.sh")


def test_references_are_replaced() -> None:
    """Absolute, relative, nested, arithmetic, text around them, a default of the environment."""
    tree: Fields = {
        "model": {
            "hidden": 8,
            "ffn": "${multiply:4, ${.hidden}}",
            "half": "${divide_floor:${model.ffn},2}",
            "inner": {"up": "${..hidden}"},
        },
        "name": "m${model.hidden}-${oc.env:MODE,fast}",
        "steps": "${oc.env:STEPS,10}",
        "again": "${training.model.half}",
        "unused": "${nothing.there}",
    }
    found = resolved(
        tree,
        "job.yaml",
        needed=lambda path: path != "unused",
        roots=("training",),
        variables={"STEPS": "20"},
    )
    assert found["model"] == {"hidden": 8, "ffn": 32, "half": 16, "inner": {"up": 8}}
    assert found["name"] == "m8-fast"
    assert (found["steps"], found["again"]) == (20, 16)
    assert found["unused"] == "${nothing.there}"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("${a}", "refers to itself"),
        ("${b.c}", "refers to b.c, which the file does not set"),
        ("${oc.env:HOME_OF}", "HOME_OF has no value here; set it: --set HOME_OF=VALUE"),
        ("${eval:1}", "function eval is not known; allowed: oc.env, oc.decode"),
        ("${multiply:x,2}", "needs a number in place of 'x'"),
        ("${divide:1,0}", "has wrong numbers for divide"),
        ("${divide:1}", "has wrong numbers for divide"),
    ],
)
def test_a_reference_to_nothing_is_a_fault(value: str, told: str) -> None:
    with pytest.raises(InputError, match=r"^job.yaml: a: ") as caught:
        resolved({"a": value}, "job.yaml", needed=lambda _: True)
    assert told in str(caught.value)


def test_nodes_are_words() -> None:
    """Types, functions and members of enumerations; numbers as YAML of Python has them."""
    node: Any = {
        "a": {"_target_": "torch.bfloat16", "_call_": False},
        "b": {"_target_": "torch.nn.functional.silu", "_call_": False},
        "c": {"_target_": "enums.AttnBackend", "_args_": [1], "_call_": True, "_name_": "flash"},
        "d": "1e-5",
        "e": {"_target_": "some.Class", "x": "torch.float32"},
    }
    words = {"a": "bfloat16", "b": "silu", "c": "flash", "d": 1e-5}
    assert plain(node) == {**words, "e": {"_target_": "some.Class", "x": "float32"}}
    assert dict(leaves({"s": {"_target_": "C", "x": 1, "t": {"y": [2]}}})) == {
        "s.x": 1,
        "s.t.y": [2],
    }
    tree: Fields = {"a": 1}
    put(tree, "a.b", {"c": 1})
    put(tree, "a.b", {"d": 2})
    remove(tree, "x.y")
    assert tree == {"a": {"b": {"c": 1, "d": 2}}}


def test_presets_have_the_fields_of_their_names() -> None:
    """bf16 reduces gradients in fp32; the recipes store weights in their type but one."""
    stored = {name for name, fields in PRESETS.items() if fields.get("fp8_param")}
    assert {name for name in PRESETS if "fp8" in name} - stored == {
        "bf16_with_fp8_subchannel_scaling_mixed",
        "fp16_with_fp8_subchannel_scaling_mixed",
    }
    for name, fields in PRESETS.items():
        assert fields["grad_reduce_in_fp32"] != name.startswith("fp16")
    named = effective_precision("bf16-with-mxfp8-mixed", "p", "f")
    assert isinstance(named, dict)
    assert (named["fp8"], named["fp8_recipe"], named["fp16"]) == ("e4m3", "mxfp8", None)
    assert isinstance(effective_precision("int8", "p", "f"), Fault)
    assert isinstance(effective_precision(3, "p", "f"), Fault)
    changed = effective_precision({"grad_reduce_in_fp32": False}, "p", "f")
    assert isinstance(changed, dict)
    assert (changed["bf16"], changed["grad_reduce_in_fp32"]) == (True, False)
    half = effective_precision({"fp16": True, "fp8_param_gather": True}, "p", "f")
    assert isinstance(half, dict)
    assert (half["bf16"], half["fp16"], half["fp8_param"]) == (None, True, True)


def test_mixed_precision_writes_over_the_model() -> None:
    """What the section leaves out is its default there, whatever the model says."""
    tree: Fields = {
        "model": {"fp8": "e4m3", "fp8_recipe": "mxfp8", "bf16": False},
        "ddp": {"grad_reduce_in_fp32": False},
        "mixed_precision": {"_target_": "x.MixedPrecisionConfig", "bf16": True},
    }
    found = read_sections(tree, {}, "job.yaml")
    fields = found.fields
    assert (fields["fp8"], fields["bf16"], fields["grad_reduce_in_fp32"]) == (None, True, True)
    assert found.path("bf16") == "mixed_precision.bf16"
    assert found.path("seq_length") == "model.seq_length"


BASE = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4}
SPLIT = BASE | {"sequence_parallel": True, "use_distributed_optimizer": True}


@pytest.mark.parametrize(
    ("section", "fields", "wanted"),
    [
        ({"tp_comm_overlap": True}, SPLIT, {"tp_comm_overlap": True, "overlap_grad_reduce": True}),
        ({"tp_comm_overlap": True}, BASE, {"tp_comm_overlap": False}),
        ({}, SPLIT | {"virtual_pipeline_model_parallel_size": 5}, {"overlap_p2p_comm": True}),
        ({}, SPLIT, {"overlap_p2p_comm": False, "overlap_param_gather": True}),
        ({}, SPLIT | {"pipeline_model_parallel_layout": "Et|(t|)*6tL"}, {"overlap_p2p_comm": True}),
        ({}, SPLIT | {"pipeline_model_parallel_layout": "Et|t|t|tL"}, {"overlap_p2p_comm": False}),
        ({"overlap_grad_reduce": False}, SPLIT, {"overlap_grad_reduce": False}),
    ],
)
def test_overlap_that_a_section_leaves_out_follows_the_degrees(
    section: Fields, fields: Fields, wanted: Fields
) -> None:
    found = effective_overlap(section, fields)
    assert {name: found[name] for name in wanted} == wanted
    without = {**fields, "use_distributed_optimizer": False}
    assert "overlap_grad_reduce" not in effective_overlap(section, without)


def test_rings_are_told_by_the_products_that_are_pipelined_else() -> None:
    ring, pipe = {"method": "ring_exchange"}, {"method": "pipeline"}
    assert is_ring({"proj_fprop": ring, "fc2_fprop": ring})
    assert not is_ring({"proj_fprop": ring, "fc2_fprop": pipe})
    assert is_ring("userbuffers_fp8_h100_h8192_tp4_mbs1_seqlen8192")
    assert not is_ring("userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192")
    assert not is_ring(None)


@pytest.mark.parametrize(
    ("value", "model", "fields", "left"),
    [
        (None, "llama3-8b", {}, []),
        ("lora", "llama3-8b", {"lora_rank": 32, "lora_parts": ["attention", "mlp"]}, []),
        (
            {"dim": 8, "target_modules": ["linear_qkv"]},
            "llama3-8b",
            {"lora_rank": 8, "lora_parts": ["attention"]},
            ["linear_qkv"],
        ),
        (
            {"_target_": "megatron.bridge.peft.dora.DoRA", "dim": 4},
            "qwen3-30b-a3b",
            {"lora_rank": 4, "lora_parts": ["attention", "mlp", "experts"]},
            "dora",
        ),
        (
            {"dim": 4, "target_modules": ["*.layers.0.*.linear_qkv", "in_proj"]},
            "llama3-8b",
            {"lora_rank": 4},
            ["*.layers.0.*.linear_qkv", "in_proj"],
        ),
    ],
)
def test_adapters(value: Any, model: str, fields: Fields, left: Any) -> None:
    """Modules that are some of a part of a layer only are listed."""
    found, notes = read_adapters(value, Model.load(model))
    assert found == fields
    assert [note.value for note in notes] == ([frozen(left)] if left else [])


def test_options_without_effect() -> None:
    """Sections of data, logs and learning rate; not degrees, buckets or types of state."""
    for path in ("logger.x", "optimizer.lr", "model.rotary_base", "model.init_method_std"):
        assert is_neutral(path)
    for path in ("model.tensor_model_parallel_size", "ddp.bucket_size", "dataset.seq_length"):
        assert not is_neutral(path)
        assert has_effect(path, 1)
        assert not has_effect(path, None)
    assert not has_effect("ddp.data_parallel_sharding_strategy", "no_shard")
    assert has_effect("ddp.data_parallel_sharding_strategy", "optim")


@pytest.mark.parametrize(("kind", "master"), [("float32", "stack"), ("float16", "fp16")])
def test_type_of_masters(kind: str, master: str) -> None:
    """It is read; nothing of it is left to list, of the usual type either."""
    text = (
        "model: {num_layers: 2, hidden_size: 128, num_attention_heads: 4, vocab_size: 100,\n"
        "  seq_length: 64}\n"
        "train: {micro_batch_size: 1, global_batch_size: 8}\n"
        "ddp: {use_distributed_optimizer: true}\n"
        "optimizer: {optimizer: adam, use_precision_aware_optimizer: true,\n"
        f"  main_params_dtype: {kind}}}\n"
        "mixed_precision: bf16_mixed\n"
    )
    launch = LAUNCHER.read(LaunchText(source="job.yaml", text=text, gpus=8))
    assert Strategy.validated(launch.strategy).master_dtype == master
    assert [one.option for one in launch.not_understood if "main_params" in one.option] == []


def test_broken_files_are_faults() -> None:
    """Whatever is cut out of a file or put into it, there is a launch or an InputError."""
    drawn = random.Random(3)  # noqa: S311
    base = (
        "model: {num_layers: 2, hidden_size: 128, num_attention_heads: 4, vocab_size: 100,\n"
        "  seq_length: 64, recompute_modules: [mlp], pipeline_model_parallel_layout: 'Et|tL',\n"
        "  pipeline_model_parallel_size: 2, tensor_model_parallel_size: 1}\n"
        "train: {micro_batch_size: 1, global_batch_size: 8}\n"
        "mixed_precision: bf16_mixed\ncomm_overlap: {tp_comm_overlap: true}\npeft: {dim: 8}\n"
        "trainer: {num_nodes: 1, devices: 8, precision: bf16}\n"
    )
    script = (
        "torchrun --nproc-per-node=8 run.py --recipe llama3_8b_pretrain_config model.seq_length=64 "
        "++mixed_precision.bf16=true 'model.recompute_modules=[mlp]' train.global_batch_size=8\n"
    )
    outcomes = set()
    for text, source in ((base, "job.yaml"), (script, "job.sh")):
        for _ in range(400):
            start = drawn.randrange(len(text))
            end = start + drawn.randrange(12)
            put_in = drawn.choice(["", "{", "]", "${x}", "-1", "null", ": ", "[[", "1e999", "'"])
            broken = text[:start] + put_in + text[end:]
            if recognised_launcher(broken, source) is not LAUNCHER:
                continue
            try:
                LAUNCHER.read(LaunchText(source=source, text=broken))
                outcomes.add("read")
            except InputError as error:
                outcomes.add("refused")
                assert str(error)  # noqa: PT017 - one outcome of two
    assert outcomes == {"read", "refused"}
