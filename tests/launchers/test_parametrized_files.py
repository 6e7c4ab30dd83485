"""Launch files with parameters: loops, `read`, arguments, sourced scripts, the environment."""

from pathlib import Path

import pytest

from shardwise import InputError, read_launch
from shardwise.launchers.shell import parse_script, shown

LOOP = """
LAYOUTS=("1,2,1,1" "1,2,1,2")
for one in "${LAYOUTS[@]}"; do
  IFS=',' read -r EP TP PP CP <<< "$one"
  python -m torch.distributed.run --nproc_per_node=8 run_recipe.py --recipe llama3_8b_sft_config \\
    model.seq_length=4096 train.global_batch_size=16 train.micro_batch_size=2 \\
    checkpoint.save=${OUT}/run_tp${TP} logger.wandb_exp_name=${TEAM} \\
    model.expert_model_parallel_size=$EP model.tensor_model_parallel_size=$TP \\
    model.pipeline_model_parallel_size=$PP model.context_parallel_size=$CP
done
"""
GPT = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048"
    " --max-position-embeddings 2048 --vocab-size 32000 --micro-batch-size 2"
)


def last(text: str, **variables: str) -> list[str]:
    return [shown(word) for word in parse_script(text, variables).commands[-1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('read -r A B <<< "1 2"; run $A $B', ["run", "1", "2"]),
        ('IFS=, read -r A B <<< "1,2,3"; run $A $B', ["run", "1", "2,3"]),
        ('read -ra A <<< "1 2"; run ${A[@]}', ["run", "1", "2"]),
        ("read A < file; run $A", ["run", "$A"]),
        ("IFS=, read A B <<< $X; run $A$B", ["run", "$X$X"]),
        ("for x in 7; do run $x; done", ["run", "7"]),
        ("for x in 7 8; do Y=3; run $Y $x; done", ["run", "3", "$x"]),
        ("A=1; for x in 7 8; do A=$((A*2)); done; run $A", ["run", "$A"]),
        ("for x in 7 8; do A+=--n; done; run $A", ["run", "$A"]),
        ('for x in 7 8; do A="a"; A="$A b"; A+=" c"; run $A; done', ["run", "a", "b", "c"]),
        ("while true; do A=1; done; run $A", ["run", "$A"]),
        ("A=2; while [ $# -gt 0 ]; do A=$1; shift; done; run $A", ["run", "2"]),
        ('A=2; while [[ "$1" != "" ]]; do A=$1; shift; done; run $A', ["run", "2"]),
        ("A=2; while getopts a: x; do A=$OPTARG; done; run $A", ["run", "2"]),
    ],
)
def test_loops_and_read(text: str, words: list[str]) -> None:
    """What a loop accumulates is not known; what does not depend on its variable is."""
    assert last(text) == words


def test_arguments() -> None:
    """`args` are the arguments of a script; defaults stand for those that are not there."""
    text = "TP=$1; PP=${2}; CP=${3:-1}; run $TP $PP $CP"
    assert last(text, args="8 2") == ["run", "8", "2", "1"]
    assert last(text) == ["run", "$TP", "$PP", "1"]
    loop = "A=2; while [ $# -gt 0 ]; do A=$1; shift; done; run $A"
    assert last(loop, args="8") == ["run", "$A"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run <PATH TO FILE> --fp16", ["run", "<PATH TO FILE>", "--fp16"]),
        ('sh -c "run <PATH> --n 3"', ["run", "<PATH>", "--n", "3"]),
        ("run --n 3 <in >out", ["run", "--n", "3"]),
        ("run --n 3 < in > out", ["run", "--n", "3"]),
    ],
)
def test_places_to_fill_in(text: str, words: list[str]) -> None:
    """A place to fill in is a word; input and output of a command are not."""
    assert last(text) == words


def test_a_loop_over_layouts(tmp_path: Path) -> None:
    """The choices are listed once; values that only name folders block nothing."""
    (tmp_path / "run.sh").write_text(LOOP)
    with pytest.raises(InputError) as refused:
        read_launch(tmp_path / "run.sh")
    assert len(refused.value.faults) == 1
    assert "--set one=1,2,1,1 or 1,2,1,2" in str(refused.value)
    found = read_launch(tmp_path / "run.sh", variables={"one": "1,2,1,2"}).strategy
    wanted = {"gpus": 8, "tp": 2, "cp": 2, "ep": 1, "seq_len": 4096, "global_batch_size": 16}
    assert {name: found[name] for name in wanted} == wanted


