"""SimuMax's files that are refused, and how it is said; which file is which."""

from typing import Any

import pytest

from rows import each_row
from shardwise import InputError, Model, Strategy, System
from shardwise.cli import run
from shardwise.foreign import recognised
from test_simumax_files import DATA, DEEPSEEK, LEGACY, LLAMA, MEGATRON, PLAIN, SELECTIVE, read


def faults(noun: Any, data: dict[str, Any]) -> list[str]:
    with pytest.raises(InputError) as caught:
        noun.load(data)
    return [str(fault) for fault in caught.value.faults]


BAD_MODELS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (LLAMA, {"layer_num": 0}, "layer_num: 0: must be at least 1"),
    (LLAMA, {"layer_num": 32.0}, "layer_num: 32.0: must be a whole number"),
    (LLAMA, {"hidden_size": "4096"}, "hidden_size: '4096': must be a whole number"),
    (LLAMA, {"use_swiglu": None}, "use_swiglu: null: must be true or false"),
    (LLAMA, {"model_type": "dens"}, "model_type: 'dens': allowed: dense, moe; did you mean 'dense"),
    (LLAMA, {"attention_type": "gqa"}, "attention_type: 'gqa': allowed: mha, mla"),
    (LLAMA, {"headsize": 128}, "headsize: unknown key; did you mean 'head_size'?"),
    (LLAMA, {"kv_head_num": 7}, "kv_head_num: 7: must divide head_num 32"),
    (LLAMA, {"expert_num": 8}, "expert_num: 8: must be 1 with model_type dense"),
    (LLAMA, {"model_type": "moe", "topk": 1}, "expert_num: 1: must be greater than 1 with model_"),
    (LLAMA, {"dense_layers": 33}, "dense_layers: 33: must be less than layer_num 32"),
    (LLAMA, {"orig_vocab_size": 128258}, "orig_vocab_size: 128258: must be at most vocab_size 128"),
    (LLAMA, {"head_size": None, "head_num": 24}, "head_size: is needed where head_num 24 does not"),
    (
        LLAMA,
        {"make_vocab_size_divisible_by": 64},
        "make_vocab_size_divisible_by: 64: must be 128 or left out: padding is the stack's vocab_m",
    ),
    (
        LLAMA,
        {"padded_vocab_size": False},
        "padded_vocab_size: false: must be true or left out: padding is the stack's vocab_multiple",
    ),
    (DEEPSEEK, {"topk": None}, "topk: must be from 1 to expert_num 160"),
    (DEEPSEEK, {"topk": 161}, "topk: 161: must be from 1 to expert_num 160"),
    (DEEPSEEK, {"kv_lora_rank": None}, "kv_lora_rank: is needed with attention_type mla"),
    (DEEPSEEK, {"capacity": 1.5}, "capacity: 1.5: must be 1 or left out: it is the strategy's exp"),
    (
        DEEPSEEK,
        {"group_linear_mode": "serial"},
        "group_linear_mode: 'serial': must be parallel: SimuMax loses the weights of all experts",
    ),
]


@each_row(("base", "fields", "told"), BAD_MODELS)
def test_a_bad_model_is_one_clear_line(
    base: dict[str, Any], fields: dict[str, Any], told: str
) -> None:
    """Under the key of the file."""
    (fault,) = faults(Model, base | fields)
    assert fault.startswith(f"model: {told}")


def test_a_key_that_is_missing_is_named() -> None:
    """All that SimuMax cannot do without."""
    data = {key: value for key, value in LLAMA.items() if key not in ("layer_num", "vocab_size")}
    assert faults(Model, data) == [
        "model: layer_num: is missing and has no default",
        "model: vocab_size: is missing and has no default",
    ]


