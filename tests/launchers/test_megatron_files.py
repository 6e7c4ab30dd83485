"""Megatron-LM's launch files: plans written and read back, and files of others."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from megatron_plans import architecture, effective, legal_plans
from profiles import drawn
from shardwise import Model, Strategy, System, estimate
from shardwise.config.strategy_fields import COLUMNS
from shardwise.config.strategy_table import Table
from shardwise.errors import InputError
from shardwise.launchers import megatron
from shardwise.launchers.launch import LaunchPlan, LaunchText
from shardwise.launchers.megatron.writer import environment
from shardwise.launchers.ranks import parse_job
from shardwise.parallel.constraints import illegal_faults, refuse_illegal

LAUNCHER = megatron.LAUNCHER


@cache
def plans():
    return tuple(legal_plans(LAUNCHER.stack, 200, 11, LAUNCHER.faults))


def text_of(plan, ending=".sh"):
    """The first file of a plan, without its comments."""
    text = LAUNCHER.write(plan, LAUNCHER.releases[0], ending)[0].text
    return "\n".join(line for line in text.splitlines() if not line.startswith("# "))


def read(text, **others):
    return LAUNCHER.read(LaunchText(source="run.sh", text=text, **others))


def check_same(plan, launch):
    model = plan.model.with_attention(plan.strategy.attention)
    assert architecture(launch.model) == architecture(model)
    strategy = Strategy.validated(launch.strategy)
    assert effective(launch.model, strategy) == effective(model, plan.strategy)
    assert launch.not_understood == ()


def test_drawn_scripts_are_read_as_their_plans():
    for plan in plans()[: drawn(200, 6)]:
        check_same(plan, read(text_of(plan)))


def test_drawn_argument_files_are_read_as_their_plans():
    """All but rings, which need a file of their own."""
    for plan in plans()[: drawn(200, 6)]:
        split = plan.strategy.tp > 1 and plan.strategy.tp_exchange == "rs_ag"
        if split and plan.strategy.tp_overlap == "ring":
            with pytest.raises(InputError, match="tp_overlap"):
                text_of(plan, ".txt")
            continue
        text = text_of(plan, ".txt")
        assert LAUNCHER.recognise(text, "args.txt")
        check_same(plan, read(text, gpus=plan.strategy.gpus))


def test_a_shell_runs_the_words_that_are_read(tmp_path):
    """bash passes to torchrun what the parser of scripts says, whatever it starts."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    stub = tmp_path / "torchrun"
    stub.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": ""}
    for number, plan in enumerate(plans()[::10]):
        script = tmp_path / f"{number}.sh"
        script.write_text(text_of(plan))
        done = subprocess.run(
            [bash, str(script)], capture_output=True, check=True, env=environment, cwd=tmp_path
        )
        words = parse_job(script.read_text(), {"NODE_RANK": "0"}).commands[-1]
        assert ["torchrun", *done.stdout.decode().splitlines()] == list(words)


# --- What can be expressed ------------------------------------------------------------------------

CELLS = yaml.safe_load((Path(__file__).parents[1] / "data" / "megatron_cells.yaml").read_text())


def rare_plans():
    system = System.load("b200-sxm")
    for fields in CELLS["rare"]:
        model = Model.load(fields["model"])
        given = {"stack": LAUNCHER.stack, "gpus": 64, "gbs": 136, "seq_len": 4096} | fields
        given["gbs"] = 8 * given["gpus"]
        del given["model"]
        strategy = Strategy(**given).resolved(model)
        refuse_illegal(model, system, Table.of(model, [strategy]))
        yield LaunchPlan(model=model, system=system, strategy=strategy)


def values_of(plan, field):
    value = getattr(plan.strategy.resolved(plan.model), field)
    if isinstance(value, tuple):
        return value if COLUMNS[field].words else ("set",)
    if COLUMNS[field].words or isinstance(COLUMNS[field].default, bool):
        return (value,)
    return () if value is None else ("set",)


def test_rare_plans_are_read_as_they_are():
    for plan in rare_plans():
        assert list(LAUNCHER.faults(plan.model, plan.strategy)) == []
        check_same(plan, read(text_of(plan)))


