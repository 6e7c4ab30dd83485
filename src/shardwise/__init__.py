"""shardwise: know a training run before you launch it.

Names that stand for the same thing everywhere in the code, and have no description of their own:

`model`, `system`
    The architecture, and the cluster with its accelerators and network tiers.
`table`
    Strategies, one for each of n rows; all columns have shape (n,).
`extents`
    Members of each axis within one domain of each network tier; shape (tiers, n).
`work`
    Degrees, tokens and sizes of one rank: the columns that operations are built from.
`parts`
    Operations of each component (embedding, layers, head) with their costs, for one row.
`costs`
    Times and bytes of each component for one micro-batch.
`group`, `groups`
    Equal stages of a pipeline, with how many of each component they have.
`step`, `evaluation`
    All of these for a table, and the times and bytes that follow.
"""

from typing import TYPE_CHECKING, Any

from shardwise import shown
from shardwise._version import __version__
from shardwise.config import readers

if TYPE_CHECKING:
    from shardwise.analysis.comparison import Comparison
    from shardwise.analysis.estimate_table import EstimateTable
    from shardwise.analysis.graph.build import graph_of
    from shardwise.analysis.graph.records import ComputeGraph
    from shardwise.analysis.reference_results import ReferenceEstimate, ReferenceSearch
    from shardwise.analysis.results import Estimate
    from shardwise.analysis.saved_plan import load
    from shardwise.analysis.training_run.results import TrainingTime
    from shardwise.config.launch import Launch, NotUnderstood
    from shardwise.config.model import Model
    from shardwise.config.recipe import Recipe
    from shardwise.config.reliability import Reliability
    from shardwise.config.stack import Stack
    from shardwise.config.strategy import Strategy
    from shardwise.config.system import System
    from shardwise.errors import InputError, ShardwiseError, UnknownNameError
    from shardwise.estimator import estimate, estimate_many
    from shardwise.fsdp.api import plan_fsdp
    from shardwise.fsdp.result import FsdpPlan
    from shardwise.launchers.diagnose.results import Diagnosis
    from shardwise.launchers.diagnose.run import diagnose
    from shardwise.launchers.export import CannotExportError, Export, export
    from shardwise.launchers.launch import LaunchFile
    from shardwise.launchers.registry import read_launch
    from shardwise.planning.cluster_choice import ClusterChoice, choose_cluster
    from shardwise.planning.compare import compare
    from shardwise.planning.methods import MethodTable, compare_methods
    from shardwise.planning.nearest import NearestPlan
    from shardwise.planning.recipes import RecipeEstimate, estimate_recipe, recipes
    from shardwise.planning.search.explain import explain
    from shardwise.planning.search.largest_model import largest_model
    from shardwise.planning.search.results import (
        Explanation,
        LargestModel,
        Recommendation,
        SearchResult,
    )
    from shardwise.planning.search.run import search
    from shardwise.planning.search.space import Space
    from shardwise.planning.sweep.results import SweepPoint, SweepResult
    from shardwise.planning.sweep.run import sweep
    from shardwise.planning.training_time import estimate_training_time
    from shardwise.predecessors.conversion import convert
    from shardwise.report.trace import Trace, trace
    from shardwise.validate.suites import validate_suite

__all__ = [
    "CannotExportError",
    "ClusterChoice",
    "Comparison",
    "ComputeGraph",
    "Diagnosis",
    "Estimate",
    "EstimateTable",
    "Explanation",
    "Export",
    "FsdpPlan",
    "InputError",
    "LargestModel",
    "Launch",
    "LaunchFile",
    "MethodTable",
    "Model",
    "NearestPlan",
    "NotUnderstood",
    "Recipe",
    "RecipeEstimate",
    "Recommendation",
    "ReferenceEstimate",
    "ReferenceSearch",
    "Reliability",
    "SearchResult",
    "ShardwiseError",
    "Space",
    "Stack",
    "Strategy",
    "SweepPoint",
    "SweepResult",
    "System",
    "Trace",
    "TrainingTime",
    "UnknownNameError",
    "__version__",
    "choose_cluster",
    "compare",
    "compare_methods",
    "convert",
    "diagnose",
    "estimate",
    "estimate_many",
    "estimate_recipe",
    "estimate_training_time",
    "explain",
    "export",
    "graph_of",
    "largest_model",
    "load",
    "plan_fsdp",
    "read_launch",
    "recipes",
    "search",
    "sweep",
    "trace",
    "validate_suite",
]

_HOME = {
    "CannotExportError": "launchers.export",
    "ClusterChoice": "planning.cluster_choice",
    "Comparison": "analysis.comparison",
    "ComputeGraph": "analysis.graph.records",
    "Diagnosis": "launchers.diagnose.results",
    "Estimate": "analysis.results",
    "EstimateTable": "analysis.estimate_table",
    "Explanation": "planning.search.results",
    "Export": "launchers.export",
    "FsdpPlan": "fsdp.result",
    "InputError": "errors",
    "LargestModel": "planning.search.results",
    "Launch": "config.launch",
    "LaunchFile": "launchers.launch",
    "MethodTable": "planning.methods",
    "Model": "config.model",
    "NearestPlan": "planning.nearest",
    "NotUnderstood": "config.launch",
    "Recipe": "config.recipe",
    "RecipeEstimate": "planning.recipes",
    "Recommendation": "planning.search.results",
    "ReferenceEstimate": "analysis.reference_results",
    "ReferenceSearch": "analysis.reference_results",
    "Reliability": "config.reliability",
    "SearchResult": "planning.search.results",
    "ShardwiseError": "errors",
    "Space": "planning.search.space",
    "Stack": "config.stack",
    "Strategy": "config.strategy",
    "SweepPoint": "planning.sweep.results",
    "SweepResult": "planning.sweep.results",
    "System": "config.system",
    "Trace": "report.trace",
    "TrainingTime": "analysis.training_run.results",
    "UnknownNameError": "errors",
    "choose_cluster": "planning.cluster_choice",
    "compare": "planning.compare",
    "compare_methods": "planning.methods",
    "convert": "predecessors.conversion",
    "diagnose": "launchers.diagnose.run",
    "estimate": "estimator",
    "estimate_many": "estimator",
    "estimate_recipe": "planning.recipes",
    "estimate_training_time": "planning.training_time",
    "explain": "planning.search.explain",
    "export": "launchers.export",
    "graph_of": "analysis.graph.build",
    "largest_model": "planning.search.largest_model",
    "load": "analysis.saved_plan",
    "plan_fsdp": "fsdp.api",
    "read_launch": "launchers.registry",
    "recipes": "planning.recipes",
    "search": "planning.search.run",
    "sweep": "planning.sweep.run",
    "trace": "report.trace",
    "validate_suite": "validate.suites",
}


def _foreign() -> readers.Readers:
    """Import the readers of other tools' files when the first file is read."""
    from shardwise import foreign  # noqa: PLC0415

    return foreign


readers.register(_foreign)


def _report() -> shown.Reports:
    """Import what shows results when the first one is shown."""
    from shardwise.report import views  # noqa: PLC0415

    return views


shown.register(_report)


if not TYPE_CHECKING:  # which reads the imports above, and where other names are mistakes

    def __getattr__(name: str) -> Any:
        """Import a public name where it is first used, so that `shardwise --help` stays fast."""
        if name not in _HOME:
            raise AttributeError(f"module 'shardwise' has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415

        value = getattr(import_module(f"shardwise.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Names that a prompt completes: the public ones, whether they are imported yet or not."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
