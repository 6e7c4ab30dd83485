"""What DeepSpeed and accelerate cannot express is refused, with the field that stands in the way.

The cells are those of a table of the launchers' abilities, read in their sources (DeepSpeed v0.19.5
and edaa7221, accelerate v1.14.0 and 16cb6eb8).
"""

from typing import Any

import pytest

from rows import each_row
from shardwise import InputError, Model, Strategy, System
from shardwise.config.enums import OffloadPart, RecomputePart
from shardwise.config.strategy_table import Table
from shardwise.launchers import accelerate, deepspeed
from shardwise.launchers.launch import Launcher, LaunchPlan
from shardwise.launchers.writing import launch_files
from shardwise.parallel.constraints import illegal_faults

DENSE, EXPERTS, LATENT = "llama3-8b", "qwen3-30b-a3b", "deepseek-v2-lite"
SYSTEM = System.load("b200-sxm")
PP = {"pp": 4, "zero": 1}
SUMMA = {"tp": 2, "tp2": 2, "tp_exchange": "summa"}
MOST = {"gpus": 64, "gbs": 512}


def resolved(launcher: Launcher, model: Model, fields: dict[str, Any]) -> Strategy:
    """A strategy on 64 GPUs."""
    return Strategy(**MOST | {"stack": launcher.stack} | fields).resolved(model)


def refused(launcher: Launcher, name: str, fields: dict[str, Any]) -> set[str]:
    """Fields that the stack of a launcher, or its options, refuse."""
    model = Model.load(name)
    strategy = resolved(launcher, model, fields)
    software = illegal_faults(model, SYSTEM, Table.of(model, [strategy]))
    model_rules = {"fused_activation_stack", "parts_lacking"}
    assert set(software) <= {"software", *model_rules}, software
    faults = [*software.values(), *launcher.faults(model, strategy)]
    return {fault.field for fault in faults}


def selective(part: RecomputePart) -> tuple[str, str, dict[str, Any]]:
    model = LATENT if part == "mla_up" else DENSE
    model = EXPERTS if part in ("moe", "experts") else LATENT if "shared" in part else model
    return model, "recompute", {"recompute": "selective", "recompute_parts": [part]}


def offloaded(part: OffloadPart) -> tuple[str, str, dict[str, Any]]:
    model = EXPERTS if part in ("router", "expert_up", "activation", "expert_down") else DENSE
    fields = {"recompute": "none", "offload_activations": True, "offload_parts": [part]}
    return model, "offload_activations", fields


