"""The address of the explorer holds all that the page shows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise import InputError, Model, System, estimate
from shardwise.config import files
from shardwise.config.fine_tuning import SHORTHANDS
from shardwise.config.strategy_fields import COLUMNS
from shardwise.planning.sweep.axes import edited
from shardwise.web.state import MOST_BYTES, RUN_FIELDS, TABS, Named, State

TEXT = st.text(min_size=1, max_size=30)


@st.composite
def states(draw):
    """States with fields that a user may have typed, also nonsense."""
    named = st.one_of(
        st.builds(Named, name=TEXT),
        st.builds(Named, name=TEXT, data=st.dictionaries(TEXT, st.integers() | TEXT, max_size=4)),
    )
    figures = st.dictionaries(st.text("abc.-", min_size=1, max_size=8), TEXT, max_size=2)
    return State(
        model=draw(named),
        system=draw(named),
        strategy=draw(st.dictionaries(st.sampled_from([*COLUMNS, *SHORTHANDS]), TEXT, max_size=6)),
        figures=draw(figures),
        shape=draw(figures),
        run=draw(st.dictionaries(st.sampled_from(RUN_FIELDS), TEXT, max_size=2)),
        tab=draw(st.sampled_from(TABS)),
        pinned=tuple(draw(st.lists(TEXT, max_size=3))),
    )


@given(states())
def test_an_address_gives_the_state_back(state):
    """Model, system, fields, figures, tab and pins, whatever characters they have."""
    assert State.of_query(state.to_query()) == state


def test_an_empty_address_is_the_start():
    """A first visit shows a plan that runs; the token is no part of the state."""
    assert State.of_query("") == State.of_query("token=secret") == State()
    question = State().question()
    assert estimate(question["model"], question["system"], question["strategy"]).fits


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("tab=rings", "address: tab: 'rings': allowed: estimate, search, clusters, largest"),
        ("model=llama3-8b&tpp=8", "address: tpp: unknown"),
        ("model=x&model-data=%21%21", "address: model-data: cannot be read"),
        ("model=x&model-data=eJwDAAAAAAE", "address: model-data: line 1: not JSON"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(query, words):
    """One line, as the command line writes it."""
    with pytest.raises(InputError) as caught:
        State.of_query(query)
    assert words in str(caught.value)


def test_data_in_an_address_is_not_unpacked_without_end():
    """A few bytes that unpack to many are refused."""
    bomb = replace(State(), model=Named(name="x", data={"description": "a" * (MOST_BYTES + 1)}))
    with pytest.raises(InputError, match=r"larger than 65536 bytes"):
        State.of_query(bomb.to_query())


def test_copied_commands_say_what_the_page_shows():
    """Flags and Python for the same fields; switches have no value."""
    state = State(strategy={"gpus": "64", "global_batch_size": "128", "loss_as_layer": "true"})
    state = state.with_field("dp_overlap", "false").with_field("tp", "8").with_field("gpus", "32")
    assert state.command() == (
        "shardwise estimate llama3-70b h100-sxm --gbs 128 --loss-as-layer --no-dp-overlap "
        "--tp 8 --gpus 32"
    )
    fields: dict[str, object] = {}
    exec(state.python().replace("print(found.step_time_s)", ""), fields)  # noqa: S102 - ours
    assert fields["found"].strategy["tp"] == 8


def test_differences_of_states_are_words():
    """For the history: fields by their short names, with the old and the new value."""
    old = State(strategy={"tp": "2", "global_batch_size": "8"})
    new = replace(old, strategy={"tp": "4", "zero": "3"}, system=Named(name="b200-sxm"))
    assert old.changes(old) == []
    assert old.changes(new) == [
        "system b200-sxm",
        "tp 2 to 4",
        "gbs 8 to default",
        "zero default to 3",
    ]
    assert replace(old, shape={"hidden": "8"}).with_named("model", Named(name="x")).shape == {}


def test_copies_say_what_becomes_of_changed_figures():
    """Python has them; the command line says that it has not."""
    state = State(figures={"nvlink.bandwidth": "0.5x"})
    assert state.command().endswith("  # without the changed figures nvlink.bandwidth=0.5x")
    fields: dict[str, object] = {}
    exec(state.python().replace("print(found.step_time_s)", ""), fields)  # noqa: S102 - ours
    question = state.question()
    usual = estimate(question["model"], question["system"], question["strategy"])
    assert fields["found"].step_time_s > usual.step_time_s


def test_edited_figures_are_those_of_a_sweep():
    """A factor of a figure, and a larger domain, on a system of the catalog."""
    system = System.load("h100-sxm")
    fast = edited(system, {"nvlink.bandwidth": "2x"})
    assert fast.network[0].bandwidth == 2 * system.network[0].bandwidth
    assert edited(system, {"domain": "16"}).network[0].domain == 16
    assert edited(system, {}) is system
    for changes, words in (
        ({"nvlink.bandwith": "2x"}, "did you mean 'nvlink.bandwidth'"),
        ({"nvlink.bandwidth": "1x,2x"}, "must be one value"),
        ({"tp": "2"}, "is no figure of a system"),
    ):
        with pytest.raises(InputError, match=words):
            edited(system, changes)


def test_questions_of_a_network_name_no_files(tmp_path):
    """Neither models nor stacks, and not inside data; entries of the catalog load."""
    path = tmp_path / "model.yaml"
    Model.load("llama3-8b").to_file(path)
    with files.catalog_only():
        assert Model.load("llama3-8b").depth == 32
        for name in (str(path), "../model.yaml", "example/Llama-3.1-8B"):
            with pytest.raises(InputError, match="files cannot be named here"):
                Model.load(name)
        with pytest.raises(InputError, match="files cannot be named here"):
            estimate("llama3-8b", "h100-sxm", {"gpus": 8, "gbs": 8, "stack": str(path)})
        with pytest.raises(InputError, match="no such model in the catalog; did you mean"):
            Model.load("llama3-8")
    assert Model.load(path).depth == 32
