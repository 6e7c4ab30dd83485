"""shardwise: know a training run before you launch it."""

from typing import Any

from shardwise._version import __version__

__all__ = [
    "Comparison",
    "ComputeGraph",
    "Estimate",
    "EstimateTable",
    "Explanation",
    "FsdpPlan",
    "InputError",
    "Model",
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
    "compare",
    "estimate",
    "estimate_many",
    "estimate_training_time",
    "explain",
    "graph_of",
    "largest_model",
    "plan_fsdp",
    "search",
    "sweep",
    "trace",
]

_HOME = {
    "Comparison": "scenarios.results",
    "ComputeGraph": "graph.records",
    "Estimate": "results",
    "EstimateTable": "results",
    "Explanation": "searcher.explanation",
    "FsdpPlan": "fsdp.result",
    "InputError": "errors",
    "Model": "model",
    "Reliability": "reliability",
    "SearchResult": "searcher.results",
    "ShardwiseError": "errors",
    "Space": "searcher.space",
    "Stack": "stack",
    "Strategy": "strategy",
    "SweepPoint": "sweeper.results",
    "SweepResult": "sweeper.results",
    "System": "system",
    "Trace": "report.trace",
    "TrainingTime": "training",
    "UnknownNameError": "errors",
    "compare": "scenarios.compare",
    "estimate": "estimator",
    "estimate_many": "estimator",
    "estimate_training_time": "whole_run",
    "explain": "searcher.explain",
    "graph_of": "graph.build",
    "largest_model": "searcher.largest",
    "plan_fsdp": "fsdp.api",
    "search": "searcher.run",
    "sweep": "sweeper.run",
    "trace": "report.trace",
}


def __getattr__(name: str) -> Any:
    """Import a public name where it is first used, so that `shardwise --help` stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'shardwise' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    value = getattr(import_module(f"shardwise.{_HOME[name]}"), name)
    globals()[name] = value
    return value
