"""The software stack of a strategy that names none."""

import pytest

from rows import each_row
from shardwise import Model, Space, Strategy, System, estimate, estimate_many, export, search
from shardwise.config.enums import CudaGraphs
from shardwise.config.stack import DEFAULT_STACK
from shardwise.config.strategy_table import Table
from shardwise.planning.search.explain import UserStrategy

H100 = System.load("h100-sxm")
OTHER = H100.model_copy(update={"stack": "torchtitan-2025"})
ROW = {"gpus": 8, "tp": 8, "gbs": 8}


def test_a_strategy_without_a_stack_uses_that_of_the_system() -> None:
    """Estimates, tables and searches agree with the stack named in full."""
    named = estimate("llama3-8b", H100, {**ROW, "stack": "torchtitan-2025"})
    implied = estimate("llama3-8b", OTHER, ROW)
    assert implied.strategy["stack"] == "torchtitan-2025"
    assert implied.step_time_s == named.step_time_s
    found = search("llama3-8b", OTHER, gpus=8, gbs=8, tp=8, recompute="none", zero=1, top=1)
    assert found.best[0].strategy["stack"] == "torchtitan-2025"


def test_each_system_of_a_table_has_its_own_stack() -> None:
    """Rows on several systems equal those on each alone."""
    table = estimate_many("llama3-8b", [H100, OTHER, H100], [ROW])
    alone = [float(estimate_many("llama3-8b", one, [ROW]).step_time_s[0]) for one in (H100, OTHER)]
    assert table.step_time_s.tolist() == pytest.approx([alone[0], alone[1], alone[0]], rel=1e-12)
    assert alone[0] != alone[1]


def test_systems_without_a_stack_have_the_default() -> None:
    """A system file need not name software."""
    fields = {name: value for name, value in H100.to_dict().items() if name != "stack"}
    assert System.load(fields).stack == DEFAULT_STACK


@each_row(
    ("fields", "stored"),
    [
        ({}, True),
        ({"quantization": "fp8_tensor", "zero": 3}, True),
        ({"quantized_weights": False}, False),
        ({"quantization": "fp8_block"}, False),
        ({"quantization": "none"}, False),
        ({"zero": 0}, False),
        ({"lora_rank": 8}, False),
        ({"weight_dtype": "fp32"}, False),
        ({"stack": "megatron-core-2025"}, False),
    ],
)
def test_presets_of_megatron_bridge_store_weights_in_their_type(
    fields: dict[str, object], *, stored: bool
) -> None:
    """Of one strategy, in columns, and in the spaces of searches, where all of a space can."""
    usual = {"quantization": "mxfp8", "stack": "megatron-bridge-2026", "any_software": True}
    given, work = usual | fields, {"gpus": 8, "gbs": 8}
    model, system = Model.load("llama3-8b"), System.load("b200-sxm")
    strategy = Strategy.validated(given | work).resolved(model, system)
    assert strategy.quantized_weights is stored
    table = Table.of(model, {n: [v] for n, v in (given | work).items()}, system)
    assert table.quantized_weights.tolist() == [stored]
    space = Space.validated(given).settled(model, system)
    assert space.values("quantized_weights", system) == (fields.get("quantized_weights", stored),)
    if stored:
        mixed = Space.validated(given | {"zero": [0, 1]}).settled(model, system)
        assert mixed.values("quantized_weights", system) == (True, False)


def test_a_plan_without_these_fields_is_in_the_space_of_a_search() -> None:
    """What a strategy leaves open is what the space has by default."""
    model, system = Model.load("llama3-70b"), System.load("gb300-nvl72")
    space = Space.validated({"gpus": 64, "quantization": "nvfp4", "global_batch_size": 256})
    plan = {"gpus": 64, "pp": 4, "gbs": 256, "quantization": "nvfp4"}
    mine = UserStrategy.of(model, system, space, plan)
    assert mine.row.quantized_weights.tolist() == [True]
    assert "quantized_weights" not in mine.outside(space)


RECIPE = {"gpus": 256, "gbs": 4096, "pp": 2, "vpp": 4, "ep": 32, "quantization": "mxfp8"}


