"""Help: common options on the first screen, every option in one section, at any width."""

import re
import shlex
from collections import Counter
from functools import cache

import pytest

from rows import each_row
from shardwise import Strategy
from shardwise.cli import VERB_GROUPS, VERBS, command_of
from shardwise.cli.help import COMMON, Entry, VerbHelp, verb_help
from shardwise.config.roles import Section
from shardwise.config.strategy_fields import FIELDS

pytestmark = pytest.mark.any_software

LINES = 40
WITH_STRATEGY = ("estimate", "search", "sweep", "export", "trace", "peers", "diagnose")


structure = cache(verb_help)


def _names(entry):
    return re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", entry.names)


@each_row("verb", VERBS)
def test_every_option_is_in_one_section(verb):
    """Also every name of it."""
    declared = Counter(
        name
        for option in command_of(verb)[1].params
        if option.param_type_name == "option" and option.name != "help_all"
        for name in option.opts + option.secondary_opts
    )
    sections = structure(verb).sections.values()
    assert Counter(n for entries in sections for one in entries for n in _names(one)) == declared
    assert set(declared.values()) <= {1}


@each_row("field", FIELDS)
def test_every_field_of_a_strategy_declares_its_section(field):
    """And its flag stands there, unless a verb has it among the common options."""
    section = FIELDS[field].role.section
    assert section in Section
    flag = f"--{field.replace('_', '-')}"
    for verb in WITH_STRATEGY:
        found = [
            heading
            for heading, entries in structure(verb).sections.items()
            if any(flag in _names(entry) for entry in entries)
        ]
        assert found in ([section], [COMMON])


@each_row("verb", VERBS)
def test_the_first_screen_shows_the_common_options(shardwise, monkeypatch, verb):
    """Usage, arguments, at most nine options, an example; and where the others are."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = shardwise(verb, "--help")
    found = structure(verb)
    assert code == 0
    assert len(out.splitlines()) <= LINES, out
    assert out.startswith(f"Usage: shardwise {verb}")
    assert all(f"  {one.names} " in out for one in found.arguments)
    assert found.examples[0].split(" --")[0] in out
    if COMMON not in found.sections:
        assert "--help-all" not in out
        return
    common = found.sections[COMMON]
    number = {"estimate": 9, "search": 9, "sweep": 8}
    assert len(common) == number.get(verb, len(common)) <= 9
    listed = out[out.index(f"{COMMON}:") :]
    assert re.findall(r"^  (-.*?)(?:  |$)", listed, re.MULTILINE) == [one.names for one in common]
    more = " ".join(out[out.index("--help-all shows") :].split())
    others = [name.split(" (")[0].lower() for name in found.sections if name != COMMON]
    assert more == f"--help-all shows {', '.join(others)}."


@each_row("verb", VERBS)
def test_all_options_are_shown_at_any_width(shardwise, monkeypatch, verb):
    """No line is too wide, and no name is cut."""
    found = structure(verb)
    entries = [one for all_ in found.sections.values() for one in all_]
    for width in (60, 80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        _, out, _ = shardwise(verb, "--help-all")
        longest = max(len(one.names) for one in [*entries, *found.arguments])
        assert max(map(len, out.splitlines())) <= max(width, longest + 2)
        assert all(f"\n{heading}:\n" in out for heading in found.sections)
        for one in entries:
            assert re.search(rf"^  {re.escape(one.names)}(  |$)", out, re.MULTILINE)


@each_row("verb", VERBS)
def test_examples_have_options_of_the_verb(verb):
    """They are parsed as when they are entered."""
    context, command = command_of(verb)
    for example in structure(verb).examples:
        program, name, *words = shlex.split(example)
        assert (program, name) == ("shardwise", verb)
        assert command.make_context(verb, words, parent=context.parent).params


@pytest.mark.parametrize("verb", ["estimate", "search", "peers", "schema"])
def test_examples_run(shardwise, verb):
    """As they are."""
    for example in structure(verb).examples:
        code, out, err = shardwise(*shlex.split(example)[1:])
        assert code == 0, err
        assert out


def test_the_help_of_the_command_fits_a_screen(shardwise, monkeypatch):
    """Each verb once, under what it is for, with one example."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = shardwise("--help")
    assert len(out.splitlines()) <= LINES
    assert max(map(len, out.splitlines())) <= 80
    example = re.search("^Example: shardwise (.*)$", out, re.MULTILINE)
    assert shardwise(*shlex.split(example[1]))[0] == 0
    headings = re.findall(r"^(\w.*):$", out, re.MULTILINE)
    assert headings == [*VERB_GROUPS, "Options"]
    assert re.findall(r"^  ([a-z]+)  ", out, re.MULTILINE) == list(VERBS)


@each_row(
    ("verb", "usage"),
    [
        ("sweep", "[MODEL] [SYSTEM[,SYSTEM...]] [OPTIONS]"),
        ("trace", "MODEL [SYSTEM] [OPTIONS]"),
        ("systems", "[SYSTEM] [OPTIONS]"),
    ],
)
def test_the_usage_brackets_what_may_be_omitted(verb, usage):
    """Once."""
    assert structure(verb).usage == f"shardwise {verb} {usage}"


def test_the_structure_of_a_help_is_that_of_its_verb():
    """What the reference of commands is made of."""
    found = verb_help("schema")
    assert found == VerbHelp(
        verb="schema",
        summary=VERBS["schema"],
        usage="shardwise schema SCHEMA [OPTIONS]",
        description=found.description,
        examples=("shardwise schema strategy",),
        arguments=(Entry("SCHEMA", found.arguments[0].help),),
        sections={},
    )


