"""The forms of torchtitan and of transformers: what they take, and what they cannot say."""

import ast

import pytest

from emitted_calls import LAYERS, PLAIN, ran, tree, unit, wrapping
from rows import each_row
from shardwise.fsdp.emit import Form, huggingface_form, torchtitan_form
from shardwise.fsdp.plan import Setting


def test_torchtitan_form_takes_the_place_of_apply_fsdp():
    units = [unit("tok_embeddings"), *(unit(f"layers.{i}") for i in range(4))]
    units.append(unit("norm", "output", reshard=False))
    form = torchtitan_form(
        wrapping(*units, checkpointed=["layers.0"]),
        Setting(shards=4, replicas=2),
        model_name="Llama",
        modules=[f"layers.{i}" for i in range(4)],
    )
    assert "    for layer in model.layers.values():\n" in form.text
    names = [name for u in units for name in u.modules]
    given = {"dp_mesh": "mesh", "param_dtype": "p", "reduce_dtype": "r", "pp_enabled": False}
    told = ran(form.text, tree(names, {"layers"}), "apply_fsdp", **given, cpu_offload=True)
    assert told["mesh"] == "mesh"
    assert told["policy"] == ("p", "r", {})
    assert told["calls"][:-1] == [(u.modules, u.reshard_after_forward) for u in units]
    with pytest.raises(ValueError, match="pipeline"):
        ran(form.text, tree(names, {"layers"}), "apply_fsdp", **given | {"pp_enabled": True})
    notes = "\n".join(form.notes)
    assert "data_parallel_shard_degree = 4, data_parallel_replicate_degree = 2" in notes
    assert 'mixed_precision_param = "bfloat16"' in notes
    assert "planned: layers.*" in notes
    assert "disable_fsdp_gradient_division" in notes


def plan_of(form):
    """The dictionary in the text."""
    found = [n for n in ast.parse(form.text).body if isinstance(n, ast.Assign)]
    return ast.literal_eval(found[0].value)


def test_huggingface_form_of_what_it_can_say():
    """Embedding, layers, and norm with head kept: what transformers does by itself."""
    units = [unit("model.embed_tokens"), *map(unit, LAYERS)]
    units.append(unit("model.norm", "lm_head", reshard=False))
    form = huggingface_form(wrapping(*units), Setting(shards=8, replicas=2), modules=LAYERS)
    assert plan_of(form) == {
        "model.embed_tokens": "free_full_weight",
        "model.layers.*": "free_full_weight",
        "model.norm": "keep_full_weight",
        "lm_head": "keep_full_weight",
    }
    assert (
        "DistributedConfig(fsdp_size=8, dp_replicate_size=2, fsdp_plan=fsdp_plan, "
        "fsdp_mixed_precision=True)"
    ) in form.text
    assert form.notes == (
        "rules of the model's own plan stay in force where none here has the same name",
    )


@each_row(
    ("units", "more", "note"),
    [
        (map(unit, LAYERS[:30]), {}, "takes in 2 more than planned, such as model.layers.30"),
        ([unit(*LAYERS[:2])], {}, "model.layers.*: planned in groups of 2"),
        ([unit("norm", "lm_head")], {}, "norm, lm_head: planned in groups of 2"),
        (
            [unit("norm", reshard=False), unit("lm_head", reshard=False)],
            {},
            "lm_head, norm: planned as two units",
        ),
        (
            [unit(LAYERS[0]), unit(LAYERS[1], reshard=False)],
            {},
            "model.layers.*: planned keep_full_weight in part",
        ),
        ([], {"checkpointed": LAYERS}, "checkpointing is no part of a plan: model.layers.*"),
        ([], {"compute_dtype": "fp16"}, "bf16 reduced in fp32, not fp16 in fp32"),
    ],
)
def test_what_a_huggingface_plan_cannot_say_is_noted(units, more, note):
    checkpointed = more.pop("checkpointed", ())
    setting = Setting(shards=8, **more)
    planned = wrapping(*units, checkpointed=checkpointed)
    form = huggingface_form(planned, setting, modules=LAYERS)
    assert any(note in told for told in form.notes), form.notes


def test_a_rule_of_unknown_reach_is_noted():
    form = huggingface_form(wrapping(unit("h.0")), PLAIN)
    assert isinstance(form, Form)
    assert "a rule holds for all layers of its list, planned or not" in form.notes
    assert "fsdp_mixed_precision" not in form.text
