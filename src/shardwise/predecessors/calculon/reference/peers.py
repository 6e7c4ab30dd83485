"""Calculon's peers file (`llm --peers`): the ranks that each processor communicates with.

Calculon 0.1.0, commit caa4b11. Processors are numbered along the tensor, then the pipeline, then
the data dimension, whatever networks these use.
"""

import numpy as np

from shardwise.arrays import Ints
from shardwise.errors import Fault, InputError
from shardwise.predecessors.calculon.files import CalculonExecution

# Numbers in a file; a processor lists all members of its tensor and of its data group.
_MOST_NUMBERS = 1 << 26


def groups(execution: CalculonExecution) -> dict[str, Ints]:
    """Ranks of every group by dimension (tensor, pipeline, data): shape (groups, members)."""
    e = execution
    shape = (e.data_par, e.pipeline_par, e.tensor_par)
    ranks = np.arange(e.num_procs).reshape(shape)
    return {
        name: np.moveaxis(ranks, axis, -1).reshape(-1, shape[axis])
        for axis, name in ((2, "tensor"), (1, "pipeline"), (0, "data"))
    }


def peers_of_rank(execution: CalculonExecution, rank: int) -> dict[str, list[int] | int]:
    """Peers of one rank: all members of its tensor and data groups, and the rank of the next stage.

    After the last stage comes the first. Dimensions of one processor are left out.
    """
    e = execution
    if not 0 <= rank < e.num_procs:
        problem = f"no such rank; allowed: 0 to {e.num_procs - 1}"
        raise InputError(Fault.of("rank", rank, problem))
    tensor, pipeline = e.tensor_par, e.tensor_par * e.pipeline_par
    found: dict[str, list[int] | int] = {}
    if e.tensor_par > 1:
        first = rank - rank % tensor
        found["tensor"] = list(range(first, first + tensor))
    if e.pipeline_par > 1:
        replica = rank - rank % pipeline
        found["pipeline"] = replica + (rank - replica + tensor) % pipeline
    if e.data_par > 1:
        found["data"] = list(range(rank % pipeline, e.num_procs, pipeline))
    return found


def peers(execution: CalculonExecution) -> dict[str, dict[str, list[int] | int]]:
    """Peers of every rank, by its number: the content of the file."""
    e = execution
    if e.num_procs * (e.tensor_par + e.data_par) > _MOST_NUMBERS:
        problem = "too many peers to list; set --rank for those of one"
        raise InputError(Fault.of("num_procs", e.num_procs, problem))
    return {str(rank): peers_of_rank(execution, rank) for rank in range(e.num_procs)}
