"""The command line: one module per verb, imported when it is called.

Exit codes: 0 done; 1 no feasible answer; 2 bad input, one line per fault.
"""

import errno
import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwise import catalog, registry
from shardwise._version import __version__
from shardwise.cli import streams
from shardwise.cli.command_line import note_command, quiet
from shardwise.cli.help import CONTEXT, RootGroup, VerbCommand, description_of, unknown_option
from shardwise.cli.unexpected import line_of
from shardwise.config import files
from shardwise.errors import Fault, InputError, ShardwiseError, one_line

__all__ = ["main"]

# Functions of verbs that are not `command` of the module of their name here.
_HOMES = {"systems": "cli.listing:systems", "stacks": "cli.listing:stacks"}
VERB_GROUPS = {
    "Predict": {
        "estimate": "Step time, memory and cost of one strategy.",
        "compare": "Scenarios side by side: what differs, and why.",
        "trace": "Timeline of one step for Perfetto, from an event simulation.",
        "peers": "Ranks of every communication group of one strategy.",
    },
    "Search": {
        "search": "The best strategies of a model on N GPUs.",
        "sweep": "What more bandwidth or memory, or other settings, would gain.",
    },
    "Launch": {},
    "Check": {
        "recipes": "Published recipes next to what was measured with them.",
        "coverage": "What measured runs cover, by model, system, software and feature.",
        "validate": "Errors against published measurements, and those of other models.",
        "calibrate": "Fit the parameters of a system to measurements.",
    },
    "Catalog and files": {
        "models": "Models of the catalog or a folder, or one model in detail.",
        "systems": "Systems of the catalog, or one system with sources.",
        "stacks": "Software stacks of the catalog, or one stack.",
        "software": "What a description of software means; known trainers.",
        "lengths": "Lengths of a data set, and what padding and packing cost.",
        "show": "The tables of a saved result, or of a plan in it.",
        "config": "Defaults of your team in force, and the file that sets each.",
        "schema": "JSON Schema of a config file, such as model or strategy.",
    },
}
"""Verbs and their summaries, by what they are for; packages around the core add to them."""
for _name, _verb in registry.added("verbs"):
    _group = list(VERB_GROUPS[_verb.group].items())
    _place = [name for name, _ in _group].index(_verb.before) if _verb.before else len(_group)
    VERB_GROUPS[_verb.group] = dict([*_group[:_place], (_name, _verb.summary), *_group[_place:]])
    _HOMES[_name] = _verb.home
VERBS = {verb: text for group in VERB_GROUPS.values() for verb, text in group.items()}
_READ_LOGS = {"diagnose"}
"""Verbs whose own `--log` is a file that they read."""
_INTERRUPTED = 130
_STDIN = "standard input"
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_MESSAGE_WIDTH = 300
_COMPLETION = "_SHARDWISE_COMPLETE"
"""Variable by which a shell requests completion; typer names it."""
_COMPLETION_OPTIONS = ("--show-completion", "--install-completion")
_SHELLS = ("bash", "zsh", "fish")

# Without a handler of its own, logging would print errors on stderr a second time.
logging.getLogger("shardwise").addHandler(logging.NullHandler())


class _NotesHandler(logging.Handler):
    """Prints which entries names mean, and what a long search found before it ends."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line on stderr."""
        if not quiet.get():
            _print(f"note: {record.getMessage()}")


def _print(line: str) -> None:
    """Print a line on stderr; nothing is lost if that is full."""
    with suppress(OSError):
        print(line, file=sys.stderr)  # noqa: T201 - this is the command line


_NOTED = ("shardwise.names", "shardwise.search", "shardwise.charts")
for _name in _NOTED:
    logging.getLogger(_name).addHandler(_NotesHandler())
    logging.getLogger(_name).setLevel(logging.INFO)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    gc.set_threshold(50_000)  # a search allocates many records, and leaves next to no cycles
    # To find plugins, pydantic reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    streams.prepare()
    if _COMPLETION in os.environ:
        from shardwise.cli.completion import complete  # noqa: PLC0415 - it imports this module

        sys.exit(complete(os.environ[_COMPLETION]))
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = run(sys.argv[1:] if arguments is None else arguments, guarded=True)
    gc.freeze()  # so that the end of Python looks for no cycles in what it frees
    sys.exit(code)


