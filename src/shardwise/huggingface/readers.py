"""All families of the Hugging Face hub, and how the config.json of each is read."""

from collections.abc import Callable

from shardwise.huggingface import families, hybrid_decoders, more_decoders, uncommon_decoders
from shardwise.huggingface.decoders import Fields, falcon, llama4, read
from shardwise.huggingface.families import Family
from shardwise.huggingface.files import Config
from shardwise.huggingface.hybrid_families import HYBRID_FAMILIES
from shardwise.huggingface.more_families import MORE_FAMILIES
from shardwise.huggingface.uncommon_families import UNCOMMON_FAMILIES

Reader = Callable[[Config], Fields]

FAMILIES: dict[str, Family] = (
    families.FAMILIES | MORE_FAMILIES | HYBRID_FAMILIES | UNCOMMON_FAMILIES
)
"""The record of each architecture."""
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
