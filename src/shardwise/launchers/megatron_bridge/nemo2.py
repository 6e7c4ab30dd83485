"""Configurations of NeMo 2, as NeMo-Run writes them: a tree of classes with their arguments.

Options of nemo/lightning/pytorch/strategies/megatron_strategy.py, plugins/mixed_precision.py and
callbacks/megatron_comm_overlap.py (NeMo 2.0 to 2.5), whose fields are those of Megatron-Core.
"""

from collections.abc import Mapping

from shardwise.config.model import Model
from shardwise.launchers.megatron_bridge.files import NEMO_STACK, Job
from shardwise.launchers.megatron_bridge.recipes import recipe_defaults
from shardwise.launchers.megatron_bridge.trees import TARGET, Leaf, Tree, leaves, section

_COMM_OVERLAP = "MegatronCommOverlapCallback"
_PLACES: Mapping[str, str] = {
    "model.config": "model",
    "trainer.strategy.ddp": "ddp",
    "trainer.strategy": "model",
    "trainer.plugins": "mixed_precision",
    "data": "dataset",
    "optim.config": "optimizer",
}
"""Where sections of Megatron-Bridge stand in a file, longest paths first."""
_CALLBACK = "trainer.callbacks"
_MODELS: Mapping[str, str] = {
    "DeepSeekV2Config": "deepseek-v2",
    "DeepSeekV2LiteConfig": "deepseek-v2-lite",
    "DeepSeekV3Config": "deepseek-v3",
    "GPTConfig175B": "gpt3-175b",
    "Llama2Config13B": "llama2-13b",
    "Llama2Config70B": "llama2-70b",
    "Llama2Config7B": "llama2-7b",
    "Llama31Config405B": "llama3-405b",
    "Llama31Config70B": "llama3-70b",
    "Llama31Config8B": "llama3-8b",
    "Llama32Config1B": "llama3.2-1b",
    "Llama32Config3B": "llama3.2-3b",
    "Llama3Config70B": "llama3-70b",
    "Llama3Config8B": "llama3-8b",
    "MistralConfig7B": "mistral-7b",
    "MixtralConfig8x22B": "mixtral-8x22b",
    "MixtralConfig8x7B": "mixtral-8x7b",
    "Qwen25Config14B": "qwen2.5-14b",
    "Qwen25Config32B": "qwen2.5-32b",
    "Qwen25Config72B": "qwen2.5-72b",
    "Qwen25Config7B": "qwen2.5-7b",
    "Qwen2Config72B": "qwen2-72b",
    "Qwen2Config7B": "qwen2-7b",
    "Qwen3Config235B_A22B": "qwen3-235b-a22b",
    "Qwen3Config30B_A3B": "qwen3-30b-a3b",
    "Qwen3Config8B": "qwen3-8b",
}
"""Models of the catalog by NeMo's classes (nemo/collections/llm/gpt/model)."""
_NEUTRAL_STRATEGY = (
    "ckpt_",
    "save_",
    "gradient_as_bucket_view",
    "parallel_save_optim",
    "restore_config",
    "progress_interval",
    "setup_optimizers",
    "init_model_parallel",
    "replace_progress_bar",
    "async_save",
    "lazy_init",
    "store_optimizer_states",
    "megatron_log_level",
)


class Form:
    """Form of NeMo 2's files."""

    @staticmethod
    def path(path: str) -> str:
        """A path of the file as Megatron-Bridge has it."""
        for place, name in _PLACES.items():
            if path.startswith(f"{place}."):
                field = path.removeprefix(f"{place}.")
                return f"scheduler.{field}" if _is_neutral(place, field) else f"{name}.{field}"
        used = path in ("trainer.num_nodes", "trainer.devices", "trainer.plugins", "peft")
        is_callback = path.startswith(_CALLBACK)
        return path if used or is_callback or path.startswith("peft") else f"logger.{path}"

    @staticmethod
    def job(tree: Tree, source: str) -> Job:
        """What a file sets, its references replaced."""
        del source
        found: Tree = {}
        origins: dict[str, str] = {}
        for place, name in reversed(list(_PLACES.items())):
            own = section(tree, place)
            kept = {key: item for key, item in own.items() if not _is_neutral(place, key)}
            kept.pop("ddp", None)
            known = found.get(name)
            found[name] = {**(known if isinstance(known, dict) else {}), **kept}
            origins |= {f"{name}.{key}": f"{place}.{key}" for key in kept}
        _set_precision(found, section(tree, "trainer").get("plugins"))
        callback = _callback(tree)
        if callback is not None:
            found["comm_overlap"] = callback
            origins |= {
                f"comm_overlap.{path}": f"{_CALLBACK}.{path}" for path, _ in leaves(callback)
            }
        if "peft" in tree:
            found["peft"] = tree["peft"]
        _choose_fsdp(found)
        model = _model(tree)
        trainer = section(tree, "trainer")
        nodes, devices = trainer.get("num_nodes", 1), trainer.get("devices")
        return Job(
            tree=found,
            origins=origins,
            model=model,
            gpus=nodes * devices if isinstance(nodes, int) and isinstance(devices, int) else None,
            stack=NEMO_STACK,
            defaults={**recipe_defaults(model), **_DEFAULTS},
        )


_DEFAULTS = {"cross_entropy_fusion_impl": "native"}


def _is_neutral(place: str, field: str) -> bool:
    return place == "trainer.strategy" and field.startswith(_NEUTRAL_STRATEGY)


def _set_precision(found: Tree, plugins: Leaf) -> None:
    """Mixed precision is a plugin: its name, its fields, or one of a list."""
    one = plugins[0] if isinstance(plugins, list) and plugins else plugins
    if isinstance(one, dict):
        fields = {key: item for key, item in one.items() if key not in ("precision", TARGET)}
        is_half = any(fields.get(name) for name in ("bf16", "fp16"))
        word = str(one.get("precision", "bf16-mixed"))
        if not is_half:
            fields |= {"fp16": True} if word.startswith("16") else {"bf16": "bf16" in word}
        found["mixed_precision"] = fields
    elif isinstance(one, str):
        found["mixed_precision"] = one
    else:
        found.pop("mixed_precision", None)


def _callback(tree: Tree) -> Tree | None:
    """Arguments of the callback that overlaps communication."""
    callbacks = section(tree, "trainer").get("callbacks")
    for one in callbacks if isinstance(callbacks, list) else []:
        if isinstance(one, dict) and str(one.get(TARGET, "")).endswith(_COMM_OVERLAP):
            return one
    return None


def _choose_fsdp(found: Tree) -> None:
    """`fsdp` of the strategy names who shards."""
    model, ddp = section(found, "model"), section(found, "ddp")
    kind = model.pop("fsdp", None)
    if kind == "megatron":
        ddp["use_megatron_fsdp"] = True
        found["ddp"] = ddp
    elif kind == "pytorch":
        found["dist"] = {"use_torch_fsdp2": True}


def _model(tree: Tree) -> Model | None:
    """The model of the catalog that NeMo's class describes."""
    target = str(section(tree, "model.config").get(TARGET, "")).rpartition(".")[2]
    name = _MODELS.get(target)
    return Model.load(name) if name else None
