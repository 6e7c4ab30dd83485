"""docs/accuracy shows what the predictions of all shipped runs give.

Predictions of all runs take half a minute: .ci/run compares the pages, too.
"""

import re
from pathlib import Path

import pytest

from accuracy_tables import CAUSES, blocks
from generated import check
from rows import each_row
from shardwise.validate.measured.runs import load_runs

PAGES = sorted((Path(__file__).parents[2] / "docs/accuracy").glob("*.md"))
BLOCK = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


@pytest.mark.nightly
def test_the_pages_show_the_errors_as_they_are(predictions, typed_predictions):
    """Every block, on one page each."""
    found = blocks(predictions, typed_predictions)
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    shown = [name for text in texts.values() for name, _ in BLOCK.findall(text)]
    assert sorted(shown) == sorted(found)
    for page, text in texts.items():
        expected = BLOCK.sub(lambda m: f"<!-- table: {m[1]} -->\n{found[m[1]]}\n<!-- end -->", text)
        check(page, expected)


@each_row("cause", CAUSES)
def test_every_cause_is_of_some_runs(cause):
    """Of grade A or B, with a time."""
    some = [run for run in load_runs() if re.search(cause.rows, run.id)]
    assert any(run.grade in ("A", "B") and run.measured_step_time_s for run in some)