def test_what_cannot_be_expressed_are_the_cells_of_the_table():
    """Every other value of a choice is in some plan that is written and read back."""
    seen = {field: set() for field in COLUMNS}
    for plan in (*plans(), *rare_plans()):
        fields = effective(plan.model, plan.strategy)
        for field in COLUMNS:
            if fields[field] is not None or field in SPREADS:
                seen[field] |= set(values_of(plan, field))
    missing = {}
    for field, column in COLUMNS.items():
        choices = (True, False) if isinstance(column.default, bool) else tuple(column.words)
        choices = choices or (("set",) if column.optional else ())
        left = [one for one in choices if one not in {*seen[field], *OF_MIXERS}]
        if left and field not in (*CELLS["assumed"], "placement"):
            missing[field] = left
    assert {field: set(left) for field, left in missing.items()} == {
        field: set(cells) for field, cells in CELLS["cannot"].items()
    }


# Of models whose layers the command line does not describe in full; tests of Bridge have them.
OF_MIXERS = ("mixer_gate", "streams")
SPREADS = ("first_stage_layers", "last_stage_layers", "embedding_as_layer", "loss_as_layer")


@pytest.mark.parametrize("field", CELLS["cannot"])
def test_what_cannot_be_expressed_is_refused(field):
    """By the capabilities of the stack, or by the launcher."""
    examples = {"summa_panels": 4, "lora_rank": 8, "extents": "tp=4+dp=2"}
    needs = {
        "offload_parts": {"offload_activations": True},
        "recompute_parts": {"recompute": "selective"},
        "schedule": {"pp": 4},
        "lora_parts": {"lora_rank": 8},
        **{name: {"lora_rank": 8} for name in ("lora_targets", "adapter", "base_weights")},
        "reference_model": {"task": "dpo"},
        "checkpoint_place": {"recompute": "full"},
    }
    model, system = Model.load("llama3-8b"), System.load("h100-sxm")
    for cell in CELLS["cannot"][field]:
        value = examples.get(field, 1) if cell == "set" else cell
        named = (
            [value]
            if isinstance(COLUMNS[field].default, tuple)
            or field in ("offload_parts", "lora_targets")
            else value
        )
        given = {"gpus": 16, "gbs": 64, "tp": 4, "stack": LAUNCHER.stack, field: named}
        strategy = Strategy(**given | needs.get(field, {})).resolved(model)
        found = illegal_faults(model, system, Table.of(model, [strategy]))
        assert found or list(LAUNCHER.faults(model, strategy)), (field, cell)


# --- Other spellings ------------------------------------------------------------------------------

TINY = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 128 --vocab-size 1000 "
    "--max-position-embeddings 128 --micro-batch-size 1 --bf16 "
)
EXPERTS = TINY + "--num-experts 8 --expert-model-parallel-size 2 "


