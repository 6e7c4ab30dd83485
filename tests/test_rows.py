"""`each_row` runs every row, and says which ones fail."""

import pytest

from rows import each_row


def test_every_row_that_fails_is_named():
    """The rows after a failure run too."""
    seen = []

    @each_row(("a", "b"), [(1, 1), (1, 2), (2, 2), (3, 4)])
    def equal(a, b):
        seen.append((a, b))
        assert a == b

    with pytest.raises(ExceptionGroup, match="2 of 4 rows") as caught:
        equal()
    assert seen == [(1, 1), (1, 2), (2, 2), (3, 4)]
    notes = [failure.__notes__ for failure in caught.value.exceptions]
    assert notes == [["with {'a': 1, 'b': 2}"], ["with {'a': 3, 'b': 4}"]]


@each_row("value", [(1,), (2,)])
def test_one_name_takes_the_row_itself(value, tmp_path_factory):
    """Fixtures are passed on."""
    assert isinstance(value, tuple)
    assert tmp_path_factory is not None


def test_a_table_without_rows_is_refused():
    """It would pass whatever the test says."""
    with pytest.raises(AssertionError, match="without rows"):
        each_row("value", [])
