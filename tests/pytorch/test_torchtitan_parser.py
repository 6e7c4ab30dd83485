"""What torchtitan's own code makes of exported plans: releases 0.2.2 and 0.3.0, where installed."""

import ast
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from shardwise import Model
from shardwise.launchers.torchtitan import LAUNCHER
from shardwise.launchers.torchtitan.models import FLAVORS, model_of
from shardwise.launchers.torchtitan.options import DEFAULTS
from torchtitan_plans import drawn_plans, made

pytest.importorskip("torch")
pytest.importorskip("torchtitan")
RELEASE = importlib.metadata.version("torchtitan")
toml_only = pytest.mark.skipif(RELEASE != "0.2.2", reason="TOML is of release 0.2.2")
python_only = pytest.mark.skipif(RELEASE != "0.3.0", reason="Python is of release 0.3.0")


def _own_source(path: str) -> ast.Module:
    spec = importlib.util.find_spec("torchtitan")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return ast.parse(Path(spec.submodule_search_locations[0], path).read_text())


@toml_only
def test_its_parser_loads_exported_tomls(tmp_path: Path) -> None:
    """All options are known to it, and the degrees are those of the plan."""
    launched = pytest.importorskip("launched_configs")
    manager, meshes = launched.titan_modules()
    path = tmp_path / "plan.toml"
    for plan in drawn_plans(5, 30, "0.2.2"):
        (file,) = LAUNCHER.write(plan, "0.2.2", ".toml")
        path.write_text(file.text)
        config = manager.ConfigManager().parse_args([f"--job.config_file={path}"])
        strategy, parallel = plan.strategy, config.parallelism
        with launched.quiet(), launched.ranks(strategy.gpus):
            dims = meshes.ParallelDims(
                dp_replicate=parallel.data_parallel_replicate_degree,
                dp_shard=parallel.data_parallel_shard_degree,
                cp=parallel.context_parallel_degree,
                tp=parallel.tensor_parallel_degree,
                pp=parallel.pipeline_parallel_degree,
                ep=parallel.expert_parallel_degree,
                etp=parallel.expert_tensor_parallel_degree,
                world_size=strategy.gpus,
            )
            dims.build_mesh()
        assert (dims.tp, dims.cp, dims.pp) == (strategy.tp, strategy.cp, strategy.pp)
        assert dims.dp_replicate * dims.dp_shard == strategy.dp
        assert config.training.seq_len == strategy.seq_len
        assert config.training.global_batch_size == strategy.global_batch_size
        assert config.compile.enable


@toml_only
def test_defaults_are_those_of_its_configuration() -> None:
    """But for options of older releases."""
    config = pytest.importorskip("launched_configs").titan_modules()[0].ConfigManager().config
    for name, default in DEFAULTS.items():
        if name == "parallelism.pipeline_parallel_split_points":
            continue
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        assert (name, value) == (name, default)


@toml_only
def test_flavors_have_the_numbers_of_its_models() -> None:
    """Literal arguments of each flavor: width, layers, heads, vocabulary, experts."""
    tables = {
        "llama3": "llama3_args",
        "llama4": "llama4_args",
        "deepseek_v3": "deepseekv3_args",
        "qwen3": "qwen3_args",
        "gpt_oss": "gptoss_configs",
    }
    known = {"llama3": 128256, "llama4": 202048}  # defaults of their classes
    for flavor in (one for one in FLAVORS if "0.2.2" in one.releases):
        numbers = _flavor_numbers(flavor.family, tables[flavor.family], flavor.flavor)
        model = model_of(flavor)
        layer = model.layers[-1]
        assert numbers.get("dim", 2880) == model.hidden
        assert numbers["n_layers"] == model.depth
        assert numbers.get("n_heads", 64) == layer.attention.heads
        assert numbers.get("vocab_size", known.get(flavor.family, 201088)) == model.vocab
        if layer.moe is not None:
            assert numbers["num_experts"] == layer.moe.experts
            assert numbers.get("top_k", 1) == layer.moe.top_k
            assert numbers.get("moe_inter_dim", layer.moe.ffn) == layer.moe.ffn
        elif "hidden_dim" in numbers and layer.mlp is not None:
            assert numbers["hidden_dim"] == layer.mlp.ffn


def _flavor_numbers(family: str, table: str, flavor: str) -> dict[str, int]:
    for node in ast.walk(_own_source(f"models/{family}/__init__.py")):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table:
            assert isinstance(node.value, ast.Dict)
            keys = [ast.literal_eval(key) for key in node.value.keys if key is not None]
            call = node.value.values[keys.index(flavor)]
            return {
                word.arg: word.value.value
                for inner in ast.walk(call)
                if isinstance(inner, ast.Call)
                for word in inner.keywords
                if word.arg
                and isinstance(word.value, ast.Constant)
                and isinstance(word.value.value, int)
            }
    raise AssertionError(table)


@python_only
@pytest.mark.filterwarnings("ignore")
def test_its_parser_loads_exported_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules import there, and their values are those of the plan.

    Low-precision converters need accelerators that have them, and are left out.
    """
    manager = pytest.importorskip("torchtitan.config.manager")
    monkeypatch.syspath_prepend(tmp_path)
    plans = [plan for plan in drawn_plans(6, 40, "0.3.0") if plan.strategy.quantization == "none"]
    plans += [made(Model.load(name), tp=2) for name in ("llama2-7b", "llama-33b")]
    plans += [made(Model.load("qwen3-coder-480b-a35b"), tp=2, etp=2)]
    plans += [made(Model.load("deepseek-v3"), gpus=256, gbs=512, ep=8)]
    for number, plan in enumerate(plans):
        (file,) = LAUNCHER.write(plan, "0.3.0", ".py")
        name = f"exported_{number}"
        (tmp_path / f"{name}.py").write_text(file.text)
        config = manager.ConfigManager().parse_args(["--module", name, "--config", "plan"])
        _check(plan.model, plan.strategy, config)
        del sys.modules[name]
    assert len(plans) > 20


def _check(model: Model, strategy: Any, config: Any) -> None:
    parallel, spec = config.parallelism, config.model_spec.model
    assert parallel.tensor_parallel_degree == strategy.tp
    assert parallel.pipeline_parallel_degree == strategy.pp
    assert parallel.context_parallel_degree == strategy.cp
    assert parallel.expert_parallel_degree == strategy.ep
    shards = parallel.data_parallel_shard_degree * parallel.data_parallel_replicate_degree
    assert shards == strategy.dp
    assert config.training.global_batch_size == strategy.global_batch_size
    assert config.training.seq_len == strategy.seq_len
    assert (spec.dim, spec.vocab_size, len(spec.layers)) == (model.hidden, model.vocab, model.depth)
    assert len(getattr(spec, "mtp_layers", [])) == model.mtp
    modes = {"none": "NoneType", "selective": "SelectiveAC.Config", "full": "FullAC.Config"}
    assert type(config.activation_checkpoint).__qualname__ == modes[strategy.recompute]
    spec.update_from_config(config=config)
