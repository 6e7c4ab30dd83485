"""SimuMax's models and strategies: what they become, what is refused, and how it is said."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise import InputError, Model, Strategy, System, estimate
from shardwise.cli import run
from shardwise.config.stack import Stack
from shardwise.ops.param_count import count_parameters

DATA = Path(__file__).parents[1] / "data" / "simumax"
RUNS = json.loads((DATA / "runs.json").read_text())
SELECTIVE = "ep4_pp2_dp4_mbs1_selective_recompute.json"
fast = examples(60)


def read(name: str) -> dict[str, Any]:
    return json.loads((DATA / name).read_text())


LLAMA, DEEPSEEK = read("llama3-8b.json"), read("deepseekv2.json")
PLAIN = {"seq_len": 4096, "micro_batch_size": 1, "micro_batch_num": 8, "tp_size": 1, "pp_size": 2}


def strategy(**fields: Any) -> Strategy:
    return Strategy.load(PLAIN | fields)


def stack(**fields: Any) -> Stack:
    return Stack.load(strategy(**fields).stack)


@each_row("case", RUNS)
def test_runs_keep_their_degrees_layers_batch_and_parameters(case: dict[str, Any]) -> None:
    """As SimuMax echoes them; it counts words that are padded for all ranks, too."""
    model, ours = Model.load(case["model"]), Strategy.load(case["strategy"])
    found = {
        "layers": model.depth,
        "dense_layers": 0 if not model.has_experts else model.layers[0].count,
        "mbs": ours.micro_batch_size,
        "gbs": ours.global_batch_size,
        "sp": ours.sequence_parallel,
    }
    for field in ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "seq_len", "zero"):
        found[field] = getattr(ours, field)
    assert found == case["summary"]
    assert case["parameters"].endswith("B")
    stated = float(case["parameters"][:-1]) * 1e9
    assert count_parameters(model).total == pytest.approx(stated, rel=1.3e-3)


def test_a_dense_model_is_rmsnorm_rope_and_untied() -> None:
    """Grouped queries and SwiGLU; the name is that of the file inside."""
    model = Model.load(DATA / "llama3-8b.json")
    assert model.name == "llama3_8b"
    assert (model.hidden, model.vocab, model.seq_len) == (4096, 128257, None)
    assert (model.norm, model.position, model.tied_embeddings) == ("rmsnorm", "rope", False)
    (layer,) = model.layers
    assert layer.count == 32
    assert layer.attention.model_dump(exclude_defaults=True) == {
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
    }
    assert layer.mlp is not None
    mlp = layer.mlp.model_dump(exclude_defaults=True)
    assert mlp == {"ffn": 14336, "activation": "swiglu"}
    assert model.source_of("hidden") == model.sources[""]


def test_a_model_without_swiglu_is_gelu_and_named_by_its_file() -> None:
    """GPT-3's file says no more than widths."""
    model = Model.load(DATA / "gpt3-175b.json")
    assert model.name == "gpt3-175b"
    assert model.layers[0].mlp is not None
    assert model.layers[0].mlp.activation == "gelu"
    headless = {key: value for key, value in LLAMA.items() if key != "head_size"}
    assert Model.load(headless).layers[0].attention.head_dim == 128


def test_a_mixture_without_a_type_is_one_by_its_experts() -> None:
    """Mixtral: as wide as the MLP, no dense layer, no shared experts."""
    (layer,) = Model.load(DATA / "mixtral-8x7b.json").layers
    assert layer.count == 32
    assert layer.moe is not None
    expected = {"experts": 8, "top_k": 2, "ffn": 14336, "activation": "swiglu"}
    assert layer.moe.model_dump(exclude_defaults=True) == expected


def test_a_mixture_without_padding_is_the_same_model() -> None:
    """As in its deepseek-32b.json: tokens are divided evenly, so the capacity has no effect."""
    exact = {"moe_pad_expert_input_to_capacity": False}
    padded, even, wide = (Model.load(DEEPSEEK | f) for f in ({}, exact, exact | {"capacity": 2}))
    assert padded == even == wide


