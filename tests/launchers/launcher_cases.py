"""Plans that break one rule of a launcher, and plans next to them that break none."""

from typing import Any

import pytest

from shardwise import Model, Strategy

DENSE = "llama3-70b"  # 80 layers, 64 heads, 8 of keys and values
UNEVEN = "qwen2-7b"  # 28 heads, 4 of keys and values
TIED = "llama3.2-1b"
GROUPED = "qwen3-30b-a3b"  # 48 layers of 128 experts
LATENT = "deepseek-v3"  # 61 layers, the first 3 dense
BIASED = "gpt-oss-20b"  # biases in its experts
Fields = dict[str, Any]


def plan(model: str, **fields: Any) -> tuple[Model, Fields]:
    """A model of the catalog and a strategy for it, as `estimate --json` writes it."""
    loaded = Model.load(model)
    values = Strategy(**({"gpus": 64, "gbs": 128} | fields)).resolved(loaded).to_dict()
    return loaded, values


TP: Fields = {"tp": 8}
EP: Fields = {"ep": 8}
PP: Fields = {"pp": 4}
CP: Fields = {"cp": 4}
VPP: Fields = {"pp": 4, "vpp": 5}
OFFLOAD: Fields = {"offload_activations": True}
LATENT_PP: Fields = {"pp": 4, "first_stage_layers": 16, "last_stage_layers": 15, "ep": 16}


def parts(*names: str) -> Fields:
    return {"recompute": "selective", "recompute_parts": list(names)}


def offloads(*names: str) -> Fields:
    return OFFLOAD | {"offload_parts": list(names)}


def fsdp(**fields: Any) -> Fields:
    return {"zero": 3} | fields


FULLY = {"zero": 3}
Case = tuple[Any, ...]
Cases = dict[str, list[Case]]
"""A fault's beginning: (model, plan that has it, change that lifts it, options of the check)."""


def check(
    faults: Any,
    default: str,
    start: str,
    model: str,
    base: Fields,
    broken: Fields,
    lifted: Fields,
    options: Fields | None = None,
) -> None:
    """The broken plan has a fault that starts so; the other plan has none at all."""
    chosen = {"release": default} | (options or {})
    assert any(
        fault.startswith(start) for fault in fault_list(faults, model, base | broken, chosen)
    )
    assert fault_list(faults, model, base | lifted, chosen) == []


def fault_list(faults: Any, model: str, fields: Fields, options: Fields) -> list[str]:
    dispatcher = {name: value for name, value in fields.items() if name == "dispatcher"}
    loaded, strategy = plan(
        model, **{name: value for name, value in fields.items() if name not in dispatcher}
    )
    return faults(loaded, strategy | dispatcher, **options)


def rules(table: Cases) -> list[Any]:
    return [
        pytest.param(start, case, id=f"{start}-{number}")
        for start, cases in table.items()
        for number, case in enumerate(cases)
    ]
