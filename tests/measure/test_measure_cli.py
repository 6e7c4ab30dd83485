"""Options of `calibrate measure`, and the system whose figures are the priors."""

import json
import sys
from types import SimpleNamespace

import pytest

from shardwise import InputError
from shardwise.measure import machine


@pytest.fixture
def without_accelerator(monkeypatch):
    """A stand-in for PyTorch on a machine without accelerators."""
    torch = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: False, device_count=lambda: 0),
        __version__="2.13",
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["measure", "--from-runs", "x.json"],
            "--from-runs: 'x.json': is not for calibrate measure",
        ),
        (["measure", "--gpu", "x"], "--gpu: 'x': is not for calibrate measure"),
        (["h100-sxm", "--quick"], "--quick: is for calibrate measure only"),
        (["h100-sxm", "--ranks", "2"], "--ranks: '2': is for calibrate measure only"),
        (["measure", "--minutes", "x"], "--minutes: 'x': must be a number of minutes above 0"),
        (["measure", "--minutes", "-1"], "--minutes: '-1': must be a number of minutes above 0"),
        (["measure", "--ranks", "0"], "--ranks: '0': must be a whole number of at least 1"),
        (["h100-sxm"], "--from-runs: use one of --from-runs, --from-table, --from-nccl-tests and"),
        (["h100-sxm", "--from-runs", "a", "--from-trace", "b"], "use one of --from-runs"),
        (
            ["measure", "--device", "tpu"],
            "--device: 'tpu': is not on this machine; allowed: cpu, cuda",
        ),
        (["measure", "--device", "cuda"], "--device: 'cuda': is not on this machine"),
    ],
)
@pytest.mark.usefixtures("without_accelerator")
def test_options_that_make_no_sense_are_refused_in_one_line(shardwise, words, problem):
    """Naming option, value and what is allowed."""
    code, _, err = shardwise("calibrate", *words)
    assert code == 2
    assert problem in err
    assert err.count("\n") == 1


def test_without_pytorch_it_says_what_to_install(shardwise, monkeypatch):
    """The extras of pip."""
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = shardwise("calibrate", "measure")
    assert code == 2
    assert "pip install 'shardwise[torch,calibrate]'" in err


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", "t4"),
    ],
)
def test_the_base_is_the_accelerator_that_pytorch_names(name, system):
    """Names of `torch.cuda.get_device_properties`."""
    assert machine._base_of("cuda", name) == system  # noqa: SLF001 - of the module


def test_an_accelerator_that_no_system_has_needs_a_base():
    """It names the option."""
    with pytest.raises(InputError, match="set the nearest one with --base"):
        machine._base_of("cuda", "Unheard Of 3000")  # noqa: SLF001 - of the module


def test_samples_of_another_machine_are_refused(tmp_path):
    """By field, old and new value; another date is the same machine."""
    path = tmp_path / "x.samples.jsonl"
    here = {"device": "cpu", "ranks": 2, "on": "2026-11-27"}
    assert machine._begun(path, here) == 0  # noqa: SLF001 - of the module
    with path.open("a") as file:
        for number in (0, 1):
            file.write(json.dumps({"kind": "launch", "us": 1.0, "round": number}) + "\n")
    assert machine._begun(path, here | {"on": "2026-11-28"}) == 2  # noqa: SLF001 - of the module
    with pytest.raises(InputError, match=r"machine.ranks: is 2, not 4: choose another output"):
        machine._begun(path, here | {"ranks": 4})  # noqa: SLF001 - of the module