SELECTIVE_RUNS: list[tuple[dict[str, Any], dict[str, Any], float, list[int], float, float]] = [
    (
        {"model_name": "deepseek", "layer_num": 4},
        read(SELECTIVE),
        3.1230231,
        [29553188864, 46333891584],
        0.04,
        0.025,
    ),
    (
        {"model_name": "llama", "hidden_size": 8192, "head_num": 64, "intermediate_size": 28672}
        | {"layer_num": 12, "vocab_size": 128256, "orig_vocab_size": None},
        PLAIN
        | {"tp_size": 2, "pp_size": 1, "recompute_granularity": "selective_recompute"}
        | {"recompute_layer_num": 12, "attn_recompute": True, "mlp_recompute": True},
        12.6242578,
        [59318738944],
        0.005,
        1e-6,
    ),
]


@each_row(("fields", "fields_of_run", "step_s", "peaks", "time_off", "peak_off"), SELECTIVE_RUNS)
def test_selective_recompute_agrees_with_simumax(
    fields: dict[str, Any],
    fields_of_run: dict[str, Any],
    step_s: float,
    peaks: list[int],
    time_off: float,
    peak_off: float,
) -> None:
    """Its examples of commit 4dcaae5 on 8 A100: dispatch, combine and output are not repeated.

    Without recompute its DeepSeek-V2 differs by 3.8 % in time and 1.2 % in memory.
    """
    model = (DEEPSEEK if "deep" in fields["model_name"] else LLAMA) | fields
    found = estimate(Model.load(model), "simumax-a100-pcie", Strategy.load(fields_of_run))
    assert found.step_time_s == pytest.approx(step_s, rel=time_off)
    assert [stage.peak.bytes for stage in found.stages] == pytest.approx(peaks, rel=peak_off)


def test_latent_attention_and_leading_dense_layers() -> None:
    """DeepSeek-V2: 192 = 128 + 64 wide queries, one dense layer, then 59 of 160 experts."""
    model = Model.load(DATA / "deepseekv2.json")
    dense, sparse = model.layers
    assert (dense.count, sparse.count) == (1, 59)
    assert dense.attention == sparse.attention
    assert dense.attention.model_dump(exclude_defaults=True) == {
        "heads": 128,
        "kv_heads": 128,
        "head_dim": 192,
        "v_head_dim": 128,
        "latent": {"q_rank": 1536, "kv_rank": 512, "rope_dim": 64},
    }
    assert dense.mlp is not None
    assert dense.mlp.ffn == 12288
    assert sparse.moe is not None
    assert (sparse.moe.ffn, sparse.moe.shared_ffn) == (1536, 3072)
    whole = Model.load(DEEPSEEK | {"q_lora_rank": None, "kv_head_num": 7})
    assert whole.layers[0].attention.latent is not None
    assert whole.layers[0].attention.latent.q_rank is None


def test_words_are_those_before_padding() -> None:
    """Where both counts are given; what is padded is padded by the stack."""
    padded = LLAMA | {"vocab_size": 129024, "orig_vocab_size": 128257}
    assert Model.load(padded).vocab == 128257
    assert Stack.load("simumax").vocab_multiple == 128


@given(dense=st.integers(0, 60), layers=st.integers(1, 60))
@fast
def test_no_layer_is_lost(dense: int, layers: int) -> None:
    """However many of them lead without experts; at least one has some."""
    data = DEEPSEEK | {"layer_num": layers, "dense_layers": dense}
    if dense >= layers:
        with pytest.raises(InputError, match=f"{dense}: must be less than layer_num {layers}"):
            Model.load(data)
        return
    counts = [layer.count for layer in Model.load(data).layers]
    assert counts == ([dense] if dense else []) + [layers - dense]


