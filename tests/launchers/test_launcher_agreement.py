"""What stacks can run, and what the checker of their launchers says: the same, field by field.

The data of stacks and the checker were written apart from the same sources. Strategies are drawn
at random; of those that nothing but software refuses, both must refuse the same ones.
"""

import random
import re
from collections import defaultdict

import numpy as np

from launcher_draws import MODELS, NVIDIA, SYSTEMS, draw
from launcher_rules import LAUNCHERS, launch_faults
from profiles import drawn
from rows import each_row
from shardwise import InputError, Model, Stack, Strategy, System
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import CONSTRAINTS, illegal_faults
from shardwise.parallel.constraints.software import SOFTWARE_CONSTRAINTS

STRICTER = {
    "with pp 1 only": "Megatron-FSDP with stages is not refused, and no published run has it",
    "0.16 (December 2024)) supports cp 1 only": "Ulysses in code of the model only",
    "['expert_up', 'activation', 'expert_down']: nemo-2025": "dense layers have one of these parts",
    "1.14 (June 2026)) supports ep 1 only": "experts are split in code of models",
    "1.14 (June 2026)) supports cp_exchange ring only": "all_to_all needs DeepSpeed",
}
"""What a stack refuses and its launcher does not: a part of the refusal, and why."""
LISTED = re.compile(r"v?pp \d+: must divide \d+ layers|first_stage_layers\b(?!: excl)")
"""Faults of stages that no option counts: since Megatron-Core 0.13 layouts list their layers."""


def strategies(stack: str) -> dict[tuple[str, str], list[Strategy]]:
    """Strategies by model and system, all fields filled in."""
    source, found = random.Random(stack), defaultdict(list)  # noqa: S311 - of tests
    for _ in range(drawn(450)):
        model, system = source.choice(MODELS), source.choice(SYSTEMS.get(stack, NVIDIA))
        try:
            one = Strategy(**draw(source, stack)).resolved(Model.load(model))
        except InputError:
            continue
        found[model, system].append(one)
    return found


@each_row("stack", sorted(LAUNCHERS))
def test_a_stack_refuses_what_its_launcher_does(stack: str) -> None:
    """And nothing else; both find legal strategies, and others."""
    graphs, verdicts, differences = Stack.load(stack).cuda_graphs, set(), []
    for (name, machine), rows in strategies(stack).items():
        model, system = Model.load(name), System.load(machine)
        table = Table.of(model, rows)
        other, software = np.zeros((2, len(rows)), dtype=np.bool_)
        for one in CONSTRAINTS:
            mask = software if one in SOFTWARE_CONSTRAINTS else other
            mask |= one.violated(model, system, table)
        for row in np.flatnonzero(~other):
            strategy = rows[row].to_dict()
            faults = launch_faults(model, strategy, graphs=graphs, machine=machine)
            verdicts.add(bool(software[row]))
            if Stack.load(stack).capabilities.allows("stage_layers", (1,)):
                faults = [fault for fault in faults if not LISTED.match(fault)]
            if bool(software[row]) == bool(faults):
                continue
            refusal = "; ".join(map(str, illegal_faults(model, system, table.take([row])).values()))
            if not any(part in refusal for part in STRICTER):
                differences.append(f"{name}, {machine}: {refusal or faults}: {strategy}")
    assert differences == []
    assert verdicts == {False, True}
