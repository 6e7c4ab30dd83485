"""Plans drawn for torchtitan, and strategies in the form in which they can be compared."""

import random
from collections.abc import Iterator
from typing import Any

from shardwise import Model, Strategy, System
from shardwise.config.launch import Launch
from shardwise.config.strategy_table import Table
from shardwise.launchers.launch import LaunchPlan
from shardwise.launchers.torchtitan.fields import plan_faults, release_faults
from shardwise.parallel.constraints import illegal_faults
from shardwise.parallel.pipeline_layout import layers_on_ranks

STACK = "torchtitan-2025"
SYSTEM = "b200-sxm"  # has rates of all recipes
MODELS = (
    "llama3-8b",
    "llama3-70b",
    "llama4-scout",
    "deepseek-v2-lite",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
)


def made(model: Model, **fields: Any) -> LaunchPlan:
    """A plan with all fields filled in."""
    row = {"stack": STACK, "zero": 3, "gpus": 64, "gbs": 128} | fields
    return LaunchPlan(
        model=model, system=System.load(SYSTEM), strategy=Strategy(**row).resolved(model)
    )


def drawn_plans(seed: int, count: int, release: str) -> Iterator[LaunchPlan]:
    """Legal plans of a release."""
    numbers = random.Random(seed)  # noqa: S311
    models = {name: Model.load(name) for name in MODELS}
    found = 0
    while found < count:
        model = models[numbers.choice(MODELS)]
        plan = made(model, **_drawn(numbers, model))
        if is_legal(plan, release):
            found += 1
            yield plan


def is_legal(plan: LaunchPlan, release: str) -> bool:
    table = Table.of(plan.model, [plan.strategy])
    faults = [*illegal_faults(plan.model, plan.system, table).values()]
    faults += plan_faults(plan.model, plan.strategy)
    faults += release_faults(plan.model, plan.strategy, release)
    return not faults


def _drawn(numbers: random.Random, model: Model) -> dict[str, Any]:
    choose = numbers.choice
    tp, cp, pp = choose([1, 1, 2, 4]), choose([1, 1, 2]), choose([1, 1, 2, 4])
    dp, mbs = choose([1, 2, 4, 8]), choose([1, 2])
    batches = choose([4, 8, 8, 16])
    ep = choose([1, 2, 4]) if model.has_experts else 1
    row: dict[str, Any] = {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "gpus": tp * cp * pp * dp,
        "mbs": mbs,
        "gbs": dp * mbs * batches,
        "seq_len": choose([4096, 8192]),
        "ep": ep,
        "etp": choose([1, tp]) if ep > 1 else tp if model.has_experts else 1,
        "zero": choose([0, 2, 3, 3, 3]),
        "recompute": choose(["none", "full", "selective"]),
        "tp_overlap": choose(["stack", "none", "ring"]),
        "cp_exchange": choose(["all_gather", "all_gather", "ring"]),
        "dtype": choose(["bf16", "bf16", "fp32"]),
        "quantization": choose(["none", "fp8_row", "fp8_tensor", "mxfp8"]),
        "fsdp_reshard": choose([True, False]),
        "offload_weights": numbers.random() < 1 / 8,
    }
    row["offload_optimizer"] = row["offload_weights"]
    if row["quantization"] == "fp8_tensor":
        row["quantized_weights"] = choose([True, False])
    if row["dtype"] == "fp32":
        row |= {"quantization": "none", "quantized_weights": False}
    if row["zero"] == 3 and dp > 2:
        row["dp_shard"] = choose([None, 2, dp // 2])
    if ep > 1:
        row["dispatcher"] = choose(["all_to_all", "deepep"])
    return row | (_pipeline(numbers, model, pp) if pp > 1 else {})


def _pipeline(numbers: random.Random, model: Model, pp: int) -> dict[str, Any]:
    choose, depth = numbers.choice, model.depth
    vpp = choose([1, 2, 3])
    row: dict[str, Any] = {"vpp": vpp}
    row["schedule"] = "interleaved" if vpp > 1 else choose(["1f1b", "gpipe"])
    kind = choose(["even", "ends", "first", "list", "ends"])
    if kind == "ends":
        row |= {"embedding_as_layer": choose([True, False]), "loss_as_layer": True}
    if kind == "first" and vpp == 1:
        row |= {"first_stage_layers": depth // pp - 1}
    if kind == "list":
        sizes = [depth // (pp * vpp)] * (pp * vpp)
        for _ in range(depth - sum(sizes)):
            sizes[numbers.randrange(len(sizes))] += 1
        row["stage_layers"] = sizes
    return row


def canonical(model: Model, strategy: Strategy) -> dict[str, Any]:
    """A strategy with one value for what is the same run."""
    fields = strategy.resolved(model).to_dict()
    table = Table.of(model, [strategy])
    fields["stages"] = layers_on_ranks(model.depth, table, 0)
    for name in ("first_stage_layers", "last_stage_layers", "stage_layers"):
        del fields[name]
    del fields["embedding_as_layer"], fields["loss_as_layer"]
    shards = (fields["dp_shard"] or fields["dp"]) if fields["zero"] else 1
    fields["dp_shard"] = shards
    reshards = fields["zero"] == 3 and fields["fsdp_reshard"]
    is_sharded = shards * fields["cp"] > 1
    fields |= (
        {"zero": 3, "fsdp_reshard": reshards}
        if is_sharded
        else {
            "zero": 0,
            "fsdp_reshard": True,
        }
    )
    if fields["tp_overlap"] == "none" or fields["tp"] == 1:
        fields["tp_overlap"] = "stack"
    if fields["cp"] == 1:
        fields["cp_exchange"] = "all_gather"
    if fields["ep"] == 1:
        fields["dispatcher"] = "all_to_all"
    if not model.has_experts:
        fields["etp"] = 1
    if fields["recompute"] != "selective":
        fields["recompute_parts"] = ["every_other"]
    return fields


def imported(launch: Launch) -> tuple[Model, Strategy]:
    """Model and strategy of a launch file."""
    assert launch.model is not None
    return launch.model, Strategy.load(dict(launch.strategy))