def test_a_strategy_has_its_degrees_and_batch() -> None:
    """8 micro-batches of 1 on 4 replicas are 32 sequences; what is not overlapped is not."""
    ours = strategy()
    assert (ours.gpus, ours.dp, ours.global_batch_size) == (8, 4, 32)
    assert (ours.dp_overlap, ours.cp_exchange) == (False, "all_to_all")
    assert ours.to_dict()["stack"] == "simumax"
    assert (ours.recompute, ours.zero, ours.expert_capacity) == ("none", 1, None)
    given = {
        "num_layers_in_first_pipeline_stage": 3,
        "num_layers_in_last_pipeline_stage": 4,
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    }
    spread = strategy(**given)
    assert (spread.first_stage_layers, spread.last_stage_layers) == (3, 4)
    assert spread.embedding_as_layer
    assert spread.loss_as_layer
    assert strategy(ep_size=4).expert_capacity == 1
    assert strategy(enable_sequence_parallel=False).sequence_parallel is False
    assert strategy(zero_state=0).zero == 0
    chunks = strategy(pp_size=4, interleaving_size=2, pp_comm_async=False)
    assert (chunks.vpp, chunks.dp) == (2, 2)


def test_the_software_is_simumax_and_what_a_strategy_changes_of_it() -> None:
    """Loss, buffers, gradients, attention, stragglers and reserve."""
    plain = stack()
    assert plain == Stack.load("simumax")
    assert plain.allocator_slack == pytest.approx(1 / 0.94)
    loss = stack(cross_entropy_loss_fusion=True)
    figures = [loss.loss_forward_bytes, loss.loss_backward_bytes, loss.loss_saved_bytes]
    assert figures == [4, 4, 2]
    assert (plain.loss_forward_bytes, plain.loss_backward_bytes) == (38, 14)
    assert stack(enable_straggler_model=False).straggler_per_doubling == 0
    assert stack(grad_reduce_in_bf16=True).gradient_dtype == "compute"
    assert stack(mem_factor=0.8).allocator_slack == pytest.approx(1.25)
    assert stack(use_flash_sdp=False, use_math_sdp=True).attention_kernel == "unfused"
    for key, field in (
        ("use_fused_norm", "fused_norm"),
        ("use_fused_swiglu", "fused_swiglu"),
        ("use_fused_grad_accumulation", "fused_gradient_accumulation"),
    ):
        assert stack(**{key: False}) == plain.model_copy(update={field: False})


@each_row(
    ("version", "least", "held"),
    [
        (None, "2.3.0", False),
        ("2.2.9", "2.3.0", False),
        ("2.3", "2.3.0", True),
        ("2.11.0+c188b533", "2.3.0", True),
        ("2.3.0", "2.11", False),
        ("10", "9.9.9", True),
    ],
)
def test_releases_of_transformer_engine_hold_buffers(
    version: str | None, least: str, held: bool
) -> None:
    """From a release on, counted by its numbers and not by its letters."""
    fields = {"te_version": version, "te_dummy_wgrad_min_version": least}
    assert stack(**fields).weight_gradient_buffers is held


ON = {"recompute_layer_num": 2}
LEGACY = {"recompute_granularity": "selective_recompute"} | ON
MEGATRON = LEGACY | {"megatron_recompute": True}


