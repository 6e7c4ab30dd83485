"""What a search tries by default: what recipes use and the stack can run."""

import pytest

from rows import each_row
from shardwise import InputError, Model, System, estimate, search
from shardwise.config.enums import Dispatcher
from shardwise.config.model import Model as AnyModel
from shardwise.planning.search.layouts import uneven_layers
from shardwise.planning.search.space import Space

H100 = System.load("h100-sxm").model_copy(update={"stack": "megatron-bridge-2026"})
TITAN = H100.model_copy(update={"stack": "torchtitan-2025"})
DENSE, EXPERTS = Model.load("llama3-8b"), Model.load("qwen3-30b-a3b")
LATENT = Model.load("deepseek-v3")


def tried(model: AnyModel, field: str, system: System = H100, **space: object) -> object:
    """Values of a field for a model."""
    return Space.validated(space).settled(model, system).values(field, system)


@each_row(
    ("field", "system", "practical", "full"),
    [
        ("zero", H100, (1, 2, 3), (1, 0, 2, 3)),
        ("zero", TITAN, (3, 2), (3, 0, 2)),
        ("schedule", H100, ("1f1b", "interleaved"), ("1f1b", "interleaved")),
        ("tp_exchange", H100, ("rs_ag",), ("all_reduce", "rs_ag")),
        ("offload_optimizer", H100, (False,), (False, True)),
        ("offload_weights", H100, (False,), (False,)),
        ("placement", H100, ("tp-cp-dp-pp",), ("tp-cp-dp-pp", "tp-cp-pp-dp")),
        ("recompute", H100, ("none", "full"), ("none", "full")),
        ("recompute_parts", TITAN, (("every_other",),), (("every_other",),)),
    ],
)
def test_a_dense_model(field: str, system: System, practical: object, full: object) -> None:
    """The full scope has more, but nothing that the stack cannot run."""
    assert tried(DENSE, field, system) == practical
    assert tried(DENSE, field, system, scope="full") == full


@each_row(
    ("model", "system", "space", "graphs"),
    {
        "rack": (EXPERTS, "gb200-nvl72", {"quantization": "mxfp8"}, ("stack", "partial", "full")),
        "16 bits": (EXPERTS, "gb300-nvl72", {}, ("stack", "partial")),
        "server": (EXPERTS, "b200-sxm", {"quantization": "mxfp8"}, ("stack", "partial")),
        "full scope": (EXPERTS, "b300-sxm", {"scope": "full"}, ("stack", "partial")),
        "dense": (DENSE, "b200-sxm", {}, ("stack",)),
        "Hopper": (EXPERTS, "h100-sxm", {}, ("stack",)),
        "other software": (EXPERTS, "b200-sxm", {"stack": "megatron-core-2025"}, ("stack",)),
        "graphs of the stack": (
            EXPERTS,
            "b200-sxm",
            {"stack": {"base": "megatron-bridge-2026", "cuda_graphs": "partial"}},
            ("stack",),
        ),
        "named": (EXPERTS, "gb200-nvl72", {"cuda_graphs": "none"}, ("none",)),
        "scope": (EXPERTS, "gb200-nvl72", {"graph_scope": "attn"}, ("stack",)),
    }.values(),
)
def test_graphs_of_experts_are_those_of_recipes(
    model: AnyModel, system: str, space: dict[str, object], graphs: tuple[str, ...]
) -> None:
    """One graph of the step needs fused experts; what the stack captures is tried once."""
    assert tried(model, "cuda_graphs", System.load(system), **space) == graphs
    assert Space.validated(space).not_tried(model, System.load(system)).get("cuda_graphs") is None


def test_experts_have_the_dispatchers_and_modules_of_the_stack() -> None:
    """The default dispatcher comes first; a set is tried where the model has all its parts."""
    three = (Dispatcher.HYBRIDEP, Dispatcher.ALL_TO_ALL, Dispatcher.DEEPEP)
    assert tried(EXPERTS, "dispatcher") == three
    assert Dispatcher.ALL_GATHER in tried(EXPERTS, "dispatcher", scope="full")  # type: ignore[operator]
    assert tried(EXPERTS, "expert_overlap") == (False, True)
    sets = tried(LATENT, "recompute_parts")
    assert ("mla_up", "mlp") in sets  # type: ignore[operator]
    assert ("mla_up", "mlp") not in tried(EXPERTS, "recompute_parts")  # type: ignore[operator]


