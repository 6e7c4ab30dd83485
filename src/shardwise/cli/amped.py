"""A run that an AMPeD configuration tells: model, system and strategy of one file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise import catalog
from shardwise.analysis.results import Estimate
from shardwise.cli.options import log, refuse_options
from shardwise.config import files
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.interop.amped.files import AmpedConfig, looks_like, read_config
from shardwise.interop.amped.import_record import fields_of_several, import_record
from shardwise.interop.amped.parameters import Purpose
from shardwise.interop.amped.reader import fields_by_degrees

__all__ = ["Given", "configuration_of", "given_case", "system_or_config"]

_NEEDS_CONFIG = "is for a configuration of AMPeD's as MODEL; leave it out"
_TOKENS = "tokens_to_train"
# Fields of a strategy that say where its members are, for which those of the file stand aside.
_PLACES = frozenset({"tp", "tp2", "pp", "cp", "dp", "ep", "gpus", "placement", "extents"})
_PLACES |= {"tp_tier", "pp_tier", "cp_tier", "dp_tier"}
_DEGREES = frozenset({"tp", "pp", "dp"})
# Fields that follow from degrees.
_BY_DEGREES = frozenset({"tp_exchange", "tp_overlap", "zero", "ep"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a run is made of: names of the catalog, files, or what a configuration told."""

    model: Any
    system: Any
    strategy: str | None
    """A file, over whose fields the flags go."""
    flags: Mapping[str, Any]
    run: Mapping[str, Any]
    """Flags of the whole run; the tokens are the configuration's where none are given."""
    config: AmpedConfig | None = None
    """The configuration, where it tells model, system and strategy."""
    changed: frozenset[str] = frozenset()
    """Flags that stand before its strategy."""
    imported: Mapping[str, Any] | None = None
    """What became of the configuration."""

    def record(self, result: Estimate) -> dict[str, Any]:
        """Return the estimate for machines, with what became of the configuration, if any."""
        told = {} if self.imported is None else {"imported": self.imported}
        return result.to_dict() | told

    def show_imported(self) -> None:
        """Print what became of the configuration, if there is one."""
        if self.imported is not None:
            from shardwise.report.tables.amped import print_imported  # noqa: PLC0415 - slow to import

            print_imported(self.imported)


def given_case(
    model: str,
    system: str | None,
    *,
    strategy: str | None,
    flags: Mapping[str, Any],
    run: Mapping[str, Any],
    tables: str | None,
) -> Given:
    """Take model, system and strategy from the command line, or from an AMPeD configuration.

    Where MODEL is one, SYSTEM may be left out; what is given beside it stands before its own.

    Raises
    ------
    InputError
        If SYSTEM is missing for another model, or the configuration is wrong.
    """
    config = configuration_of(model, tables)
    if config is None:
        refuse_options(_NEEDS_CONFIG, tables=tables)
        system = system_or_config(model, system)
        return Given(model=model, system=system, strategy=strategy, flags=flags, run=run)
    log.info("configuration %s, lookup tables %s", model, config.tables_source or "none")
    nouns: list[Purpose] = ["model"]
    nouns += ["system"] if system is None else []
    nouns += ["strategy"] if strategy is None else []
    nouns += ["run"] if "tokens" not in run else []
    told = fields_of_several(nouns, config, files.entry_name(model.strip()))
    fields, left = ({}, "") if strategy is not None else _beside(config, told["strategy"], flags)
    record = import_record(config, nouns, fields)
    record["notes"] += [left] if left else []
    the_model = Model.validated(told["model"], source=config.source)
    the_system: Any = system
    if system is None:
        the_system = System.validated(told["system"], source=config.source)
    if _TOKENS in config:
        run = {"tokens": f"{config[_TOKENS].value:.0f}"} | dict(run)
    return Given(
        model=the_model,
        system=the_system,
        strategy=strategy,
        flags=fields | dict(flags),
        run=run,
        config=config if system is None and strategy is None else None,
        changed=frozenset(flags),
        imported=record,
    )


def configuration_of(model: str, tables: str | None = None) -> AmpedConfig | None:
    """Read a file of AMPeD's, with lookup tables that are not beside it; None if it is another.

    Raises
    ------
    InputError
        If the configuration is wrong.
    """
    data = _configuration(model)
    if data is None:
        return None
    found = None if tables is None else (files.read_mapping(tables), tables)
    return read_config(data, model.strip(), found)


def system_or_config(model: str, system: str | None) -> str:
    """The system, or the configuration of AMPeD's that tells it beside the model.

    Raises
    ------
    InputError
        If there is neither.
    """
    if system is not None or _configuration(model) is not None:
        return system or model
    if files.is_file_name(model.strip()):
        Model.load(model)  # what is wrong with the file tells more
    problem = "Missing argument 'SYSTEM'; only a configuration of AMPeD's tells it too"
    raise InputError(Fault(source="command line", problem=problem))


def _configuration(model: str) -> dict[str, Any] | None:
    """Read a file that is a configuration of AMPeD's; None if it is anything else."""
    path = model.strip()
    known = path.lower().removesuffix(".gz").endswith(files.SUFFIXES)
    if not known or catalog.find("models", path) is not None:
        return None
    try:
        data = files.read_mapping(path)
    except InputError:  # to be told by who reads it as a model
        return None
    return data if looks_like(data) == "configuration" else None


def _beside(
    config: AmpedConfig, whole: Mapping[str, Any], flags: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Fields of a strategy that flags leave, and what to say of those left out.

    What would contradict the flags goes, and what follows from degrees follows from theirs.
    """
    gone = set()
    if _PLACES & flags.keys():
        gone.add("extents")
    if "gpus" in flags and "dp" not in flags:
        gone.add("dp")
    if "sequence_parallel" in flags:
        gone.add("tp_exchange")
    known = {name: value for name, value in whole.items() if name in _DEGREES - gone}
    asked = {name: flags[name] for name in (*_DEGREES, "tp2", "cp", "gpus") if name in flags}
    given = Strategy.validated(known | asked, source="command line")
    dp = given.dp or max((given.gpus or 1) // (given.tp * given.tp2 * given.cp * given.pp), 1)
    experts = int(config["number_of_experts"].value) if "number_of_experts" in config else 1
    follow = fields_by_degrees(tp=given.tp, pp=given.pp, dp=dp, experts=experts)
    kept = {name: value for name, value in whole.items() if name not in _BY_DEGREES} | follow
    kept = {name: value for name, value in kept.items() if name not in gone | flags.keys()}
    if left := sorted(gone & whole.keys()):
        told = ", ".join(f"{name} {whole[name]}" for name in left)
        return kept, f"{told} of the file left out, for what is given on the command line"
    return kept, ""
