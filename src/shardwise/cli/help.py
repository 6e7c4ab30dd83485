"""Help of the verbs: common options first, all others in sections with `--help-all`."""

import inspect
import shlex
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from shardwise.cli.command_line import entered_words
from shardwise.config.roles import Section
from shardwise.errors import InputError, nearest
from shardwise.records import dataclass

COMMON = "Common options"
INPUT = "Input"
OPTIONS = "Options"
TRAINING_RUN = "Training run (needs --tokens)"
RELIABILITY = "Reliability (needs --tokens)"
OUTPUT = "Output"
OTHER_MODELS = "Other models"
_HELP = "Help"
"""Sections that several verbs have; an option declares its own as `rich_help_panel`."""
_FIRST = (COMMON, INPUT)
_LAST = (*Section, TRAINING_RUN, RELIABILITY, OUTPUT, OTHER_MODELS)
ALONE = "true"
"""Value of an option that stands alone, where its placeholder is in brackets."""
_OLD_NAMES = {"--reoptimise": "--reoptimize"}
"""Names that options had, which work as before."""
_EVERYTHING = "shardwise.help_all"
_MOST_COLUMNS = 120
"""Longer lines of text are hard to read."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": _MOST_COLUMNS}


@dataclass(frozen=True, slots=True)
class Entry:
    """An argument or option of a verb."""

    names: str
    """As the help shows it: all names, and what its value is, as in ``-o, --output FILE``."""
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbHelp:
    """What the help of a verb consists of."""

    verb: str
    summary: str
    usage: str
    description: str
    """Paragraphs, with an empty line between them; the first is one sentence."""
    examples: tuple[str, ...]
    """Commands."""
    arguments: tuple[Entry, ...]
    sections: dict[str, tuple[Entry, ...]]
    """Options by the heading of their section, in the order of the help."""


def with_help(
    common: str = "", *, examples: Sequence[str]
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Name common options of a verb, and examples; the outermost decorator of every verb.

    Parameters
    ----------
    common
        Parameters whose options come first, as words. With any, `--help` shows only these.
    examples
        Commands that run as they are.
    """

    def decorate(function: Callable[..., object]) -> Callable[..., object]:
        found = dict(inspect.signature(function).parameters)
        for name in common.split():
            option = copy(found[name].default)
            option.rich_help_panel = COMMON
            found[name] = found.pop(name).replace(default=option)
        keyword = inspect.Parameter.KEYWORD_ONLY
        found["help_all"] = inspect.Parameter(
            "help_all", keyword, default=_HELP_ALL, annotation=bool
        )

        def command(*, help_all: bool, **values: object) -> object:  # noqa: ARG001 - eager
            return function(**values)

        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=keyword) for parameter in found.values()]
        )
        command.__doc__ = function.__doc__
        command.examples = tuple(examples)  # type: ignore[attr-defined]
        return command

    return decorate


def _show_everything(context: typer.Context, requested: bool) -> None:
    if requested and not context.resilient_parsing:
        context.meta[_EVERYTHING] = True
        typer.echo(context.get_help())
        raise typer.Exit(0)


_HELP_ALL = typer.Option(
    False, "--help-all", is_eager=True, callback=_show_everything, rich_help_panel=_HELP
)