def test_degrees_stay_in_the_domain_and_leave_a_rank_enough_tokens() -> None:
    """8 accelerators are a domain; 8,192 tokens are split in two at most."""
    few = {"gbs": 16, "zero": 1, "recompute": "none", "mbs": 1, "pp": 1, "tp_overlap": "stack"}
    found = search(DENSE, H100, few, gpus=16, top=1000)
    assert {plan.strategy["tp"] for plan in found.best} <= {1, 2, 4, 8}
    assert {plan.strategy["cp"] for plan in found.best} == {1, 2}
    assert found.not_tried["tp"] == ("above 8",)
    assert found.not_tried["cp"] == ("above 2",)
    wide = search(DENSE, H100, few | {"scope": "full"}, gpus=32, tp=32)
    assert wide.evaluated
    assert not wide.not_tried


def test_flags_that_no_scope_varies_are_listed_where_they_have_an_effect() -> None:
    """Weights gathered in fp8 count with products in fp8, and with ZeRO-3 what it frees."""
    model, system = Model.load(DENSE), System.load(H100)
    space = Space(gpus=8, global_batch_size=8, stack="torchtitan-2025")
    plain = space.not_tried(model, system)
    assert "quantized_weights" not in plain
    fields = {"quantization": "fp8_tensor", "zero": 3}
    found = space.fixed(fields, source="test").not_tried(model, system)
    assert found["quantized_weights"] == (True,)
    assert found["fsdp_reshard"] == (False,)


@each_row(
    ("depth", "places", "layers"),
    [
        (61, 32, (1, *[2] * 30, 0)),
        (94, 32, (2, *[3] * 30, 2)),
        (7, 2, (4, 3)),
        (8, 2, None),
        (5, 4, (1, 2, 2, 0)),
        (9, 8, (1, 2, 1, 1, 1, 1, 1, 1)),
        (7, 16, None),
    ],
)
def test_layers_that_do_not_come_out_even(
    depth: int, places: int, layers: tuple[int, ...] | None
) -> None:
    """The last and the first chunk have fewer, in turn; DeepSeek-V3's recipe has the first row.

    Where they have too few, some chunks in between have one more.
    """
    assert uneven_layers(depth, places) == layers
    assert layers is None or sum(layers) == depth


def test_uneven_stages_are_searched_and_legal() -> None:
    """Without them 61 layers could not be piped at all."""
    found = search(LATENT, H100, gpus=1024, gbs=2048, pp=8, vpp=4, tp=2, ep=64, mbs=1, top=1)
    plan = found.best[0].strategy
    assert sorted(plan["stage_layers"]) == [0, 1, *[2] * 30]
    assert plan["stage_layers"][-1] == 0
    assert estimate(LATENT, H100, plan).step_time_s == found.best[0].step_time_s


def test_offload_is_tried_where_nothing_fits_without_it() -> None:
    """Fields that the space names stay as they are."""
    space = {"gpus": 8, "gbs": 8, "tp": 8, "pp": 1, "zero": 1, "recompute": "full", "cp": 1}
    found = search("llama3-70b", H100, space, mbs=1, top=1, fits=None)
    assert found.widened == ("offload_weights", "offload_activations", "offload_optimizer")
    assert found.best[0].strategy["offload_optimizer"]
    none = search("llama3-70b", H100, space, mbs=1, top=1, offload_optimizer=False, fits=None)
    assert not none.best
    plenty = search(DENSE, H100, gpus=8, gbs=8, tp=8, mbs=1, zero=1, top=1)
    assert not plenty.widened
    assert plenty.not_tried["offload_optimizer"] == (True,)


def test_a_stack_has_defaults_of_its_own() -> None:
    """FSDP shards weights unless a strategy says otherwise; a table agrees row by row."""
    row = {"gpus": 8, "gbs": 8}
    assert estimate(DENSE, TITAN, row).strategy["zero"] == 3
    assert estimate(DENSE, TITAN, {**row, "zero": 2}).strategy["zero"] == 2
    assert estimate(DENSE, H100, row).strategy["zero"] == 1
    with pytest.raises(InputError, match="zero: 1: torchtitan-2025"):
        estimate(DENSE, TITAN, {**row, "zero": 1})


def test_any_software_tries_what_the_stack_lacks() -> None:
    """It is asked for by name."""
    assert "p2p_rs_ag" in tried(DENSE, "tp_exchange", scope="full", any_software=True)  # type: ignore[operator]
    assert "p2p_rs_ag" not in tried(DENSE, "tp_exchange", scope="full")  # type: ignore[operator]
