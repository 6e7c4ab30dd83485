"""Functions that answer a question again from what they found the first time.

Several tests look at what the same command prints, writes or returns: its search is made once.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

__all__ = ["remembered"]


@contextmanager
def remembered(*places: str) -> Iterator[None]:
    """Put in the place of each function, by its dotted name, one that remembers."""
    with pytest.MonkeyPatch.context() as patch:
        for place in places:
            module, _, name = place.rpartition(".")
            owner = __import__(module, fromlist=[name])
            patch.setattr(place, _remembering(getattr(owner, name)))
        yield


def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arguments tell questions apart, but for `progress`; what is saved is made anew."""
    found: dict[bytes, Any] = {}

    @wraps(function)
    def answer(*args: Any, **words: Any) -> Any:
        if words.get("save") is not None:
            return function(*args, **words)
        asked = {name: value for name, value in words.items() if name != "progress"}
        key = pickle.dumps((args, sorted(asked.items())))
        if key not in found:
            found[key] = function(*args, **words)
        return found[key]

    return answer
