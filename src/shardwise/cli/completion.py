"""Completion in the shell: verbs, options, names of the catalog, words and fields.

A table next to this file says what each verb completes, so that no verb has to be imported.
"""

import io
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwise import catalog, registry
from shardwise.cli import VERBS, _app, command_of

TABLE = Path(__file__).with_name("completion.json")
_FOLDERS = {"MODEL": "models", "SYSTEM": "systems", "STACK": "stacks", "RECIPE": "recipes"}
_VARIED = "NAME=V1,V2,..."
"""Kind of `sweep --vary`: figures of a system, too."""
_DEGREES = "1|2|4|8|16|32"


def complete(instruction: str) -> int:
    """Print what a shell requests in the environment, and return the exit code."""
    start = _join_assignments() if instruction == "complete_bash" else ""
    words = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    verb = next((word for word in words.split() if word in VERBS), None)
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            _app(verb, _add_verb)(args=[], prog_name="shardwise", standalone_mode=False)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    else:
        code = 0
    for line in printed.getvalue().splitlines():
        print(line.removeprefix(start))  # noqa: T201 - this is the command line
    return code


def _join_assignments() -> str:
    """Join words that bash splits at ``=``; return the part of the last that bash does not replace.

    For ``--fix tp=`` it sends three words, and wants ``1`` back in place of ``tp=1``.
    """
    cursor = int(os.environ.get("COMP_CWORD", "0"))
    joined: list[str] = []
    for word in os.environ.get("COMP_WORDS", "").split("\n")[: cursor + 1]:
        if joined and (word.startswith("=") or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    os.environ["COMP_WORDS"] = "\n".join(joined)
    os.environ["COMP_CWORD"] = str(len(joined) - 1)
    return joined[-1][: joined[-1].rfind("=") + 1]


def _add_verb(app: typer.Typer, verb: str, group: str) -> None:
    """Add a verb as the table has it."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    parameters = []
    figures = dict.fromkeys(table["figures"], "")
    for number, kind in enumerate(table["verbs"][verb]["arguments"]):
        argument = typer.Argument(autocompletion=_completer(kind, table["fields"]))
        parameters.append(_parameter(f"argument{number}", str | None, argument))
    for number, (names, kind) in enumerate(table["verbs"][verb]["options"].items()):
        known = table["fields"] | (figures if kind == _VARIED else {})
        completer = None if kind is None else _completer(kind, known)
        option = typer.Option(*names.split(), autocompletion=completer)
        type_: object = bool | None if kind is None else str | None
        parameters.append(_parameter(f"option{number}", type_, option))

    def command(**values: object) -> None:
        """Do nothing: the command only completes."""

    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app.command(name=verb, help=VERBS[verb], rich_help_panel=group)(command)


def _parameter(name: str, kind: object, declared: object) -> Parameter:
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, declared]
    )


def _completer(kind: str, fields: Mapping[str, str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return candidates(kind, incomplete, fields)

    return complete


def candidates(kind: str, entered: str, fields: Mapping[str, str]) -> list[str]:
    """Return what an entered text may become; nothing where it is a file or a number.

    Parameters
    ----------
    kind
        What is completed, as in the help: ``MODEL``, ``bf16|fp16``, ``PART,...`` as its words
        ``qkv|mlp,...``, ``FIELD=VALUE,...``.
    entered
        The text up to the cursor.
    fields
        Kinds of the values of strategy fields, by name.
    """
    base, several, _ = kind.partition(",")
    field, equals, _ = base.partition("=")
    if equals and (field == "FIELD" or kind == _VARIED):
        return _assignments(kind, entered, fields)
    start = entered[: entered.rfind(",") + 1] if several else ""
    if field == "FIELD":
        names = list(fields)
    elif field in _FOLDERS:
        word = entered.removeprefix(start)
        names = [name + equals for name in _entries(_FOLDERS[field], word)]
    else:
        names = _listed(kind)
    return [start + name for name in names if (start + name).startswith(entered)]


def _entries(folder: str, word: str) -> list[str]:
    """Names of the catalog that begin with a word, in any case; for models dashes are optional.

    They continue the word as entered, since shells drop what does not: `Llama-3` becomes
    `Llama-3-8b`, which means llama3-8b.
    """
    start = catalog.canonical(word)
    pattern = re.escape(start)
    if folder == "models":
        pattern = "-?".join(map(re.escape, start.replace("-", "")))
    found = []
    for name in catalog.names(folder):
        if begun := re.match(pattern, name):
            rest = name[begun.end() :]
            is_split = start.endswith("-") and begun[0][-1:] != "-"
            if not is_split:
                found.append(word + rest)
            elif re.match(r".-|[a-z]\d", begun[0][-1:] + rest):
                found.append(word + rest.removeprefix("-"))
    return found


def _assignments(kind: str, entered: str, fields: Mapping[str, str]) -> list[str]:
    """Candidates of ``tp=8,pp=2``, or of the values of one field, ``tp=1,2``."""
    one_field = kind in ("FIELD=V1,V2,...", _VARIED)
    start = "" if one_field else entered[: entered.rfind(",") + 1]
    name, equals, value = entered.removeprefix(start).partition("=")
    names = [name] if equals else [one for one in fields if one.startswith(name)]
    if len(names) > 1:
        return [f"{start}{one}=" for one in names]
    several = ",..." if one_field else ""
    return [
        f"{start}{one}={text}"
        for one in names
        if one in fields
        for text in candidates(fields[one] + several, value, fields) or [""]
        if text or not value
    ]


def table() -> dict[str, Any]:
    """Return what the saved table must be, from the verbs and the fields of `Strategy`."""
    from shardwise.config.roles import Tries  # noqa: PLC0415 - slow to import
    from shardwise.config.strategy_fields import (  # noqa: PLC0415 - slow to import
        FIELDS,
        SHORT_NAMES,
        Kind,
    )

    kinds = {}
    for name, field in FIELDS.items():
        words = field.words or field.role.every
        degree = field.kind is Kind.WHOLE and field.role.tries in (
            Tries.DIVISORS,
            Tries.DEFAULT_DIVISOR,
        )
        usual = {Kind.STACK: "STACK", Kind.FLAG: "true|false"}.get(field.kind, "")
        kinds[name] = "|".join(map(str, words)) or usual or (_DEGREES if degree else "")
    fields = kinds | {short: kinds[name] for short, name in SHORT_NAMES.items()}
    named = _words() | {name: kind for name, kind in kinds.items() if "|" in kind}
    verbs = {verb: _completed(verb, named) for verb in VERBS}
    return {"fields": fields, "figures": _figures(), "verbs": verbs}


def _figures() -> list[str]:
    """Figures of systems that `sweep --vary` takes: those of the hardware."""
    from shardwise.config.system import System  # noqa: PLC0415 - slow to import
    from shardwise.planning.sweep.axes import influencing_figures  # noqa: PLC0415 - slow

    systems = map(System.load, catalog.names("systems"))
    names = {f.name for one in systems for f in influencing_figures(one) if f.is_hardware}
    return sorted(names | {"nics", "node", "domain"})


def _words() -> dict[str, str]:
    """Kinds of values that the help calls by a name."""
    from shardwise.cli.schema import SCHEMAS  # noqa: PLC0415 - slow to import
    from shardwise.validate import COLLECTIONS, SUITES  # noqa: PLC0415 - slow to import

    return {
        "LAUNCHER": "|".join(registry.function("launcher_names")()),
        "WHAT": "|".join(registry.function("exported_things")()),
        "SUITE": "|".join((*SUITES, *COLLECTIONS)),
        "SCHEMA": "|".join(SCHEMAS),
        "SOURCE": "MODEL",
    }


def _completed(verb: str, words: Mapping[str, str]) -> dict[str, Any]:
    """The arguments and options of a verb, with the kind of their values."""
    arguments: list[str] = []
    options: dict[str, str | None] = {}
    for one in command_of(verb)[1].params:
        kind = None if getattr(one, "is_flag", False) else re.sub(r"[][]", "", str(one.metavar))
        if kind is not None and not _listed(kind):
            own, several = words.get(str(one.name)), kind.endswith(",...")
            kind = words.get(kind, kind if own is None else own + ",..." * several)
        if one.param_type_name == "argument":
            arguments.append(str(kind))
        else:
            options[" ".join((*one.opts, *one.secondary_opts))] = kind
    return {"arguments": arguments, "options": options}


def _listed(kind: str) -> list[str]:
    """The words among which a value is chosen; names in capitals stand for any."""
    return [word for word in kind.partition(",")[0].split("|") if not word[:1].isupper()]