def test_sourced_scripts(tmp_path: Path) -> None:
    """A script that lies below the folder is read; others leave their variables open."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models/a.sh").write_text('ARGS="--tensor-model-parallel-size 4"\n')
    run = f"torchrun --nproc-per-node 8 pretrain_gpt.py {GPT} $ARGS\n"
    for path in ("models/a.sh", '"${DIR}/models/a.sh"'):
        (tmp_path / "run.sh").write_text(f"source {path}\n{run}")
        assert read_launch(tmp_path / "run.sh").strategy["tp"] == 4
    (tmp_path / "run.sh").write_text(f"source ../a.sh\n{run}")
    assert [one.option for one in read_launch(tmp_path / "run.sh").not_understood] == ["$ARGS"]
    (tmp_path / "run.sh").write_text(f"source run.sh\nsource run.sh\nARGS=\n{run}")
    assert read_launch(tmp_path / "run.sh").strategy["tp"] == 1


NEMO = """
trainer: {devices: "${oc.decode:${oc.env:NGPU,8}}", num_nodes: 1, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 8
  tensor_model_parallel_size: ${oc.decode:${oc.env:TP,4}}
  context_parallel_size: ${oc.select:model.cp,2}
  vocab_size: 32000
  encoder_seq_length: 8192
  num_layers: 8
  hidden_size: 1024
  num_attention_heads: 8
"""


def test_functions_of_omegaconf(tmp_path: Path) -> None:
    """The environment has defaults, which the user overrides by name."""
    (tmp_path / "job.yaml").write_text(NEMO)
    found = read_launch(tmp_path / "job.yaml").strategy
    assert (found["gpus"], found["tp"], found["cp"]) == (8, 4, 2)
    assert read_launch(tmp_path / "job.yaml", variables={"TP": "2"}).strategy["tp"] == 2


def test_a_file_of_mlperf(tmp_path: Path) -> None:
    """Its batch is that of a replica times replicas; the environment writes True as Python does.

    Forms of github.com/mlcommons/training_results_v4.0, Dell's llama2_70b_lora.
    """
    batch = (
        "${floor_div:${multiply:${oc.decode:${oc.env:MINIBS,1}},${floor_div:${trainer.devices},"
        "${model.tensor_model_parallel_size}}},${oc.decode:${oc.env:CP,1}}}"
    )
    text = NEMO.replace("global_batch_size: 8", f"global_batch_size: {batch}")
    text = text.replace("${oc.select:model.cp,2}", "${oc.decode:${oc.env:CP,1}}")
    text += "  sequence_parallel: ${oc.decode:${oc.env:SP,False}}\n"
    (tmp_path / "job.yaml").write_text(text)
    found = read_launch(tmp_path / "job.yaml").strategy
    assert (found["global_batch_size"], found["tp_exchange"]) == (2, "all_reduce")
    launch = read_launch(tmp_path / "job.yaml", variables={"MINIBS": "4", "SP": "True"})
    assert launch.strategy["global_batch_size"] == 8
    assert launch.strategy["tp_exchange"] == "rs_ag"


def test_accelerate_with_a_file_of_deepspeed(tmp_path: Path) -> None:
    """The JSON next to the file decides; without it neither dtype nor ZeRO stage is known."""
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 4\ncompute_environment: LOCAL_MACHINE\n"
        "deepspeed_config: {deepspeed_config_file: ds.json}\n"
    )
    (tmp_path / "acc.yaml").write_text(text)
    alone = read_launch(tmp_path / "acc.yaml")
    assert {"dtype", "zero"}.isdisjoint(alone.strategy)
    assert "is not here" in str(alone.not_understood[0])
    (tmp_path / "ds.json").write_text(
        '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}, "odd": 1}'
    )
    both = read_launch(tmp_path / "acc.yaml")
    assert (both.strategy["dtype"], both.strategy["zero"]) == ("bf16", 3)
    assert [one.option for one in both.not_understood] == ["ds.json: odd"]