def run(arguments: Sequence[str], *, guarded: bool = False) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    guarded
        Whether faults of shardwise itself end in one line, too; else their exceptions are raised.
    """
    quiet.set(False)
    with files.keeping_inputs(), streams.stdin_as_file(arguments) as (words, stdin):
        return _run(arguments, words, guarded=guarded, stdin=stdin)


def _run(arguments: Sequence[str], words: list[str], *, guarded: bool, stdin: str) -> int:
    words = _global_options_first(words) or ["--help"]
    if words[0] == "help":
        words = [*words[1:], "--help"]
    note_command(arguments)
    catalog.forget_notes()
    try:
        if words[0] in _COMPLETION_OPTIONS and len(words) > 1:
            code = _show_completion(*words)
        else:
            app = _app(next((word for word in words if word in VERBS), None))
            code = app(args=words, standalone_mode=False, prog_name="shardwise")
        sys.stdout.flush()
    except ShardwiseError as error:
        text = str(error).replace(stdin, _STDIN) if stdin else str(error)
        return _refuse(text.splitlines())
    except BrokenPipeError:  # the reader closed the pipe
        streams.discard_output()
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return _refuse(["interrupted"], code=_INTERRUPTED)
    except SystemExit:
        raise
    except BaseException as error:  # also the panics of libraries in Rust
        lines = _explained(error)
        if lines is None and not guarded:
            raise
        return _refuse([line_of(error)] if lines is None else lines)
    finally:
        logger = logging.getLogger("shardwise")
        for handler in logger.handlers[1:]:
            logger.removeHandler(handler)
            handler.close()
    return code if isinstance(code, int) else 0


def _explained(error: BaseException) -> list[str] | None:
    """Say what is wrong with options, or with standard output; None of other exceptions."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _STREAM_ERRORS:
        streams.discard_output()
        return [f"standard output: cannot be written: {error.strerror}"]
    if hasattr(error, "format_message"):  # errors of typer have it
        unknown = hasattr(error, "option_name") and hasattr(error, "possibilities")
        text = unknown_option(error) if unknown else error.format_message()
        message = one_line(text, _MESSAGE_WIDTH)
        return [str(Fault(source="command line", problem=message))] if message else []
    return None


# All files raise `InputError`; other errors of these kinds are those of standard output.
_STREAM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def _show_completion(option: str, shell: str, *others: str) -> int:
    """Print the script that completes commands in a shell."""
    problem = "" if shell in _SHELLS and not others else f"allowed: {', '.join(_SHELLS)}"
    if option != _COMPLETION_OPTIONS[0]:
        problem = f"takes no value; {_COMPLETION_OPTIONS[0]} {'|'.join(_SHELLS)} prints the script"
    if problem:
        entered = " ".join((shell, *others))
        raise InputError.of(option, entered, problem, "command line")
    from shardwise.cli.completion import complete  # noqa: PLC0415 - it imports this module

    instruction = os.environ[_COMPLETION] = f"source_{shell}"  # which typer reads
    try:
        return complete(instruction)
    finally:
        del os.environ[_COMPLETION]


def _refuse(lines: Sequence[str], *, code: int = 2) -> int:
    for line in lines:
        _print(f"error: {line}")
        logging.getLogger("shardwise").error(line)
    return code


def _global_options_first(words: list[str]) -> list[str]:
    """Allow options of all verbs after the verb, too, unless it has such an option itself."""
    moved: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        is_log = word == "--log" or word.startswith("--log=")
        if word in ("--verbose", "--quiet", "-q") or (is_log and not set(rest) & _READ_LOGS):
            moved.append(word)
            if word == "--log" and position + 1 < len(words):
                position += 1
                moved.append(words[position])
        else:
            rest.append(word)
        position += 1
    return moved + rest