@each_row(
    ("fields", "mode", "parts"),
    [
        ({"recompute_granularity": "full_block"}, "none", None),
        ({"recompute_granularity": "full_block"} | ON, "full", None),
        ({"recompute_granularity": "full_block", "enable_recompute": False} | ON, "none", None),
        (ON, "none", None),
        (LEGACY, "none", None),
        ({"recompute_granularity": "attn_only"} | ON, "selective", "attention"),
        ({"recompute_granularity": "sdp_only"} | ON, "selective", "core_attention"),
        ({"recompute_granularity": "mlp_only"} | ON, "selective", "mlp_norm,mlp,moe"),
        (LEGACY | {"attn_recompute": True}, "selective", "core_attention,qkv"),
        (
            LEGACY | {"attn_recompute": True, "mla_rms_recompute": True},
            "selective",
            "core_attention,attention_norm,qkv",
        ),
        (LEGACY | {"mlp_recompute": True}, "selective", "mlp,experts"),
        (
            LEGACY | {"mlp_recompute": True, "mlp_rms_recompute": True},
            "selective",
            "mlp_norm,mlp,experts,shared_experts",
        ),
        (
            MEGATRON | {"megatron_recompute_modules": ["layernorm", "moe_act"]},
            "selective",
            "attention_norm,mlp_norm,activation",
        ),
        (
            MEGATRON | {"megatron_recompute_modules": ["mla_up_proj", "mlp", "moe"]},
            "selective",
            "mla_up,mlp,moe",
        ),
    ],
)
def test_what_is_run_again(fields: dict[str, Any], mode: str, parts: str | None) -> None:
    """Of the first layers of each stage, and only if recompute is on for any."""
    ours = strategy(**fields)
    assert ours.recompute == mode
    assert ours.recompute_layers == (None if mode == "none" else 2)
    assert ours.recompute_parts == tuple((parts or "core_attention").split(","))


def test_inputs_of_experts_that_are_offloaded() -> None:
    """Those of the first grouped product, 2 x 4096 tokens x 6 experts x 2048 wide in 2 bytes."""
    ours = strategy(offload_groupgemm_col_inputs=True, pp_size=1)
    assert (ours.offload_activations, ours.offload_parts) == (True, ("expert_up",))
    assert (strategy().offload_activations, strategy().offload_parts) == (False, None)
    told = System.load(DATA / "b200.json").to_dict()
    host = {"name": "host", "capacity": 1e12, "bandwidth": 50e9}
    told["accelerator"]["memory"].append(host)
    model = Model.load(DATA / "deepseekv2.json")
    sparse = model.layers[-1]
    assert sparse.moe is not None
    moved = estimate(model, System.validated(told), ours).memory_bytes.offloaded
    assert moved == sparse.count * 4096 * sparse.moe.top_k * model.hidden * 2
    with pytest.raises(InputError, match="no second memory tier"):
        estimate(model, DATA / "b200.json", ours)
    with pytest.raises(InputError, match="llama3_8b has no expert_up; nothing would be offloaded"):
        estimate(DATA / "llama3-8b.json", System.validated(told), ours)


WITHOUT_EFFECT = {
    "overlap_grad_reduce": False,
    "enable_dropout": True,
    "tp_net": "inter_node",
    "edp_net": None,
    "cp_a2a_mode": "sync_cp",
    "moe_dispatcher_policy": "all2all-seq",
    "attention_sparse_ratio": 0.5,
    "dispatch_probs": True,
    "te_cp_a2a_save_pre_posta2a_min_version": "3.0",
    "te_grouped_linear_dummy_wgrad_min_version": "3.0",
    "microbatch_group_size_per_vp_stage": 2,
    "no_sync": True,
    "skip_ckpt_micro_batch_num": 0,
    "recompute_variance": True,
}


@each_row("key", WITHOUT_EFFECT)
def test_keys_that_change_nothing_are_read(key: str) -> None:
    """Those that SimuMax has but does not use, and those that cannot be otherwise here."""
    assert strategy(**{key: WITHOUT_EFFECT[key]}) == strategy()


def test_every_verb_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    """An estimate of a model and a strategy of theirs on one of their systems."""
    files = [str(DATA / name) for name in ("deepseekv2.json", "b200.json")]
    assert run(["estimate", *files, "--strategy", str(DATA / SELECTIVE), "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert found["strategy"]["recompute_parts"] == [
        "core_attention",
        "attention_norm",
        "mlp_norm",
        "mlp",
        "qkv",
        "experts",
        "shared_experts",
    ]
    assert found["system"] == "b200"
    assert found["step_time_s"] > 0
