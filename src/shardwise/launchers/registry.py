"""Launchers: their files read into shardwise's words, and plans written as their files.

A new launcher is one folder with a `LAUNCHER` in its `__init__`, one line here and in `stacks`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from shardwise import catalog
from shardwise.config import files
from shardwise.config.base import MOST
from shardwise.config.launch import Launch
from shardwise.config.model import Model
from shardwise.errors import Fault, InputError, allowed_words, check_path
from shardwise.launchers import (
    accelerate,
    automodel,
    axolotl,
    deepspeed,
    llama_factory,
    megatron,
    megatron_bridge,
    ms_swift,
    openrlhf,
    torchtitan,
    torchtune,
    trl,
    verl,
)
from shardwise.launchers.importance import by_importance
from shardwise.launchers.launch import (
    Launcher,
    LaunchReader,
    LaunchText,
)
from shardwise.launchers.software import of_its_release
from shardwise.launchers.unread import unread_file, unread_form

LAUNCHERS: tuple[Launcher, ...] = (
    llama_factory.LAUNCHER,
    axolotl.LAUNCHER,
    trl.LAUNCHER,
    automodel.LAUNCHER,
    deepspeed.LAUNCHER,
    accelerate.LAUNCHER,
    torchtitan.LAUNCHER,
    megatron_bridge.LAUNCHER,
    megatron.LAUNCHER,
)
READERS: tuple[LaunchReader, ...] = (
    torchtune.READER,
    ms_swift.READER,
    verl.READER,
    openrlhf.READER,
)
"""Trainers whose launch files are read and not written; they look at a file first."""


def launcher_names() -> tuple[str, ...]:
    """Return the names of all launchers."""
    return tuple(one.name for one in LAUNCHERS)


def launcher_of(name: str, field: str = "launcher") -> Launcher:
    """Return a launcher by its name.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    names = [one.name for one in LAUNCHERS]
    called = name.strip().lower() if isinstance(name, str) else None
    for one in LAUNCHERS:
        if one.name == called:
            return one
    problem = allowed_words(name, names)
    raise InputError(Fault.of(field, name, problem))


def readers() -> tuple[LaunchReader, ...]:
    """Return all trainers whose launch files are read, in the order in which they look at one."""
    return (*READERS, *LAUNCHERS)


def recognised_launcher(text: str, source: str) -> LaunchReader | None:
    """Return the trainer that a text is written for; None if it is not known."""
    with _of_file(source):
        found = next((one for one in readers() if one.recognise(text, source)), None)
    is_guess = found is megatron_bridge.LAUNCHER  # by names of sections that others have, too
    return None if is_guess and unread_form(text, source) else found


@contextmanager
def _of_file(source: str) -> Iterator[None]:
    """Name the file in faults that name none."""
    try:
        yield
    except InputError as error:
        named = [replace(fault, source=fault.source or source) for fault in error.faults]
        raise InputError(named) from None


def not_recognised(path: str | Path) -> Fault:
    """Return the fault of a file that is no launch file, and may be nothing else by its ending."""
    known = unread_file(str(path))
    if known is not None:
        return Fault(source=str(path), problem=known)
    titles = ", ".join(one.title for one in readers())
    problem = f"is no launch file of {titles or 'any launcher'}; cannot tell the format otherwise"
    endings = f"allowed endings: {', '.join(files.SUFFIXES)}, each also .gz"
    return Fault(source=str(path), problem=f"{problem}; {endings}")


def read_launch(
    path: str | Path,
    *,
    model: Model | str | None = None,
    gpus: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> Launch:
    """Read a launch file of a trainer: Megatron-LM, torchtitan, TRL, LLaMA-Factory and others.

    Parameters
    ----------
    path
        File; FILE.py:NAME of one configuration among several.
    model
        Model of the run, for files that do not hold one.
    gpus
        Accelerators of the run, for files that do not hold their number.
    variables
        Values of variables that a script leaves open.

    Returns
    -------
    Launch
        Model, strategy and stack of the file, and what was not understood;
        `help(shardwise.Launch)` lists its fields.

    Raises
    ------
    InputError
        If it is no launch file, a value is wrong, or a variable has no value.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from shardwise import export, read_launch
    >>> script = Path(mkdtemp()) / "train.sh"
    >>> made = export("megatron", "llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8)
    >>> _ = script.write_text(made.files[0].text)
    >>> read_launch(script).strategy["gpus"]
    8
    """
    _check(path, gpus, variables)
    source, entry = files.file_and_name(path)
    text = files.read_text(source)
    launcher = recognised_launcher(text, source)
    if launcher is None:
        titles = ", ".join(one.title for one in readers())
        problem = unread_form(text, source) or f"is no launch file of {titles}"
        raise InputError(Fault(source=source, problem=problem))
    known = None if model is None else Model.load(model)
    known_text = LaunchText(
        source=source,
        text=text,
        entry=entry,
        model=known,
        gpus=gpus,
        variables=dict(variables or {}),
        folder=Path(source).parent,
    )
    return read_by(launcher, known_text)


def _check(path: object, gpus: object, variables: object) -> None:
    """Refuse arguments of wrong types."""
    check_path("path", path)
    whole = isinstance(gpus, int) and not isinstance(gpus, bool)
    if gpus is not None and not (whole and 1 <= gpus <= MOST):  # type: ignore[operator]
        raise InputError(Fault.of("gpus", gpus, "must be a whole number of at least 1"))
    named = variables if isinstance(variables, Mapping) else {None: None}
    texts = [text for pair in named.items() for text in pair]
    if variables is not None and not all(isinstance(text, str) for text in texts):
        raise InputError(Fault.of("variables", variables, "must be texts by name"))


def read_by(launcher: LaunchReader, text: LaunchText) -> Launch:
    """Read a text of a launcher; a model that the catalog has is that of the catalog."""
    with _of_file(text.source):
        releases = launcher.releases if isinstance(launcher, Launcher) else ()
        launch = of_its_release(launcher.read(text), releases)
    launch = replace(launch, not_understood=by_importance(launch.not_understood))
    known = None if launch.model is None else catalog_model(launch.model)
    return launch if known is None else replace(launch, model=known)


def catalog_model(model: Model) -> Model | None:
    """Return the model of the catalog with the same architecture; None if there is none."""
    own = _architecture(model)
    same = {one.name: one for one in _catalog_models() if _architecture(one) == own}
    return same.get(model.name) or next(iter(same.values()), None)


@cache
def _catalog_models() -> tuple[Model, ...]:
    return tuple(Model.load(name) for name in catalog.names("models"))


# Fields of a model that say nothing of its architecture.
_WORDS = ("name", "description", "sources", "seq_len", "max_positions", "left_out")


def _architecture(model: Model) -> dict[str, Any]:
    learned = model.max_positions or model.seq_len if model.position == "learned" else None
    return {name: value for name, value in model if name not in _WORDS} | {"rows": learned}
