"""Forks of Megatron-LM: recognized by what their files say, with their options and defaults."""

import json
from pathlib import Path

import pytest

from shardwise import InputError, read_launch
from shardwise.config.launch import Origin
from shardwise.ops.param_count import count_parameters

DENSE = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048"
    " --max-position-embeddings 2048 --micro-batch-size 8 --global-batch-size 512"
    " --vocab-size 50257 --fp16"
)
BY_EMBEDDING = "--pp-partition-method type:transformer|embedding --pipeline-model-parallel-size 2"
RANKS = "python -m torch.distributed.launch --nproc_per_node 4 --nnodes 16 pretrain_gpt.py"


def read(tmp_path: Path, text: str, **words):
    (tmp_path / "train.sh").write_text(text)
    return read_launch(tmp_path / "train.sh", **words)


def test_experts_of_megatron_deepspeed(tmp_path: Path) -> None:
    """Experts in every second layer, top 1, capacity 1: 12 layers of 128 experts of 33.6 million.

    The public 1.3B example with 128 experts (deepspeedai/Megatron-DeepSpeed, folder MoE) has 52
    billion parameters; `deepspeed` without options starts as many ranks as hosts have.
    """
    experts = "--num-experts 128 --moe-expert-parallel-size 64 --deepspeed"
    launch = read(tmp_path, f"deepspeed pretrain_gpt.py {DENSE} {experts}")
    assert launch.fork == "Megatron-DeepSpeed"
    sizes = [layer.moe for layer in launch.model.layers if layer.moe]
    assert [one.top_k for one in sizes] == [1]
    each = 2 * 2048 * 8192 + 2048 + 8192
    assert count_parameters(launch.model).total == pytest.approx(12 * 128 * each + 0.91e9, rel=0.01)
    found = {name: launch.strategy[name] for name in ("ep", "etp", "expert_capacity", "zero")}
    assert found == {"ep": 64, "etp": 1, "expert_capacity": 1.0, "zero": 0}
    assert launch.missing == ("gpus",)
    every = read(
        tmp_path, f"deepspeed pretrain_gpt.py {DENSE} {experts} --expert-interval 1 --topk 2"
    )
    assert [layer.moe.top_k for layer in every.model.layers] == [2]


@pytest.mark.parametrize(
    ("script", "beside", "zero", "origin"),
    [
        ("--deepspeed --zero-stage 2", {}, 2, Origin.READ),
        ("--deepspeed --deepspeed_config ds.json", {}, 0, Origin.ASSUMED),
        ("--deepspeed --deepspeed_config ./ds.json", {"ds.json": 3}, 3, Origin.READ),
        ("--deepspeed --deepspeed_config ds.json --zero-stage 1", {"ds.json": 3}, 3, Origin.READ),
    ],
)
def test_zero_stage(tmp_path: Path, script: str, beside: dict[str, int], zero, origin) -> None:
    """The JSON next to the script decides; then the command line; then nothing is known."""
    for name, stage in beside.items():
        (tmp_path / name).write_text(json.dumps({"zero_optimization": {"stage": stage}}))
    launch = read(tmp_path, f"{RANKS} {DENSE} {script}")
    assert (launch.strategy["zero"], launch.origins["zero"]) == (zero, origin)
    notes = [one.option for one in launch.not_understood]
    assert ("--zero-stage" in notes) == ("--zero-stage 1" in script)
    assert ("--deepspeed_config" in notes) == (origin is Origin.ASSUMED)


def test_a_configuration_that_the_script_writes(tmp_path: Path) -> None:
    """Variables of a here-document are replaced, unless its end word is quoted."""
    config = '{"zero_optimization": {"stage": ${STAGE}}, "train_micro_batch_size_per_gpu": $MICRO}'
    options = f"{DENSE} --deepspeed --deepspeed_config ./ds.json"
    script = f"STAGE=3; MICRO=8\ncat <<X > ds.json\n{config}\nX\n{RANKS} {options}\n"
    assert read(tmp_path, script).strategy["zero"] == 3
    with pytest.raises(InputError, match=r"ds\.json"):
        read(tmp_path, script.replace("<<X", "<<'X'"))
    with pytest.raises(InputError, match="train_micro_batch_size_per_gpu 4"):
        read(tmp_path, script.replace("MICRO=8", "MICRO=4"))


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--deepspeed --ds-sequence-parallel-size 4", "cp", 4),
        ("--deepspeed --ds-sequence-parallel-size 4", "cp_exchange", "all_to_all"),
        (
            "--deepspeed --enable-zbh1-pipeline --pipeline-model-parallel-size 4",
            "schedule",
            "zb-h1",
        ),
        ("--deepspeed --cpu-optimizer", "offload_optimizer", True),
        ("--deepspeed --use-flash-attn-v2", "attention_kernel", "flash2"),
        (f"--deepspeed {BY_EMBEDDING}", "embedding_as_layer", True),
    ],
)
def test_options_of_megatron_deepspeed(tmp_path: Path, options: str, field: str, value) -> None:
    """Options that Megatron-LM does not have set fields."""
    text = f"{RANKS} {DENSE} " + options.replace("|", "\\|")
    assert read(tmp_path, text).strategy[field] == value


DEEPSEEK = (
    "--num-layers 16 --hidden-size 1024 --num-attention-heads 16 --seq-length 4096"
    " --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --swiglu"
    " --vocab-size 32000 --bf16 --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 256"
    " --ffn-hidden-size 2816 --untie-embeddings-and-output-weights --disable-bias-linear"
)


