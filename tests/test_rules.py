"""Which strategies are legal: a strategy for each rule that breaks it, and what is just legal."""

from typing import Any

import pytest

import precision_samples
import samples
from shardwise import InputError, Model, System, estimate
from shardwise.rules import RULES, broken_rule, refuse_illegal
from shardwise.table import Table

MODEL = samples.model()


SYSTEM = samples.system()
EXPERTS = samples.deepseek()


def faults(error: pytest.ExceptionInfo[InputError]) -> dict[str, str]:
    return {fault.field: str(fault) for fault in error.value.faults}


def island() -> System:
    return samples.system(network=[samples.tier(domain=8)])


SIXES = samples.model(
    samples.layer(attention={"heads": 12, "kv_heads": 12}, mlp={"ffn": 60}), seq_len=36
)


def filled() -> System:
    """Tiers of 8 and 32 accelerators, the inner one to be filled with whole groups."""
    inner = samples.tier("inside", domain=8) | {"must_be_filled": True}
    return samples.system(network=[inner, samples.tier("rack", domain=32), samples.tier("all")])


SUMMA = {"tp": 2, "tp_exchange": "summa"}
MOE = {"experts": 8, "top_k": 2, "ffn": 32, "activation": "swiglu"}
TIERS = [{"name": name, "capacity": 80e9, "bandwidth": 1e12} for name in ("hbm", "host")]
SECOND = samples.system(memory=TIERS)


