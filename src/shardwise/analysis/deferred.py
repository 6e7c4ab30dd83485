"""Results some of whose fields are worked out when they are first read."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from pydantic import PrivateAttr

from shardwise.analysis import Result
from shardwise.frozen import frozen


class Deferred(Result):
    """A result that keeps formulas in place of fields that few read.

    It behaves like one that has all its values: JSON, pickles, comparison and iteration have every
    field.
    """

    _formulas: Mapping[str, Callable[[], Any]] = PrivateAttr(default_factory=dict)
    """By the fields that may still be missing; copies share them, and what they return."""

    @classmethod
    def deferring(cls, formulas: Mapping[str, Callable[[], Any]], **fields: Any) -> Self:
        """Return a result of correct values, which are not validated again.

        Parameters
        ----------
        fields
            The other fields; those with a default may be left out.
        """
        return cls._of({name: cache(formula) for name, formula in formulas.items()}, fields)

    @classmethod
    def extending(cls, other: "Deferred", **fields: Any) -> Self:
        """Return a result of a derived type: the fields of another one, and more."""
        return cls._of(other._formulas, vars(other) | fields)  # noqa: SLF001 - of its own class

    @classmethod
    def _of(cls, formulas: Mapping[str, Callable[[], Any]], fields: Mapping[str, Any]) -> Self:
        cls.model_rebuild()  # before pydantic 2.14 a field of type Any can write no other records
        one: Any = cls.model_construct({*formulas, *fields}, **fields)
        for name in formulas.keys() - fields.keys():
            one.__dict__.pop(name, None)  # a default
        one._formulas = formulas  # noqa: SLF001 - of its own class
        return one

    if not TYPE_CHECKING:  # where other names are mistakes

        def __getattr__(self, name: str) -> Any:
            """Work out a field that is read for the first time."""
            formula = None if name.startswith("_") else self._formulas.get(name)
            if formula is None:
                return super().__getattr__(name)
            value = self.__dict__[name] = frozen(formula())
            return value

    def completed(self) -> Self:
        """Work out all fields, and return the result itself."""
        if self._formulas:
            fields = {name: getattr(self, name) for name in type(self).model_fields}
            object.__setattr__(self, "__dict__", fields)  # in order, and at once for other threads
            self._formulas = {}
        return self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Deferred):
            other.completed()
        self.completed()
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash(tuple([getattr(self, name) for name in type(self).model_fields]))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        self.completed()
        return super().__deepcopy__(memo)

    def __getstate__(self) -> dict[Any, Any]:
        self.completed()
        return super().__getstate__()

    def __iter__(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
        self.completed()
        return super().__iter__()

    def __repr_args__(self) -> Any:
        self.completed()
        return super().__repr_args__()

    def _with_dicts(self) -> Self:
        """Complete it before it is serialized, also inside other results."""
        return super(Deferred, self.completed())._with_dicts()
