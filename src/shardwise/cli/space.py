"""Options of a search space, for `search` and `sweep`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from shardwise.cli.flags import searched_help
from shardwise.cli.help import ALONE, OTHER_MODELS, OUTPUT
from shardwise.cli.options import (
    COMMAND_LINE,
    flag_fault,
    limit_on_option,
    missing_flag,
    opt,
    refuse_options,
)
from shardwise.config.enums import TpExchange, TpOverlap
from shardwise.config.fine_tuning import with_method
from shardwise.config.roles import Section
from shardwise.config.strategy_fields import OFFLOADS, SHORT_NAMES
from shardwise.errors import allowed_words
from shardwise.planning.search.query import load_space
from shardwise.planning.search.ranking import OBJECTIVES
from shardwise.planning.search.space import SPACE_FIELDS, Space
from shardwise.records import dataclass

SPACE = "Search space"
_LIST = "shardwise schema space"
SPACE_OPTION = opt(
    "--space practical|full|FILE",
    "What to try: what recipes use (default), everything that the stack can run, or the "
    "values by field of a file.",
    SPACE,
)
FIX_OPTION = opt("--fix FIELD=VALUE,...", "Try only this value of a field.", SPACE)
ALLOW_OPTION = opt(
    "--allow FIELD=V1,V2,...",
    "Try these values of a field; FIELD alone stands for all of them, and offload for all "
    "fields of offload.",
    SPACE,
)
MAX_MEMORY_OPTION = opt("--max-memory SIZE", "Upper limit of usable memory.", SPACE)
RESERVE_OPTION = opt("--reserve SIZE", "Memory to leave free.", SPACE)
FITS_OPTION = opt(
    "--fits PERCENT",
    "Least probability that a plan fits; none: its predicted memory must. Default: 90%.",
    SPACE,
)
LIMIT_ON_OPTION = limit_on_option(SPACE)
OBJECTIVE_OPTION = opt(
    f"--objective {'|'.join(OBJECTIVES)}",
    "What to optimize on average. Default: step_time; "
    "search lists plans by the step time that 8 of 10 such plans keep.",
    SPACE,
)
METHOD_OPTION = opt(
    "--method 1d|2d|2d-seqp",
    "nersc: tensor parallelism as in Megatron, by SUMMA, or with context parallelism; "
    "several are searched one by one.",
    OTHER_MODELS,
)
DOMAIN_OPTION = opt(
    "--domain N,...",
    "nersc: GPUs of a domain of the fast network. Default: that of the system.",
    OTHER_MODELS,
)
FOR_OPTION = opt(
    "--for LAUNCHER",
    "List only plans that `export LAUNCHER` can write; --stack: other software.",
    SPACE,
)
OK_IF_NONE_FLAG = opt("--ok-if-none", "Exit with 0 even if nothing is feasible.", OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Which strategies are candidates."""

    gpus: str | None = opt(
        "--gpus N|N,N|N..N",
        "Number of GPUs: one, a list (64,96) or a range (64..512). Required without --recipe.",
        SPACE,
    )
    gbs: str | None = opt(
        "--gbs --global-batch-size N|N,N|N..N",
        "Global batch [sequences]; same forms as --gpus. Required without --recipe.",
        SPACE,
    )
    batch: str | None = opt(
        "--batch fixed|largest",
        "Use all of --gbs (default), or the largest multiple of the replicas up to it.",
        SPACE,
    )
    space: str | None = SPACE_OPTION
    fix: list[str] | None = FIX_OPTION
    allow: list[str] | None = ALLOW_OPTION
    any_software: bool | None = opt(
        "--any-software/--no-any-software",
        "Also try strategies that the stack release cannot run.",
        Section.SOFTWARE,
    )

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

    layers: bool = opt("--layers", "Statistics of every operation of the best.", OTHER_MODELS)
    tp_overlap: str | None = opt(
        f"--tp-overlap [{'|'.join(TpOverlap)},...]",
        f"{searched_help('tp_overlap')} With --reference calculon it has no value: try "
        "overlap (default).",
        Section.COMMUNICATION,
    )
    no_tp_overlap: bool = opt(
        "--no-tp-overlap", "Short for --tp-overlap none.", Section.COMMUNICATION
    )
    dp_overlap: bool | None = opt(
        "--dp-overlap/--no-dp-overlap",
        f"{searched_help('dp_overlap')} With --reference calculon: try it (default) or not.",
        Section.COMMUNICATION,
    )
    fused_activation: str | None = opt(
        "--fused-activation [true|false|both]",
        f"{searched_help('fused_activation')} Without a value: true, which is the default "
        "with --reference calculon.",
        Section.MEMORY,
    )
    no_fused_activation: bool = opt(
        "--no-fused-activation", "Short for --fused-activation false.", Section.MEMORY
    )
    mbs_break: bool = opt(
        "--mbs-break",
        "calculon: stop growing the micro-batch after the first infeasible one.",
        OTHER_MODELS,
    )
    method: str | None = METHOD_OPTION
    domain: str | None = DOMAIN_OPTION

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
    """Read the file of a space, if any; fields of flags override it, and it those of a recipe."""
    fields = _with_tp_exchange(with_method(fields))
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
        # What has no name belongs to the pair before it.
        ends = r",(?=[^,]*=)" if "=" in text.partition(",")[0] else ","
        for pair in (text,) if values == "several" else re.split(ends, text):
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