BREAKING: dict[str, tuple[dict[str, Any], Model, System, tuple[str, ...]]] = {
    "degrees": ({"gpus": 8, "tp": 2, "pp": 2, "dp": 4}, MODEL, SYSTEM, ("8", "2 x 1 x 2 x 4 = 16")),
    "accelerators": ({"dp": 16}, MODEL, island(), ("16", "at most 8")),
    "dtype": ({"dtype": "bf16"}, MODEL, System.load("v100-sxm-32gb"), ("bf16", "fp16")),
    "heads": ({"tp": 16}, MODEL, SYSTEM, ("16", "heads of the model, 8")),
    "kv_heads": (
        {"tp": 6, "sequence_parallel": False},
        samples.model(samples.layer(attention={"heads": 12, "kv_heads": 4}, mlp={"ffn": 60})),
        SYSTEM,
        ("6", "key-value heads of the model, 4"),
    ),
    "ffn": ({"tp": 8}, samples.model(samples.layer(mlp={"ffn": 100})), SYSTEM, ("8", "100")),
    "sequence": ({"tp": 4, "seq_len": 30}, MODEL, SYSTEM, ("4", "30")),
    "layers": ({"pp": 2, "vpp": 4}, MODEL, SYSTEM, ("up to 2 layers", "vpp 4")),
    "batch": ({"dp": 2, "mbs": 3}, MODEL, SYSTEM, ("16", "2 x 3 = 6")),
    "stages": ({"vpp": 2}, MODEL, SYSTEM, ("2", "allowed: 1")),
    "schedule": ({"schedule": "interleaved"}, MODEL, SYSTEM, ("interleaved", "vpp is 1")),
    "positions": ({"seq_len": 64}, MODEL, SYSTEM, ("64", "32 learned positions")),
    "zero": ({"zero": 4}, MODEL, SYSTEM, ("4", "allowed: 0, 1, 2, 3")),
    "dp_shard": ({"dp": 4, "dp_shard": 3}, MODEL, SYSTEM, ("3", "must divide dp 4")),
    "dp_shard_zero": ({"dp": 4, "dp_shard": 2, "zero": 0}, MODEL, SYSTEM, ("2", "zero 0")),
    "dp_shard_experts": (
        {"dp": 4, "ep": 4, "dp_shard": 2},
        EXPERTS,
        SYSTEM,
        ("2", "dp 4", "the 1 replicas of an expert"),
    ),
    "fsdp_reshard": ({"fsdp_reshard": False, "zero": 2}, MODEL, SYSTEM, ("False", "zero 3 only")),
    "quantization": (
        {"quantization": "fp8_block"},
        MODEL,
        SYSTEM,
        ("fp8_block", "no matrix rate", "allowed: none"),
    ),
    "quantization_dtype": (
        {"quantization": "mxfp8", "dtype": "fp32"},
        MODEL,
        precision_samples.chip(),
        ("mxfp8", "dtype bf16 or fp16"),
    ),
    "quantized_weights": ({"quantized_weights": True}, MODEL, SYSTEM, ("quantization none",)),
    "dispatch_dtype": (
        {"dispatch_dtype": "fp8"},
        MODEL,
        precision_samples.chip(),
        ("fp8", "no experts"),
    ),
    "dispatch_dtype_fp8": ({"dispatch_dtype": "fp8"}, EXPERTS, SYSTEM, ("no fp8", "dtype")),
    "documents": ({"document_len": 33}, MODEL, SYSTEM, ("33", "at most seq_len 32")),
    "recompute_parts": (
        {"recompute": "full", "recompute_parts": ("mlp",)},
        MODEL,
        SYSTEM,
        ("mlp", "selective only"),
    ),
    "parts_lacking": (
        {"recompute": "selective", "recompute_parts": ("moe", "mla_up")},
        MODEL,
        SYSTEM,
        ("sample has no mla_up or moe",),
    ),
    "norm_parts": (
        {
            "tp": 2,
            "tp_regather": False,
            "recompute": "selective",
            "recompute_parts": ("core_attention", "mlp_norm"),
        },
        MODEL,
        SYSTEM,
        ("mlp_norm", "tp_regather must be true"),
    ),
    "activation_parts": (
        {
            "fused_activation": True,
            "recompute": "selective",
            "recompute_parts": ("activation", "mlp"),
        },
        MODEL,
        SYSTEM,
        ("activation", "already"),
    ),
    "offload_parts": (
        {"offload_parts": ("mlp",)},
        MODEL,
        SECOND,
        ("mlp", "offload_activations only"),
    ),
    "offload_lacking": (
        {"offload_activations": True, "offload_parts": ("router", "expert_up", "other")},
        MODEL,
        SECOND,
        ("sample has no router or expert_up or other; nothing would be offloaded",),
    ),
    "frozen_adapters": (
        {"frozen": ("mlp",), "lora_rank": 4},
        MODEL,
        SYSTEM,
        ("mlp", "with lora_rank all weights"),
    ),
    "frozen_lacking": ({"frozen": ("mlp", "experts")}, MODEL, SYSTEM, ("sample has no experts",)),
    "frozen_everything": (
        {"frozen": ("embedding", "attention", "mlp", "norms", "head")},
        MODEL,
        SYSTEM,
        ("nothing to train", "training is false"),
    ),
    "frozen_tied": ({"frozen": ("embedding",)}, MODEL, SYSTEM, ("one table", "both or none")),
    "frozen_training": (
        {"frozen": ("mlp",), "training": False},
        MODEL,
        SYSTEM,
        ("mlp", "training only"),
    ),
    "lora_rank_training": ({"lora_rank": 4, "training": False}, MODEL, SYSTEM, ("training only",)),
    "lora_parts": ({"lora_parts": ("mlp",)}, MODEL, SYSTEM, ("mlp", "lora_rank only")),
    "lora_lacking": (
        {"lora_rank": 4, "lora_parts": ("mlp", "experts")},
        MODEL,
        SYSTEM,
        ("sample has no experts",),
    ),
    "recompute_frozen": (
        {"recompute": "full", "frozen": ("embedding", "attention", "mlp", "norms")},
        samples.llama(),
        SYSTEM,
        ("full", "nothing before the head", "allowed: none"),
    ),
    "fused_activation_stack": (
        {"fused_activation": True, "stack": samples.stack(fused_swiglu=False)},
        samples.llama(),
        SYSTEM,
        ("plain has no fused_swiglu", "allowed: false"),
    ),
    "recompute_depth": (
        {"recompute": "full", "recompute_layers": 5},
        MODEL,
        SYSTEM,
        ("5", "the 4 layers of sample"),
    ),
    "recompute_layers": ({"recompute_layers": 2}, MODEL, SYSTEM, ("2", "recompute none")),
    "context": ({"cp": 3}, MODEL, SYSTEM, ("3", "2 x cp must divide seq_len 32")),
    "context_heads": (
        {"tp": 4, "cp": 4, "cp_exchange": "all_to_all"},
        MODEL,
        SYSTEM,
        ("tp x cp = 16", "heads of the model, 8"),
    ),
    "context_attention": (
        {"cp": 2, "stack": samples.stack(attention="unfused")},
        MODEL,
        SYSTEM,
        ("2", "flash attention", "allowed: 1"),
    ),
    "latent_heads": ({"attention": "multiquery"}, EXPERTS, SYSTEM, ("latent", "allowed: model")),
    "half_stages": (
        {"pp": 4, "schedule": "zb-v"},
        MODEL,
        SYSTEM,
        ("4", "two stages on each rank", "half of the 4 layers"),
    ),
    "stage_list": ({"pp": 2, "stage_layers": (4,)}, MODEL, SYSTEM, ("(4,)", "2 stages")),
    "stage_list_sum": ({"pp": 2, "stage_layers": (1, 2)}, MODEL, SYSTEM, ("(1, 2)", "4 layers")),
    "stage_list_only": (
        {"pp": 2, "stage_layers": (1, 3), "loss_as_layer": True},
        MODEL,
        SYSTEM,
        ("(1, 3)", "leave out", "loss_as_layer"),
    ),
    "spread": ({"pp": 2, "first_stage_layers": 5}, MODEL, SYSTEM, ("5", "4 layers over 2 stages")),
    "zero_bubble": ({"schedule": "zb-h1"}, MODEL, SYSTEM, ("zb-h1", "pp > 1", "training")),
    "dualpipe": (
        {"pp": 2, "schedule": "dualpipe", "gbs": 5},
        MODEL,
        SYSTEM,
        ("dualpipe", "even pp, 2", "they are 5"),
    ),
    **{
        flag: ({flag: True}, MODEL, SYSTEM, ("no second memory tier", "allowed: false"))
        for flag in ("offload_weights", "offload_activations", "offload_optimizer")
    },
    **{
        f"{axis}_tier": ({f"{axis}_tier": 2}, MODEL, SYSTEM, ("2 tiers", "allowed: 0 to 1"))
        for axis in ("tp", "cp", "dp", "pp")
    },
    "tier_size": (
        {"tp": 8, "dp": 2, "pp": 4, "tp_tier": 0, "dp_tier": 1, "pp_tier": 1},
        MODEL,
        filled(),
        ("tp 8 x dp 2 x pp 4", "rack", "more than its 32"),
    ),
    "tp2": ({"tp2": 2, "gpus": 2}, MODEL, SYSTEM, ("2 needs 2D products", "allowed without: 1")),
    "summa_panels": (
        SUMMA | {"tp": 1, "summa_panels": 4},
        MODEL,
        SYSTEM,
        ("4", "tp_exchange summa, and tp or tp2 above 1, only; leave it out"),
    ),
    "summa_hidden": (
        SUMMA | {"tp": 3},
        samples.model(samples.layer(attention={"heads": 9, "kv_heads": 9}, mlp={"ffn": 63})),
        SYSTEM,
        ("3", "with tp_exchange summa it must divide the width 64"),
    ),
    "summa_widths": (
        SUMMA | {"tp2": 8},
        samples.model(samples.layer(mlp={"ffn": 252})),
        SYSTEM,
        ("8", "must divide the rows of all weights, 64, 252"),
    ),
    "summa_cut": (
        SUMMA | {"tp2": 4, "summa_panels": 6},
        MODEL,
        SYSTEM,
        ("6", "a multiple of tp 2 and tp2 4 that divides the rows of all weights, 64, 256"),
    ),
    "summa_sequence": (
        SUMMA | {"tp2": 2, "seq_len": 30},
        MODEL,
        SYSTEM,
        ("2", "2 x tp2 = 4 must divide seq_len 30"),
    ),
    "summa_kv_heads": (
        SUMMA | {"tp": 4},
        samples.llama(),
        SYSTEM,
        ("4", "with tp_exchange summa it must divide the key-value heads of the model, 2"),
    ),
    "summa_context": (
        SUMMA | {"cp": 2},
        MODEL,
        SYSTEM,
        ("2", "must be 1 with tp_exchange summa: tp2 splits the sequence"),
    ),
    "summa_overlap": (
        SUMMA | {"tp_overlap": "pipe"},
        MODEL,
        SYSTEM,
        ("pipe", "what tp_exchange summa has cut in panels already; allowed: stack, none"),
    ),
    "summa_attention": (
        SUMMA | {"tp2": 2, "dtype": "fp32"},
        MODEL,
        SYSTEM,
        ("2", "a stack with flash attention and a 16-bit type; allowed: 1"),
    ),
    "summa_quantization": (
        SUMMA | {"quantization": "fp8_tensor"},
        MODEL,
        precision_samples.chip(),
        ("fp8_tensor", "not modelled with tp_exchange summa; allowed: none"),
    ),
    "summa_lora": (
        SUMMA | {"lora_rank": 4},
        MODEL,
        SYSTEM,
        ("4", "not modelled with tp_exchange summa; leave it out"),
    ),
    "summa_experts": (
        SUMMA,
        samples.llama(layers=[samples.layer() | {"mlp": None, "moe": MOE}]),
        SYSTEM,
        ("summa", "not modelled with experts; allowed: all_reduce, rs_ag, p2p_rs_ag"),
    ),
    "summa_latent": (
        SUMMA,
        samples.llama(layers=[EXPERTS.to_dict()["layers"][0]]),
        SYSTEM,
        ("not modelled with latent attention;",),
    ),
    "summa_parallel": (
        SUMMA,
        samples.model(samples.layer(parallel=True)),
        SYSTEM,
        ("not modelled with attention and MLP side by side;",),
    ),
    "summa_kind": (
        SUMMA,
        samples.model(samples.layer(kind="mixer")),
        SYSTEM,
        ("not modelled with layers of registered kinds;",),
    ),
    "summa_prediction": (
        SUMMA,
        samples.llama(mtp=1),
        SYSTEM,
        ("not modelled with multi-token prediction;",),
    ),
    "summa_positions": (
        SUMMA,
        samples.model(position="relative-bias"),
        SYSTEM,
        ("not modelled with relative positions;",),
    ),
    "tier_filled": ({"tp": 6, "tp_tier": 0}, SIXES, filled(), ("tp 6", "inside", "divide", "8")),
    "extents_tier": ({"extents": "dp=2", "dp": 2, "dp_tier": 0}, MODEL, SYSTEM, ("dp_tier",)),
    "extents_tiers": ({"extents": "dp=2/dp=2", "dp": 4}, MODEL, SYSTEM, ("2 tiers", "has 2")),
    "extents_degrees": (
        {"extents": "tp=2+dp=4+pp=3", "tp": 2, "dp": 2, "pp": 2},
        MODEL,
        SYSTEM,
        ("does not divide dp 2, pp 2",),
    ),
    "extents_experts": (
        {"extents": "dp=4+ep=3", "ep": 4, "dp": 8},
        EXPERTS,
        SYSTEM,
        ("ep 4, etp 1", "on every tier"),
    ),
    "edges": (
        {"tp": 4, "pp": 2, "seq_len": 30, "tp_exchange": "p2p_rs_ag"},
        MODEL,
        SYSTEM,
        ("tp 4", "= 30", "all_reduce"),
    ),
    "ep_experts": ({"ep": 2, "dp": 2}, MODEL, SYSTEM, ("2", "no experts", "allowed: 1")),
    "etp_experts": ({"etp": 2, "dp": 2}, MODEL, SYSTEM, ("2", "no experts", "allowed: 1")),
    "ep": ({"ep": 3, "dp": 3, "gbs": 3}, EXPERTS, SYSTEM, ("3", "experts of the model, 8")),
    "etp": ({"etp": 3, "dp": 3, "gbs": 3}, EXPERTS, SYSTEM, ("3", "experts' width, 32")),
    "expert_ranks": (
        {"ep": 4, "etp": 2, "dp": 4},
        EXPERTS,
        SYSTEM,
        ("ep x etp = 8", "tp x cp x dp = 4"),
    ),
    "routing": (
        {"tp": 2, "sequence_parallel": False},
        EXPERTS,
        SYSTEM,
        ("False", "tp 2", "allowed: true"),
    ),
    "expert_load": ({"expert_imbalance": 1.5}, MODEL, SYSTEM, ("1.5", "no experts")),
    "expert_overlap": ({"expert_overlap": True}, MODEL, SYSTEM, ("no experts", "allowed: false")),
    "expert_overload": (
        {"expert_capacity": 4.5},
        EXPERTS,
        SYSTEM,
        ("4.5", "every token once", "allowed: at most 4"),
    ),
    "expert_loads": (
        {"expert_capacity": 1.5, "expert_imbalance": 1.25},
        EXPERTS,
        SYSTEM,
        ("1.25", "no effect with expert_capacity", "allowed: 1"),
    ),
}