@each_row(
    ("fields", "found"),
    [
        ({}, ("full", True)),
        ({"pp": 1, "vpp": 1}, ("full", True)),
        ({"cuda_graphs": "full"}, ("full", True)),
        ({"expert_overlap": True}, ("full", True)),
        ({"cuda_graphs": "partial"}, ("partial", False)),
        ({"cuda_graphs": "stack"}, ("stack", False)),
        ({"expert_overlap": False}, ("stack", False)),
        ({"quantization": "none"}, ("stack", False)),
        ({"quantization": "nvfp4"}, ("stack", False)),
        ({"vpp": 1}, ("stack", False)),
        ({"ep": 1}, ("stack", False)),
        ({"dispatcher": "all_to_all"}, ("stack", False)),
        ({"recompute": "full"}, ("stack", False)),
        ({"recompute": "selective", "recompute_parts": ["moe"]}, ("stack", False)),
        ({"recompute": "selective", "recompute_parts": ["mla_up"]}, ("full", True)),
        ({"zero": 2}, ("stack", False)),
        ({"optimizer": "muon"}, ("stack", False)),
        ({"task": "sft", "data_lengths": [8, 9, 9]}, ("stack", False)),
        ({"offload_activations": True}, ("stack", False)),
        ({"lora_rank": 4}, ("stack", False)),
        ({"stack": {"base": "megatron-bridge-nvl72", "cuda_graphs": "none"}}, ("stack", False)),
        ({"stack": {"base": "megatron-bridge-nvl72", "cuda_graphs": "full"}}, ("full", True)),
        ({"stack": "megatron-bridge-2026"}, ("stack", False)),
    ],
)
def test_recipes_of_nvl72_capture_the_step_and_overlap_experts(
    fields: dict[str, object], found: tuple[str, bool]
) -> None:
    """Of one strategy, and in columns next to one of another recipe."""
    model, system = Model.load("deepseek-v3"), System.load("gb300-nvl72")
    given = RECIPE | {"any_software": True} | fields
    one = Strategy.validated(given).resolved(model, system)
    assert (one.cuda_graphs, one.expert_overlap) == found
    assert one.resolved(model, system) == one
    columns = {n: [v, v] for n, v in given.items()} | {"gpus": [256, 512]}
    table = Table.of(model, columns, system)
    graphs = [CudaGraphs.from_code(code) for code in table.cuda_graphs.tolist()]
    assert list(zip(graphs, table.expert_overlap.tolist(), strict=True)) == [found, found]


def test_an_export_has_what_an_estimate_has_by_default() -> None:
    """Written and read back for Megatron-Bridge on NVL72, whose stack the system names."""
    case = ("qwen3-30b-a3b", "gb200-nvl72")
    fields = {"gpus": 8, "ep": 8, "gbs": 64, "quantization": "mxfp8"}
    made = export("megatron-bridge", *case, fields)
    assert made.estimate.step_time_s == estimate(*case, fields).step_time_s
    assert made.estimate.strategy["cuda_graphs"] == "full"
    assert made.read_back.estimate is not None
    assert made.read_back.estimate.step_time_s == made.estimate.step_time_s


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "deepseek-v3.2", "llama3-70b"])
def test_other_models_have_neither_by_default(name: str) -> None:
    """Recipes of hybrids and of sparse attention capture layers or nothing."""
    fields = {"gpus": 64, "gbs": 512, "quantization": "mxfp8", "stack": "megatron-bridge-nvl72"}
    fields |= {"ep": 8} if name != "llama3-70b" else {}
    one = Strategy.validated(fields).resolved(Model.load(name), System.load("gb300-nvl72"))
    assert (one.cuda_graphs, one.expert_overlap) == ("stack", False)


def test_graphs_are_off_where_they_cannot_capture_layers() -> None:
    """With full recompute the host launches kernels one by one, as without graphs."""
    row = {"gpus": 8, "gbs": 8, "any_software": True, "micro_batch_size": 1}

    def time_s(graphs: str, **fields: object) -> float:
        stack = {"base": "megatron-core-2025", "cuda_graphs": graphs, "host_launch": "50 us"}
        return estimate("llama3-8b", H100, {**row, **fields, "stack": stack}).step_time_s

    assert time_s("partial") < time_s("none")
    for fields in ({"recompute": "full"}, {"offload_activations": True}):
        assert time_s("partial", **fields) == time_s("none", **fields)
    assert time_s("full", recompute="full") < time_s("none", recompute="full")
    assert time_s("full", offload_activations=True) == time_s("none", offload_activations=True)
