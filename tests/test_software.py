"""Software in words: what runs, in estimates, tables, searches, files and on the command line."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise import InputError, Model, Strategy, estimate, estimate_many, search
from shardwise.config.software.record import Software, library_releases, trainers
from shardwise.config.software.resolve import match_of, resolve, stack_on
from shardwise.config.software.words import software_of
from shardwise.config.stack import Stack
from shardwise.config.system import System
from shardwise.planning.largest_value import largest_in_search, largest_value
from shardwise.planning.search.described import Described
from shardwise.planning.search.query import load_space
from shardwise.report.tables.estimate import verdict
from shardwise.units import readable

RUN = {"gpus": 8, "zero": 3, "gbs": 64}
SEVERAL = "torchtitan v0.2.0"  # compiled or not, it does not say
ONE = "torchtitan v0.2.0 + torch.compile"


def test_a_description_is_the_stack_that_it_resolves_to() -> None:
    """An estimate, a table of columns and one of strategies with it are those with its stack."""
    stack = stack_on(ONE, System.load("h100-sxm"))
    assert stack.name == "torchtitan-2025"
    by_stack = estimate("llama3-8b", "h100-sxm", RUN, stack=stack).step_time_s
    by_words = estimate("llama3-8b", "h100-sxm", RUN, stack=ONE)
    assert by_words.step_time_s == by_stack
    columns = estimate_many("llama3-8b", "h100-sxm", **RUN, stack=[ONE, "torchtitan-eager"])
    assert columns.step_time_s[0] == by_stack
    assert columns.step_time_s[1] != by_stack
    rows = estimate_many("llama3-8b", ["h100-sxm", "b200-sxm"], [Strategy(**RUN, stack=ONE)])
    assert rows.step_time_s[0] == by_stack
    assert by_words.software.how == "matched"


def test_several_candidates_widen_the_interval_to_what_each_of_them_expects() -> None:
    """The interval of a mixture reaches from the faster candidate to the slower one."""
    found = estimate("llama3-8b", "h100-sxm", RUN, stack=SEVERAL)
    assert found.software.how == "several candidates"
    assert sum(one.weight for one in found.software_candidates) == pytest.approx(1)
    times = [one.step_time_s for one in found.software_candidates]
    assert min(times) < max(times)
    assert found.step_time_s == times[0]
    assert found.interval is not None
    assert found.interval.low_s < min(times)
    assert max(times) < found.interval.high_s
    one = estimate("llama3-8b", "h100-sxm", RUN, stack=ONE)
    assert one.interval is not None
    assert one.software_candidates == ()
    ratio = found.interval.high_s / found.interval.low_s
    assert ratio > one.interval.high_s / one.interval.low_s


def test_context_parallelism_rules_out_attention_that_is_not_fused() -> None:
    """Of a trainer with both kernels; in an estimate and in each row of a table."""
    text = "Megatron-DeepSpeed ZeRO-3, 2024-03"
    a100 = System.load("a100-80gb-sxm")
    kernels = {one.stack.attention_kernel for one in resolve(text, a100).candidates}
    assert {"unfused", "flash2"} <= kernels
    split = resolve(text, a100, stated={"cp": 2}).candidates
    assert "unfused" not in {one.stack.attention_kernel for one in split}
    assert sum(one.weight for one in split) == pytest.approx(1)
    run = {"gpus": 8, "gbs": 16, "cp_exchange": "all_to_all", "any_software": True}
    table = estimate_many("llama2-7b", "a100-80gb-sxm", **run, cp=[1, 4], stack=text)
    one = estimate("llama2-7b", "a100-80gb-sxm", run, cp=4, stack=text)
    assert table.step_time_s[1] == one.step_time_s


def test_a_verdict_says_with_what_software_it_fits() -> None:
    """Where some candidates fit and others do not; the margin of one would contradict the rest."""
    fields: dict[str, Any] = {"finetune": "lora", "gpus": 4, "seq_len": 4096, "gbs": 4}
    found = estimate("qwen2.5-7b", "rtx-4090", **fields, stack="llama-factory")
    margins = {one.margin_bytes for one in found.software_candidates if one.margin_bytes}
    assert min(margins) < 0 < max(margins)
    line = verdict(found)
    assert "4 of 5 software candidates (75 %) fit with 3.07 GiB to 14.4 GiB free" in line
    assert f"the rest lacks {readable(-min(margins), 'bytes')}; fits with" in line
    one = estimate("qwen2.5-7b", "rtx-4090", **fields, stack="llama-factory-2024")
    assert "candidates" not in verdict(one)


def test_one_accelerator_rules_out_engines_that_shard() -> None:
    """Unless it offloads, or the user names the engine or its stage; in each row of a table."""
    card = System.load("rtx-4090")

    def engines(text: str, **stated: object) -> set[str]:
        return {str(one.engine) for one in resolve(text, card, stated=stated).candidates}

    for text in ("trl", "axolotl", "llama-factory", "HF Trainer"):
        assert engines(text, gpus=1) == {"ddp"}, text
        assert engines(text, gpus=2) - {"ddp"}, text
        assert engines(text, gpus=1, offload_optimizer=True) - {"ddp"}, text
        assert "ddp" not in engines(text, gpus=1, zero=3), text
    assert engines("trl FSDP2", gpus=1) == {"fsdp2"}
    assert engines("verl", gpus=1) == engines("verl", gpus=8)  # which shards on one, too
    one = estimate("llama3-8b", card, finetune="lora")
    assert {each.engine for each in one.software_candidates} <= {"ddp"}
    table = estimate_many("llama3-8b", card, gpus=[1, 8], gbs=8, stack="axolotl")
    assert table.table.zero.tolist() == [0, 3]


def test_a_search_fits_with_all_that_software_may_be() -> None:
    """Plans of a search fit with the probability of `estimate`."""
    fields: dict[str, Any] = {"task": "sft", "lora_rank": 16, "lora_targets": "all-linear"}
    fields |= {"gpus": 8, "gbs": 64, "tp": 1, "pp": 1, "cp": 1, "recompute": "full", "mbs": 1}
    model, system = Model.load("llama3-8b"), System.load("rtx-4090")
    text = "llama-factory"
    space = load_space(None, fields | {"stack": text, "zero": [0, 3]})
    described = Described.of(space, model, system)
    assert described is not None
    assert "loss" in described.left
    found = search(model, system, space, top=4, all_variants=True, fits=None)
    assert found.best
    for plan in found.best:
        left = {*described.left, "stack"}
        own = {n: v for n, v in plan.strategy.items() if v is not None and n not in left}
        alone = estimate(model, system, Strategy.validated(own | {"stack": text}))
        assert plan.fits_probability == pytest.approx(alone.fits_probability, rel=1e-9)
        assert plan.verdict == alone.verdict
        same = Strategy.validated(plan.strategy)
        assert plan.fits_probability != estimate(model, system, same).fits_probability
    sure = search(model, system, space, fits=0.9, all_variants=True)
    assert min(plan.fits_probability or 0.0 for plan in sure.best) >= 0.9
    assert min(plan.fits_probability or 0.0 for plan in found.best) < 0.9


def test_the_longest_sequence_of_a_search_fits_with_all_that_software_may_be() -> None:
    """It is that of the plan with the software in words."""
    fields: dict[str, Any] = {"task": "sft", "lora_rank": 16, "lora_targets": "all-linear"}
    fields |= {"gpus": 8, "gbs": 8, "tp": 1, "pp": 1, "cp": 1, "recompute": "full", "mbs": 1}
    space = load_space(None, fields | {"stack": "llama-factory", "zero": 3})
    longest = largest_in_search("llama3-8b", "rtx-4090", space, "seq-len")
    assert longest is not None
    assert longest.value is not None
    assert (longest.fits_probability or 0.0) >= 0.9
    alone = largest_value("llama3-8b", "rtx-4090", Strategy.validated(longest.strategy), "seq-len")
    assert alone.likely != longest.likely  # of the most probable software


def test_a_search_says_how_it_understood_the_software() -> None:
    """Commas inside a description do not split it, those between names of stacks do."""
    space = {"gpus": 8, "gbs": 64, "pp": 1, "cp": 1, "tp": 1, "zero": 3}
    found = search("llama3-8b", "h100-sxm", space, stack="HF Trainer, FSDP2, 2026-05")
    assert found.software[0].startswith("software: transformers, fsdp2")
    both = search("llama3-8b", "h100-sxm", space, stack="torchtitan-2025,torchtitan-eager")
    assert both.software == ()


def test_fields_of_a_description_are_those_of_its_words() -> None:
    """A strategy file may state trainer, release and libraries as fields."""
    fields = {"trainer": "torchtitan", "release": "0.2.0", "options": {"compile": "layers"}}
    strategy = Strategy.validated({**RUN, "stack": fields})
    assert isinstance(strategy.stack, Software)
    assert Strategy.validated(strategy.to_dict()).stack == strategy.stack
    assert stack_on(strategy.stack, System.load("h100-sxm")) == stack_on(
        ONE, System.load("h100-sxm")
    )


@pytest.mark.parametrize("text", ["torchtitn-2025", "no such software", "foo/bar.yaml"])
def test_words_that_name_no_software_are_refused(text: str) -> None:
    """A name with a typing error is not taken for unknown software."""
    with pytest.raises(InputError, match=text):
        estimate("llama3-8b", "h100-sxm", RUN, stack=text)


def test_a_stack_by_name_is_that_stack() -> None:
    """Every stack of the catalog is found by its name, whatever software it names."""
    system = System.load("h100-sxm")
    for name in ("megatron-bridge-2026", "torchtitan-2025", "unknown-eager"):
        found = match_of(name, system)
        assert (found.how, found.stack) == ("stack", Stack.load(name))
    assert match_of(None, system).stack.name == system.stack


@pytest.mark.parametrize(
    ("text", "model", "stated", "graphs"),
    [
        ("Megatron-Bridge 0.6 pretrain_performance", "deepseek-v3", {}, "full"),
        ("Megatron-Bridge 0.6 pretrainperformance", "deepseek-v3", {}, "none"),
        ("Megatron-Bridge 0.6 performance", "nemotron-3-super", {}, "partial"),
        ("Megatron-Bridge 0.4 performance", "deepseek-v3", {}, "partial"),
        ("Megatron-Bridge 0.6 performance", "kimi-k2", {"optimizer": "muon"}, "none"),
    ],
)
def test_facts_depend_on_words_layers_and_the_optimizer(
    text: str, model: str, stated: dict[str, str], graphs: str
) -> None:
    """Recipes of performance capture steps of experts in mxfp8, layers of hybrids."""
    system, stated = System.load("gb300-nvl72"), stated | {"quantization": "mxfp8"}
    stack = resolve(text, system, Model.load(model), stated).stack
    assert stack.cuda_graphs == graphs
    assert stack.defaults.get("expert_overlap", False) is (graphs == "full")


_NAMES = sorted({word for one in trainers().values() for word in one.names})
_LIBRARIES = [f"{name} {r}" for name, each in library_releases().items() for r in each]
_WORDS = st.lists(st.sampled_from([*_NAMES, *_LIBRARIES, "ZeRO-3", "FSDP", "2025", "(2024-05)"]))


@settings(deadline=None)
@given(_WORDS, st.sampled_from(["h100-sxm", "b200-sxm", "mi300x", "tpu-v5p", "trainium1"]))
def test_any_words_resolve_to_stacks_whose_probabilities_add_up(
    words: list[str], name: str
) -> None:
    """No description fails; an answer that is not sure says so."""
    found = resolve(" + ".join(words), System.load(name))
    assert sum(one.weight for one in found.candidates) == pytest.approx(1)
    if found.how == "unknown":
        assert found.notes
    else:
        assert (found.how == "several candidates") == (len(found.candidates) > 1)
    weights = [one.weight for one in found.candidates]
    assert weights == sorted(weights, reverse=True)


def test_a_date_before_the_release_is_a_contradiction() -> None:
    """Facts that exclude each other are said first, and widen the interval."""
    found = resolve("torchtitan 0.2.2 (2024-05)", System.load("h100-sxm"))
    assert found.conflicts == 1
    assert "2024-05" in found.notes[0]
    wrong = estimate("llama3-8b", "h100-sxm", RUN, stack="torchtitan 0.2.2 + torch.compile 2024-05")
    right = estimate("llama3-8b", "h100-sxm", RUN, stack="torchtitan 0.2.2 + torch.compile")
    assert wrong.interval is not None
    assert right.interval is not None
    assert wrong.interval.high_s / wrong.step_time_s > right.interval.high_s / right.step_time_s


@pytest.mark.parametrize(
    ("text", "release", "date"),
    [
        ("torchtitan v0.2.0 (2025-10)", "0.2.0", "2025-10"),
        ("Megatron-LM core_v0.13", "0.13", ""),
        ("Megatron-LM (2026)", "", "2026"),
        ("nvcr.io/nvidia/nemo:25.09", "25.09", ""),
    ],
)
def test_releases_and_months_are_read(text: str, release: str, date: str) -> None:
    """Numbers after a name are its release; years and months are dates."""
    found = software_of(text)
    assert (found.release, found.date) == (release, date)


def test_the_verb_prints_what_a_description_means(shardwise):
    """With the probability of each candidate, and the source of each fact in JSON."""
    found = json.loads(shardwise("software", SEVERAL, "h100-sxm", "--json")[1])
    assert found["how"] == "several candidates"
    assert [one["probability"] for one in found["candidates"]] == [0.5, 0.5]
    assert all(one["sources"] for one in found["candidates"])
    assert "torchtitan" in shardwise("software")[1]
    primus = shardwise("software", "Primus", "mi300x")[1]
    assert "no run of this software has been measured" in primus


def test_a_year_alone_means_each_of_its_months() -> None:
    """The loss of torchtune changed in 2024-09: a third of the year has the new one."""
    found = match_of("torchtune (2024)", System.load("a100-80gb-sxm"))
    weights = {}
    for one in found.candidates:
        loss = one.options["loss"]
        weights[loss] = weights.get(loss, 0.0) + one.weight
    assert weights == {"eager": pytest.approx(2 / 3), "chunked_logits": pytest.approx(1 / 3)}
    of_month = match_of("torchtune (2024-07)", System.load("a100-80gb-sxm"))
    assert {one.options["loss"] for one in of_month.candidates} == {"eager"}


def test_plain_pytorch_has_its_own_loss_under_tensor_parallelism() -> None:
    """Its figures are torchtitan's, which splits the loss; code of users need not."""
    system, model = System.load("h200-sxm"), Model.load("llama3-8b")
    stack = "PyTorch FSDP2 + torch.compile, 2026-04"
    found = estimate(model, system, stack=stack, gpus=4, tp=2, gbs=16)
    assert found.software.trainer == "pytorch"
    with pytest.raises(InputError, match="splits the loss"):
        estimate(model, system, stack="torchtitan-2025", gpus=4, tp=2, gbs=16, loss="eager")
