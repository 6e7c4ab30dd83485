"""Ranks that a script starts: torchrun, srun, deepspeed and the directives of Slurm."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.launchers.shell import Script, directives_of, names_in, parse_script
from shardwise.units import read_whole

_SLURM_NAMES: Mapping[str, tuple[str, ...]] = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "tasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "tasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "gpus_per_node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
}
_SLURM = {
    "-N": "nodes",
    "--nodes": "nodes",
    "-n": "tasks",
    "--ntasks": "tasks",
    "--ntasks-per-node": "tasks_per_node",
    "--gpus-per-node": "gpus_per_node",
    "--gres": "gpus_per_node",
    "-G": "gpus",
    "--gpus": "gpus",
}
_TORCHRUN = {
    "--nnodes": "nodes",
    "--nproc-per-node": "per_node",
}
_DEEPSPEED = {"--num-nodes": "nodes", "--num-gpus": "per_node"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How many ranks a script starts."""

    nodes: int | None
    per_node: int | None
    """Ranks of a node; None: not known."""
    missing: tuple[str, ...] = ()
    """Variables without a literal value that say how many."""

    @property
    def gpus(self) -> int | None:
        """Ranks in all; None: not known."""
        return None if self.nodes is None or self.per_node is None else self.nodes * self.per_node


def parse_job(
    text: str,
    variables: Mapping[str, str],
    sibling: Callable[[str], str | None] = lambda _: None,
) -> Script:
    """Read a shell script, with the variables that Slurm sets for its #SBATCH lines.

    Parameters
    ----------
    sibling
        Text of a script that this one sources; None: it is not there.
    """
    found = _slurm(" ".join(directives_of(text)).split())
    slurm = {name: one for what, one in found.items() for name in _SLURM_NAMES.get(what, ())}
    return parse_script(text, variables, slurm, sibling)


def ranks_of(script: Script, program: Sequence[str]) -> Ranks | None:
    """Return the ranks that a script starts a program with; None if nothing says it."""
    job = _slurm(" ".join(script.directives).split())
    steps = [words for words in (program, *script.commands) if _at(words, ("srun",)) is not None]
    step = steps[0] if steps else ()
    job |= _slurm(step[(_at(step, ("srun",)) or 0) + 1 :])
    by_program = _by_program(program)
    if by_program is not None and _at(program, ("deepspeed",)) is not None:
        # Without options all GPUs of the hostfile, which no script has.
        per_node = by_program.get("per_node") or job.get("gpus_per_node")
        nodes = by_program.get("nodes") or job.get("nodes")
        return None if per_node is None or nodes is None else _ranks(nodes, per_node)
    if by_program is not None:
        nodes = by_program.get("nodes") or (job.get("nodes") if step else None) or "1"
        return _ranks(nodes, by_program.get("per_node", "1"))
    if not job:
        return None
    if "tasks" in job and "tasks_per_node" not in job:
        return _ranks("1", job["tasks"])
    per_node = job.get("tasks_per_node") or job.get("gpus_per_node")
    return None if per_node is None else _ranks(job.get("nodes", "1"), per_node)


def _by_program(words: Sequence[str]) -> dict[str, str] | None:
    """Options of a program that starts the ranks of a node; None if there is none."""
    for names, options in (
        (("torchrun", "torch.distributed.run", "torch.distributed.launch"), _TORCHRUN),
        (("deepspeed",), _DEEPSPEED),
    ):
        at = _at(words, names)
        if at is not None:
            return _options(words[at + 1 :], options)
    return None


def _at(words: Sequence[str], names: Sequence[str]) -> int | None:
    """Where a program stands among words, with or without its folder."""
    return next((at for at, word in enumerate(words) if word.rpartition("/")[2] in names), None)


def _slurm(words: Sequence[str]) -> dict[str, str]:
    found = _options(words, _SLURM)
    if "gpus_per_node" in found:  # gpu:8, gpu:a100:8
        found["gpus_per_node"] = found["gpus_per_node"].rpartition(":")[2]
    return found


def _options(words: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """Values of known options before the program's own; `_` in their names stands for `-`."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.endswith(".py"):
            break
        name, equals, value = word.partition("=")
        flag = name if not name.startswith("--") else "--" + name[2:].replace("_", "-")
        short = re.fullmatch(r"(-[NnG])(\d+)", word)
        if short and short[1] in known:
            found[known[short[1]]] = short[2]
        elif flag in known:
            after = words[at + 1] if at + 1 < len(words) else ""
            found[known[flag]] = value if equals else after
    return found


def _ranks(nodes: str, per_node: str) -> Ranks:
    missing = (*names_in(nodes), *names_in(per_node))
    counts = [read_whole(text) for text in (nodes, per_node)]
    return Ranks(nodes=counts[0], per_node=counts[1], missing=tuple(dict.fromkeys(missing)))
