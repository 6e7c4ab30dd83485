"""Facts that rows state in features, texts and notes: each is used or listed as ignored."""

from functools import cache
from typing import Any

import pytest
from published_samples import row_of

from published_rows.packed import load_rows
from published_rows.remarks import document_length, stage_fields, vocabulary, window_of
from published_rows.row import Run
from published_rows.translate import Translation, translate
from published_rows.words import FEATURES, FP8_SWITCHES, Read
from rows import each_row
from shardwise.validate.measured.runs import NO_EFFECT, NotModeledError

MODEL = {
    "name": "m", "layers": 8, "hidden": 1024, "ffn": 4096, "heads": 8, "kv_heads": 8,
    "vocab": 32000, "seq_len": 4096, "attention": "gqa",
}  # fmt: skip
EXPERTS = MODEL | {"experts": 8, "topk": 2, "moe_ffn": 1024}
PIPELINE = {"dp": 2, "tp": 2, "pp": 4, "cp": 1, "sp": True}
# Rows that features change: of Megatron with stages, with experts, of FSDP, of fine-tuning ...
ROWS: dict[str, dict[str, Any]] = {
    "stages": {"parallelism": PIPELINE, "hardware": {"accelerator": "H100", "count": 16}},
    "experts": {"model": EXPERTS, "parallelism": {"dp": 8, "ep": 8}, "micro_batch": 1},
    "tensors": {"parallelism": {"dp": 4, "tp": 2}, "micro_batch": 1, "global_batch": 16},
    "context": {"parallelism": {"dp": 4, "cp": 2}, "micro_batch": 1},
    "adapters": {"task": "lora", "software": {"framework": "HF Trainer/TRL"}, "micro_batch": 1},
    "whole": {"task": "sft", "software": {"framework": "HF Trainer/TRL"}, "micro_batch": 1},
    "titan": {"software": {"framework": "torchtitan"}, "year": 2025, "micro_batch": 1},
    "tune": {
        "software": {"framework": "torchtune"}, "notes": "techniques are cumulative",
        "micro_batch": 1, "task": "sft",
    },
    "bridge": {
        "model": EXPERTS, "software": {"framework": "Megatron-Bridge"}, "micro_batch": 1,
        "parallelism": {"dp": 8, "ep": 8},
    },
    "automodel": {"model": EXPERTS, "software": {"framework": "NeMo AutoModel"}, "micro_batch": 1},
}  # fmt: skip
# Of each feature that is used: a value, and a row that it changes.
CASES: dict[str, tuple[object, str]] = {
    "tp_comm_overlap": (True, "tensors"),
    "async_tp": (True, "titan"),
    "use_mc2": (True, "ascend"),
    "overlap": ("all communication overlap disabled", "tensors"),
    "dp_overlap": (False, "tensors"),
    "moe_a2a_overlap": (True, "experts"),
    "cuda_launch_blocking": ("1", "tensors"),
    "cp_comm_type": ("a2a", "context"),
    "sequence_parallel": (True, "tensors"),
    "schedule": ("gpipe", "stages"),
    "pp_layout": ("Ett|tttt|t|tL", "stages"),
    "first_stage_layers": (1, "stages"),
    "last_stage_layers": (1, "stages"),
    "embedding_as_layer": ("True", "odd"),
    "loss_as_layer": ("True", "odd"),
    "account_for_embedding_and_loss_in_pipeline_split": (True, "pairs"),
    "pp_partition": ("embedding counted as a layer", "pairs"),
    "tp_pp_dp_mapping": ("True", "stages"),
    "cuda_graphs": (True, "tensors"),
    "cuda_graph_impl": ("local", "tensors"),
    "torch_compile": (True, "titan"),
    "liger": (True, "whole"),
    "optimizer": ("Muon", "tensors"),
    "fused_cross_entropy": (True, "whole"),
    "cross_entropy_fusion": (True, "tensors"),
    "cross_entropy_fusion_impl": ("native", "tensors"),
    "no_gradient_accumulation_fusion": (True, "tensors"),
    "framework": ("foak-fast-kernels", "whole"),
    "cutedsl_fused_grouped_mlp": (True, "bridge"),
    "helpers": ("_full_iter(cfg)", "bridge"),
    "moe_flex_dispatcher_backend": ("deepep", "experts"),
    "dispatcher": ("flex+hybridep", "experts"),
    "deepep": (True, "experts"),
    "kernels": ("TE + DeepEP", "automodel"),
    "moe_capacity_factor": (1.0, "experts"),
    "moe": ("capacity factor 1", "experts"),
    "routing": ("natural", "experts"),
    "force_load_balancing": (False, "experts"),
    "expert_imbalance": (1.3, "experts"),
    "use_megatron_fsdp": (True, "tensors"),
    "fsdp2": (True, "unsharded"),
    "use_dist_optimizer": (True, "unsharded"),
    "expert_tensor_parallel_size": (2, "experts"),
    "gradient_accumulation": (4, "open"),
    "local_batch": ("2", "open"),
    "peft": ("qlora", "adapters"),
    "lora_rank": (64, "adapters"),
    "param_offload": ("cpu", "tensors"),
    "optimizer_offload": ("cpu", "tensors"),
    "optimizer_offload_fraction": (1.0, "tensors"),
    "cpu_offload": (True, "tensors"),
    "activation_offloading": (True, "tensors"),
    "offload_modules": (["core_attn", "attn_proj"], "tensors"),
    "optimizer_in_bwd": (True, "whole"),
    "chunked_cross_entropy": (True, "tune"),
    "loss": ("F.cross_entropy of 16-bit logits, not compiled", "titan"),
    "no_sync": (True, "titan"),
    "document_len": (512, "tensors"),
    "sliding_window": (1024, "tensors"),
    "vocab_multiple": (256, "vocabulary"),
    "bf16_moments": (True, "tensors"),
    "fp8_dot_product_attention": (True, "tensors"),
    "fp8_output_proj": (True, "tensors"),
    **dict.fromkeys(FP8_SWITCHES, ("True", "tensors")),
}
ROWS |= {
    "odd": ROWS["stages"] | {"model": MODEL | {"layers": 7}},
    "pairs": ROWS["stages"] | {"parallelism": {"dp": 4, "tp": 2, "pp": 2}},
    "ascend": ROWS["tensors"]
    | {
        "software": {"framework": "ModelLink (Megatron-LM + MindSpeed)"},
        "hardware": {"accelerator": "Ascend 910B", "count": 8},
    },
    "unsharded": ROWS["tensors"] | {"sharded": False},
    "open": ROWS["tensors"] | {"micro_batch": None, "parallelism": {"dp": 4, "tp": 2, "pp": 1}},
    "vocabulary": ROWS["tensors"] | {"model": MODEL | {"vocab": 32001}},
}


