"""Fields that a strategy leaves open have values that the software of its stack can run."""

import pytest

from profiles import sampled
from shardwise import InputError, Model, Stack, Strategy, System, catalog, estimate
from shardwise.config.enums import Dtype, Schedule, TpExchange
from shardwise.config.strategy_table import Table
from shardwise.parallel.constraints import illegal_faults

H100 = "h100-sxm"
PAIRS = (
    *((stack, H100) for stack in catalog.names("stacks")),
    *((System.load(name).stack, name) for name in catalog.names("systems")),
)
"""Every stack on one system, and every system with the stack that it has by default."""
MODELS = [Model.load(name) for name in ("llama3-8b", "qwen3-30b-a3b")]
ALONE = (
    {},
    *({name: 4} for name in ("tp", "pp", "cp", "ep", "dp")),
    {"pp": 4, "vpp": 2},
    {"tp": 4, "etp": 4},
    *({"zero": stage} for stage in range(4)),
    *({"recompute": word} for word in ("full", "selective")),
)


def blamed(model: Model, system: System, fields: dict[str, object]) -> set[str]:
    """Fields that refusals of a strategy name."""
    try:
        strategy = Strategy.validated(fields).resolved(model)
    except InputError as error:
        return {fault.field for fault in error.faults}
    faults = illegal_faults(model, system, Table.of(model, [strategy]))
    return {fault.field for fault in faults.values()}


@pytest.mark.parametrize(("stack", "name"), sampled(PAIRS, part=5))
def test_no_refusal_names_a_field_that_was_not_set(stack: str, name: str) -> None:
    """Each degree alone, ZeRO stages and recompute, of a dense model and of one with experts."""
    system = System.load(name)
    dtype = next(one for one in Dtype if one in system.accelerator.matrix)  # of the accelerator
    for model in MODELS:
        for fields in ALONE:
            if not model.has_experts and {"ep", "etp"} & fields.keys():
                continue
            gpus = {} if "dp" in fields else {"gpus": 8}
            chosen = {"gbs": 64, "stack": stack, "dtype": dtype, **gpus, **fields}
            assert blamed(model, system, chosen) <= fields.keys(), (model.name, fields)


@pytest.mark.parametrize("stack", catalog.names("stacks"))
def test_tables_have_the_same_defaults(stack: str) -> None:
    """A column that is left open has, row by row, what a single strategy has."""
    model = MODELS[1]
    for fields in ({"tp": 4}, {"cp": 4}, {"pp": 4}, {"pp": 4, "vpp": 2}):
        chosen = {"gpus": 8, "global_batch_size": 64, "stack": stack, **fields}
        one = Table.of(model, [Strategy(**chosen)]).strategy(0)
        assert Table.of(model, chosen).strategy(0) == one
        columns = chosen | {"gpus": [8, 8], "stack": [stack, "megatron-core-2025"]}
        assert Table.of(model, columns).strategy(0) == one


def test_defaults_are_the_first_values_that_a_release_runs() -> None:
    """Where it cannot run the usual one; what a user sets stays."""
    fields = {"gpus": 8, "gbs": 8, "tp": 4, "stack": "gpt-neox-2023"}
    assert estimate("llama3-8b", H100, fields).strategy["tp_exchange"] == "all_reduce"
    with pytest.raises(InputError, match="supports tp_exchange all_reduce only"):
        estimate("llama3-8b", H100, fields | {"tp_exchange": "rs_ag"})
    base = {"base": "megatron-core-2025", "name": "mine"}
    capabilities = {"fields": {"cp_exchange": "all_to_all", "zero": [0, 3], "schedule": "gpipe"}}
    defaults = Stack.load(base | {"capabilities": capabilities}).field_defaults
    assert defaults == {"cp_exchange": "all_to_all", "zero": 0, "schedule": Schedule.GPIPE}
    lifted = {"base": "gpt-neox-2023", "capabilities": {"fields": {"tp_exchange": "any"}}}
    assert Stack.load("gpt-neox-2023").field_defaults == {"tp_exchange": TpExchange.ALL_REDUCE}
    assert Stack.load(lifted | {"name": "mine"}).field_defaults == {}


def test_a_refusal_names_the_degree_that_software_lacks() -> None:
    """Not the schedule or communication that it would need."""
    fields = {"gpus": 8, "gbs": 8, "stack": "megatron-deepspeed-2022"}
    with pytest.raises(InputError, match=r"vpp: 2: .* supports vpp 1 only"):
        estimate("llama3-8b", H100, fields | {"pp": 4, "vpp": 2})
    with pytest.raises(InputError, match="tp: 4: experts need sequence parallelism"):
        estimate("qwen3-30b-a3b", H100, fields | {"tp": 4})
