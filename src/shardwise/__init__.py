"""shardwise: know a training run before you launch it."""

from typing import Any

from shardwise import shown
from shardwise._version import __version__
from shardwise.config import readers

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
    "Launch",
    "LaunchFile",
    "Model",
    "NearestPlan",
    "NotUnderstood",
    "Recipe",
    "RecipeEstimate",
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
    "diagnose",
    "estimate",
    "estimate_many",
    "estimate_recipe",
    "estimate_training_time",
    "explain",
    "export",
    "graph_of",
    "largest_model",
    "plan_fsdp",
    "read_launch",
    "recipes",
    "search",
    "sweep",
    "trace",
]

_HOME = {
    "CannotExportError": "planning.export",
    "ClusterChoice": "planning.cluster_choice",
    "Comparison": "analysis.comparison",
    "ComputeGraph": "analysis.graph.records",
    "Diagnosis": "planning.diagnose.results",
    "Estimate": "analysis.results",
    "EstimateTable": "analysis.estimate_table",
    "Explanation": "planning.search.results",
    "Export": "planning.export",
    "FsdpPlan": "fsdp.result",
    "InputError": "errors",
    "Launch": "interop.launch",
    "LaunchFile": "interop.launch",
    "Model": "config.model",
    "NearestPlan": "planning.nearest",
    "NotUnderstood": "interop.launch",
    "Recipe": "config.recipe",
    "RecipeEstimate": "planning.recipes",
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
    "compare": "planning.compare.run",
    "diagnose": "planning.diagnose.run",
    "estimate": "estimator",
    "estimate_many": "estimator",
    "estimate_recipe": "planning.recipes",
    "estimate_training_time": "planning.training_time",
    "explain": "planning.search.explain",
    "export": "planning.export",
    "graph_of": "analysis.graph.build",
    "largest_model": "planning.search.largest_model",
    "plan_fsdp": "fsdp.api",
    "read_launch": "interop.launchers",
    "recipes": "planning.recipes",
    "search": "planning.search.run",
    "sweep": "planning.sweep.run",
    "trace": "report.trace",
}


def _interop() -> readers.Readers:
    """Import the readers of other tools' files when the first file is read."""
    from shardwise.interop import registry  # noqa: PLC0415

    return registry


readers.register(_interop)


def _report() -> shown.Reports:
    """Import what shows results when the first one is shown."""
    from shardwise.report import views  # noqa: PLC0415

    return views


shown.register(_report)


def __getattr__(name: str) -> Any:
    """Import a public name where it is first used, so that `shardwise --help` stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'shardwise' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = getattr(import_module(f"shardwise.{_HOME[name]}"), name)
    globals()[name] = value
    return value
