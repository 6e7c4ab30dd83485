"""Layers of pipeline stages: Megatron-Core's layout string and its counts, read and written.

A layout lists stages between bars: E embedding, t layer, m module of multi-token prediction, L
loss; `x*n` repeats, parentheses group (core/transformer/pipeline_parallel_layer_layout.py of
Megatron-LM, main d98e8a64 of 2026-08-22).
"""

import re
from collections.abc import Sequence

from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_table import Table
from shardwise.launchers.megatron.core_hybrid import read_pattern_stages
from shardwise.launchers.megatron.core_stack import CoreReading, Value
from shardwise.parallel.pipeline_layout import layers_on_ranks
from shardwise.units import read_whole

_ITEM = re.compile(r"[EtmL|()]|\*\d+")
_MOST_ITEMS = 100_000
"""Layers and bars of a layout; repeats of repeats reach any number."""
_STAGES = "pipeline_model_parallel_layout"
_ENDS = {
    "first_stage_layers": "num_layers_in_first_pipeline_stage",
    "last_stage_layers": "num_layers_in_last_pipeline_stage",
}
_COUNTED = {
    "embedding_as_layer": "account_for_embedding_in_pipeline_split",
    "loss_as_layer": "account_for_loss_in_pipeline_split",
}


def expanded(layout: str) -> list[str]:
    """Return the stages of a layout string, each as letters.

    Raises
    ------
    ValueError
        With what is wrong, if it is none.
    """
    text = re.sub(r"[\s,]", "", layout)
    items = _ITEM.findall(text)
    if "".join(items) != text:
        odd = _ITEM.sub("", text)
        raise ValueError(f"has {odd[0]!r}; allowed: E t m L | ( ) *n")
    groups: list[list[str]] = [[]]
    for item in items:
        if item == "(":
            groups.append([])
        elif item == ")":
            if len(groups) == 1:
                raise ValueError("closes a parenthesis that is not open")
            inner = "".join(groups.pop())
            groups[-1].append(inner)
        elif item[0] == "*":
            if not groups[-1]:
                raise ValueError("repeats nothing")
            repeated, times = groups[-1][-1], read_whole(item[1:])
            if times is None or len(repeated) * times > _MOST_ITEMS:
                raise ValueError(f"has more than {_MOST_ITEMS} items")
            groups[-1][-1] = repeated * times
        else:
            groups[-1].append(item)
    if len(groups) > 1:
        raise ValueError("leaves a parenthesis open")
    return "".join(groups[0]).split("|")


def layout_of(counts: Sequence[int], mtp: int = 0) -> str:
    """Return the layout string of counts of layers; multi-token prediction stands at the end."""
    stages = ["t" * count if count < _LONG else f"t*{count}" for count in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp + "L"
    runs: list[tuple[str, int]] = []
    for stage in stages[:-1]:
        if runs and runs[-1][0] == stage:
            runs[-1] = (stage, runs[-1][1] + 1)
        else:
            runs.append((stage, 1))
    words = [f"{stage}|" if times == 1 else f"({stage}|)*{times}" for stage, times in runs]
    return "".join([*words, stages[-1]])


_LONG = 4
"""Layers of a stage that are written with a count: t*4, but ttt."""


def stage_fields(model: Model, strategy: Strategy) -> dict[str, Value]:
    """Fields that spread the layers of a plan over its stages.

    Counts that Megatron-Core does not make by itself are a layout.
    """
    fields: dict[str, Value] = dict.fromkeys((*_ENDS.values(), _STAGES))
    fields |= dict.fromkeys(_COUNTED.values(), False)
    fields["virtual_pipeline_model_parallel_size"] = strategy.vpp if strategy.vpp > 1 else None
    if strategy.pp == 1:
        return fields
    if strategy.stage_layers is not None or not _comes_out_even(model, strategy):
        counts = layers_on_ranks(model.depth, Table.of(model, [strategy]), 0)
        return fields | {_STAGES: layout_of(counts, model.mtp)}
    fields |= {core: getattr(strategy, own) for own, core in _ENDS.items()}
    return fields | {core: getattr(strategy, own) for own, core in _COUNTED.items()}


def _comes_out_even(model: Model, strategy: Strategy) -> bool:
    """Whether stages between first and last, and all chunks, have equally many layers.

    Conditions of core/transformer/transformer_config.py, lines 2229 to 2368.
    """
    first, last = strategy.first_stage_layers, strategy.last_stage_layers
    embedding, loss = strategy.embedding_as_layer, strategy.loss_as_layer
    if (first or last) and (embedding or loss):
        return False
    layers = model.depth + embedding + loss - (first or 0) - (last or 0)
    stages = strategy.pp - bool(first) - bool(last)
    if any((end or 0) % strategy.vpp for end in (first, last)):
        return False
    return layers % stages == 0 and layers // stages % strategy.vpp == 0 if stages else not layers


def read_stages(reading: CoreReading) -> None:
    """Read the stages of a pipeline: degrees, chunks and layers."""
    pp = reading.positive("pipeline_model_parallel_size")
    vpp = reading.positive("virtual_pipeline_model_parallel_size")
    layout = reading.value(_STAGES)
    reading.set("pp", pp)
    chunks = read_pattern_stages(reading, pp) if pp > 1 else None
    if chunks is not None:
        vpp = chunks
    elif layout is not None and pp > 1:
        vpp = _read_layout(reading, layout, pp)
    else:
        vpp = vpp if pp > 1 else 1
        for own, core in _ENDS.items():
            if (count := reading.whole(core)) is not None and pp > 1:
                reading.set(own, count)
        for own, core in _COUNTED.items():
            if reading.flag(core) and pp > 1:
                reading.set(own, True)
    if vpp > 1:
        reading.set("vpp", vpp)


def _read_layout(reading: CoreReading, layout: Value, pp: int) -> int:
    """Read a layout, as a string or as a list of stages; returns chunks per stage."""
    try:
        stages = expanded(layout) if isinstance(layout, str) else _of_lists(layout)
    except ValueError as error:
        reading.fault(_STAGES, layout, str(error))
        return 1
    if len(stages) % pp:
        reading.fault(_STAGES, layout, f"has {len(stages)} stages; must be a multiple of {pp}")
        return 1
    if [stages[0][:1], stages[-1][-1:]] != ["E", "L"]:
        reading.fault(_STAGES, layout, "must begin with E and end with L")
    if any("m" in stage for stage in stages[:-1]):
        reading.note(_STAGES, "modules of multi-token prediction count for the last stage")
    reading.set("stage_layers", tuple(stage.count("t") for stage in stages))
    return len(stages) // pp


_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def _of_lists(layout: Value) -> list[str]:
    """Stages of a list of lists of names."""
    if not isinstance(layout, tuple) or not all(isinstance(stage, tuple) for stage in layout):
        raise ValueError("must be text such as Et*2|tL, or a list of lists")
    stages = []
    for stage in layout:
        names = [str(name) for name in stage] if isinstance(stage, tuple) else []
        if odd := [name for name in names if name not in _LETTERS]:
            raise ValueError(f"has {odd[0]!r}; allowed: {', '.join(_LETTERS)}")
        stages.append("".join(_LETTERS[name] for name in names))
    return stages