STOP = "must be true: there is no other way here"
BAD_STRATEGIES: list[tuple[dict[str, Any], str]] = [
    ({"micro_batch_num": 0}, "micro_batch_num: 0: must be at least 1"),
    ({"micro_batch_num": -1}, "micro_batch_num: -1: must be at least 1"),
    ({"tp_size": 2.0}, "tp_size: 2.0: must be a whole number"),
    ({"tp_size": 3}, "world_size: 8: must be a multiple of tp_size x cp_size x pp_size = 6"),
    ({"ep_size": 8}, "world_size: 8: must be a multiple of ep_size x etp_size x pp_size = 16"),
    ({"cp_size": 4, "seq_len": 4098}, "seq_len: 4098: must be a multiple of cp_size 4"),
    ({"zero_state": 3}, "zero_state: 3: allowed: 0, 1"),
    ({"dtype": "fp8"}, "dtype: 'fp8': allowed: bf16, fp16, fp32"),
    (
        {"cache_groupgemm_col_fp8_inputs": True},
        "cache_groupgemm_col_fp8_inputs: true: must be false: inputs are saved one way here",
    ),
    ({"use_fp32_accum_grad": False}, f"use_fp32_accum_grad: false: {STOP}"),
    ({"use_accm_weight": False}, f"use_accm_weight: false: {STOP}"),
    (
        {"use_math_sdp": True},
        "use_math_sdp: true: one of use_flash_sdp and use_math_sdp must be true, the other false",
    ),
    ({"cp_comm_type": "p2p"}, "cp_comm_type: 'p2p': allowed: a2a"),
    ({"order_of_paralielism": "tp-dp-pp"}, "order_of_paralielism: 'tp-dp-pp': allowed: tp-cp-ep"),
    ({"attention_sparse_ratio": 0.3}, "attention_sparse_ratio: 0.3: must be 0, or 0.5: what a cau"),
    ({"mem_factor": 0}, "mem_factor: 0: must be greater than 0"),
    ({"te_version": "new"}, "te_version: 'new': must be a release, such as 2.11.0"),
    ({"recompute_layer_num": -1}, "recompute_layer_num: -1: must be at least 0"),
    ({"tp_sze": 2}, "tp_sze: unknown key; did you mean 'tp_size'?"),
    (
        {"interleaving_size": 2, "pp_size": 1},
        "interleaving_size: 2: must be 1 where pp_size is 1",
    ),
    (
        {"interleaving_size": 2},
        "pp_comm_async: true: must be false where interleaving_size is abov",
    ),
    (
        {"interleaving_size": 2, "pp_comm_async": False, "microbatch_group_size_per_vp_stage": 4},
        "microbatch_group_size_per_vp_stage: 4: must be pp_size 2 or null here",
    ),
    ({"mla_rms_recompute": True}, "mla_rms_recompute: true: needs attn_recompute"),
    ({"mlp_rms_recompute": True}, "mlp_rms_recompute: true: needs mlp_recompute"),
    (
        LEGACY | {"recompute_variance": True},
        "recompute_variance: true: must be false: what is run again is run to its end here",
    ),
    (
        {"megatron_recompute_modules": ["mlp"]},
        "megatron_recompute: false: must be true for megatron_recompute_modules",
    ),
    (
        {"megatron_recompute": True, "megatron_recompute_modules": ["mlp"]},
        "megatron_recompute: true: needs enable_recompute, recompute_granularity selective_recomp",
    ),
    (MEGATRON, "megatron_recompute_modules: must name a module with megatron_recompute"),
    (
        MEGATRON | {"megatron_recompute_modules": ["core_attn"]},
        "megatron_recompute_modules[0]: 'core_attn': allowed: layernorm, mla_up_proj, moe_act, mlp",
    ),
    (
        MEGATRON | {"megatron_recompute_modules": ["mlp"], "attn_recompute": True},
        "attn_recompute: true: must be false with megatron_recompute",
    ),
    ({"dp_size": 8}, "dp_size: 8: follows from the other keys and is 4; leave it out"),
    ({"edp_size": 8}, "edp_size: 8: follows from the other keys and is 4; leave it out"),
    (
        {"global_batch_size": 8},
        "global_batch_size: 8: follows from the other keys and is 32; leave",
    ),
    ({"skip_ckpt_micro_batch_num": 1}, "skip_ckpt_micro_batch_num: 1: allowed: 0"),
]


@each_row(("fields", "told"), BAD_STRATEGIES)
def test_a_bad_strategy_is_one_clear_line(fields: dict[str, Any], told: str) -> None:
    """Under the key of the file."""
    (fault,) = faults(Strategy, PLAIN | fields)
    assert fault.startswith(f"strategy: {told}")


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("llama3-8b.json", "model", "SimuMax model"),
        ("mixtral-8x7b.json", "model", "SimuMax model"),
        (SELECTIVE, "strategy", "SimuMax strategy"),
        ("b200.json", "system", "SimuMax system"),
    ],
)
def test_files_are_known_by_their_keys(
    name: str, kind: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And told where another kind is wanted; `convert` writes them as ours."""
    data = read(name)
    assert recognised(data) == (kind, words)
    assert recognised({key: data[key] for key in list(data)[2:3]}) is None
    nouns: dict[str, Any] = {"model": Model, "strategy": Strategy, "system": System}
    for wanted, noun in nouns.items():
        if wanted != kind:
            assert faults(noun, data) == [f"{wanted}: holds a {words}, not a {wanted}"]
    assert run(["convert", str(DATA / name)]) == 0
    assert nouns[kind].load(DATA / name).to_dict(units=True)
    assert capsys.readouterr().out.startswith(("name:", "gpus:"))
