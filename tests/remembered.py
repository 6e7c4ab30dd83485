"""Cached functions: tests that check the same command run its search once."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

__all__ = ["remembered"]


@contextmanager
def remembered(*places: str) -> Iterator[None]:
    """Replace each function, by its dotted name, with a cached one."""
    with pytest.MonkeyPatch.context() as patch:
        for place in places:
            module, _, name = place.rpartition(".")
            owner = __import__(module, fromlist=[name])
            patch.setattr(place, _remembering(getattr(owner, name)))
        yield


def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cache results by all arguments except `progress`; a call that saves a file runs again."""
    found: dict[bytes, Any] = {}

    @wraps(function)
    def answer(*args: Any, **words: Any) -> Any:
        if words.get("save") is not None:
            return function(*args, **words)
        compared = {name: value for name, value in words.items() if name != "progress"}
        key = pickle.dumps((args, sorted(compared.items())))
        if key not in found:
            found[key] = function(*args, **words)
        return found[key]

    return answer