def test_layers_of_mindspeed(tmp_path: Path) -> None:
    """Dense first layers, idle last ones, and shared experts: 13 layers, 1 of them dense.

    16 layers on 4 stages of 4, of which the last 3 do nothing: 4, 4, 4, 1.
    """
    own = "--first-k-dense-replace 1 --moe-layer-freq 1 --noop-layers 13,14,15 --n-shared-experts 2"
    script = f"{RANKS} {DEEPSEEK} {own} --pipeline-model-parallel-size 4"
    launch = read(tmp_path, script)
    assert launch.fork == "MindSpeed-LLM"
    dense, sparse = launch.model.layers
    assert (dense.count, dense.moe, sparse.count, sparse.moe.shared_ffn) == (1, None, 12, 512)
    assert launch.strategy["stage_layers"] == (4, 4, 4, 1)
    assert launch.strategy["stack"]["base"] == "mindspeed-2024"


def test_old_words(tmp_path: Path) -> None:
    """-1 means every layer, one expert means none, and rotary is rope."""
    one = read(tmp_path, f"{RANKS} {DEEPSEEK} --moe-layer-freq -1")
    assert [layer.moe is not None for layer in one.model.layers] == [True]
    dense = read(tmp_path, f"{RANKS} {DENSE} --num-experts 1 --position-embedding-type rotary")
    assert (dense.model.has_experts, dense.model.position) == (False, "rope")


@pytest.mark.parametrize(
    ("text", "fork"),
    [
        (f"{RANKS} {DENSE}", ""),
        (f"{RANKS} {DENSE} --deepspeed --kill-switch-path x", "BigScience's Megatron-DeepSpeed"),
        (f"{RANKS} {DENSE} --use-fused-rotary-pos-emb", "MindSpeed-LLM"),
        (f"source /usr/local/Ascend/ascend-toolkit/set_env.sh\n{RANKS} {DENSE}", "MindSpeed-LLM"),
        (f"{RANKS} {DENSE} --patch-tokenizer-type LLamaTokenizer", "Pai-Megatron-Patch"),
        (f"deepspeed --num_gpus 8 pretrain_gpt.py {DENSE}", "Megatron-DeepSpeed"),
    ],
)
def test_what_a_file_is_for(tmp_path: Path, text: str, fork: str) -> None:
    """Options, the launcher and names of modules tell forks apart."""
    assert read(tmp_path, text).fork == fork


def test_a_vocabulary_that_no_option_has(tmp_path: Path) -> None:
    """The line that a run prints has it, or the user; without either the file is refused."""
    bare = DENSE.replace(" --vocab-size 50257", "")
    assert read(tmp_path, f"{RANKS} {bare}", variables={"vocab_size": "32000"}).model.vocab == 32000
    with pytest.raises(InputError, match="--set vocab_size=N"):
        read(tmp_path, f"{RANKS} {bare}")
    named = read(tmp_path, f"{RANKS} {bare} --tokenizer-model $HUB/mistralai/Mixtral-8x7B-v0.1")
    assert named.model.vocab == 32000
    assert "that of Mixtral-8x7B-v0.1, 32000" in str(named.not_understood[0])
    listed = "".join(f"  {name} ....... {value}\n" for name, value in PRINTED.items())
    block = f"------ arguments ------\n{listed}------ end of arguments ------\n"
    line = "> padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)\n"
    assert read(tmp_path, block + line).model.vocab == 50257


PRINTED = {
    "num_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "seq_length": 64,
    "max_position_embeddings": 64,
    "micro_batch_size": 1,
    "world_size": 4,
}


@pytest.mark.parametrize("kind", ["bert", "t5", "mamba", "vision_classify"])
def test_other_kinds_of_models_are_refused(tmp_path: Path, kind: str) -> None:
    """Options of GPT stand for something else in the scripts of other models."""
    with pytest.raises(InputError, match=f"pretrain_{kind}.py trains"):
        read(tmp_path, f"torchrun --nproc-per-node 8 pretrain_{kind}.py {DENSE}")


def test_numbers_of_commands_are_named_by_their_variable(tmp_path: Path) -> None:
    """Arithmetic with the output of a command has no value; the variable that holds it can."""
    ranks = "N=$(($(nvidia-smi -L | wc -l)-2))\nMP=$N"
    script = f"{ranks}\n{RANKS} {DENSE} --tensor-model-parallel-size $MP"
    with pytest.raises(InputError, match=r"--set (N|MP)=VALUE"):
        read(tmp_path, script)


def test_what_deepspeed_prints(tmp_path: Path) -> None:
    """The JSON in the log of a run decides the ZeRO stage, and how often gradients accumulate."""
    more = {"deepspeed": "True", "deepspeed_config": "./ds.json", "zero_stage": "1.0"}
    more |= {"vocab_size": 50257, "bert_binary_head": "True", "patch_dim": 16}
    values = (PRINTED | more).items()
    listed = "".join(f"  {name} ....... {value}\n" for name, value in values)
    block = f"------ arguments ------\n{listed}------ end of arguments ------\n"
    config = {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 8}
    line = f"[config.py:906:print]   json = {json.dumps(config, indent=4)}\n"
    launch = read(tmp_path, block + line)
    assert (launch.strategy["zero"], launch.strategy["global_batch_size"]) == (2, 32)
    assert [one.option for one in launch.not_understood] == ["--zero-stage"]