def _app(
    chosen: str | None, add: Callable[[typer.Typer, str, str], None] | None = None
) -> typer.Typer:
    """Build the command with the chosen verb; the others have only name and summary."""
    app = typer.Typer(
        cls=RootGroup,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: boxes cut long flags off on narrow terminals
        help="Step time, memory and cost of a training run before you launch it.",
        epilog="shardwise estimate llama3-8b h100-sxm --gpus 8 --tp 2 --gbs 64",
        context_settings=CONTEXT,
    )
    app.callback()(_root)
    for group, verbs in VERB_GROUPS.items():
        for name, summary in verbs.items():
            if name == chosen:
                (add or _add_verb)(app, name, group)
            else:
                app.command(
                    name=name,
                    help=summary,
                    rich_help_panel=group,
                )(_placeholder)
    return app


def _add_verb(app: typer.Typer, name: str, group: str) -> None:
    home = _HOMES.get(name, f"cli.{name}:command")
    _import(f"shardwise.{home.partition(':')[0]}")
    function = registry.load(home)
    add = app.command(
        name=name,
        cls=VerbCommand,
        help=description_of(function),
        short_help=VERBS[name],
        epilog="\n".join(function.examples),
        rich_help_panel=group,
        context_settings=CONTEXT,
    )
    add(function)


def _import(name: str) -> None:
    """Import a module, and fast.

    What modules hold is never garbage, so none is looked for. The BLAS of numpy starts no threads,
    which would spin for longer than small products take.
    """
    if name in sys.modules:
        return
    collects, own = gc.isenabled(), _BLAS_THREADS not in os.environ
    gc.disable()
    if own:
        os.environ[_BLAS_THREADS] = "1"
    try:
        import_module(name)
    finally:
        if own:
            del os.environ[_BLAS_THREADS]
        if collects:
            gc.freeze()
            gc.enable()


def command_of(verb: str) -> tuple[Any, Any]:
    """Return the command of a verb, and a context to format its help in."""
    group: Any = typer.main.get_command(_app(verb))
    context = group.make_context("shardwise", [verb], resilient_parsing=True)
    command = group.commands[verb]
    return command.make_context(verb, [], parent=context, resilient_parsing=True), command


def _placeholder() -> None:
    """A verb that was not called."""


def _print_version(requested: bool) -> None:
    if requested:
        print(f"shardwise {__version__}")  # noqa: T201 - this is the command line
        raise typer.Exit(0)


def _root(
    version: Annotated[  # noqa: ARG001 - its callback prints and stops
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log to stderr.")] = False,
    no_notes: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="No notes and no progress on stderr; errors remain."),
    ] = False,
    log: Annotated[
        str | None, typer.Option("--log", help="Write a log to FILE.", metavar="FILE")
    ] = None,
) -> None:
    quiet.set(no_notes)
    logger = logging.getLogger("shardwise")
    logger.setLevel(logging.DEBUG)
    if verbose:
        stream = logging.StreamHandler(sys.stderr)
        stream.setFormatter(logging.Formatter("%(message)s"))
        stream.addFilter(lambda record: record.name not in _NOTED)  # which is printed
        logger.addHandler(stream)
    if log is not None:
        logger.addHandler(_log_file(log))


_LOG_LINE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")


class _LogFile(logging.FileHandler):
    """A log that ends where the disk is full; the answer and its exit code stay."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - of logging
        """Note why the log ends."""
        self._end(sys.exception())

    def close(self) -> None:
        """Close the file, whose last lines may not fit."""
        try:
            super().close()
        except OSError as error:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self.level <= logging.CRITICAL:
            self.setLevel(logging.CRITICAL + 1)
            reason = getattr(error, "strerror", None) or error
            _print(f"note: {self.baseFilename}: cannot be written: {reason}; the log is incomplete")


def _log_file(path: str) -> logging.Handler:
    """Append to a log, and to no other file."""
    files.check_output_path(path)
    try:
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
        with Path(path).open("rb") as stream:
            begin = stream.read(40)
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise InputError.at(path, problem) from None
    if begin and not _LOG_LINE.match(begin):
        handler.close()
        raise InputError.at(path, "is not a log of shardwise; choose another")
    files.note_log(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return handler
