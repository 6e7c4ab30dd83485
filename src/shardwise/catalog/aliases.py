"""What people call entries of the catalog: short names, names of vendors, ids of Hugging Face."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from shardwise.records import dataclass

OWNERS = frozenset(
    {
        *("meta-llama", "huggyllama", "qwen", "mistralai", "deepseek-ai", "google", "openai"),
        *("allenai", "zai-org", "moonshotai", "inclusionai", "nvidia", "minimaxai", "liquidai"),
        *("ai21labs", "tiiuae", "ibm-granite", "nousresearch", "unsloth", "microsoft"),
        *("huggingfacetb", "tinyllama"),
    }
)
"""Owners on Hugging Face whose models are in the catalog, or who copy them under their names; a
model of others may have any shape."""
_CODERS = ("0.5b", "1.5b", "3b", "7b", "14b", "32b")
MODELS = {
    "llama3.1-8b": "llama3-8b",
    "llama3.1-70b": "llama3-70b",
    "llama3.3-70b": "llama3-70b",
    "llama3.1-405b": "llama3-405b",
    "llama-30b": "llama-33b",
    "llama4-maverick-17b-128e": "llama4-maverick",
    "llama4-scout-17b-16e": "llama4-scout",
    "olmo2-1124-7b": "olmo2-7b",
    "olmo2-1124-13b": "olmo2-13b",
    "olmo2-0325-32b": "olmo2-32b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-r1-distill-llama-8b": "llama3-8b",
    "deepseek-r1-distill-llama-70b": "llama3-70b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-v3.1": "deepseek-v3",
    **{f"qwen2.5-coder-{size}": f"qwen2.5-{size}" for size in _CODERS},
    "mistral-7b-instruct-v0.3": "mistral-7b-v0.3",
    "phi-3-mini-4k": "phi-3-mini",
    "tinyllama-1.1b-chat-v1.0": "tinyllama-1.1b",
    "tinyllama-1.1b-intermediate-step-1431k-3t": "tinyllama-1.1b",
    "glm5-2": "glm-5.2",
    "gpt3": "gpt3-175b",
    "nvidia-nemotron-3-nano-30b-a3b": "nemotron-3-nano",
    "nemotron-3-nano-30b-a3b": "nemotron-3-nano",
    "nvidia-nemotron-3.5-lightning-30b-a3b": "nemotron-3.5-lightning",
    "nemotron-3.5-lightning-30b-a3b": "nemotron-3.5-lightning",
    "nvidia-nemotron-3-super-120b-a12b": "nemotron-3-super",
    "nemotron-3-super-120b-a12b": "nemotron-3-super",
    "nvidia-nemotron-3-ultra-550b-a55b": "nemotron-3-ultra",
    "nemotron-3-ultra-550b-a55b": "nemotron-3-ultra",
    **{f"nemotron-h-{size}-base-8k": f"nemotron-h-{size}" for size in ("4b", "8b", "47b", "56b")},
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
    "qwen3.6-27b": "qwen3.5-27b",
    "minimax-m1-80k": "minimax-m1",
    "minimax-m1-40k": "minimax-m1",
    "ai21-jamba-1.5-mini": "jamba-1.5-mini",
    "ai21-jamba-1.5-large": "jamba-1.5-large",
}
"""Models of the same shape as an entry, and other names of it; dashes do not matter."""
_VARIANT = re.compile(
    r"-(unsloth-bnb-4bit|bnb-4bit|instruct|chat|base|hf|it|pt|text|thinking|original|fp8|bf16"
    r"|v0\.1|2501|2507|0324|0528|0905)$"
)
"""Endings of names whose models have the shape of the base model."""
_ACTIVE = re.compile(r"-a\d+(\.\d+)?b$")
_SYSTEMS = {
    "gaudi-2": "gaudi2",
    "gaudi-3": "gaudi3",
    "dgx-spark": "gb10",
    "trn2": "trainium2",
    "trn2.48xlarge": "trainium2",
    "ironwood": "tpu-v7x",
    "tpu-v7": "tpu-v7x",
    "tpu7x": "tpu-v7x",
    "trillium": "tpu-v6e",
    "trainium": "trainium1",
    "trn1": "trainium1",
    "trn1.32xlarge": "trainium1",
    "ascend910b": "ascend-910b",
    "rtx3090": "rtx-3090",
    "rtx4090": "rtx-4090",
    "rtx5090": "rtx-5090",
    "mi300": "mi300x",
}
_VENDOR = frozenset(
    {"nvidia", "geforce", "amd", "intel", "google", "huawei", "tesla", "dgx", "hgx", "gpu"}
)
_OWN_MEMORY = frozenset(
    {"h100-80gb", "h800-80gb", "a800-80gb", "h200-141gb", "l40s-48gb", "mi300x-192gb"}
)
"""Memory that people name and that the name of the entry leaves out."""
_MEMORY_KIND = re.compile(r"hbm\d?e?$")
_FORM = re.compile(r"sxm\d$")
TOOLS = frozenset({"calculon", "nersc", "simumax"})


@dataclass(frozen=True, slots=True)
class Alias:
    """The entry that a name means, and the others that it may mean."""

    name: str
    others: tuple[str, ...] = ()


def meant(folder: str, called: str, names: Iterable[str]) -> Alias | None:
    """Return what a name in the spelling of the catalog means, if it is none of an entry."""
    if folder == "models":
        return _model(called, names)
    return _system(called, names) if folder == "systems" else None


def _model(called: str, names: Iterable[str]) -> Alias | None:
    names = list(names)
    owner, _, text = called.rpartition("/")
    if owner and owner not in OWNERS:
        return None
    text = text.removeprefix("meta-")
    known = _without_active_size(names)
    known |= {joined(name): name for name in names}
    known |= {joined(other): name for other, name in MODELS.items()}
    while joined(text) not in known and _VARIANT.search(text):
        text = _VARIANT.sub("", text)
    name = known.get(joined(text))
    return Alias(name) if name is not None else None


def _without_active_size(names: Sequence[str]) -> dict[str, str]:
    """Entries by the name without active parameters, where only one has it: qwen3-30b."""
    short = {name: joined(_ACTIVE.sub("", name)) for name in names}
    count = Counter(short.values())
    return {text: name for name, text in short.items() if count[text] == 1}


def joined(text: str) -> str:
    """Return a name without its dashes, which do not matter in names of models."""
    return text.replace("-", "")


def _system(called: str, names: Iterable[str]) -> Alias | None:
    if called in _SYSTEMS:
        return Alias(_SYSTEMS[called])
    words = set(words_of_system(called))
    found = sorted(
        (name for name in names if chip_of(name) in words and words <= _all_words(name)),
        key=_order,
    )
    return Alias(found[0], tuple(found[1:])) if found else None


def words_of_system(called: str) -> Iterator[str]:
    """Words of a name of a system in the forms that entries have."""
    for word in called.split("-"):
        if word in _VENDOR or _MEMORY_KIND.match(word):
            continue
        yield "sxm" if _FORM.match(word) else re.sub(r"^(\d+)g$", r"\1gb", word)


def chip_of(name: str) -> str:
    """The word of an entry that names the accelerator: the first with a digit, or the first."""
    words = name.split("-")
    return next((word for word in words if any(map(str.isdigit, word))), words[0])


def _all_words(name: str) -> set[str]:
    """Words that may name an entry; of files of other tools their own have to be among them."""
    words = set(name.split("-"))
    chip = chip_of(name)
    own = {memory.rpartition("-")[2] for memory in _OWN_MEMORY if memory.startswith(f"{chip}-")}
    return set() if words & TOOLS else words | own


def _order(name: str) -> tuple[bool, int, int]:
    """The most common first: SXM before PCIe, more memory before less, no more words."""
    memory = re.search(r"-(\d+)gb", name)
    return "sxm" not in name, -int(memory[1]) if memory else 0, len(name)