@each_row(
    ("words", "problem"),
    [
        (("estimate", "--gpu", 8), "--gpu; did you mean '--gpus'? `shardwise estimate --help-all`"),
        (("peers", "--zzzz"), "--zzzz; `shardwise peers --help-all` lists all"),
        (("--verbos", "peers"), "--verbos; did you mean '--verbose'? `shardwise --help` lists all"),
    ],
)
def test_an_unknown_option_names_the_closest(shardwise, words, problem):
    """In one line."""
    code, _, err = shardwise(*words)
    assert code == 2
    assert err.startswith(f"error: command line: no such option: {problem}")
    assert err.count("\n") == 1


HELPED = [verb for verb in VERBS if verb not in ("schema", "validate")]


@each_row("verb", HELPED)
def test_help_leaks_no_python(shardwise, verb):
    """No tuples, no None."""
    _, out, _ = shardwise(verb, "--help-all")
    assert not re.search(r"\(\)|',|None|True|False", out)


@each_row("verb", ["estimate", "trace", "peers", "search"])
def test_help_names_all_systems_whose_files_are_read(shardwise, verb):
    """Of models, of systems, of strategies."""
    out = " ".join(shardwise(verb, "--help-all")[1].split())
    files = "Files (YAML, JSON, TOML; also .gz): shardwise, Calculon, SimuMax, NERSC"
    assert f"{files}, AMPeD or Hugging Face format, or launch file of a trainer" in out
    assert f"{files} or AMPeD format." in out
    if verb != "search":
        shown = "Strategy file (shardwise, SimuMax or AMPeD format), Calculon execution file or"
        assert shown in out


FLAGS = {
    "--tp N": "Default: 1.",
    "--stage-layers N,...": "",
    "--expert-capacity X": "if not set: dropless.",
    "--expert-imbalance X": "Default: 1.",
    "--recompute-parts PART,...": "Default: core_attention.",
    "--frozen PART,...": "norms, head. Default: none.",
    "--lora-parts PART,...": "experts, embedding, head. Default: attention,mlp.",
    "--stack STACK": "if not set: that of the system.",
    "--fsdp-reshard / --no-fsdp-reshard": "Default: on.",
    "--zero 0|1|2|3": "Default: 1.",
    "--dp N|NxN": "if not set: GPUs over the other degrees.",
    "--seq-len N": "if not set: those of the model.",
    "--schedule 1f1b|interleaved": "if not set: 1f1b, or interleaved if vpp is above 1.",
    "--placement AXIS-AXIS-...": "Default: tp-cp-dp-pp.",
    "--extents AXIS=N+AXIS=N/...": "",
}


def test_help_says_what_a_flag_takes_and_what_holds_without_it(shardwise):
    """By the types of the fields."""
    text = " ".join(shardwise("estimate", "--help-all")[1].split())
    flags = re.split(r" (?=--[a-z])", text)
    for flag, ending in FLAGS.items():
        name = flag.split(" ")[0]
        shown = next(part for part in flags if part.startswith(f"{name} "))
        if "/" in flag:  # split at its second name
            shown += " " + flags[flags.index(shown) + 1]
        assert shown.startswith(flag)
        assert ending in shown


@each_row(
    ("verb", "shown"),
    [
        ("estimate", "all replicas. Required unless a file or recipe sets it."),
        ("search", "--gpus N|N,N|N..N Number of GPUs"),
        ("search", "same forms as --gpus. Required without --recipe."),
        ("search", "--tp N,... Tensor-parallel degree. --tp2"),
        ("search", "--recompute none|selective|full,... "),
        ("search", "--recompute-parts PART+PART,... "),
        ("search", "(in dualpipe, on each of its two stages). --checkpoint-place"),
        ("explore", "need a token. Default: 127.0.0.1."),
        ("explore", "Port to listen on. Default: 8765."),
        ("fsdp", "Tokens per sequence. Default: those of the model."),
    ],
)
def test_help_states_requirements_and_defaults(shardwise, verb, shown):
    """In a search a field without a flag has several values, no default."""
    assert shown in " ".join(shardwise(verb, "--help-all")[1].split())


def test_help_of_a_verb_can_be_requested_by_the_word_help(shardwise):
    """Before the verb, or alone."""
    assert shardwise("help", "estimate") == shardwise("estimate", "--help")
    assert shardwise("help") == shardwise("--help")


def test_an_option_with_one_dash_is_told_with_two(shardwise):
    """It would be read as several options of one letter."""
    for word in ("-gpus", "-gpus=8"):
        code, _, err = shardwise("estimate", "llama3-8b", "h100-sxm", word, 8)
        assert code == 2
        assert "no such option: -gpus; did you mean '--gpus'?" in err


def test_every_help_of_an_option_ends_with_a_period(shardwise):
    """Also those of the command itself."""
    options = shardwise("--help")[1].partition("Options:\n")[2]
    assert all(line.endswith(".") for line in options.splitlines())


def test_defaults_in_the_help_are_those_of_the_noun(shardwise):
    """None is forgotten."""
    text = shardwise("estimate", "--help-all")[1]
    shown = len(re.findall(r"Default:", text)) - 2  # of --tables and --flops-convention
    fields = Strategy.model_fields.values()
    assert shown == sum(field.default is not None for field in fields)