def row(*, sharded: bool = True, **fields: Any) -> Run:
    """A row of Megatron-LM on 8 H100."""
    usual = {"model": MODEL, "software": {"framework": "Megatron-LM"}, "year": 2025}
    usual |= {"batch": 16, "micro_batch": 1, "recompute": {"granularity": "none"}}
    parallelism = fields.pop("parallelism", {}) | ({"zero_stage": 1} if sharded else {})
    return row_of("one", step=1.0, **usual | fields, parallelism=parallelism)


def translated(kind: str, **features: object) -> Translation:
    """A row of a kind with features."""
    return translate(row(**ROWS[kind] | {"features": features}))


plain = cache(translated)


def test_every_feature_that_is_used_has_a_case() -> None:
    """`cuda_graph_scope` matters with `cuda_graph_impl` only (below)."""
    used = {name for name, feature in FEATURES.items() if feature.use == "used"}
    assert used == CASES.keys() | {"cuda_graph_scope"}


@each_row(("name", "case"), CASES.items())
def test_a_feature_that_is_used_changes_model_or_strategy(
    name: str, case: tuple[object, str]
) -> None:
    """And is not listed as ignored."""
    value, kind = case
    changed, usual = translated(kind, **{name: value}), plain(kind)
    assert (changed.model, changed.strategy) != (usual.model, usual.strategy)
    assert not [said for said in changed.ignored if name in said]