NEITHER: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (DENSE, "schedule", PP | {"schedule": word})
        for word in ("gpipe", "zb-h1", "zb-v", "dualpipe")
    ),
    (DENSE, "vpp", PP | {"schedule": "interleaved", "vpp": 2}),
    (DENSE, "tp_exchange", {"tp": 4, "tp_exchange": "p2p_rs_ag"}),
    (DENSE, "tp2", SUMMA),
    (DENSE, "tp_overlap", {"tp": 4, "tp_exchange": "rs_ag", "tp_overlap": "ring"}),
    (DENSE, "tp_regather", {"tp": 4, "tp_exchange": "rs_ag", "tp_regather": False}),
    (EXPERTS, "etp", {"ep": 8, "etp": 2, "zero": 2}),
    (EXPERTS, "ep", {"ep": 16, "cp": 8, "zero": 2}),
    (EXPERTS, "dispatch_dtype", {"ep": 8, "zero": 2, "dispatch_dtype": "fp8"}),
    (EXPERTS, "expert_overlap", {"ep": 8, "zero": 2, "expert_overlap": True}),
    (EXPERTS, "dispatcher", {"ep": 8, "zero": 2, "dispatcher": "deepep"}),
    (EXPERTS, "dispatcher", {"ep": 8, "zero": 2, "dispatcher": "hybridep"}),
    (DENSE, "pp", {"pp": 4, "zero": 3}),
    (DENSE, "quantization", {"quantization": "fp8_block"}),
    (DENSE, "quantization", {"quantization": "mxfp8"}),
    (DENSE, "quantization", {"quantization": "nvfp4"}),
    (DENSE, "recompute_layers", {"recompute": "full", "recompute_layers": 8}),
    *map(selective, RecomputePart),
    *(offloaded(part) for part in OffloadPart if part != OffloadPart.OTHER),
    (DENSE, "fused_activation", {"fused_activation": True}),
    (DENSE, "placement", {"tp": 4, "placement": "dp-tp-cp-pp"}),
    (DENSE, "extents", {"tp": 16, "extents": "tp=2+dp=4"}),
    (DENSE, "tp_tier", {"tp": 4, "tp_tier": 1}),
]
OF_DEEPSPEED: list[tuple[str, str, dict[str, Any]]] = [
    (DENSE, "embedding_as_layer", {"pp": 2, "zero": 1, "embedding_as_layer": True}),
    (DENSE, "loss_as_layer", {"pp": 2, "zero": 1, "loss_as_layer": True}),
    (DENSE, "first_stage_layers", PP | {"first_stage_layers": 8}),
    (DENSE, "last_stage_layers", PP | {"last_stage_layers": 8}),
    (DENSE, "stage_layers", PP | {"stage_layers": [7, 9, 9, 7]}),
    (DENSE, "tp_exchange", {"tp": 4, "tp_exchange": "rs_ag"}),
    (DENSE, "cp_exchange", {"cp": 4, "cp_exchange": "ring"}),
    (DENSE, "cp_exchange", {"cp": 4, "cp_exchange": "all_gather"}),
    (EXPERTS, "expert_capacity", {"ep": 8, "zero": 2, "expert_capacity": 1.5}),
    (DENSE, "quantization", {"quantization": "fp8_tensor"}),
    (DENSE, "optimizer", {"optimizer": "adamw-bf16"}),
    (DENSE, "training", {"training": False}),
]
OF_ACCELERATE: list[tuple[str, str, dict[str, Any]]] = [
    (DENSE, "pp", PP),
    (DENSE, "tp_overlap", {"tp": 4, "tp_overlap": "pipe"}),
    (DENSE, "cp_exchange", {"cp": 4, "cp_exchange": "all_to_all"}),
    (EXPERTS, "ep", {"ep": 8}),
    (EXPERTS, "tp", {"tp": 4}),
    (EXPERTS, "expert_capacity", {"expert_capacity": 1.5}),
    (DENSE, "dp_overlap", {"dp_overlap": False}),
    (DENSE, "zero", {"zero": 1}),
    (DENSE, "dp_shard", {"dp_shard": 1}),
    (DENSE, "fsdp_prefetch", {"fsdp_prefetch": 2}),
    (DENSE, "offload_activations", {"recompute": "full", "offload_activations": True}),
    (DENSE, "offload_optimizer", {"offload_optimizer": True}),
    (DENSE, "optimizer", {"optimizer": "adamw-bf16"}),
    (DENSE, "optimizer", {"optimizer": "muon"}),
    ("gpt-oss-20b", "cp", {"cp": 2, "cp_exchange": "ring"}),
    (DENSE, "quantization", {"dtype": "fp16", "quantization": "fp8_tensor"}),
    (DENSE, "training", {"training": False}),
]


FIRST = {
    "tp_overlap": ("tp_exchange",),
    "tp_regather": ("tp_exchange",),
    **dict.fromkeys(("schedule", "vpp"), ("pp", "vpp")),
    "ep": ("cp_exchange",),
    **dict.fromkeys(("etp", "dispatch_dtype", "expert_overlap", "dispatcher"), ("ep",)),
}
"""Fields that a release may refuse before these: it names one."""


def all_cells() -> list[tuple[Launcher, str, str, dict[str, Any]]]:
    own = ((deepspeed.LAUNCHER, OF_DEEPSPEED), (accelerate.LAUNCHER, OF_ACCELERATE))
    return [(one, *cell) for one, cells in own for cell in [*NEITHER, *cells]]


@each_row(("launcher", "model", "field", "fields"), all_cells())
def test_what_a_launcher_cannot_express(
    launcher: Launcher, model: str, field: str, fields: dict[str, Any]
) -> None:
    found = refused(launcher, model, fields)
    assert found & {field, *FIRST.get(field, ())}, found


@pytest.mark.parametrize("launcher", [deepspeed.LAUNCHER, accelerate.LAUNCHER])
def test_the_same_plan_without_it_is_expressed(launcher: Launcher) -> None:
    """Nothing but what the cells change stands in the way."""
    for model in (DENSE, EXPERTS):
        assert refused(launcher, model, {}) == set()
        assert refused(launcher, model, {"recompute": "full", "dp_shard": 8}) == set()


def test_writing_refuses_too() -> None:
    """Each fault of the launcher itself is one line."""
    model = Model.load(DENSE)
    fields = {"training": False, "pp": 4, "zero": 1, "first_stage_layers": 8}
    strategy = resolved(deepspeed.LAUNCHER, model, fields)
    with pytest.raises(InputError) as caught:
        launch_files(deepspeed.LAUNCHER, LaunchPlan(model=model, system=SYSTEM, strategy=strategy))
    assert [fault.field for fault in caught.value.faults] == ["training", "first_stage_layers"]
