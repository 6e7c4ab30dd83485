"""What the translations into predecessors' words share: their names, and how they refuse."""

from collections.abc import Iterable, Sequence

from shardwise.errors import Fault, InputError, nearest

__all__ = ["REFERENCES", "known_reference", "refuse", "told"]

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
