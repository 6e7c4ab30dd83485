"""Flags of the verbs, as the command line has them."""

from functools import cache
from typing import Any

import typer

from shardwise.cli import VERBS, _app


@cache
def options() -> dict[str, dict[str, str]]:
    """By verb, and "" for those of all: each flag, and what the help says of its value."""
    found: dict[str, dict[str, str]] = {}
    everywhere: dict[str, str] = {}
    for verb in VERBS:
        group: Any = typer.main.get_command(_app(verb))
        found[verb] = {
            flag: f"{getattr(option, 'metavar', '')} {getattr(option, 'help', '')}"
            for option in group.commands[verb].params
            for flag in (*option.opts, *option.secondary_opts)
            if flag.startswith("-")
        }
        for flag, words in found[verb].items():
            everywhere[flag] = f"{everywhere.get(flag, '')} {words}"
        everywhere.update({flag: "" for option in group.params for flag in option.opts})
    return found | {"": everywhere}
