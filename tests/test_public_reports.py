"""Public reports of training engineers, and what they measured (data/public_reports.yaml)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rows import each_row
from shardwise import estimate

GB = 1e9
TIME, MEMORY = 0.15, 0.08
_FILE = Path(__file__).parent / "data" / "public_reports.yaml"
REPORTS = yaml.safe_load(_FILE.read_text(encoding="utf-8"))["reports"]


@each_row("report", REPORTS)
def test_what_engineers_report(report: dict[str, Any]) -> None:
    """Step times within 15 %, memory within 8 %, and whether it fits."""
    fields = dict(report["run"])
    found = estimate(fields.pop("model"), fields.pop("system"), **fields)
    memory, measured = found.memory_bytes, report["measured"]
    sizes = {"total_gb": memory.total, "reserved_gb": memory.reserved}
    assert found.step_time_s == pytest.approx(measured.get("step_s", found.step_time_s), rel=TIME)
    for name, size in sizes.items():
        assert size / GB == pytest.approx(measured.get(name, size / GB), rel=MEMORY)
    assert found.fits == measured.get("fits", found.fits)
    assert memory.offloaded * fields["gpus"] / GB > measured.get("host_gb", -1)
