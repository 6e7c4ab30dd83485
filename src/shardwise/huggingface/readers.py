"""All families of the Hugging Face hub, and how the config.json of each is read."""

from collections.abc import Callable

from shardwise.huggingface import hybrid_decoders, more_decoders, uncommon_decoders
from shardwise.huggingface.decoders import Fields, falcon, llama4, read
from shardwise.huggingface.families import FAMILIES as FAMILIES  # noqa: PLC0414 - of this module, too
from shardwise.huggingface.families import Family
from shardwise.huggingface.files import Config

Reader = Callable[[Config], Fields]

_OWN: dict[str, Callable[[Config, Family], Fields]] = {
    "FalconForCausalLM": falcon,
    "Llama4ForCausalLM": llama4,
    **more_decoders.OWN,
    **hybrid_decoders.OWN,
    **uncommon_decoders.OWN,
}


def _reader(name: str, family: Family) -> Reader:
    own = _OWN.get(name, read)
    return lambda c: own(c, family)


READERS = {name: _reader(name, family) for name, family in FAMILIES.items()}
"""How the config.json of each architecture is read."""
MODEL_TYPES = {kind: name for name, family in FAMILIES.items() for kind in family.kinds}
"""The architecture of files that do not name one."""
