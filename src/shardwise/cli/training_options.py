"""Flags of a whole run: tokens, the place it runs at, and how reliable the machines are."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from shardwise.cli.options import refuse_options
from shardwise.config.base import unfold
from shardwise.config.reliability import Reliability
from shardwise.config.system import Site
from shardwise.planning.training_time import Run

__all__ = ["RUN_FLAGS", "asked_run", "with_run_flags"]

_PANEL = "Whole run, with --tokens"
_METAVARS = {float: "QUANTITY", int: "N"}
# Flags of a `Reliability`, and the field that each gives.
_RELIABILITY = {
    "mtbf": "accelerator_mtbf",
    "node_mtbf": "node_mtbf",
    "restart_time": "restart_time",
    "checkpoint_time": "checkpoint_time",
    "storage_bandwidth": "storage_bandwidth",
    "checkpoint_interval": "checkpoint_interval",
    "checkpoint_stall": "checkpoint_stall",
    "spares": "spares",
    "repair_time": "repair_time",
}
_SITE = {"carbon_intensity": "carbon_intensity", "pue": "pue"}
_ASYNCHRONOUS = "async_checkpoints"
RUN_FLAGS = ("tokens", *_SITE, "reliability", *_RELIABILITY, _ASYNCHRONOUS)
"""Names of all of them."""
_NEEDS_TOKENS = "needs --tokens: it says something of a whole run"


def with_run_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the flags of a whole run, passed on as `run`: those that were given.

    Their help comes from the fields of the nouns that they fill.
    """

    def called(**words: Any) -> Any:
        given = {name: words.pop(name) for name in RUN_FLAGS}
        return function(**words, run={n: v for n, v in given.items() if v is not None})

    plain = inspect.signature(function).parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [p.replace(kind=keyword) for p in plain if p.name != "run"]
    parameters += [
        inspect.Parameter(name, keyword, default=None, annotation=_flag(name)) for name in RUN_FLAGS
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__doc__ = function.__doc__
    called.__name__ = function.__name__
    return called


def _flag(name: str) -> Any:
    dashed = "--" + name.replace("_", "-")
    if name == "tokens":
        told = "Tokens to train on, such as 300B: adds days, price, energy and CO2 of the run."
        return _option(dashed, "N", told)
    if name == "reliability":
        told = "File of a reliability: failures, checkpoints, restarts; flags override its fields. "
        told += "Needs --tokens."
        return _option(dashed, "FILE", told)
    if name == _ASYNCHRONOUS:
        help_text = _help(Reliability.model_fields["asynchronous"].description)
        switch = f"{dashed}/--no-{dashed.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(switch, help=help_text, rich_help_panel=_PANEL)]
    noun = Site if name in _SITE else Reliability
    field = noun.model_fields[(_SITE | _RELIABILITY)[name]]
    kinds = [_METAVARS[kind] for kind in unfold(field.annotation) if kind in _METAVARS]
    metavar = "X" if name == "pue" else kinds[0]
    also = ["--accelerator-mtbf"] if name == "mtbf" else []
    return _option(dashed, metavar, _help(field.description), *also)


def _option(flag: str, metavar: str, told: str, *also: str) -> Any:
    option = typer.Option(flag, *also, metavar=metavar, help=told, rich_help_panel=_PANEL)
    return Annotated[str | None, option]


def _help(description: str | None) -> str:
    told = " ".join((description or "").split()).replace("`", "")
    for field, flag in (("node_mtbf", "--node-mtbf"), ("storage_bandwidth", "--storage-bandwidth")):
        told = told.replace(field, flag)
    return f"{told.replace('None:', 'if not given:').replace('. if', '; if')} Needs --tokens."


def asked_run(given: Mapping[str, Any]) -> Run | None:
    """The run that flags ask for; None without --tokens, which the others need."""
    if "tokens" not in given:
        refuse_options(_NEEDS_TOKENS, **given)
        return None
    source = "command line"
    site = {field: given[name] for name, field in _SITE.items() if name in given}
    whole = {"tokens": given["tokens"], "reliability": _reliability(given, source)}
    if site:  # by itself, so that faults name the flags
        whole["site"] = Site.validated(site, source=source)
    return Run.validated(whole, source=source)


def _reliability(given: Mapping[str, Any], source: str) -> Reliability | None:
    """What a file says, with flags over its fields."""
    fields = {field: given[name] for name, field in _RELIABILITY.items() if name in given}
    if _ASYNCHRONOUS in given:
        fields["asynchronous"] = given[_ASYNCHRONOUS]
    if "reliability" not in given:
        return Reliability.validated(fields, source=source) if fields else None
    known = Reliability.load(given["reliability"])
    if not fields:
        return known
    kept = known.model_dump(mode="json", exclude_unset=True)
    kept = {name: value for name, value in kept.items() if name not in _replaced(fields)}
    return Reliability.validated(kept | fields, source=given["reliability"])


def _replaced(fields: Mapping[str, Any]) -> set[str]:
    """Fields of a file that stand aside, because only one of two may be given."""
    pairs = (("accelerator_mtbf", "node_mtbf"), ("checkpoint_time", "storage_bandwidth"))
    return {name for pair in pairs for name in pair if set(pair) & set(fields)}
