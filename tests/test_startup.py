"""What a command loads and works out: nothing that its answer does not need."""

import ast
import copy
import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise import Estimate, Space, Strategy, estimate, search
from shardwise.analysis.results import Deferred
from shardwise.config.described import _docstrings
from shardwise.launchers.registry import LAUNCHERS
from shardwise.launchers.stacks import STACKS
from written import record_of

QUESTION = "llama3-70b h100-sxm --gpus 64 --tp 8 --pp 2 --mbs 1 --gbs 128"
STRATEGY = {"gpus": 64, "tp": 8, "pp": 2, "gbs": 128}
# Slow to import, and of no use to the table of an estimate.
UNUSED = {
    *("joblib", "matplotlib", "pandas", "plotly", "polars", "scipy", "torch", "numpy.ma"),
    *("http.client", "multiprocessing", "urllib.request"),
    *(f"shardwise.{name}" for name in ("fsdp.api", "planning", "validate")),
    *(f"shardwise.{name}" for name in ("launchers.registry", "predecessors.translation")),
    *(f"shardwise.analysis.{name}" for name in ("communication", "gemms", "graph", "layer_totals")),
    *("shardwise.analysis.timeline", "shardwise.report.charts", "shardwise.report.tables.catalog"),
}
DETAILS = {
    *(
        "assumed",
        "breakdown",
        "efficiency",
        "interval",
        "layers",
        "matrix_flops",
        "memory_interval",
        "fits_probability",
        "fits_assumes",
        "verdict",
    ),
    *("mfu_by_convention", "missed_operations", "provenance", "required_bandwidth", "rests_on"),
    *(
        "stages",
        "unmeasured_features",
        "assumed_network",
        "assumed_host",
        "mixer_kernels",
        "software_candidates",
    ),
}
_PROGRAM = """
import json, sys
from shardwise.cli import run
code = run(sys.argv[1:])
loaded, classes = sorted(sys.modules), []
if "pydantic" in sys.modules:
    from pydantic import BaseModel
    waiting = [BaseModel]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        classes += [one.__name__ for one in below if one.__pydantic_complete__]
print(json.dumps([code, loaded, classes]), file=sys.stderr)
"""


def _run(words):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    code, modules, validators = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return done.stdout, set(modules), set(validators)


def _fresh(**options):
    return estimate("llama3-70b", "h100-sxm", STRATEGY, **options)


def test_an_estimate_loads_what_its_table_needs():
    """No other tools, searches or charts; no validators of results that are not printed."""
    table, modules, validators = _run(f"estimate {QUESTION}")
    assert "step time" in table
    assert UNUSED & modules == set()
    assert {"Model", "System", "Strategy", "Stack"} <= validators
    assert {"LayerTotals", "Breakdown", "TrainingTime", "Recipe"} & validators == set()


def test_an_estimate_as_json_is_complete():
    """The details are worked out for it."""
    printed, modules, _ = _run(f"estimate {QUESTION} --json")
    assert set(record_of(printed)) == set(Estimate.model_fields)
    assert "shardwise.analysis.communication" in modules
    assert {
        "numpy.ma",
        "polars",
        "shardwise.launchers.registry",
        "shardwise.planning",
    } & modules == set()


def test_a_search_loads_the_launcher_of_its_stack_alone():
    """Its next command names one by its stack, which says whether it can write the plan."""
    words = "llama3-8b h100-sxm --gpus 8 --gbs 64 --tp 1 --pp 1 --cp 1 --mbs 1"
    printed, modules, _ = _run(f"search {words}")
    assert "shardwise export megatron-bridge" in printed
    others = {"registry", "torchtitan", "megatron.reader", "megatron_bridge.script"}
    assert {f"shardwise.launchers.{name}" for name in others} & modules == set()
    names = [one.name for one in LAUNCHERS]
    assert [name for name in STACKS if name in names] == names


