"""The list of slow tests, which `pytest` alone leaves out."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTED = (ROOT / "tests/data/slow_tests.txt").read_text(encoding="utf-8").splitlines()


def test_every_listed_test_exists():
    """Entries are sorted, and each names an existing test."""
    assert sorted(set(LISTED)) == LISTED
    lost = []
    for line in LISTED:
        file, *_, name = line.split("[")[0].split("::")
        path = ROOT / file
        if not path.exists() or f"def {name}(" not in path.read_text(encoding="utf-8"):
            lost.append(line)
    assert lost == []