def fields_of(options, gpus=8):
    return read(options, gpus=gpus).strategy


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            TINY,
            {"zero": 0, "dp_overlap": False, "global_batch_size": 8, "tp_exchange": "all_reduce"},
        ),
        (TINY + "--tensor-model-parallel-size 2", {"tp_exchange": "all_reduce", "gpus": 8}),
        (TINY + "--tensor-model-parallel-size 2 --sequence-parallel", {"tp_exchange": "rs_ag"}),
        (TINY + "--recompute-activations", {"recompute": "selective"}),
        (TINY + "--checkpoint-activations", {"recompute": "full"}),
        (TINY + "--activations-checkpoint-method uniform", {"recompute": "full"}),
        (
            TINY + "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
            {"pp": 2, "vpp": 2},
        ),
        (
            TINY + "--pipeline-model-parallel-size 2 --recompute-granularity full "
            "--recompute-method block --recompute-num-layers 3",
            {"recompute_layers": 3},
        ),
        (
            TINY
            + "--pipeline-model-parallel-size 2 --recompute-granularity full --recompute-method "
            "block --recompute-num-layers 1 --num-virtual-stages-per-pipeline-rank 2",
            {"recompute_layers": 2},
        ),
        (
            TINY + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*3|t*5L",
            {"stage_layers": (3, 5), "pp": 2},
        ),
        (TINY + "--use-custom-fsdp", {"zero": 3}),
        (TINY + "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero": 2}),
        (
            TINY + "--use-distributed-optimizer --num-distributed-optimizer-instances 4",
            {"dp_shard": 2},
        ),
        (TINY + "--fp8-hybrid", {"quantization": "fp8_tensor"}),
        (EXPERTS, {"dispatcher": "all_gather", "ep": 2, "etp": 1}),
        (EXPERTS + "--tensor-model-parallel-size 2", {"etp": 2}),
        (
            EXPERTS + "--moe-token-dispatcher-type flex --moe-enable-deepep",
            {"dispatcher": "deepep"},
        ),
        (
            EXPERTS + "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
            {"dispatcher": "hybridep"},
        ),
        (EXPERTS + "--moe-expert-capacity-factor 1.5", {"expert_capacity": 1.5}),
        (TINY, {"loss": "vocab_parallel"}),
        (TINY + "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", {"loss": "in_place"}),
    ],
)
def test_defaults_and_older_spellings(options, expected):
    fields = fields_of(options)
    assert {name: fields[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (TINY, {"gradient_dtype": "fp32"}),
        (
            TINY + "--tensor-model-parallel-size 2 --sequence-parallel",
            {"tp_hidden": 0, "tp_backward_async": True},
        ),
        (TINY + "--grad-reduce-in-bf16", {"gradient_dtype": "compute"}),
        (TINY.replace("--bf16", "--fp16"), {"gradient_dtype": "compute"}),
        (
            TINY.replace("--bf16", "--accumulate-allreduce-grads-in-fp32"),
            {"gradient_dtype": "compute"},
        ),
        (TINY + "--make-vocab-size-divisible-by 64", {"vocab_multiple": 64}),
        (TINY + "--no-gradient-accumulation-fusion", {"fused_gradient_accumulation": False}),
        (TINY + "--swiglu --no-bias-swiglu-fusion", {"fused_swiglu": False}),
        (
            EXPERTS + "--moe-token-dispatcher-type flex --moe-deepep-num-sms 24",
            {"deepep_multiprocessors": 24},
        ),
    ],
)
def test_options_of_the_software_change_its_stack(options, expected):
    stack = Strategy.validated(fields_of(options)).loaded_stack()
    assert {name: getattr(stack, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("option", "kernel"),
    [
        ("", "stack"),
        ("--attention-backend auto", "best"),
        ("--use-flash-attn", "flash2"),
        ("--attention-backend flash", "flash2"),
        ("--attention-backend fused", "cudnn"),
        ("--attention-backend unfused", "unfused"),
        ("--attention-backend local", "unfused"),
    ],
)
def test_the_attention_backend_is_a_field(option, kernel):
    assert Strategy.validated(fields_of(TINY + option)).attention_kernel == kernel


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (TINY + "--num-layers 3.5", "--num-layers: 3.5: must be a whole number"),
        (TINY + "--optimizer lamb", "--optimizer: 'lamb': allowed: adam"),
        (TINY + "--cp-comm-type x --context-parallel-size 2", "--cp-comm-type: 'x': allowed: p2p"),
        (TINY.replace("--vocab-size 1000", ""), "--vocab-size: is missing"),
        (TINY.replace("--hidden-size 512", ""), "--hidden-size: is missing"),
        (TINY.replace("--micro-batch-size 1", ""), "--micro-batch-size: is missing"),
        (TINY + "--hidden-size", "--hidden-size: has no value"),
        (
            EXPERTS + "--moe-layer-freq [0,1]",
            "--moe-layer-freq: [0, 1]: must be a number, or 0 or 1",
        ),
        (EXPERTS + "--moe-layer-freq open('x')", "must be a number, or a Python list"),
        (
            TINY + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et|tx|L'",
            "'x'; allowed: E t m L",
        ),
        (
            TINY + "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            "must divide the 8 layers of 2 stages",
        ),
        ("--micro-batch-size $X --num-layers $Y --hidden-size 8 x", "variable X has no literal"),
    ],
)
def test_a_wrong_value_is_one_clear_line(options, problem):
    with pytest.raises(InputError) as caught:
        read(f"python pretrain_gpt.py {options}", gpus=8)
    assert any(problem in str(one) for one in caught.value.faults), str(caught.value)


