"""Fitted figures put into files of the catalog: values, and all other text as it was."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from catalog_fit.fit import Parameter, load_parameters
from catalog_fit.rewrite import figures_moved, rewritten, with_moves
from profiles import examples
from rows import each_row
from shardwise import Stack, System, catalog
from shardwise.config import files

some = examples(60)
NOUNS: dict[str, Any] = {"systems": System, "stacks": Stack}
TEXT = """# What sources: say is below.
name: mine   # of nobody
host_launch:   6 us  # of the host
tiers:
- {rates: {2: 0.53, 4: 0.63}, kind: "near"}
- rates:
    1: .7   # measured
  kind: far
sources:
  "": {kind: fitted, text: "6 us and 0.53"}
"""


def parameter(**fields: Any) -> Parameter:
    plain = {"name": "p", "of": "stacks", "names": ["mine"], "fields": ["host_launch"]}
    return Parameter.validated(plain | {"spread": 1, "source": "by hand"} | fields)


def test_figures_are_put_where_they_stand() -> None:
    """In block and flow style; comments, quotes and the text of sources stay."""
    changes = {
        ("host_launch",): "7.5 us",
        ("tiers", 0, "rates", "4"): "0.7",
        ("tiers", 1, "rates", 1): "0.65",
    }
    expected = TEXT.replace("6 us  #", "7.5 us  #").replace("0.63", "0.7").replace(".7 ", "0.65 ")
    assert rewritten(TEXT, changes) == expected.replace("0.7  #", "0.7   #")
    assert rewritten(TEXT, {}) == TEXT


def test_what_was_not_told_comes_before_the_sources() -> None:
    """The key, not a word in a comment; at the end of a file that has none."""
    changes = {("tp_hidden",): "0.5", ("dp_tail",): "0.1", ("host_launch",): "7 us"}
    found = rewritten(TEXT, changes)
    own = "tp_hidden: 0.5\ndp_tail: 0.1\n"
    assert found == TEXT.replace("6 us  #", "7 us  #").replace("sources:\n", f"{own}sources:\n")
    bare = "name: mine\nbase: other\n"
    assert rewritten(bare, {("tp_hidden",): "0.5"}) == bare + "tp_hidden: 0.5\n"


@some
@given(st.floats(1e-9, 1e12), st.floats(0.01, 1))
def test_figures_are_read_back_as_numbers(large: float, share: float) -> None:
    """To four digits, however large or small."""
    own = yaml.safe_load(TEXT)
    values = {"large": large, "share": share, "time": f"{share} us", "zero": 0}
    mine = parameter(fields=list(values))
    changes = figures_moved(
        [mine], "mine", written=own | dict.fromkeys(values, 1), values=values, base={}
    )
    assert set(changes) == {("large",), ("share",), ("time",)}
    read = yaml.safe_load(rewritten(TEXT, changes))
    assert read["large"] == pytest.approx(large, rel=6e-4)
    assert read["share"] == pytest.approx(share, rel=6e-4)
    assert read["time"].endswith(" us")
    assert float(read["time"].split()[0]) == pytest.approx(share, rel=6e-4)
    for text in changes.values():
        assert len(text.split()[0].lstrip("-0.").replace(".", "").rstrip("0")) <= 4


def test_an_entry_has_its_own_figures_moved_alone() -> None:
    """What it states and a parameter moves; what it does not state is its base's."""
    own = {"name": "mine", "base": "low", "host_launch": "6 us", "dp_tail": 0.2}
    values = {"host_launch": "7 us", "dp_tail": 0.2, "pp_hidden": 0.5, "tp_hidden": 0.6}
    base = {"host_launch": "9 us", "dp_tail": 0.3, "pp_hidden": 0.5, "tp_hidden": 0.7}
    moving = [
        parameter(),
        parameter(names=["low"], fields=["dp_tail", "tp_hidden"]),
        parameter(names=["mine", "low"], fields=["pp_hidden"]),
    ]
    found = figures_moved(moving, "mine", written=own, values=values, base=base)
    # The base's tp_hidden was moved and this one's was not, so it has to state it from now on.
    assert found == {("host_launch",): "7 us", ("tp_hidden",): "0.6"}
    assert figures_moved(moving, "low", written=base, values=base, base={}) == {
        ("dp_tail",): "0.3",
        ("tp_hidden",): "0.7",
        ("pp_hidden",): "0.5",
    }


def test_moves_are_noted_beside_each_parameter() -> None:
    """In their order, wherever in a row they stand."""
    text = """# parameters:
parameters:
- name: one   # the first
  moved: 0.1
  spread: 1
- {moved: -0.25, name: two}
"""
    found = with_moves(text, [0.12345, -1])
    assert found == text.replace("0.1\n", "0.1235\n").replace("-0.25", "-1.0000")
    with pytest.raises(ValueError, match="parameter 1 does not say how far it was moved"):
        with_moves(text.replace("moved: -0.25, ", ""), [1, 2])


def path_of(of: str, name: str) -> Path:
    found = catalog.find(of, name)
    assert found is not None
    return found


@pytest.mark.nightly
@each_row("of", NOUNS)
def test_writing_what_the_catalog_has_changes_nothing(of: str) -> None:
    """Every file says the same figures after it, and all lines without figures are the same."""
    parameters = [one for one in load_parameters() if one.of == of]
    for name in catalog.names(of):
        path = path_of(of, name)
        own, text = files.read_mapping(path), path.read_text(encoding="utf-8")
        base = own.get("base")
        changes = figures_moved(
            parameters,
            name,
            written=own,
            values=NOUNS[of].load(name).to_dict(units=True),
            base=NOUNS[of].load(base).to_dict(units=True) if base else {},
        )
        found = rewritten(text, changes)
        assert bool(changes) == any(one.moves(name) for one in parameters) or base
        assert len(found.splitlines()) == len(text.splitlines()), name
        again = NOUNS[of].load(yaml.safe_load(found))
        before = NOUNS[of].load(name)
        assert again.sources == before.sources
        assert numbers(again.to_dict()) == pytest.approx(numbers(before.to_dict()), rel=6e-4)


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [one for item in value.values() for one in numbers(item)]
    if isinstance(value, list):
        return [one for item in value for one in numbers(item)]
    return [float(value)] if isinstance(value, (int, float)) else []


def test_the_moves_of_the_catalog_are_written_as_they_stand() -> None:
    """Every parameter has a place for how far it was moved."""
    path = Path(catalog.__file__).parent / "fit" / "steps.yaml"
    text = path.read_text(encoding="utf-8")
    assert with_moves(text, [one.moved for one in load_parameters()]) == text