def test_docstrings_of_fields_are_those_that_python_reads():
    """They are found without a parser, in every module of config types and results."""
    for kind in (Strategy, Space, Estimate, *Estimate.__mro__[1:-2]):
        path = inspect.getsourcefile(kind)
        bodies = {
            node.name: [*zip(node.body, node.body[1:], strict=False)]
            for node in ast.parse(Path(path).read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef)
        }
        assert _docstrings(path) == {
            name: {
                field.target.id: inspect.cleandoc(below.value.value)
                for field, below in pairs
                if isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            }
            for name, pairs in bodies.items()
        }


def test_a_mapping_is_recognised_without_readers():
    """What other tools' files look like is known before what reads them, or fetches them, loads."""
    program = (
        "import sys; from shardwise import estimate;"
        f"estimate('llama3-70b', 'h100-sxm', {STRATEGY});"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "shardwise.foreign" in modules
    hub = {f"shardwise.huggingface.{name}" for name in ("hub", "modules", "reader")}
    assert modules & {*hub, "http.client", "urllib.request"} == set()


def test_help_loads_no_arrays_and_no_validators():
    """The list of verbs has only their names and summaries."""
    printed, modules, _ = _run("--help")
    assert "estimate" in printed
    assert {"numpy", "pydantic", "rich.table", "yaml", "shardwise.estimator"} & modules == set()


def test_details_are_worked_out_when_they_are_read():
    """And once."""
    found = _fresh()
    assert set(Estimate.model_fields) - set(vars(found)) == DETAILS
    assert found.breakdown is found.breakdown
    assert set(Estimate.model_fields) - set(vars(found)) == DETAILS - {"breakdown"}
    copied = found.model_copy(update={"gemms": ()})
    assert "layers" not in vars(copied)
    assert copied.layers is found.layers


def test_plans_of_a_search_keep_formulas_of_details():
    """A table of ten plans reads few of them."""
    best = search("llama3-8b", "h100-sxm", gpus=8, global_batch_size=64, top=3).best
    assert all("breakdown" not in vars(plan) for plan in best)
    assert all(plan.to_dict()["breakdown"]["exchanges"] for plan in best)


@pytest.mark.parametrize("options", [{}, {"operations": True, "gemms": True}])
def test_details_read_late_are_no_different(options):
    """JSON, pickles, copies, comparison, text and iteration have all fields, in their order."""
    complete = Estimate(**dict(_fresh(**options)))  # validated, so all types are right
    assert list(vars(complete)) == list(Estimate.model_fields)
    first = _fresh(**options)
    assert first.layers[0].count
    assert first == complete
    assert complete == _fresh(**options)
    assert _fresh(**options) == _fresh(**options)
    assert repr(_fresh(**options)) == repr(complete)
    assert _fresh(**options).model_dump_json() == complete.model_dump_json()
    assert json.dumps(_fresh(**options).to_dict()) == json.dumps(complete.to_dict())
    assert pickle.dumps(_fresh(**options)) == pickle.dumps(first)
    assert pickle.loads(pickle.dumps(_fresh(**options))) == complete  # noqa: S301 - our own
    assert copy.deepcopy(_fresh(**options)) == complete
    assert dict(_fresh(**options)) == dict(complete)
    with pytest.raises(AttributeError, match="no attribute 'step'"):
        _fresh(**options).step  # noqa: B018 - the access itself must fail


def test_details_inside_other_results_are_written():
    """Whatever serializes the record around them."""

    class Around(Deferred):
        inside: Estimate
        anything: dict[str, object]

    around = Around.deferring({"inside": _fresh}, anything={"also": _fresh()})
    written = around.to_dict()
    assert written["inside"] == written["anything"]["also"] == _fresh().to_dict()


def test_descriptions_of_fields_are_their_docstrings():
    """Also of inherited fields, and of those with another name in files."""
    described = Strategy.descriptions()
    assert set(described) <= set(Strategy.model_fields)
    properties = Strategy.model_json_schema()["properties"]
    assert properties["tp"]["description"] == described["tp"]
    assert properties["mbs"]["description"] == described["micro_batch_size"]
    stage = Estimate.model_json_schema()["$defs"]["StageEstimate"]["properties"]
    assert stage["activations"]["description"] == "Saved from forward to backward."
