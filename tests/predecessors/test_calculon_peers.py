"""Calculon's numbering of ranks, in its own file and in ours."""

import json
from functools import partial

import pytest

from calculon_runs import README, write_files
from rows import each_row
from shardwise.predecessors.calculon.files import CalculonExecution
from shardwise.predecessors.calculon.reference import groups, peers


@pytest.fixture
def files(tmp_path):
    """Calculon's model, system and execution of its README, each changed as a test likes."""
    return partial(write_files, tmp_path)


def execution(tensor, pipeline, data):
    """An execution with some degrees."""
    degrees = {"tensor_par": tensor, "pipeline_par": pipeline, "data_par": data}
    counts = {"num_procs": tensor * pipeline * data, "batch_size": data, "microbatch_size": 1}
    off = {"optimizer_sharding": False, "data_par_overlap": False, "tensor_par_overlap": "none"}
    return CalculonExecution.parse({**README["execution"], **degrees, **counts, **off})


def by_hand(tensor, pipeline, data):
    """Tensor coordinates change first, then stages, then replicas."""

    def rank(t, p, d):
        return t + tensor * (p % pipeline + pipeline * d)

    found = {}
    for t in range(tensor):
        for p in range(pipeline):
            for d in range(data):
                mine = found[str(rank(t, p, d))] = {}
                if tensor > 1:
                    mine["tensor"] = [rank(other, p, d) for other in range(tensor)]
                if pipeline > 1:
                    mine["pipeline"] = rank(t, p + 1, d)
                if data > 1:
                    mine["data"] = [rank(t, p, other) for other in range(data)]
    return found


@each_row("degrees", [(1, 1, 1), (4, 1, 1), (1, 3, 1), (1, 1, 5), (2, 3, 4), (4, 2, 1), (2, 1, 3)])
def test_peers_are_those_by_hand(degrees):
    """All members of tensor and data groups, the next stage; nothing for a degree of one."""
    found = peers(execution(*degrees))
    assert found == by_hand(*degrees)
    assert list(found) == [str(rank) for rank in range(len(found))]
    for name, ranks in groups(execution(*degrees)).items():
        if name != "pipeline" and ranks.shape[1] > 1:
            assert all(found[str(rank)][name] == list(row) for row in ranks for rank in row)


def test_the_peers_file_is_written_as_calculon_does(shardwise, files, tmp_path):
    """4 x 64 x 12 of its README: the same from --json, from --output and for one rank."""
    paths = files()
    words = ["peers", paths["model"], paths["system"], "--strategy", paths["execution"]]
    words += ["--reference", "calculon"]
    code, out, err = shardwise(*words, "--output", tmp_path / "peers.json")
    assert (code, out, err) == (0, "", "")
    written = json.loads((tmp_path / "peers.json").read_text())
    assert written == by_hand(4, 64, 12)
    assert json.loads(shardwise(*words, "--rank", 255, "--json")[1]) == {"255": written["255"]}
    shown = " ".join(shardwise(*words)[1].split())
    assert "pipeline 48 64 0, 4, 8, ... 252 | 1, 5, 9, ... 253" in shown
    assert "data 256 12 0, 256, 512, ... 2816" in shown
    assert "pipeline, next stage 3" in " ".join(shardwise(*words, "--rank", 255)[1].split())


def test_an_imported_execution_has_calculons_order_of_ranks(shardwise, files):
    """Where its networks lie in the order of tensor, pipeline and data, groups are the same."""
    paths = files()
    words = ["peers", paths["model"], paths["system"], "--strategy", paths["execution"], "--json"]
    found = json.loads(shardwise(*words)[1])
    assert found["strategy"]["placement"] == "tp-cp-pp-dp"
    theirs = groups(CalculonExecution.parse(README["execution"]))
    for axis, name in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data")):
        assert sorted(found["axes"][axis]["groups"]) == sorted(theirs[name].tolist())
    other = json.loads(shardwise(*words, "--placement", "tp-cp-dp-pp")[1])
    assert other["axes"]["dp"]["groups"] != found["axes"]["dp"]["groups"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--reference", "nersc"), "reference: nersc: allowed: calculon"),
        (("--reference", "calculon", "--rank", 3072), "rank: 3072: no such rank; allowed: 0 to 30"),
        (("--reference", "calculon", "--rank", "x"), "must be a whole number"),
    ],
)
def test_bad_words_are_one_line(shardwise, files, more, expected):
    """Exit code 2."""
    paths = files()
    words = ["peers", paths["model"], paths["system"], "--strategy", paths["execution"], *more]
    code, out, err = shardwise(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err.replace("'", "")


def test_too_many_peers_are_refused_but_those_of_one_rank_not(shardwise, files):
    """A data group of 2^20 ranks would be listed by each of them."""
    ranks = 1 << 20
    paths = files(
        execution=lambda e: e.update(
            num_procs=ranks,
            tensor_par=1,
            pipeline_par=1,
            data_par=ranks,
            batch_size=ranks,
            microbatch_size=1,
        )
    )
    words = ["peers", paths["model"], paths["system"], "--strategy", paths["execution"]]
    code, _, err = shardwise(*words, "--reference", "calculon", "--json")
    assert code == 2
    assert "too many peers to list; set --rank" in err
    assert shardwise(*words, "--reference", "calculon", "--rank", 5)[0] == 0
