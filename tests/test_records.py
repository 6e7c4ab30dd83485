"""Records compare, hash and print as dataclasses do."""

import dataclasses
import pickle

from shardwise.records import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Two:
    """Of two fields, one of which does not count."""

    a: int
    b: float = field(default=0.0, compare=False, repr=False)


@dataclass(slots=True, kw_only=True)
class Open:
    """Of one field that changes."""

    a: object


def test_records_are_equal_by_the_fields_that_count():
    """Also to their pickles; a record that changes has no hash."""
    one, same, other = Two(a=1, b=1.0), Two(a=1, b=2.0), Two(a=2)
    assert (one, hash(one)) == (same, hash(same))
    assert one not in (other, Open(a=1))
    again = pickle.loads(pickle.dumps(one))  # noqa: S301 - our own
    assert (again.a, again.b) == (1, 1.0)
    assert Open.__hash__ is None
    assert Open(a=[1]) == Open(a=[1])


def test_records_are_dataclasses():
    """With slots, fields and a text of them."""
    assert repr(Two(a=1)) == "Two(a=1)"
    assert replace(Two(a=1), a=2) == Two(a=2)
    assert [one.name for one in dataclasses.fields(Two)] == ["a", "b"]
    assert not hasattr(Two(a=1), "__dict__")


def test_methods_of_the_class_stay():
    """What it defines is not replaced."""

    @dataclass(frozen=True, kw_only=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

    assert repr(Own(a=1)) == "own"
    assert Own(a=1) == Own(a=1)