def test_every_rule_is_broken_below() -> None:
    """A new rule needs a strategy that breaks it."""
    assert {rule.reason for rule in RULES} == set(BREAKING)


@pytest.mark.parametrize("reason", BREAKING)
def test_a_broken_rule_names_its_field_and_what_is_allowed(reason: str) -> None:
    """In a table the row has the rule's reason; alone it raises, with field, value and bound."""
    given, model, system, told = BREAKING[reason]
    columns = {"dp": 1, "gbs": 16} | given
    position = [rule.reason for rule in RULES].index(reason)
    table = Table.of(model, columns)
    assert broken_rule(model, system, table).tolist() == [position]
    with pytest.raises(InputError) as error:
        refuse_illegal(model, system, table)
    rule = RULES[position]
    field = rule.blame(model, system, table) if rule.blame else rule.field
    message = faults(error)[field]
    assert [word for word in told if word not in message] == []
    with pytest.raises(InputError) as error:
        estimate(model, system, columns)
    assert field in faults(error)


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"tp": 6}, "tp"),
        ({"tp": 6, "tp_tier": 0}, "tp_tier"),
        ({"tp": 4, "dp": 16, "tp_tier": 0, "dp_tier": 1}, "dp_tier"),
        ({"tp": 12, "dp": 2, "tp_tier": 0, "dp_tier": 1}, "tp_tier"),
    ],
)
def test_a_crowded_tier_blames_the_axis_that_crowds_it(columns: dict[str, int], field: str) -> None:
    """The largest on the first tier that is too small, or not filled, and that axis alone."""
    given = {"dp": 1, "gbs": 48, "sequence_parallel": False} | columns
    with pytest.raises(InputError) as error:
        refuse_illegal(SIXES, filled(), Table.of(SIXES, given))
    assert set(faults(error)) == {field}


