"""docs/accuracy/index.md shows what the predictions of all shipped runs give.

SHARDWISE_UPDATE_DOCS=1 writes its tables anew.
"""

import os
import re
from pathlib import Path

from accuracy_tables import CAUSES, blocks
from rows import each_row
from shardwise.validate.measured.store import load_runs

PAGE = Path(__file__).parents[1] / "docs/accuracy/index.md"
BLOCK = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


def test_the_page_shows_the_errors_as_they_are(predictions):
    """Every block, and no other."""
    text = PAGE.read_text(encoding="utf-8")
    found = blocks(predictions)
    assert [name for name, _ in BLOCK.findall(text)] == list(found)
    expected = BLOCK.sub(lambda m: f"<!-- table: {m[1]} -->\n{found[m[1]]}\n<!-- end -->", text)
    if os.environ.get("SHARDWISE_UPDATE_DOCS"):
        PAGE.write_text(expected, encoding="utf-8")
        return
    told = "stale: SHARDWISE_UPDATE_DOCS=1 pytest tests/test_accuracy_page.py"
    assert text == expected, told


@each_row("cause", CAUSES)
def test_every_cause_is_of_some_runs(cause):
    """Of grade A or B, with a time."""
    some = [run for run in load_runs() if re.search(cause.rows, run.id)]
    assert any(run.grade in ("A", "B") and run.measured_step_time_s for run in some)
