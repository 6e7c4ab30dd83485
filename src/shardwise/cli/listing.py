"""`shardwise systems`, `shardwise stacks`: list a folder of the catalog, or show one entry."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from shardwise import catalog, registry
from shardwise.cli.help import with_help
from shardwise.cli.options import (
    JSON_FLAG,
    OUTPUT_OPTION,
    name_argument,
    opt,
    refuse_options,
    with_options,
)
from shardwise.cli.output import emit_json, printed, show
from shardwise.config import files
from shardwise.config.arguments import count_of
from shardwise.config.base import ConfigBase
from shardwise.config.fine_tuning import METHODS
from shardwise.config.stack import Stack
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.report.tables.catalog import (
    print_figures,
    print_stack,
    print_stacks,
    print_systems,
    stack_record,
)

Config = TypeVar("Config", bound=ConfigBase)

EXPLAIN_FLAG = opt(
    "--explain",
    "Show every value with its unit, source and origin: set, looked up, calculated "
    "(with the formula) or default.",
)


_SMALLEST = "Fewest GPUs that fit (with --smallest-for)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestOptions:
    """Options of `systems --smallest-for`."""

    finetune: str | None = opt(
        f"--finetune {'|'.join(METHODS)}", "Method of fine-tuning. Default: lora.", _SMALLEST
    )
    seq_len: str | None = opt("--seq-len N", "Tokens per sequence. Default: 2048.", _SMALLEST)
    mbs: str | None = opt(
        "--mbs N", "Sequences per forward pass of one replica. Default: 1.", _SMALLEST
    )

    def arguments(self) -> dict[str, Any]:
        """Arguments of `planning.methods.systems_for`."""
        words = {} if self.finetune is None else {"finetune": self.finetune}
        numbers = {"seq_len": self.seq_len, "mbs": self.mbs}
        return words | {n: count_of(n, text) for n, text in numbers.items() if text is not None}


@with_help(
    examples=[
        "shardwise systems",
        "shardwise systems h100-sxm --explain",
        "shardwise systems --smallest-for llama3-8b --finetune qlora",
    ]
)
@with_options
def systems(
    *,
    name: str | None = name_argument("[SYSTEM]"),
    explain: bool = EXPLAIN_FLAG,
    smallest_for: str | None = opt(
        "--smallest-for MODEL",
        "List the systems on which a model can be fine-tuned, with the fewest GPUs of each.",
        _SMALLEST,
    ),
    smallest: SmallestOptions,
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """List the systems of the catalog, or show one: every value with its source.

    With --output, write the system to a file, as a template for your own. With --smallest-for, the
    fewest GPUs of each on which a model can be fine-tuned; of as many, the cheapest come first.
    """
    if smallest_for is not None:
        refuse_options("has no effect with --smallest-for", explain=explain)
        found = registry.load("planning.methods:systems_for")(smallest_for, **smallest.arguments())
        lacks = "" if found.plans else "it fits on none of them"
        show(
            *(found.to_dict, printed("methods:print_methods", found)),
            json=json,
            output=output,
            lacks=lacks,
        )
        return 1 if lacks else 0
    refuse_options("needs --smallest-for MODEL", **asdict(smallest))
    return list_or_show(
        System,
        name,
        json=json,
        output=output,
        explain=explain,
        record=System.to_dict,
        print_all=print_systems,
        print_one=print_figures,
    )


@with_help(examples=["shardwise stacks"])
def stacks(
    name: str | None = name_argument("[STACK]"),
    explain: bool = EXPLAIN_FLAG,
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """List the software stacks of the catalog, or show one: every value with its source.

    For one stack, also its release and what it supports. With --output, write the stack to a file,
    as a template for your own.
    """
    return list_or_show(
        Stack,
        name,
        json=json,
        output=output,
        explain=explain,
        record=stack_record,
        print_all=print_stacks,
        print_one=print_stack,
    )


def list_or_show(
    config: type[Config],
    name: str | None,
    *,
    json: bool,
    output: str | None,
    explain: bool,
    record: Callable[[Config], dict[str, object]],
    print_all: Callable[[Sequence[Config]], None],
    print_one: Callable[[Config], None],
) -> int:
    """Print all entries or one, as tables or JSON; or write them to a file."""
    refuse_other_kind(config, name)
    if explain:
        return _explain(config, name, json=json, output=output)
    names = _listed(config.CATALOG or "", name)
    if name is None or names:
        entries = [config.load(known) for known in names]
        if json or output:
            by_name = dict(zip(names, map(record, entries), strict=True))
            emit_json(by_name, output, written=False)
        else:
            print_all(entries)
        return 0
    entry = config.load(name)
    if output is not None:
        entry.to_file(output)
    if json:
        emit_json(record(entry))
    elif output is None:
        print_one(entry)
    return 0


def _listed(folder: str, name: str | None) -> list[str]:
    """Entries to list: all without a name, or those that contain a name that no entry has."""
    if name is None:
        return catalog.names(folder)
    if catalog.find(folder, name) is not None or files.is_file_name(name):
        return []
    return catalog.containing(folder, name)


def refuse_other_kind(config: type[ConfigBase], name: str | None) -> None:
    """Refuse a name that is none of the listed entries but of others, which another verb lists."""
    folder = config.CATALOG or ""
    if name is None or catalog.find(folder, name) is not None or files.is_file_name(name):
        return
    other = catalog.kind_elsewhere(folder, name)
    if other is not None:
        raise InputError.of("", name, f"is a {other}: shardwise {other}s {name}")


def _explain(config: type[ConfigBase], name: str | None, *, json: bool, output: str | None) -> int:
    """Print the origin of each value of one entry, or write it to a file."""
    from shardwise.report.tables.catalog import explained_figures, print_explained  # noqa: PLC0415

    if name is None:
        refuse_options("explains one entry: add its name or file", explain=True)
        return 0
    entry, resolved = config.explained(name)
    if json or output is not None:
        figures = list(explained_figures(entry, resolved))
        emit_json({"name": getattr(entry, "name", name), "figures": figures}, output)
    else:
        print_explained(entry, resolved)
    return 0
