"""Defaults of a team: catalog folders, price book, stack and failure rates, found by place."""

import json
import os
from pathlib import Path

import pytest

from shardwise import InputError, System, catalog, estimate, estimate_training_time
from shardwise.cli import run
from shardwise.config import files

BOOK = """
term: 1 year
prices:
- {system: H100, usd_per_accelerator_hour: 2.1, provider: Acme, region: EU, term: 1 year,
   as_of: 2026-11-01, source: offer 7}
- {system: h100-sxm, usd_per_accelerator_hour: 3.3, term: on demand, as_of: 2026-11-01,
   source: list}
- {system: ours, usd_per_accelerator_hour: 1.5, term: 1 year, as_of: 2026-11-01, source: offer 8}
"""
PLAN = {"gpus": 8, "tp": 2, "gbs": 64}


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a team with a configuration file, a catalog and a price book."""
    systems = tmp_path / "entries" / "systems"
    systems.mkdir(parents=True)
    (systems / "our-cluster.yaml").write_text(
        "{name: our-cluster, base: h100-sxm, fabric: {nics: 4}}"
    )
    (tmp_path / "prices.yaml").write_text(BOOK)
    config = tmp_path / "shardwise" / "config.yaml"
    config.parent.mkdir()
    config.write_text("{catalog: [../entries], prices: ../prices.yaml}")
    monkeypatch.setenv(catalog.CONFIG, str(config))
    catalog.forget_notes()
    return tmp_path


def test_entries_of_a_team_are_found_by_name(
    team: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python and on the command line, listed, looked up and read again after a change."""
    assert System.load("our-cluster").tier_bandwidth(1) == 25e9
    assert System.load("Our_Cluster") == System.load("our-cluster")
    assert "our-cluster" in catalog.names("systems")
    assert catalog.names("systems") == sorted(catalog.names("systems"))
    based = System.load({"name": "x", "base": "our-cluster", "board_power": "1 kW"})
    assert based.tier_bandwidth(1) == 25e9
    assert run(["peers", "llama3-8b", "our-cluster", "--gpus", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["system"] == "our-cluster"
    entry = team / "entries" / "systems" / "our-cluster.yaml"
    entry.write_text("{name: our-cluster, base: h100-sxm, fabric: {nics: 2}}")
    os.utime(entry, ns=(1, 1))
    assert System.load("our-cluster").tier_bandwidth(1) == 12.5e9


def test_entries_of_a_team_can_be_used_where_files_cannot(team: Path) -> None:
    """The explorer reads names of the catalog alone; the folders of the team belong to it."""
    with files.catalog_only():
        assert System.load("our-cluster").name == "our-cluster"
        with pytest.raises(InputError, match="files cannot be named here"):
            System.load(str(team / "shardwise" / "config.yaml"))


def test_the_file_is_found_by_xdg_and_by_variables(
    team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SHARDWISE_CONFIG, else XDG_CONFIG_HOME, else the home; SHARDWISE_CATALOG adds folders."""
    monkeypatch.delenv(catalog.CONFIG)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(team))
    assert catalog.team_file() == team / "shardwise" / "config.yaml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(team / "nowhere"))
    assert catalog.team_file() is None
    assert catalog.find("systems", "our-cluster") is None
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(team))
    (team / ".config").mkdir()
    (team / "shardwise").rename(team / ".config" / "shardwise")
    assert catalog.team_file() == team / ".config" / "shardwise" / "config.yaml"
    monkeypatch.setenv(catalog.CONFIG, "")
    assert catalog.team_file() is None
    monkeypatch.setenv(catalog.CATALOG, str(team / "entries"))
    assert System.load("our-cluster").name == "our-cluster"


def test_a_price_book_replaces_prices_of_the_catalog(
    team: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The selected term counts; a note names the file; a file with its own price keeps it."""
    price = System.load("h100-sxm").price
    assert price is not None
    assert price.in_words == "$2.1 per GPU-hour (Acme, EU, 1 year, 2026-11-01)"
    assert any(str(team / "prices.yaml") in message for message in caplog.messages)
    assert estimate("llama3-8b", "h100-sxm", PLAN).cost.price == price.in_words
    own = {"usd_per_accelerator_hour": 9, "as_of": "2026-01-01", "source": "contract"}
    kept = System.load({"name": "ours", "base": "h100-sxm", "price": own}).price
    inherited = System.load({"name": "x", "base": "h100-sxm"}).price
    priceless = System.load({"name": "ours", "base": "l4"}).price
    assert kept is not None
    assert inherited is not None
    assert priceless is not None
    found = [one.usd_per_accelerator_hour for one in (kept, inherited, priceless)]
    assert found == [9, 2.1, 1.5]


def test_defaults_of_a_team_change_predictions_with_a_note(
    team: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stack and failure rates apply where none is set, and the file is named."""
    rates = team / "rates.yaml"
    rates.write_text("{accelerator_mtbf: 50000 h, checkpoint_time: 60 s, restart_time: 10 min}")
    config = team / "shardwise" / "config.yaml"
    config.write_text("{stack: torchtitan-2025, reliability: ../rates.yaml}")
    assert estimate("llama3-8b", "h100-sxm", PLAN).strategy["stack"] == "torchtitan-2025"
    assert any(f"torchtitan-2025 of {config}" in message for message in caplog.messages)
    named = estimate("llama3-8b", "h100-sxm", PLAN, stack="megatron-core-2025")
    assert named.strategy["stack"] == "megatron-core-2025"
    trained = estimate_training_time("llama3-8b", "h100-sxm", PLAN, tokens="100B")
    assert trained.goodput is not None
    assert any("rates.yaml" in message for message in caplog.messages)


def test_an_entry_that_hides_one_of_shardwise_is_noted(
    team: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A team may replace an entry, but not in silence."""
    path = team / "entries" / "systems" / "l4.yaml"
    path.write_text("{name: l4, base: l40s, board_power: 72 W}")
    assert System.load("l4").accelerator == System.load("l40s").accelerator
    assert f"l4 is {path}, not the entry of shardwise" in caplog.messages


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("catalog: [nowhere]", "catalog: 'nowhere': no such folder"),
        ("prices: none.yaml", "prices: 'none.yaml': no such file"),
        ("prices: bad.yaml", "bad.yaml: prices[0].source: is missing"),
        ("prices: twice.yaml", "twice.yaml: prices[1]: l4 has a price in prices[0], too; select"),
        ("catalogue: [x]", "catalogue: unknown key; did you mean 'catalog'?"),
        ("stack: nope", "stack: 'nope': no such stack"),
        ("- list", "holds a list, not a mapping"),
        ("{", "config.yaml: "),
        (None, "config.yaml: no such file"),
    ],
)
def test_bad_files_give_one_clear_line(
    text: str | None, problem: str, team: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each names the file, the field and the value; exit code 2."""
    one = "{system: l4, usd_per_accelerator_hour: 1, as_of: 2026-01-01"
    folder = team / "shardwise"
    (folder / "bad.yaml").write_text(f"prices: [{one}}}]")
    (folder / "twice.yaml").write_text(f"prices: [{one}, source: a}}, {one}, source: b}}]")
    config = folder / "config.yaml"
    config.unlink() if text is None else config.write_text(text)
    assert run(["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--gbs", "8"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert problem in lines[0]
    assert str(folder) in lines[0]
    config.write_text("")


def test_config_shows_what_is_in_force(team: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each setting with its value and the file that sets it."""
    assert run(["config", "--json"]) == 0
    found = {(one["setting"], one["set_by"]): one["value"] for one in _settings(capsys)}
    config = str(team / "shardwise" / "config.yaml")
    assert found["file", catalog.CONFIG] == config
    assert found["prices", config] == str(team / "prices.yaml")
    assert found["stack", "of each system"] is None
    assert any(setting == "price of H100" for setting, _ in found)
    assert any("no catalog entry" in by for _, by in found)
    assert run(["config"]) == 0
    assert "price of ours" in capsys.readouterr().out


def _settings(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    settings: list[dict[str, str]] = json.loads(capsys.readouterr().out)["settings"]
    return settings
