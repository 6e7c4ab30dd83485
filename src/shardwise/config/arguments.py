"""Arguments as people write them: a word, a whole number, a list or a range of numbers."""

from shardwise import units
from shardwise.config.base import MOST
from shardwise.errors import Fault, InputError, allowed_words


def text_of(value: object) -> str | None:
    """Return an argument as text, a list joined by commas; None without a value."""
    if value is None or isinstance(value, str):
        return value
    listed = value.tolist() if hasattr(value, "tolist") else value
    return ",".join(map(str, listed)) if isinstance(listed, (list, tuple)) else str(listed)


def one_of(field: str, text: str, allowed: tuple[str, ...]) -> str:
    """Read one of some words, in any case."""
    known = {word.lower(): word for word in allowed}
    word = known.get(text.strip().lower())
    if word is None:
        problem = allowed_words(text, allowed)
        raise InputError(Fault.of(field, text, problem))
    return word


def whole_number(field: str, text: str | None) -> int | None:
    """Read a whole number of at least 1; None without a value."""
    if text is None:
        return None
    number = units.read_whole(text) or 0
    if number < 1:
        raise InputError(Fault.of(field, text, "must be a whole number of at least 1"))
    return number


def whole_numbers(field: str, text: str) -> tuple[int, ...]:
    """Read whole numbers: one, a list, or a range such as 64..512, which doubles."""
    found: list[int] = []
    for part in text.split(","):
        low, dots, high = part.partition("..")
        numbers = [count_of(field, low)]
        last = count_of(field, high) if dots else numbers[0]
        if last < numbers[0]:
            raise InputError(Fault.of(field, part, "a range goes from a number to a larger one"))
        while numbers[-1] * 2 <= last:
            numbers.append(numbers[-1] * 2)
        found += numbers
    return tuple(dict.fromkeys(found))


def count_of(field: str, text: str) -> int:
    """Read a whole number from 1 to `MOST`."""
    number = whole_number(field, text)
    assert number is not None  # noqa: S101 - there is a text
    if number > MOST:
        raise InputError(Fault.of(field, text, f"must be at most {MOST}"))
    return number
