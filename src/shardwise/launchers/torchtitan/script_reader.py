"""Shell scripts that launch torchtitan with a TOML and options: read as data, never run."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from shardwise.config import files
from shardwise.config.launch import Launch
from shardwise.errors import Fault, InputError
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.ranks import parse_job, ranks_of
from shardwise.launchers.shell import Script, names_in, shown
from shardwise.launchers.torchtitan.options import DEFAULTS, Options, OptionValue, current_name
from shardwise.launchers.torchtitan.toml_files import is_toml, read_toml
from shardwise.units import read_number, read_whole

_TRAIN = re.compile(r"torchtitan[./]train\b|\brun_(?:llama_)?train\.sh\b|\btrain\.py\b")
_CONFIG = re.compile(r"--job\.config[_-]file\b|\bCONFIG_FILE=")
_NUMBER = re.compile(r"[+-]?\d[\d_]*(\.\d*)?([eE][+-]?\d+)?")
_FILE_OPTION, _FILE_VARIABLE, _RANKS_VARIABLE = "job.config_file", "CONFIG_FILE", "NGPU"
_ARGUMENTS = {"@", "*", "#"}
"""What stands for the arguments of the script itself: there are none."""


def is_script(text: str) -> bool:
    """Whether a text launches torchtitan's trainer with a TOML."""
    return bool(_TRAIN.search(text) and _CONFIG.search(text)) and not is_toml(text)


def read_script(launch: LaunchText) -> Launch:
    """Read the TOML that a script names, with the options of its command line.

    Raises
    ------
    InputError
        If no command trains, a variable has no value, or the TOML is not there.
    """
    script = parse_job(launch.text, launch.variables, launch.sibling)
    command = next((one for one in script.commands if _TRAIN.search(" ".join(one))), None)
    if command is None:
        problem = "has no command that runs torchtitan's trainer"
        raise InputError(Fault(source=launch.source, problem=problem))
    path, options = script.exported.get(_FILE_VARIABLE, ""), Options()
    for name, words in _flags(command):
        last = name.replace("-", "_")
        if last == _FILE_OPTION:
            path = " ".join(words)
        elif "." in last:
            text = _literal(",".join(words), launch.source)
            options |= dict([_option(last, text)])
    path = _literal(path, launch.source)
    if not path:
        problem = "names no TOML: --job.config_file, or CONFIG_FILE"
        raise InputError(Fault(source=launch.source, problem=problem))
    text = files.read_text(Path(launch.source).parent / path)
    gpus = _ranks(script, command, launch.source) if launch.gpus is None else launch.gpus
    return read_toml(replace(launch, text=text, gpus=gpus), options)


def _literal(word: str, source: str) -> str:
    """A word without variables.

    Raises
    ------
    InputError
        Naming the variable that has no value.
    """
    if missing := names_in(word):
        problem = f"has no literal value in the script; set it: --set {missing[0]}=VALUE"
        raise InputError(Fault.of(missing[0], shown(word), problem, source))
    return word


def _flags(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Flags of a command with their values; none where a flag stands alone."""
    own = [word for word in words if not (names_in(word) and set(names_in(word)) <= _ARGUMENTS)]
    index = 0
    while index < len(own):
        word, index = own[index], index + 1
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else []
        while not equals and index < len(own) and _is_value(own[index]):
            values.append(own[index])
            index += 1
        yield name, values


def _is_value(word: str) -> bool:
    return not word.startswith("-") or bool(_NUMBER.fullmatch(word))


def _option(name: str, text: str) -> tuple[str, OptionValue]:
    """Name and value of an option: `--compile.no-enable` turns one off."""
    section, _, last = name.rpartition(".")
    if not text and last.startswith("no_"):
        return f"{section}.{last[3:]}", False
    return name, _as_value(name, text) if text else True


def _as_value(name: str, text: str) -> OptionValue:
    """A value of the command line as TOML has it."""
    current = current_name(name)
    if isinstance(DEFAULTS.get(current), list):
        return [part for part in text.split(",") if part]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if isinstance(DEFAULTS.get(current), str) or not _NUMBER.fullmatch(text):
        return text
    number = read_whole(text)
    exact = read_number(text) if number is None else number
    return text if exact is None else exact


def _ranks(script: Script, command: Sequence[str], source: str) -> int | None:
    """Accelerators of a run; None where the script does not say it in literal numbers."""
    ranks = ranks_of(script, command)
    if ranks is not None:
        return ranks.gpus
    per_node = script.exported.get(_RANKS_VARIABLE, "")
    if not per_node or names_in(per_node):
        return None
    number = read_whole(per_node) or 0
    if number < 1:
        problem = "must be a whole number above 0"
        raise InputError(Fault.of(_RANKS_VARIABLE, per_node, problem, source))
    return number
