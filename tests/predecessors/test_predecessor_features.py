"""Every feature of the five tools: its command runs, and shows or writes what it promises."""

import contextlib
import io
import json
import shlex
import shutil
from functools import cache
from pathlib import Path

import pytest
import yaml

import shardwise as package
from amped_samples import CONFIG, TABLES
from calculon_runs import README
from calculon_runs import RUNS as CALCULON
from fsdp_ilp_samples import CASES
from nersc_runs import RUNS as NERSC

pytest.importorskip("plotly")  # some features are charts

DATA = Path(__file__).parents[1] / "data"
FEATURES = yaml.safe_load((DATA / "predecessor_features.yaml").read_text(encoding="utf-8"))
STATES = ("works", "better here, because ", "gap: ", "later: ")


def _write(folder):
    """Small files of every tool, under the names that the commands have."""
    for name in ("llama3-8b", "a100_pcie"):
        shutil.copy(DATA / f"simumax/{name}.json", folder)
    for path in (CONFIG, TABLES, DATA.parents[1] / "docs/examples/llama4-modules.json"):
        shutil.copy(path, folder)
    runs = json.loads((DATA / "simumax/runs.json").read_text(encoding="utf-8"))
    strategy = next(run["strategy"] for run in runs if run["id"] == "a100/llama3-8b_l32_tp8_mbc4")
    deepseek, experts = (
        json.loads((DATA / f"simumax/{name}.json").read_text(encoding="utf-8"))
        for name in ("deepseekv2", "ep4_pp2_dp4_mbs1_selective_recompute")
    )
    h100 = json.loads(CONFIG.read_text(encoding="utf-8"))
    h100["accelerator_architecture_parameters"]["lookup_config"]["lookup_table_row"] = "H100 PCIe"
    files = {
        "application": CALCULON["models"]["megatron-126M"],
        "a100_80g": CALCULON["systems"]["a100_80g"],
        "execution": README["execution"]
        | {"num_procs": 8, "tensor_par": 2, "pipeline_par": 2, "data_par": 2}
        | {"batch_size": 8, "microbatch_size": 1},
        "gpt3_1T": NERSC["models"]["gpt3_1T"],
        "config-B200": NERSC["systems"]["B200"],
        "empirical": NERSC["systems"]["B200"] | {"empirical": True},
        "tp1_pp2_dp4_mbs1": strategy
        | {"tp_size": 1, "pp_size": 2, "dp_size": 4, "edp_size": 4}
        | {"global_batch_size": 16, "pp_comm_async": False},
        "deepseekv2": deepseek | {"layer_num": 4},
        "ep4_pp2_dp4_mbs1": experts | {"enable_recompute": False},
        "h100": h100,
        "comm": CASES["seed_literal_1node"]["comm"],
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "llama4-modules.json").rename(folder / "modules.json")


def _printed(row, command):
    """What the commands or the Python code of a row print; the last one has the exit code."""
    commands = row.get("run", [])
    code, printed = 0, ""
    for line in [commands] if isinstance(commands, str) else commands:
        assert code == 0, printed
        code, out, err = command(*shlex.split(line))
        printed += out + err
    assert code == row.get("code", 0), printed
    if "python" in row:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(row["python"], {"shardwise": package, "json": json, "Path": Path})  # noqa: S102 - the table's
        printed += out.getvalue()
    return printed


@pytest.mark.parametrize("tool", FEATURES)
@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_each_feature_does_what_its_row_says(tool, slow, shardwise, tmp_path, monkeypatch):
    """Exit code, words in the output, files written; rows without a command are gaps."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path)
    command = cache(shardwise)
    wrong = []
    for row in FEATURES[tool]:
        if row.get("slow", False) > slow:
            continue
        try:
            printed = _printed(row, command)
            lost = [word for word in row.get("shows", ()) if word not in printed]
            lost += [name for name in row.get("writes", ()) if not Path(name).exists()]
        except AssertionError as error:
            lost = [str(error)[:500]]
        if lost:
            wrong.append(f"{row['feature']}: {lost}")
    assert wrong == []


def test_every_feature_has_a_state():
    """A gap may have no command; everything else has one, and something that it shows."""
    rows = [row for rows in FEATURES.values() for row in rows]
    assert len(rows) == 157
    assert [row["feature"] for row in rows if not row["state"].startswith(STATES)] == []
    silent = [row for row in rows if not ("shows" in row or "writes" in row)]
    assert all(row["state"].startswith("gap: ") for row in silent)
