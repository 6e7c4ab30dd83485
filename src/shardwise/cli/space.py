"""Options of a search space, for `search` and `sweep`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from shardwise.cli.help import OTHER_MODELS, OUTPUT
from shardwise.cli.options import COMMAND_LINE, flag_fault
from shardwise.config.strategy_fields import OFFLOADS, SHORT_NAMES
from shardwise.errors import allowed_words
from shardwise.planning.search.query import load_space
from shardwise.planning.search.ranking import OBJECTIVES
from shardwise.planning.search.space import SPACE_FIELDS, Space

SPACE = "Search space"
_LIST = "shardwise schema space"
SpaceOption = Annotated[
    str | None,
    typer.Option(
        "--space",
        metavar="practical|full|FILE",
        help="What to try: what recipes use (default), everything that the stack can run, or the "
        "values by field of a file.",
        rich_help_panel=SPACE,
    ),
]
FixOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fix",
        metavar="FIELD=VALUE,...",
        help="Try only this value of a field.",
        rich_help_panel=SPACE,
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="FIELD=V1,V2,...",
        help="Try these values of a field; FIELD alone stands for all of them, and offload for all "
        "fields of offload.",
        rich_help_panel=SPACE,
    ),
]
MaxMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--max-memory", metavar="SIZE", help="Upper limit of usable memory.", rich_help_panel=SPACE
    ),
]
ReserveOption = Annotated[
    str | None,
    typer.Option(
        "--reserve",
        metavar="SIZE",
        help="Memory to leave free.",
        rich_help_panel=SPACE,
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="|".join(OBJECTIVES),
        help="What to optimize. Default: step_time.",
        rich_help_panel=SPACE,
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="1d|2d|2d-seqp",
        help="nersc: tensor parallelism as in Megatron, by SUMMA, or with context parallelism; "
        "several are searched one by one.",
        rich_help_panel=OTHER_MODELS,
    ),
]
DomainOption = Annotated[
    str | None,
    typer.Option(
        "--domain",
        metavar="N,...",
        help="nersc: GPUs of a domain of the fast network. Default: that of the system.",
        rich_help_panel=OTHER_MODELS,
    ),
]
ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="LAUNCHER",
        help="List only plans that `export LAUNCHER` can write; the software is that of the "
        "launcher unless --stack names another.",
        rich_help_panel=SPACE,
    ),
]
OkIfNoneFlag = Annotated[
    bool,
    typer.Option(
        "--ok-if-none", help="Exit with 0 even if nothing is feasible.", rich_help_panel=OUTPUT
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Which strategies are candidates."""

    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="N",
            help="Number of GPUs: one, a list (64,96) or a range (64..512).",
            rich_help_panel=SPACE,
        ),
    ] = None
    gbs: Annotated[
        str | None,
        typer.Option(
            "--gbs",
            metavar="N",
            help="Global batch [sequences]; same forms as --gpus.",
            rich_help_panel=SPACE,
        ),
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="fixed|largest",
            help="Use all of --gbs (default), or the largest multiple of the replicas up to it.",
            rich_help_panel=SPACE,
        ),
    ] = None
    space: SpaceOption = None
    fix: FixOption = None
    allow: AllowOption = None
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", metavar="NAME", help="Short for --allow dtype=...", rich_help_panel=SPACE
        ),
    ] = None
    seq_len: Annotated[
        str | None,
        typer.Option(
            "--seq-len",
            metavar="N",
            help="Tokens per sequence; short for --allow seq_len=...",
            rich_help_panel=SPACE,
        ),
    ] = None
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization",
            metavar="NAME",
            help="Short for --allow quantization=...",
            rich_help_panel=SPACE,
        ),
    ] = None
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack",
            metavar="STACK",
            help="Software. Default: that of the system.",
            rich_help_panel=SPACE,
        ),
    ] = None
    any_software: Annotated[
        bool,
        typer.Option(
            "--any-software",
            help="Try what the release of the stack cannot run, too.",
            rich_help_panel=SPACE,
        ),
    ] = False

    def read(self, work: Mapping[str, object]) -> Space:
        """Read the space; fields of `work` are those of a recipe, which all others override."""
        fields = merge_fields(
            {
                "gpus": self.gpus,
                "global_batch_size": self.gbs,
                "batch": self.batch,
                "dtype": self.dtype,
                "seq_len": self.seq_len,
                "quantization": self.quantization,
                "stack": self.stack,
                "any_software": "true" if self.any_software else None,
            },
            fix=field_pairs("fix", self.fix, values="one"),
            allow=field_pairs("allow", self.allow, values="several"),
        )
        return read_space(self.space, fields, work)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOptions:
    """Options of the search spaces of other models."""

    layers: Annotated[
        bool,
        typer.Option(
            "--layers",
            help="Statistics of every operation of the best.",
            rich_help_panel=OTHER_MODELS,
        ),
    ] = False
    tp_overlap: Annotated[
        bool | None,
        typer.Option(
            "--tp-overlap/--no-tp-overlap", help="calculon: try it.", rich_help_panel=OTHER_MODELS
        ),
    ] = None
    dp_overlap: Annotated[
        bool | None,
        typer.Option(
            "--dp-overlap/--no-dp-overlap", help="calculon: try it.", rich_help_panel=OTHER_MODELS
        ),
    ] = None
    fused_activation: Annotated[
        str | None,
        typer.Option(
            "--fused-activation",
            metavar="true|false|both",
            help="calculon: fuse activations or not. Default: true.",
            rich_help_panel=OTHER_MODELS,
        ),
    ] = None
    mbs_break: Annotated[
        bool,
        typer.Option(
            "--mbs-break",
            help="calculon: stop growing the micro-batch after the first infeasible one.",
            rich_help_panel=OTHER_MODELS,
        ),
    ] = False
    method: MethodOption = None
    domain: DomainOption = None

    def entered(self) -> dict[str, dict[str, object]]:
        """Options by the model that they are for, with switches that were turned off as words."""
        return {
            "calculon": {
                "tp_overlap": None if self.tp_overlap is None else str(self.tp_overlap).lower(),
                "dp_overlap": None if self.dp_overlap is None else str(self.dp_overlap).lower(),
                "fused_activation": self.fused_activation,
                "mbs_break": self.mbs_break,
            },
            "nersc": {"method": self.method, "domain": self.domain},
            "amped": {},
        }