def test_a_job_smaller_than_a_tier_fills_it_with_others() -> None:
    """2 of 8 accelerators: three more such jobs fill the rest."""
    for columns in ({"tp": 2}, {"tp": 2, "tp_tier": 0}, {"dp": 4}):
        table = Table.of(MODEL, {"dp": 1, "gbs": 16} | columns)
        assert broken_rule(MODEL, filled(), table).tolist() == [-1]


def test_bounds_are_legal() -> None:
    """A whole network, a whole batch in one pass, every head on a rank of its own; one more not."""

    def legal(system: System = SYSTEM, **columns: int) -> bool:
        return bool(broken_rule(MODEL, system, Table.of(MODEL, columns))[0] < 0)

    assert legal(island(), dp=8, gbs=8)
    assert not legal(island(), dp=9, gbs=9)
    assert legal(dp=4, mbs=2, gbs=8)
    assert not legal(dp=4, mbs=2, gbs=4)
    assert not legal(dp=4, mbs=2, gbs=12)
    assert legal(dp=1, tp=8, gbs=1)
    assert legal(dp=1, gbs=1, seq_len=32)
    assert legal(dp=1, pp=4, gbs=1)
    assert legal(dp=1, pp=2, vpp=2, gbs=2)


def test_all_broken_rules_are_told_at_once() -> None:
    """Three faults, three lines; a legal strategy passes."""
    table = Table.of(MODEL, {"tp": 16, "dp": 1, "gbs": 1, "zero": 4, "ep": 2})
    with pytest.raises(InputError) as error:
        refuse_illegal(MODEL, SYSTEM, table)
    assert list(faults(error)) == ["tp", "ep", "zero"]
    assert len(str(error.value).splitlines()) == 3
    refuse_illegal(MODEL, SYSTEM, Table.of(MODEL, {"dp": 1, "gbs": 1}))