def test_a_list_of_arguments_that_a_run_prints_is_read():
    """Names, dots and values as `_print_args` writes them, inside a log."""
    values = {
        "add_bias_linear": False,
        "attention_backend": "AttnBackend.auto",
        "bf16": True,
        "bias_swiglu_fusion": True,
        "expert_model_parallel_size": 4,
        "expert_tensor_parallel_size": 1,
        "ffn_hidden_size": 1024,
        "global_batch_size": 64,
        "grad_reduce_in_bf16": True,
        "gradient_accumulation_fusion": True,
        "group_query_attention": True,
        "hidden_size": 512,
        "lr": 0.0001,
        "micro_batch_size": 2,
        "moe_router_topk": 2,
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": True,
        "moe_permute_fusion": True,
        "mtp_num_layers": None,
        "normalization": "RMSNorm",
        "num_attention_heads": 8,
        "num_experts": 8,
        "num_layers": 4,
        "num_query_groups": 2,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "padded_vocab_size": 32000,
        "pipeline_model_parallel_size": 1,
        "position_embedding_type": "rope",
        "recompute_granularity": "selective",
        "recompute_modules": "['core_attn', 'moe']",
        "save": "/data/run",
        "seq_length": 256,
        "sequence_parallel": True,
        "swiglu": True,
        "tensor_model_parallel_size": 2,
        "untie_embeddings_and_output_weights": True,
        "use_distributed_optimizer": True,
        "apply_rope_fusion": True,
        "fp8_margin": 0,
        "main_grads_dtype": "torch.float32",
        "moe_shared_expert_overlap": True,
        "num_virtual_stages_per_pipeline_rank": None,
        "tp_comm_bulk_dgrad": True,
        "world_size": 16,
    }
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]
    dashes = "-" * 24
    block = "\n".join(
        [f"{dashes} arguments {dashes}", *lines, f"{dashes[:20]} end of arguments ---"]
    )
    launch = read(f"using world size: 16\n{block}\n> building ...\n")
    strategy = Strategy.validated(launch.strategy).resolved(launch.model)
    found = (strategy.gpus, strategy.dp, strategy.tp, strategy.ep, strategy.etp, strategy.zero)
    assert found == (16, 8, 2, 4, 1, 1)
    assert strategy.recompute_parts == ("core_attention", "moe")
    assert (launch.model.vocab, launch.model.tied_embeddings) == (32000, False)
    assert strategy.loaded_stack().gradient_dtype == "compute"
    assert [one.option for one in launch.not_understood] == ["--moe-shared-expert-overlap"]


# --- What stands around the options ---------------------------------------------------------------


def plan_of(model, system, comments=(), **fields):
    loaded, given = Model.load(model), {"stack": LAUNCHER.stack, "gbs": 64} | fields
    strategy = Strategy(**given).resolved(loaded)
    return LaunchPlan(
        model=loaded, system=System.load(system), strategy=strategy, comments=comments
    )


