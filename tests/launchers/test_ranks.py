"""Ranks that a script starts."""

import pytest

from shardwise.launchers.ranks import parse_job, ranks_of


def ranks(script, **variables):
    job = parse_job(script, variables)
    return ranks_of(job, job.commands[-1])


@pytest.mark.parametrize(
    ("script", "nodes", "per_node"),
    [
        ("torchrun --nproc_per_node 8 --nnodes 4 x.py", 4, 8),
        ("torchrun --nproc-per-node=8 --nnodes=2 x.py --nnodes 9", 2, 8),
        ("python -m torch.distributed.launch --nproc_per_node 4 x.py", 1, 4),
        ("A='--nproc_per_node 2 --nnodes 3'\n/bin/torchrun $A x.py", 3, 2),
        ("N=${N:-2}; G=8\ntorchrun --nproc_per_node $G --nnodes $N x.py", 2, 8),
        ("srun -N 4 --ntasks-per-node=8 python x.py", 4, 8),
        ("srun -N4 torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES x.py", None, 8),
        ("#SBATCH -N 4\nsrun torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES x.py", 4, 8),
        ("#SBATCH --nodes=16\n#SBATCH --ntasks-per-node=8\nsrun python x.py", 16, 8),
        ("#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:4\npython x.py", 2, 4),
        ("#SBATCH --ntasks=12\nsrun python x.py", 1, 12),
        ("#SBATCH --nodes=2\nsrun bash -c 'torchrun --nproc_per_node 8 x.py'", 2, 8),
        ("deepspeed --num_nodes 2 --num_gpus 8 x.py", 2, 8),
    ],
)
def test_nodes_and_ranks_of_a_node(script, nodes, per_node):
    if script.endswith("'"):  # the command inside is read before the one that starts it
        job = parse_job(script, {})
        found = ranks_of(job, job.commands[0])
    else:
        found = ranks(script)
    assert (found.nodes, found.per_node) == (nodes, per_node)


def test_a_variable_without_a_value_is_named():
    found = ranks("N=$1\ntorchrun --nproc_per_node 8 --nnodes $N x.py")
    assert (found.gpus, found.missing) == (None, ("N",))
    assert ranks("N=$1\ntorchrun --nproc_per_node 8 --nnodes $N x.py", N="2").gpus == 16


def test_a_plain_command_says_nothing():
    assert ranks("python x.py --num-layers 2") is None