def read_space(
    path: str | None, fields: Mapping[str, object], work: Mapping[str, object] | None = None
) -> Space:
    """Read the file of a space, if any; fields of flags override it, and it those of a recipe.

    Parameters
    ----------
    path
        The file; None: the default space.
    fields
        Fields that flags set.
    work
        Fields that a recipe sets.
    """
    space = load_space(path, {})
    rest = {n: value for n, value in (work or {}).items() if n not in space.model_fields_set}
    fields = rest | dict(fields)
    return space.fixed(fields, source=COMMAND_LINE) if fields else space


def merge_fields(short: Mapping[str, str | None], **others: Mapping[str, Any]) -> dict[str, Any]:
    """Fields set by short flags, --fix and --allow, each by one of them only."""
    fields = {name: value for name, value in short.items() if value is not None}
    for flag, pairs in others.items():
        for name, value in pairs.items():
            if name in fields:
                raise flag_fault(flag, f"{name}={value}", f"{name} is set twice")
        fields |= pairs
    return fields


def field_pairs(
    flag: str,
    texts: Sequence[str] | None,
    *,
    values: Literal["one", "several"],
    known: Sequence[str] = SPACE_FIELDS,
) -> dict[str, Any]:
    """Fields and values of ``--fix a=1,b=2`` or ``--allow a=1,2``."""
    found: dict[str, object] = {}
    for text in texts or ():
        for pair in (text,) if values == "several" else text.split(","):
            name, equals, value = (word.strip() for word in pair.partition("="))
            if values == "several" and not equals:
                every = OFFLOADS if name == "offload" else (name,)
                found |= field_pairs(flag, [f"{n}=all" for n in every], values=values, known=known)
                continue
            field = SHORT_NAMES.get(name, name.replace("-", "_"))
            if not equals or not value:
                problem = f"must be FIELD=VALUE{',...' if values == 'several' else ''}, as in tp=8"
                raise flag_fault(flag, pair, problem)
            if field not in known:
                words = allowed_words(name, (*known, *SHORT_NAMES), _LIST)
                raise flag_fault(flag, name, f"no such field; {words}")
            if values == "one" and (".." in value or value.lower() == "all"):
                raise flag_fault(flag, pair, f"takes one value; for several use --allow {pair}")
            if field in found:
                raise flag_fault(flag, pair, f"{field} is set twice")
            found[field] = value
    return found