def test_which_field_is_to_blame_depends_on_what_was_given() -> None:
    """Of loads of experts and of stages the one that was given; the last stage after the first."""
    for columns, field in (
        ({"expert_capacity": 2}, "expert_capacity"),
        ({"expert_imbalance": 2}, "expert_imbalance"),
        ({"pp": 2, "last_stage_layers": 5}, "last_stage_layers"),
        ({"pp": 2, "first_stage_layers": 3, "last_stage_layers": 3}, "first_stage_layers"),
        ({"pp": 6, "loss_as_layer": True}, "loss_as_layer"),
    ):
        with pytest.raises(InputError) as error:
            refuse_illegal(MODEL, SYSTEM, Table.of(MODEL, {"dp": 1, "gbs": 1} | columns))
        assert field in faults(error)


def test_bounds_of_axes_and_stages_are_legal() -> None:
    """As many experts as ranks, ranks of experts across tp, cp and dp; a stage without layers."""

    def reasons(model: Model, **columns: Any) -> list[str]:
        table = Table.of(model, {"dp": 1, "gbs": 16} | columns)
        return [RULES[at].reason for at in broken_rule(model, SYSTEM, table) if at >= 0]

    assert reasons(EXPERTS, tp=2, cp=2, dp=2, ep=8) == []
    assert reasons(EXPERTS, tp=2, dp=2, ep=2, etp=2) == []
    assert reasons(EXPERTS, dp=8, ep=4, dp_shard=4) == []
    assert reasons(EXPERTS, dp=8, ep=4, dp_shard=2) == ["dp_shard_experts"]
    assert reasons(EXPERTS, pp=4) == reasons(EXPERTS, pp=2, vpp=2) == []
    assert reasons(MODEL, tp=2, cp=4, cp_exchange="all_to_all") == []
    assert reasons(MODEL, cp=16) == []
    assert reasons(MODEL, pp=3, stage_layers=(0, 4, 0)) == []
    assert reasons(MODEL, pp=2, vpp=2, stage_layers=(1, 0, 2, 1)) == []
    assert reasons(MODEL, pp=2, schedule="zb-v", stage_layers=(1, 1, 1, 1)) == []
    assert reasons(MODEL, pp=2, first_stage_layers=4) == []
    assert reasons(MODEL, pp=2, first_stage_layers=1, last_stage_layers=3) == []
    assert reasons(MODEL, pp=2, first_stage_layers=1, last_stage_layers=2) == ["spread"]
    assert reasons(MODEL, first_stage_layers=4, last_stage_layers=4) == []
    assert reasons(MODEL, first_stage_layers=5) == ["spread"]
    assert reasons(MODEL, first_stage_layers=1, last_stage_layers=3) == ["spread"]
    assert reasons(MODEL, pp=6, embedding_as_layer=True, loss_as_layer=True) == []
    assert reasons(MODEL, pp=2, schedule="dualpipe", gbs=4) == []
    assert reasons(MODEL, pp=2, schedule="dualpipe", gbs=2) == ["dualpipe"]
    assert reasons(MODEL, pp=2, schedule="zb-h1", training=False) == ["zero_bubble"]
    assert reasons(MODEL, document_len=32, zero=3, fsdp_reshard=False) == []
    parts = {"recompute": "selective", "recompute_parts": ("mlp",)}
    assert reasons(MODEL, **parts, fused_activation=True) == []
    assert reasons(MODEL, recompute="selective", recompute_parts=("mlp", "moe")) == []
    norm = {"recompute": "selective", "recompute_parts": ("mlp_norm",)}
    assert reasons(MODEL, **norm, tp=2) == reasons(MODEL, **norm, tp_regather=False) == []
    assert reasons(EXPERTS, expert_overlap=True) == []


def test_unlimited_learned_positions() -> None:
    """A table larger than the training length allows longer sequences; rope allows any."""
    longer = samples.model(max_positions=128)
    columns = {"dp": 1, "gbs": 1, "seq_len": [64, 128, 256]}
    broken = broken_rule(longer, SYSTEM, Table.of(longer, columns))
    assert (broken < 0).tolist() == [True, True, False]
    rotary = samples.llama()
    assert (broken_rule(rotary, SYSTEM, Table.of(rotary, columns)) < 0).all()
