"""Software of a launch file: a stack of its launcher, or what a description of it means."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.config.launch import Launch, NotUnderstood
from shardwise.config.software.record import Software
from shardwise.config.software.resolve import is_description, resolve
from shardwise.config.software.words import software_of
from shardwise.config.strategy import Strategy

_TRAINERS = {"megatron": "megatron-lm"}
"""Trainers whose launcher has another name."""


def described_as(launch: Launch, text: str, release: str | None = None) -> Launch:
    """Return a launch file with other software; what the file itself sets of it stays.

    Parameters
    ----------
    text
        A stack by name or file, or a description as `--stack` takes it. One of the launcher's own
        trainer, or of none, without release and month has those of the file.
    release
        Release of the trainer, where the file names none.
    """
    own = _set_in_file(launch)
    if not is_description(text):
        return _with_stack(launch, {"base": text, **own} if own else text)
    record, trainer = software_of(text), _trainer(launch)
    names = {record.trainer, *record.others} - {""}
    if not names:
        record = record.model_copy(update={"trainer": trainer})
    release = launch.release or release
    if release and not (record.release or record.date) and (not names or record.trainer == trainer):
        record = record.model_copy(update={"release": release})
    return _with_stack(launch, record.model_copy(update={"options": {**own, **record.options}}))


def of_its_release(launch: Launch, known: tuple[str, ...], release: str | None = None) -> Launch:
    """Return a launch file with the software of the release that it names, or a log of its run.

    Files of a release that shardwise writes, or of none, keep the stack of their launcher. So do
    those that set what the figures of their release cannot run, which is listed.

    Parameters
    ----------
    known
        Releases that the launcher's stack is of.
    release
        Release of the trainer, where the file names none.
    """
    release = launch.release or release
    if not release or not release[0].isdigit() or _minor(release) in map(_minor, known):
        return launch
    text = f"{_trainer(launch)} {release}"
    own = _set_in_file(launch)
    software = Software(trainer=_trainer(launch), release=release, options=own, text=text)
    stack = resolve(software, None, launch.model, _chosen(launch)).stack
    bound = stack.capabilities
    refused = [n for n, v in _chosen(launch).items() if bound and not bound.allows(n, v)]
    if not refused:
        return _with_stack(launch, software)
    problem = f"software of that release cannot run {', '.join(refused)}: figures of a newer one"
    note = NotUnderstood(option="release", value=release, because=problem)
    return replace(launch, not_understood=(*launch.not_understood, note))


def of_run(launch: Launch, known: tuple[str, ...], *, named: object, release: str | None) -> Launch:
    """Return a launch file with the software of a run: as it is typed, else of its release.

    Parameters
    ----------
    known
        Releases that the launcher's stack is of.
    named
        Stack of the user; only text describes software.
    release
        Release that the log prints.
    """
    if isinstance(named, str):
        return described_as(launch, named, release)
    return of_its_release(launch, known, release)


def _minor(release: str) -> list[str]:
    """A release without its patches."""
    return release.split(".")[:2]


def _chosen(launch: Launch) -> Mapping[str, Any]:
    """Fields that a file sets, as values of a strategy."""
    strategy = Strategy.validated(launch.strategy, source=launch.source)
    return {n: getattr(strategy, n) for n in strategy.set_fields() if n != "stack"}


def _trainer(launch: Launch) -> str:
    return _TRAINERS.get(launch.launcher, launch.launcher)


def _set_in_file(launch: Launch) -> dict[str, Any]:
    """Figures of software that a file decides."""
    stack = launch.strategy.get("stack")
    if isinstance(stack, Software):
        return dict(stack.options)
    fields = {**launch.decided, **(stack if isinstance(stack, Mapping) else {})}
    return {n: value for n, value in fields.items() if n not in ("base", "capabilities")}


def _with_stack(launch: Launch, stack: object) -> Launch:
    return replace(launch, strategy={**launch.strategy, "stack": stack})
