"""What the translations into predecessors' words share: their names, and how they refuse."""

from collections.abc import Iterable, Iterator, Sequence

from shardwise.config.model import Attention, Model
from shardwise.errors import Fault, InputError, nearest

__all__ = ["attention_lacks", "known_reference", "refuse", "told"]

REFERENCES = ("calculon", "nersc", "amped")


def known_reference(name: str, field: str, known: Sequence[str] = REFERENCES) -> str:
    """Return the name of a predecessor, or raise an `InputError`."""
    word = name.strip().lower()
    if word not in known:
        problem = f"allowed: {', '.join(known)}{nearest(word, known)}"
        raise InputError(Fault(field=field, value=name, has_value=True, problem=problem))
    return word


def told(value: object) -> str:
    """A value as people write it on the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if value else "none"


def refuse(faults: Iterable[Fault]) -> None:
    """Raise an `InputError` with all of some faults, if there are any."""
    found = list(faults)
    if found:
        raise InputError(found)


def attention_lacks(
    model: Model, attention: Attention, where: str, width: str
) -> Iterator[tuple[str, object, str]]:
    """What plain multi-head attention has no word for: field, value, and what a predecessor does.

    Parameters
    ----------
    where
        Field of the attention.
    width
        What it does with heads that are together not as wide as the model.
    """
    for name in ("latent", "v_head_dim", "window", "chunk", "sinks"):
        value = getattr(attention, name)
        if value not in (None, False):
            yield f"{where}.{name}", value, "does not know it"
    if attention.qk_norm != "none":
        yield f"{where}.qk_norm", attention.qk_norm, "knows no norm of queries and keys"
    if attention.kv_heads != attention.heads:
        problem = f"has keys and values of its own for each head; allowed: {attention.heads}"
        yield f"{where}.kv_heads", attention.kv_heads, problem
    if attention.latent is None and attention.heads * attention.head_dim != model.hidden:
        yield f"{where}.head_dim", attention.head_dim, width
