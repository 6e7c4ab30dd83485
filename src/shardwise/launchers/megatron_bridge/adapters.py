"""The section `peft` of a configuration: low-rank adapters.

Of peft/lora.py and peft/module_matcher.py, Megatron-Bridge 067f987d of 2026-08-22.
"""

from collections.abc import Iterator

from shardwise.config.enums import LoraPart
from shardwise.config.launch import NotUnderstood
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.launchers.megatron_bridge.trees import TARGET, Leaf, Tree

SECTION = "peft"
TARGET_CLASS = "megatron.bridge.peft.lora.LoRA"
_USUAL_RANK = 32
_MLP = ("linear_fc1", "linear_fc2")
_ATTENTION = ("linear_qkv", "linear_proj")
_LATENT_KV = ("linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")
_COMPRESSED_Q = ("linear_q_down_proj", "linear_q_up_proj")
_WHOLE_Q = ("linear_q_proj",)
_SHARED = "*.shared_experts."
_DENSE = "*.mlp."
_ROUTED = "*.mlp.experts."
_USUAL: list[Leaf] = [*_ATTENTION, *_MLP]


def adapter_section(model: Model, strategy: Strategy) -> Tree | None:
    """Return the section of a plan; None where all weights are trained."""
    if strategy.lora_rank is None:
        return None
    modules: list[Leaf] = [*_modules(model, strategy)]
    return {
        TARGET: TARGET_CLASS,
        "target_modules": modules,
        "dim": strategy.lora_rank,
        "alpha": strategy.lora_rank,
        "dropout": 0.0,
    }


def _modules(model: Model, strategy: Strategy) -> Iterator[str]:
    """Names of modules, with a wildcard where a name means more than a part."""
    parts = strategy.lora_parts
    if LoraPart.ATTENTION in parts:
        yield from _attention_modules(model)
    if not model.has_experts or {LoraPart.MLP, LoraPart.EXPERTS} <= set(parts):
        yield from _MLP if LoraPart.MLP in parts else ()
        return
    prefixes: tuple[str, ...] = ()
    if LoraPart.MLP in parts:
        prefixes = (_DENSE, _SHARED)
    elif LoraPart.EXPERTS in parts:
        prefixes = (_ROUTED,)
    yield from (f"{prefix}{name}" for prefix in prefixes for name in _MLP)


def _attention_modules(model: Model) -> Iterator[str]:
    latent = model.layers[0].own_attention.latent
    if latent is None:
        yield from _ATTENTION
    else:
        yield from (*(_COMPRESSED_Q if latent.q_rank else _WHOLE_Q), *_LATENT_KV)


def read_adapters(
    value: Leaf, model: Model, path: str = SECTION
) -> tuple[dict[str, object], list[NotUnderstood]]:
    """Return the fields of a strategy that a section sets, and what of it is not understood."""
    if value is None or value == "none":
        return {}, []
    section: Tree = {TARGET: value} if isinstance(value, str) else {}
    section = value if isinstance(value, dict) else section
    kind = str(section.get(TARGET, "lora")).rpartition(".")[2].lower()
    notes = []
    if kind not in ("lora", "vlmlora"):
        because = "predicted as low-rank adapters (LoRA)"
        notes.append(NotUnderstood(option=path, value=kind, because=because))
    rank = section.get("dim", _USUAL_RANK)
    if not isinstance(rank, int):
        because = f"must be a number; predicted as {_USUAL_RANK}"
        notes.append(NotUnderstood(option=f"{path}.dim", value=rank, because=because))
        rank = _USUAL_RANK
    parts, unknown = _parts(section.get("target_modules") or _USUAL, model)
    if unknown:
        because = "modules that predictions do not adapt apart from others"
        option = f"{path}.target_modules"
        notes.append(NotUnderstood(option=option, value=unknown, because=because))
    fields: dict[str, object] = {"lora_rank": rank}
    return fields | ({"lora_parts": parts} if parts else {}), notes


def _parts(value: Leaf, model: Model) -> tuple[list[LoraPart], list[str]]:
    """Parts of layers that names of modules mean, and names that mean only some of a part."""
    names = [str(name) for name in value] if isinstance(value, list) else [str(value)]
    known: dict[LoraPart, set[str]] = {LoraPart.ATTENTION: set(_attention_modules(model))}
    known |= {part: set(_MLP) for part in (LoraPart.MLP, LoraPart.EXPERTS)}
    found: dict[LoraPart, set[str]] = {part: set() for part in known}
    unknown = []
    for name in names:
        prefix, module = name[: name.rfind(".") + 1], name[name.rfind(".") + 1 :]
        parts = _meant(prefix, module, model)
        for part in parts:
            found[part].add(module)
        if not parts:
            unknown.append(name)
    unknown += [
        name
        for part, modules in found.items()
        if modules and modules != known[part]
        for name in sorted(modules)
    ]
    return [part for part in LoraPart if found.get(part)], list(dict.fromkeys(unknown))


def _meant(prefix: str, module: str, model: Model) -> tuple[LoraPart, ...]:
    """Parts that a module with what stands before its name belongs to."""
    if not prefix and module in (*_ATTENTION, *_COMPRESSED_Q, *_WHOLE_Q, *_LATENT_KV):
        return (LoraPart.ATTENTION,)
    if module not in _MLP:
        return ()
    both = (LoraPart.MLP, LoraPart.EXPERTS) if model.has_experts else (LoraPart.MLP,)
    places = {"": both, _DENSE: (LoraPart.MLP,), _SHARED: (LoraPart.MLP,)}
    return (places | {_ROUTED: (LoraPart.EXPERTS,)}).get(prefix, ())