class VerbCommand(TyperCommand):
    """A verb: its help shows the common options, with `--help-all` every section."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace old names of options, and add the value of options that may stand alone."""
        args = [_OLD_NAMES.get(word, word) for word in args]
        alone = {
            name
            for one in self.params
            if one.param_type_name == "option" and str(one.metavar).startswith("[")
            for name in one.opts
        }
        followed = zip(args, [*args[1:], "-"], strict=False)
        words = [
            f"{word}={ALONE}" if word in alone and following.startswith("-") else word
            for word, following in followed
        ]
        return super().parse_args(ctx, words)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; faults of what was entered name its options."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            from shardwise.cli.faults import as_entered  # noqa: PLC0415 - it knows the fields

            raise as_entered(error, ctx) from None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as in the base class
        """Return the arguments, then a word for the options."""
        texts = []
        for one in self.params:
            if one.param_type_name == "argument":
                text = str(one.metavar)
                texts.append(text if one.required or text.startswith("[") else f"[{text}]")
        return [*texts, "[OPTIONS]"]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, description, arguments, options and examples."""
        self.format_usage(ctx, formatter)
        sections = sections_of(self)
        everything = COMMON not in sections or _EVERYTHING in ctx.meta
        others = [] if everything else [*sections][1:]
        paragraphs = (self.help or "").split("\n\n")
        for paragraph in paragraphs if everything else paragraphs[:2]:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(paragraph)
        _write_entries(formatter, "Arguments", arguments_of(self), short=not everything)
        for heading, entries in sections.items():
            if heading not in others:
                _write_entries(formatter, heading, entries)
        if self.epilog:
            formatter.write_paragraph()
            formatter.write_heading("Examples")
            for example in self.epilog.splitlines():
                formatter.write(_wrapped_command(example, formatter.width))
        if others:
            names = ", ".join(name.split(" (")[0].lower() for name in others)
            formatter.write_paragraph()
            hidden = {one.names for name in others for one in sections[name]}
            output = "--json prints JSON, -o FILE writes it. " if "--json" in hidden else ""
            formatter.write_text(f"{output}--help-all shows {names}.")


def _write_entries(
    formatter: Any, heading: str, entries: Sequence[Entry], *, short: bool = False
) -> None:
    if entries:
        texts = [
            f"{entry.help.partition('. ')[0].rstrip('.')}." if short else entry.help
            for entry in entries
        ]
        with formatter.section(heading):
            names = [entry.names for entry in entries]
            formatter.write_dl(list(zip(names, texts, strict=True)))


def _wrapped_command(command: str, width: int) -> str:
    """A command over as few lines as fit, as a shell reads it."""
    lines = [" "]
    for word in shlex.split(command):
        quoted = shlex.quote(word)
        if len(lines[-1]) + 1 + len(quoted) + 2 > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {quoted}"
    return "\n".join(lines) + "\n"


def arguments_of(command: TyperCommand) -> tuple[Entry, ...]:
    """Return the arguments of a verb."""
    return tuple(
        Entry(str(one.metavar), _help_of(one))
        for one in command.params
        if one.param_type_name == "argument"
    )


def sections_of(command: TyperCommand) -> dict[str, tuple[Entry, ...]]:
    """Return the options of a verb by the heading of their section, in the order of the help."""
    found: dict[str, list[Entry]] = {}
    for one in command.params:
        heading = getattr(one, "rich_help_panel", None) or OPTIONS
        if one.param_type_name == "option" and heading != _HELP:
            found.setdefault(heading, []).append(Entry(_names_of(one), _help_of(one)))
    return {heading: tuple(found[heading]) for heading in sorted(found, key=_place)}


def _place(heading: str) -> int:
    """Place of a section: those that only one verb has come before those of strategy fields."""
    if heading in _FIRST:
        return _FIRST.index(heading) - len(_FIRST)
    return _LAST.index(heading) + 1 if heading in _LAST else 0


def _names_of(option: Any) -> str:
    names = ", ".join(sorted(option.opts, key=lambda name: name.startswith("--")))
    if option.secondary_opts:
        return f"{names} / {', '.join(option.secondary_opts)}"
    return names if option.is_flag else f"{names} {option.metavar}"


def _help_of(parameter: Any) -> str:
    return " ".join(str(parameter.help or "").split())


_CALCULON_COMMANDS = {
    ("llm",): "estimate MODEL SYSTEM --strategy EXECUTION --reference calculon",
    ("lpc", "llm-parameter-calculator"): "models MODEL",
    ("lv", "llm-validation"): "validate seqsel",
    ("loe", "llm-optimal-execution"): "search MODEL SYSTEM --gpus N --gbs N --reference calculon",
    ("lae", "llm-all-executions"): "search MODEL SYSTEM --gpus N --gbs N --reference calculon "
    "--save all.csv.gz",
    ("v", "version"): "--version",
}
"""Commands of Calculon 0.1.0 with their short names, and what to type instead."""


class RootGroup(TyperGroup):
    """All verbs, grouped by what they are for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb; a command of Calculon is refused with what to type instead."""
        for names, command in _CALCULON_COMMANDS.items():
            if args and args[0] in names:
                ctx.fail(f"no such command: {args[0]!r}; Calculon's is here: shardwise {command}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, an example, verbs by purpose, and options."""
        self.format_usage(ctx, formatter)
        formatter.write(f"Example: {self.epilog}\n")
        self.format_help_text(ctx, formatter)
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = str(getattr(command, "rich_help_panel", OPTIONS))
            groups.setdefault(panel, []).append((name, command.get_short_help_str(200)))
        most = max(map(len, self.commands))
        groups = {
            heading: [(name.ljust(most), summary) for name, summary in rows]
            for heading, rows in groups.items()
        }
        *own, install, show = self.params  # typer adds the last two
        groups[OPTIONS] = [
            (_names_of(one), _help_of(one).split(",")[0].rstrip(".") + ".") for one in own
        ]
        completion = f"Completion in your shell; {_names_of(show)} prints it."
        groups[OPTIONS].append((_names_of(install), completion))
        for heading, rows in groups.items():
            formatter.write_heading(heading)
            with formatter.indentation():
                formatter.write_dl(rows)


def unknown_option(error: Any) -> str:
    """Return the problem of an option that a command does not have, with the nearest one."""
    verb = error.ctx.command_path
    known = [name for one in error.ctx.command.params for name in one.opts + one.secondary_opts]
    more = "--help-all" if isinstance(error.ctx.command, VerbCommand) else "--help"
    entered = (word.partition("=")[0] for word in entered_words())
    with_one_dash = (name for name in entered if f"-{name}" in known and name[1:2] != "-")
    name = next(with_one_dash, error.option_name)
    near = f"; did you mean '-{name}'?" if f"-{name}" in known else nearest(name, known)
    return f"no such option: {name}{near or ';'} `{verb} {more}` lists all"


def description_of(function: Callable[..., object]) -> str:
    """A docstring with each paragraph on one line, for the terminal to wrap."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def verb_help(verb: str) -> VerbHelp:
    """Return what the help of a verb consists of; the reference of commands is made of it."""
    from shardwise.cli import command_of  # noqa: PLC0415 - it imports this module

    context, command = command_of(verb)
    return VerbHelp(
        verb=verb,
        summary=str(command.short_help),
        usage=command.get_usage(context).removeprefix("Usage: "),
        description=command.help or "",
        examples=tuple((command.epilog or "").splitlines()),
        arguments=arguments_of(command),
        sections=sections_of(command),
    )