@pytest.mark.parametrize(
    ("fields", "system", "expected"),
    [
        ({"gpus": 8}, "h100-sxm", {}),
        ({"gpus": 8, "tp": 2}, "h100-sxm", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ({"gpus": 8, "cp": 2}, "h100-sxm", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ({"gpus": 8, "tp": 2}, "b200-sxm", {}),
        ({"gpus": 8, "tp": 2, "zero": 3}, "h100-sxm", {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}),
        (
            {"gpus": 8, "offload_activations": True, "offload_parts": ["qkv"]},
            "h100-sxm",
            {"NVTE_CPU_OFFLOAD_V1": "1"},
        ),
    ],
)
def test_variables_of_the_environment_are_those_that_the_options_need(fields, system, expected):
    plan = plan_of("llama3-8b", system, **fields)
    assert environment(plan) == expected
    script = parse_job(LAUNCHER.write(plan, "0.19.0", ".sh")[0].text, {})
    assert script.exported == expected


@pytest.mark.parametrize("ending", LAUNCHER.endings)
def test_a_file_says_its_release_the_ranks_and_the_prediction(ending):
    plan = plan_of("llama3-8b", "h100-sxm", ("step time 1.5 s",), gpus=24, gbs=96)
    (file,) = LAUNCHER.write(plan, "0.19.0", ending)
    assert "core_v0.19.0" in file.text
    assert "# step time 1.5 s\n" in file.text
    assert file.executable == (ending == ".sh")
    if ending == ".txt":
        assert "torchrun --nproc-per-node 8 --nnodes 3 pretrain_gpt.py" in file.text
    else:
        assert (read(file.text).strategy["gpus"], read(file.text).release) == (24, "0.19.0")


def test_backward_overlaps_without_an_option():
    """Forward waits; reduce-scatters of backward are behind the GEMM of the weights' gradient."""
    plan = plan_of("llama3-8b", "h100-sxm", gpus=8, tp=4)
    text = text_of(plan).replace("--tp-comm-overlap", "")
    fields = read(text).strategy | {"gpus": 8}
    plain = estimate(plan.model, plan.system, fields)
    strict = estimate(plan.model, plan.system, fields | {"tp_overlap": "none"})
    every = estimate(plan.model, plan.system, plan.strategy)
    times = [one.comm_s["tp"].exposed for one in (every, plain, strict)]
    assert times == sorted(set(times))
    assert strict.comm_s["tp"].exposed == strict.comm_s["tp"].total


def test_a_ring_is_written_into_a_file_and_read_from_it():
    text = text_of(plan_of("llama3-8b", "h100-sxm", gpus=8, tp=4, tp_overlap="ring"))
    assert read(text).strategy["tp_overlap"] == "ring"
    other = read(
        text.replace("proj_fprop: {method: ring_exchange}", "proj_fprop: {method: pipeline}")
    )
    assert "tp_overlap" not in other.strategy
    assert [one.option for one in other.not_understood] == ["--tp-comm-overlap-cfg"]


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("gemma2-2b", "layers.0.norms"),
        ("gemma2-2b", "layers.0.mlp.activation"),
        ("palm-540b", "norm_bias"),
        ("chinchilla-70b", "position"),
        ("llama4-scout", "layers.0.attention.chunk"),
        ("vit-era5", "vocab"),
    ],
)
def test_a_model_without_options_is_refused_by_field(model, field):
    plan = plan_of(model, "h100-sxm", gpus=8, seq_len=2048)
    assert field in [one.field for one in LAUNCHER.faults(plan.model, plan.strategy)]


def test_an_order_of_ranks_without_option_is_refused():
    """Also where the stack says nothing of it; orders of axes with one rank are free."""
    plan = plan_of("llama3-8b", "h100-sxm", gpus=8, tp=2, placement="dp-tp-cp-pp")
    assert [one.field for one in LAUNCHER.faults(plan.model, plan.strategy)] == ["placement"]
    plan = plan_of("llama3-8b", "h100-sxm", gpus=8, tp=2, placement="cp-tp-pp-dp")
    assert list(LAUNCHER.faults(plan.model, plan.strategy)) == []


@pytest.mark.parametrize(
    ("options", "graphs", "scope", "left"),
    [
        (TINY, "stack", None, []),
        (TINY + "--enable-cuda-graph", "partial", None, []),
        (TINY + "--external-cuda-graph", "partial", None, []),
        (TINY + "--cuda-graph-impl full_iteration", "full", None, []),
        (TINY + "--cuda-graph-impl local --cuda-graph-scope full_iteration", "full", None, []),
        (TINY + "--cuda-graph-scope full_iteration", "full", None, []),
        (TINY + "--cuda-graph-impl local --cuda-graph-modules attn", "partial", ("attn",), []),
        (TINY + "--cuda-graph-impl local --cuda-graph-modules attn mlp", "partial", None, []),
        (TINY + "--cuda-graph-scope attn", "stack", None, ["--cuda-graph-modules"]),
        (EXPERTS + "--enable-cuda-graph", "partial", ("attn", "mlp", "moe"), []),
        (
            EXPERTS + "--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router"
            " moe_preprocess",
            "partial",
            None,
            [],
        ),
        (
            EXPERTS + "--cuda-graph-impl local --cuda-graph-modules attn mamba",
            "partial",
            ("attn", "mamba"),
            [],
        ),
    ],
)
def test_graphs_of_old_and_new_names(options, graphs, scope, left):
    """Implementation and modules; where no module is named, full layers; without it, listed."""
    launch = read(options)
    strategy = Strategy.validated(launch.strategy)
    assert (strategy.cuda_graphs, strategy.graph_scope) == (graphs, scope)
    assert [one.option for one in launch.not_understood if "graph" in one.option] == left
