"""Options of Megatron-LM in YAML: MODEL_ARGS, Primus, FlagScale, GPT-NeoX."""

from pathlib import Path

import pytest

from shardwise import InputError, Model, read_launch
from shardwise.config.launch import Effect, Origin
from shardwise.ops.param_count import count_parameters


def read(tmp_path: Path, text: str, name: str = "job.yaml", **words):
    (tmp_path / name).write_text(text)
    return read_launch(tmp_path / name, **words)


MODEL_ARGS = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --max-position-embeddings: 1024
  --micro-batch-size: 4
  --global-batch-size: 32
  --tensor-model-parallel-size: 2
  --vocab-size: 50257
  --use-distributed-optimizer: true
  --sequence-parallel: false
  --bf16: true
  --odd-layers: 3
"""


def test_model_args(tmp_path: Path) -> None:
    """Options are keys; the number of GPUs is that of the test runner."""
    launch = read(tmp_path, MODEL_ARGS)
    wanted = {"tp": 2, "zero": 1, "dtype": "bf16", "tp_exchange": "all_reduce"}
    assert {name: launch.strategy[name] for name in wanted} == wanted
    assert launch.missing == ("gpus",)
    assert [(one.option, one.effect) for one in launch.not_understood[:1]] == [
        ("--odd-layers", Effect.MODEL)
    ]


PRIMUS = """
work_group: ${PRIMUS_TEAM:amd}
workspace: ${OUTPUT}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: MODEL
    overrides:
      wandb_project: "mine"
      micro_batch_size: ${MBS:3}
      seq_length: 8192
      tensor_model_parallel_size: 2
      use_torch_fsdp2: true
      recompute_granularity: full
      recompute_method: block
      recompute_num_layers: 80
      mtp_num_layers: null
"""


def test_primus(tmp_path: Path) -> None:
    """The model is one of the catalog, overrides are arguments, and the rest its own defaults."""
    launch = read(tmp_path, PRIMUS.replace("MODEL", "llama3_70B.yaml"))
    assert (launch.fork, launch.model) == ("Primus", Model.load("llama3-70b"))
    wanted = {"tp": 2, "micro_batch_size": 3, "zero": 3, "recompute_layers": 80, "dtype": "bf16"}
    assert {name: launch.strategy[name] for name in wanted} == wanted
    assert launch.origins["global_batch_size"] is Origin.DEFAULT
    assert launch.not_understood == ()
    changed = {"variables": {"MBS": "5"}}
    assert (
        read(tmp_path, PRIMUS.replace("MODEL", "llama3_70B.yaml"), **changed).strategy[
            "micro_batch_size"
        ]
        == 5
    )
    with pytest.raises(InputError, match=r"'moe_1T\.yaml': is a file of Primus"):
        read(tmp_path, PRIMUS.replace("MODEL", "moe_1T.yaml"))


FLAGSCALE = """
system:
  no_shared_fs: ${experiment.runner.no_shared_fs}
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  disable_bias_linear: true
  use_distributed_optimizer: true
  precision: {bf16: true, initial_loss_scale: 522893}
  logging: {log_interval: 1, wandb_project: x}
  checkpoint: {load: "${experiment.load}"}
model:
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  seq_length: 2048
  max_position_embeddings: 2048
  use_rotary_position_embeddings: true
  swiglu: true
  multiple_of: 256
  normalization: RMSNorm
  untie_embeddings_and_output_weights: true
  attention_dropout: 0.0
  hidden_dropout: 0.0
  micro_batch_size: 2
  global_batch_size: 1728
  optimizer: {weight_decay: 0.1, lr_scheduler: {lr: 2.0e-5}}
data:
  data_path: ${data_path:??}
  tokenizer: {tokenizer_type: AquilaTokenizerFS, vocab_size: 100008}
"""


def test_flagscale(tmp_path: Path) -> None:
    """Facts of the public 7B file: sections of arguments, and a width in units of 256."""
    launch = read(tmp_path, FLAGSCALE)
    assert launch.fork == "FlagScale"
    (layer,) = launch.model.layers
    assert (layer.mlp.ffn, launch.model.vocab) == (11008, 100008)
    assert count_parameters(launch.model).total == pytest.approx(7.3e9, rel=0.01)
    wanted = {"tp": 2, "zero": 1, "dtype": "bf16", "global_batch_size": 1728}
    assert {name: launch.strategy[name] for name in wanted} == wanted
    assert launch.missing == ("gpus",)
    assert launch.not_understood == ()


NEOX = """{
  # facts of the public 20B configuration
  "vocab-file": "./20B_tokenizer.json", "pipe-parallel-size": 4, "model-parallel-size": 2,
  "num-layers": 44, "hidden-size": 6144, "num-attention-heads": 64, "seq-length": 2048,
  "max-position-embeddings": 2048, "norm": "layernorm", "pos-emb": "rotary", "rotary-pct": 0.25,
  "no-weight-tying": true, "gpt-j-residual": true, "hidden-dropout": 0, "attention-dropout": 0,
  "zero_optimization": {"stage": 1, "overlap_comm": True,},
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 32,
  "checkpoint-activations": true, "fp16": {"enabled": true}, MORE
}
"""


def test_gpt_neox(tmp_path: Path) -> None:
    """The model of 20 billion parameters on 96 GPUs: 12 replicas x 32 micro-batches of 4."""
    launch = read(tmp_path, NEOX.replace("MORE", ""), "20B.yml", gpus=96)
    assert launch.fork == "GPT-NeoX"
    assert count_parameters(launch.model).total == pytest.approx(20.55e9, rel=0.002)
    (layer,) = launch.model.layers
    assert (layer.parallel, layer.attention.rotary_dim) == (True, 24)
    wanted = {"global_batch_size": 1536, "zero": 1, "recompute": "full", "dp_overlap": True}
    assert {name: launch.strategy[name] for name in wanted} == wanted
    assert launch.not_understood == ()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ('"pos_emb": "rpe"', "pos_emb: 'rpe': allowed"),
        ('"activation": "mish"', "activation: 'mish': allowed"),
        ('"attention_config": [[["mamba"], 48]]', "attention_config: 'mamba'"),
        ('"moe_num_experts": 8', "moe_num_experts: 8: is not read"),
        ('"num_layers": "x"', "num_layers: 'x': must be a number"),
    ],
)
def test_what_gpt_neox_has_and_shardwise_does_not(tmp_path: Path, more: str, problem: str) -> None:
    """Values that change the model and are not modeled are refused."""
    text = NEOX.replace('"pos-emb": "rotary", ', "")
    if "num_layers" in more:
        text, more = text.replace('"num-layers": 44', more), ""
    with pytest.raises(InputError, match=problem):
        read(tmp_path, text.replace("MORE", more), "a.yml")


def test_gates_of_gpt_neox(tmp_path: Path) -> None:
    """A gated block has the parameters of a plain one of its width: 32768 / 3, in units of 256."""
    more = '"activation": "swiglu", "intermediate_size": 32768, "mlp_multiple_of": 256'
    text = NEOX.replace('"hidden-size": 6144', '"hidden_size": 4096').replace("MORE", more)
    (layer,) = read(tmp_path, text, "7B.yml").model.layers
    assert layer.mlp.ffn == 11008
