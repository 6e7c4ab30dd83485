"""What follows from the fields of `Strategy`: columns, rows, and what other tools' files say."""

import typing
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn_strategies import MACHINES, MODELS, legal, rows
from profiles import examples
from rows import each_row
from shardwise import InputError, Model, System, estimate, estimate_many
from shardwise.arrays import Bools, Floats, Ints
from shardwise.config.strategy_columns import LISTS
from shardwise.config.strategy_fields import COLUMNS, SHORT_NAMES, Kind
from shardwise.config.strategy_table import Table
from shardwise.engine.memory import MEMORY_PARTS
from shardwise.engine.step_time import TIME_PARTS
from shardwise.predecessors.amped.translation import amped_case
from shardwise.predecessors.calculon.translation import calculon_case
from shardwise.predecessors.nersc.translation import nersc_case
from strategy_values import some_fields, values_of

pytestmark = pytest.mark.any_software


def test_a_table_has_a_column_of_the_right_type_for_every_field() -> None:
    """The typed view of the columns that formulas read is that of the fields."""
    hints = typing.get_type_hints(Table)
    types = {Kind.FLAG: Bools, Kind.NUMBER: Floats}
    wanted = {
        name: Floats if name == "expert_capacity" else types.get(field.kind, Ints)
        for name, field in COLUMNS.items()
    }
    others = {*LISTS.values(), "systems", "named"}
    assert {f.name: hints[f.name] for f in fields(Table) if f.name not in others} == wanted


@st.composite
def mixed(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows that name every field: mostly legal ones, with a few other values of any field."""
    defaults = {name: field.default for name, field in COLUMNS.items()}
    drawn = draw(st.lists(rows(), min_size=4, max_size=8))
    given = [defaults | row | draw(some_fields(2)) for row in drawn]
    for row in given:
        row["schedule"] = row["schedule"] or ("interleaved" if row["vpp"] > 1 else "1f1b")
        row["gpus"] = row["tp"] * row["tp2"] * row["pp"] * row["cp"] * row["dp"]
    return given


@examples(15)
@given(st.sampled_from(MODELS), st.sampled_from(MACHINES), mixed())
def test_rows_of_a_mixed_table_are_the_estimates_of_their_strategies(
    model: Model, machine: System, given: list[dict[str, Any]]
) -> None:
    """Whatever fields differ: rows share a cost only where all that it depends on is equal."""
    table = legal(model, machine, given)
    strategies = [table.strategy(row) for row in range(len(table))]
    many = estimate_many(model, machine, table)
    for row, strategy in enumerate(strategies):
        one = estimate(model, machine, strategy)
        for part in TIME_PARTS:
            assert many.time_s[part][row] == pytest.approx(one.time_s[part], rel=1e-12)
        for part in MEMORY_PARTS:
            expected = getattr(one.memory_bytes, part)
            assert many.memory_bytes[part][row] == pytest.approx(expected, rel=1e-12)


RUN = {"tp": 4, "pp": 4, "dp": 4, "gbs": 64, "seq_len": 2048, "mbs": 1}
TOOLS: dict[str, tuple[Callable[..., object], str, dict[str, Any]]] = {
    "calculon": (calculon_case, "calculon-a100-80g", {"dtype": "fp16"}),
    "nersc": (nersc_case, "nersc-a100", {}),
    "amped": (amped_case, "a100-80gb-sxm", {}),
}
# Fields that a tool's files neither say nor refuse in a run of a dense model, and why.
OF_ANOTHER_FIELD = {
    "cp_exchange": "cp",
    "cp_tier": "cp",
    **dict.fromkeys(("lora_parts", "lora_targets", "adapter", "base_weights"), "lora_rank"),
    "reference_model": "task",
    "summa_panels": "tp_exchange",
    "fsdp_prefetch": "zero",
    "grad_sync": "zero",
    "expert_kernel": "ep",
    "graph_scope": "cuda_graphs",
    "expert_capacity": "ep",
    "expert_imbalance": "ep",
    "dispatcher": "ep",
    "dispatch_dtype": "ep",
    "expert_overlap": "ep",
    "recompute_parts": "recompute",
    "recompute_layers": "recompute",
    "fsdp_reshard": "zero",
    "offload_parts": "offload_activations",
    "cpu_optimizer": "offload_optimizer",
    "host_threads": "offload_optimizer",
    "batching": "data_lengths",
    "offload_nvme": "offload_optimizer",
    "tp_regather": "tp_exchange",
    "quantized_weights": "quantization",
}
"""They do nothing without the other field, which is said or refused."""
TYPES = {f"{one}_dtype" for one in ("weight", "master", "moment", "gradient", "reduce")}
SOFTWARE = {"stack", "any_software", "cuda_graphs", "compile", "loss", *TYPES}
NOT_MODELLED = {
    "calculon": SOFTWARE,
    "nersc": SOFTWARE,
    "amped": {*SOFTWARE, "zero", "dp_overlap"},
}
"""They have a formula of their own for these, which no file changes."""


@each_row("tool", TOOLS)
def test_files_of_other_tools_say_or_refuse_every_field(tool: str) -> None:
    """A field that neither changes what is written nor is refused is listed with its reason."""
    case, system, own = TOOLS[tool]
    run = {**RUN, **own}
    plain = repr(case("gpt3-175b", system, run))

    def is_said(name: str, value: object) -> bool:
        fields = {n: v for n, v in run.items() if SHORT_NAMES.get(n, n) != name}
        try:
            return repr(case("gpt3-175b", system, fields | {name: value})) != plain
        except InputError:
            return True

    silent = {
        name
        for name, field in COLUMNS.items()
        if not any(is_said(name, value) for value in values_of(field) if value is not None)
    }
    assert silent - OF_ANOTHER_FIELD.keys() == NOT_MODELLED[tool]