@pytest.mark.nightly
def test_every_key_of_every_row_is_used_or_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of the bundled rows: exactly one of the two, unless they name a source."""
    looked_up: list[Read] = []
    monkeypatch.setattr(
        "published_rows.translate.Read", lambda some: looked_up.append(Read(some)) or looked_up[-1]
    )
    for one in load_rows():
        try:
            listed = translate(one).ignored
        except NotModeledError:
            continue
        named = {said[len("features.") :].split(" ")[0].rstrip(":") for said in listed}
        for name, value in one.features.items():
            if value is not None and FEATURES[name].use != "origin":
                used = FEATURES[name].use == "used" and name in looked_up[-1].seen
                assert used != (name in named), (one.id, name, value)


@each_row(
    ("fields", "said"),
    [
        ({"features": {"moon": 1}}, "features.moon '1': not known"),
        ({"features": {"liger": True}}, "features.liger 'True': not modeled for this software"),
        ({"features": {"optimizer_offload": "nvme"}}, "'nvme': not understood"),
        ({"attention_impl": "flash attention, magic"}, "attention_impl 'magic': not understood"),
        ({"precision": "bf16 with dithering"}, "precision 'dithering': not understood"),
        ({"model": MODEL | {"attention": "gqa, sliding window"}}, "no size of the window"),
        ({"model": MODEL | {"hc_mult": 4}}, "model.hc_mult '4': not known"),
        ({"recompute": {"granularity": "none", "magic": 2}}, "recompute.magic '2': not known"),
        ({"notes": "Mean of 10 steps; kernels are pinned"}, "notes 'kernels are pinned': not used"),
        ({"notes": "mean of 10 steps"}, f"notes: {NO_EFFECT}"),
    ],
)
def test_what_nothing_reads_is_listed(fields: dict[str, Any], said: str) -> None:
    """Keys, words and remarks, whatever they are called."""
    assert any(said in one for one in translate(row(**fields)).ignored)


def test_only_what_may_matter_makes_a_run_uncertain() -> None:
    """Not features that change nothing, nor remarks."""
    from published_rows.translate import measured_run  # noqa: PLC0415 - used once

    parallelism = {"dp": 4, "tp": 2, "pp": 1, "sp": True}
    fields = {"parallelism": parallelism}
    harmless = {"features": {"nccl_ub": False}, "notes": "mean of 10 steps; kernels are pinned"}
    for more, uncertain in ((harmless, False), ({"features": {"nccl_ub": True}}, True)):
        run = measured_run(row(**fields | more))
        assert run.ignored
        assert run.uncertain is uncertain


WINDOWS = {
    "gqa; alternating full / sliding-window-128, sinks": (1, 1, 128),
    "5:1 local(1024)": (5, 1, 1024),
    "5 sliding (window 1024, 16 kv heads x 256) : 1 full (4 kv heads x 512)": (5, 1, 1024),
    "gqa, sliding window 512": (1, 0, 512),
    "SWA (2048)": (1, 0, 2048),
    "sliding-window attention of 4096": None,
    "gqa": None,
}


@each_row(("text", "window"), WINDOWS.items())
def test_windows_of_attention(text: str, window: tuple[int, int, int] | None) -> None:
    """Layers with and without one, and its tokens; one of a sequence is none."""
    found = window_of(row(model=MODEL | {"attention": text}))
    assert found == window
    layers = translate(row(model=MODEL | {"attention": f"gqa {text}"})).model.layers
    assert {one.attention.window for one in layers} == (
        {None} if window is None else {window[2], *([None] if window[1] else [])}
    )


STAGES: dict[str, tuple[dict[str, Any], int, dict[str, object]]] = {
    "counts": ({"features": {"pp_layout": [3, 3, 1, 1]}}, 8, {"stage_layers": (3, 3, 1, 1)}),
    "text": ({"features": {"layers_per_stage": "3+2x2+1"}}, 8, {"stage_layers": (3, 2, 2, 1)}),
    "notes": ({"notes": "explicit decoder layout [2, 2, 3, 1]"}, 8, {"stage_layers": (2, 2, 3, 1)}),
    "last": ({"notes": "uneven (3 layers per stage, 1 in the last)"}, 10, {"last_stage_layers": 1}),
    "sum": ({"features": {"pp_layout": [9, 9, 1, 1]}}, 8, {}),
    "ends": ({"notes": "one layer removed from first and last stage"}, 10,
             {"embedding_as_layer": True, "loss_as_layer": True}),
}  # fmt: skip


@each_row(("fields", "layers", "stages"), STAGES.values())
def test_layers_of_stages(fields: dict[str, Any], layers: int, stages: dict[str, object]) -> None:
    """As features list them or notes describe them, where they sum to those of the model."""
    one = row(**ROWS["stages"] | {"model": MODEL | {"layers": layers}} | fields)
    assert stage_fields(one, translate(one).model, 4) == stages


@each_row(
    ("notes", "imbalance"),
    [
        ("real data, natural routing", 1.5),
        ("regraded: routing not forced to balance", 1.5),
        ("natural routing, load imbalance 1.2", 1.2),
        ("MoE: token-dropless, token distribution force-balanced", 1.0),
        ("router balancing not stated (unforced)", 1.0),
        ("", 1.0),
    ],
)
def test_routing_that_is_not_balanced(notes: str, imbalance: float) -> None:
    """The busiest rank has more tokens than others; a benchmark forces balance."""
    found = translate(row(**ROWS["experts"] | {"notes": notes})).strategy
    assert found.expert_imbalance == imbalance
    dense = translate(row(parallelism={"dp": 8}, micro_batch=1, notes=notes)).strategy
    assert dense.expert_imbalance == 1.0


OFFLOADS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "fsdp": ({"features": {"fsdp_cpu_offload": True}}, {"weights", "optimizer"}),
    "deepspeed": ({"features": {"offload_optimizer": "cpu"}}, {"optimizer"}),
    "megatron": ({"features": {"optimizer-cpu-offload": True}}, {"optimizer"}),
    "words": ({"features": {"offload": "optimizer + params"}}, {"weights", "optimizer"}),
    "notes": ({"notes": "expert-FC1 activations are offloaded"}, {"activations"}),
    "prose": ({"notes": "CPU offload of the optimizer"}, {"optimizer"}),
    "off": ({"features": {"cpu_offload": False}}, set()),
}


@each_row(("fields", "moved"), OFFLOADS.values())
def test_offload_in_other_words(fields: dict[str, Any], moved: set[str]) -> None:
    """What moves to the host."""
    found = translate(row(**fields)).strategy
    names = ("weights", "optimizer", "activations")
    assert {name for name in names if getattr(found, f"offload_{name}")} == moved


def test_lengths_and_vocabularies_in_notes() -> None:
    """Of packed documents, where stated; padded vocabularies, as a size or a multiple."""
    assert document_length(row(notes="packed, mean document length 512")) == 512
    assert document_length(row(notes="packed")) is None
    squad = translate(row(task="sft", notes="SQuAD packed to 4096 tokens")).strategy
    assert squad.document_len == 256
    assert vocabulary(row(notes="NeMo pads vocab 50257 to a multiple of 128*TP",
                          parallelism={"tp": 4}), 50257) == 50688  # fmt: skip
    assert vocabulary(row(notes="vocab padded (51200 in Megatron)"), 50257) == 51200
    assert vocabulary(row(), 50257) == 50257


@each_row(
    ("granularity", "fields"),
    [
        ("activation_checkpointing=true in x.yaml", {"recompute": "full"}),
        ("activation_checkpointing=false in x.yaml", {}),
        ("RMSNorm and attention recompute",
         {"recompute": "selective", "recompute_parts": ("attention_norm", "mlp_norm")}),
    ],
)  # fmt: skip
def test_recompute_in_other_words(granularity: str, fields: dict[str, object]) -> None:
    """A switch of a recipe, and parts that prose names."""
    found = translate(row(recompute={"granularity": granularity})).strategy
    explicit = found.model_dump(exclude_unset=True)
    assert {name: explicit[name] for name in explicit if name.startswith("recompute")} == fields


@each_row(
    ("framework", "features", "text", "kernel", "compiled"),
    [
        ("torchtitan", {"torch_compile": True}, "SDPA (flash)", "flash2", "stack"),
        ("torchtitan", {"torch_compile": True}, None, "best", "stack"),
        ("NeMo AutoModel", {"torch_compile": True}, "TE + triton", "best", "layers"),
        ("NeMo AutoModel", {}, "TE", "best", "stack"),
    ],
)
def test_kernels_and_compile_that_rows_name(
    framework: str, features: dict[str, object], text: str | None, kernel: str, compiled: str
) -> None:
    """The flash kernel of PyTorch is FlashAttention 2; a stack that is eager is compiled."""
    fields = {"software": {"framework": framework}, "features": features, "attention_impl": text}
    found = translate(row(**fields, year=2025)).strategy
    assert found.loaded_stack().attention_kernel == kernel
    assert found.compile == compiled
