"""Options of a search space, for `search` and `sweep`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from shardwise.cli.flags import searched_help
from shardwise.cli.help import ALONE, OTHER_MODELS, OUTPUT
from shardwise.cli.options import (
    COMMAND_LINE,
    flag_fault,
    limit_on_option,
    missing_flag,
    refuse_options,
)
from shardwise.config.enums import TpExchange, TpOverlap
from shardwise.config.roles import Section
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
LimitOnOption = Annotated[str | None, limit_on_option(SPACE)]
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
            metavar="N|N,N|N..N",
            help="Number of GPUs: one, a list (64,96) or a range (64..512). Required without "
            "--recipe.",
            rich_help_panel=SPACE,
        ),
    ] = None
    gbs: Annotated[
        str | None,
        typer.Option(
            "--gbs",
            "--global-batch-size",
            metavar="N|N,N|N..N",
            help="Global batch [sequences]; same forms as --gpus. Required without --recipe.",
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
    any_software: Annotated[
        bool | None,
        typer.Option(
            "--any-software/--no-any-software",
            help="Also try strategies that the stack release cannot run.",
            rich_help_panel=Section.SOFTWARE,
        ),
    ] = None

    def read(self, flags: Mapping[str, object], work: Mapping[str, object]) -> Space:
        """Read the space; `flags` are those of fields, and `work` the fields of a recipe.

        All others override those of the recipe.
        """
        fields = merge_fields(
            {
                "gpus": self.gpus,
                "global_batch_size": self.gbs,
                "batch": self.batch,
                "any_software": self.any_software,
                **flags,
            },
            fix=field_pairs("fix", self.fix, values="one"),
            allow=field_pairs("allow", self.allow, values="several"),
        )
        return read_space(self.space, fields, work)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOptions:
    """Options of the search spaces of other models.

    Three of them set fields of a strategy where no other model is searched.
    """

    layers: Annotated[
        bool,
        typer.Option(
            "--layers",
            help="Statistics of every operation of the best.",
            rich_help_panel=OTHER_MODELS,
        ),
    ] = False
    tp_overlap: Annotated[
        str | None,
        typer.Option(
            "--tp-overlap",
            metavar=f"[{'|'.join(TpOverlap)},...]",
            help=f"{searched_help('tp_overlap')} With --reference calculon it has no value: try "
            "overlap (default).",
            rich_help_panel=Section.COMMUNICATION,
        ),
    ] = None
    no_tp_overlap: Annotated[
        bool,
        typer.Option(
            "--no-tp-overlap",
            help="Short for --tp-overlap none.",
            rich_help_panel=Section.COMMUNICATION,
        ),
    ] = False
    dp_overlap: Annotated[
        bool | None,
        typer.Option(
            "--dp-overlap/--no-dp-overlap",
            help=f"{searched_help('dp_overlap')} With --reference calculon: try it (default) or "
            "not.",
            rich_help_panel=Section.COMMUNICATION,
        ),
    ] = None
    fused_activation: Annotated[
        str | None,
        typer.Option(
            "--fused-activation",
            metavar="[true|false|both]",
            help=f"{searched_help('fused_activation')} Without a value: true, which is the default "
            "with --reference calculon.",
            rich_help_panel=Section.MEMORY,
        ),
    ] = None
    no_fused_activation: Annotated[
        bool,
        typer.Option(
            "--no-fused-activation",
            help="Short for --fused-activation false.",
            rich_help_panel=Section.MEMORY,
        ),
    ] = False
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

    @property
    def tries_tp_overlap(self) -> bool:
        """Whether Calculon tries overlap of tensor-parallel communication."""
        if self.tp_overlap not in (None, ALONE, TpOverlap.NONE):
            raise flag_fault("tp_overlap", self.tp_overlap, "has no value with --reference")
        return not self.no_tp_overlap and self.tp_overlap != TpOverlap.NONE

    @property
    def fused(self) -> str | None:
        """Whether to fuse activations, as entered."""
        return "false" if self.no_fused_activation else self.fused_activation

    def fields(self) -> dict[str, object]:
        """Return the values of fields that they set where no other model is searched."""
        if self.tp_overlap == ALONE:
            problem = f"needs a value ({', '.join(TpOverlap)}) unless --reference calculon is set"
            raise missing_flag("tp_overlap", problem)
        found = {
            "tp_overlap": TpOverlap.NONE.value if self.no_tp_overlap else self.tp_overlap,
            "dp_overlap": self.dp_overlap,
            "fused_activation": "all" if self.fused == "both" else self.fused,
        }
        return {name: value for name, value in found.items() if value is not None}

    def refuse_others(self, problem: str) -> None:
        """Refuse those that have no effect where no other model is searched."""
        others = {"layers": self.layers, "mbs_break": self.mbs_break}
        refuse_options(problem, **others, method=self.method, domain=self.domain)

    def entered(self) -> dict[str, object]:
        """Options that not all models have, with switches that were turned off as words."""
        return {
            "tp_overlap": self.tp_overlap,
            "no_tp_overlap": "true" if self.no_tp_overlap else None,
            "dp_overlap": None if self.dp_overlap is None else str(self.dp_overlap).lower(),
            "fused_activation": self.fused,
            "mbs_break": self.mbs_break,
            "method": self.method,
            "domain": self.domain,
        }

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the search of another model."""
        return {
            "layers": self.layers,
            "tp_overlap": self.tries_tp_overlap,
            "dp_overlap": self.dp_overlap,
            "fused_activation": self.fused,
            "mbs_break": self.mbs_break,
            "method": self.method,
            "domain": self.domain,
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
    fields = _with_tp_exchange(fields)
    space = load_space(path, {}, work)
    return space.fixed(fields, source=COMMAND_LINE) if fields else space


def _with_tp_exchange(fields: Mapping[str, object]) -> dict[str, object]:
    """Fields with what `sequence_parallel` is short for, which a space does not have."""
    found = dict(fields)
    is_split = found.pop("sequence_parallel", None)
    if is_split is None:
        return found
    if "tp_exchange" in found:
        raise flag_fault("sequence_parallel", is_split, "contradicts tp_exchange; set one")
    return found | {"tp_exchange": TpExchange.RS_AG if is_split else TpExchange.ALL_REDUCE}


def merge_fields(short: Mapping[str, object], **others: Mapping[str, Any]) -> dict[str, Any]:
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
        for pair in (text,) if values == "several" else _pairs(text):
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
            if values == "one" and (".." in value or "," in value or value.lower() == "all"):
                instead = "" if flag == "explain" else f"; for several use --allow {pair}"
                raise flag_fault(flag, pair, f"takes one value{instead}")
            if field in found:
                raise flag_fault(flag, pair, f"{field} is set twice")
            found[field] = value
    return found


def _pairs(text: str) -> list[str]:
    """Split ``a=1,b=2`` into pairs; what has no name belongs to the pair before it."""
    return re.split(r",(?=[^,]*=)", text) if "=" in text.partition(",")[0] else text.split(",")
