"""Inputs of a verb: names and files, or an AMPeD configuration, which holds all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwise import catalog
from shardwise.analysis.results import Estimate
from shardwise.cli.options import COMMAND_LINE, refuse_options
from shardwise.cli.output import log
from shardwise.config import files
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_input import explicit_fields, work_fields
from shardwise.config.system import System
from shardwise.errors import Fault, InputError

if TYPE_CHECKING:
    from shardwise.interop.amped.files import AmpedConfig
    from shardwise.interop.amped.parameters import Purpose

_NEEDS_CONFIG = "is for an AMPeD configuration as MODEL"
_TOKENS = "tokens_to_train"
# Strategy fields about placement: flags of these replace the extents of the file.
_PLACES = frozenset({"tp", "tp2", "pp", "cp", "dp", "ep", "gpus", "placement", "extents"})
_PLACES |= {"tp_tier", "pp_tier", "cp_tier", "dp_tier"}
_DEGREES = frozenset({"tp", "pp", "dp"})
# Strategy fields that follow from the degrees.
_BY_DEGREES = frozenset({"tp_exchange", "tp_overlap", "zero", "ep"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Model, system and strategy: catalog names, files, or read from an AMPeD configuration."""

    model: Any
    system: Any
    strategy: str | None
    """A file, whose fields the flags override."""
    flags: Mapping[str, Any]
    run: Mapping[str, Any]
    """Flags of a training run; the tokens of the configuration by default."""
    config: "AmpedConfig | None" = None
    """The configuration, if it sets model, system and strategy."""
    changed: frozenset[str] = frozenset()
    """Flags that override its strategy."""
    imported: Mapping[str, Any] | None = None
    """How the fields of the configuration were read."""

    def record(self, result: Estimate) -> dict[str, Any]:
        """Return the estimate for JSON, with the import of the configuration, if any."""
        return result.to_dict() | self.imported_record()

    def imported_record(self) -> dict[str, Any]:
        """Return how the fields of the configuration were read; empty without one."""
        return {} if self.imported is None else {"imported": self.imported}

    def question(self) -> dict[str, Any]:
        """Return the fields that say what is trained and with what, which a search keeps."""
        own = {} if self.strategy is None else explicit_fields(self.strategy)
        return work_fields(own | dict(self.flags))

    def show_imported(self) -> None:
        """Print how the fields of the configuration were read, if there is one."""
        if self.imported is not None:
            from shardwise.report.tables.amped import print_imported  # noqa: PLC0415 - slow to import

            print_imported(self.imported)


def read_inputs(
    model: str | Model,
    system: str | None,
    *,
    strategy: str | None,
    flags: Mapping[str, Any],
    run: Mapping[str, Any],
    tables: str | None = None,
    searched: bool = False,
) -> Inputs:
    """Read model, system and strategy from the command line or an AMPeD configuration.

    With a configuration as MODEL, SYSTEM is optional; other arguments override the configuration.

    Parameters
    ----------
    searched
        Whether the strategy is searched, for the work that the configuration describes.

    Raises
    ------
    InputError
        If SYSTEM is missing for another model, or the configuration is wrong.
    """
    config = configuration_of(model, tables)
    if config is None:
        refuse_options(_NEEDS_CONFIG, tables=tables)
        system = system_or_config(model, system)
        return Inputs(model=model, system=system, strategy=strategy, flags=flags, run=run)
    assert isinstance(model, str)  # noqa: S101 - a configuration is a file
    from shardwise.interop.amped.import_record import (  # noqa: PLC0415 - slow to import
        fields_of_several,
        import_record,
    )

    log.info("configuration %s, lookup tables %s", model, config.tables_source or "none")
    nouns: list[Purpose] = ["model"]
    nouns += ["system"] if system is None else []
    nouns += ["strategy"] if strategy is None else []
    nouns += ["run"] if "tokens" not in run else []
    sections = fields_of_several(nouns, config, files.entry_name(model.strip()))
    fields: dict[str, Any] = {}
    note = ""
    if strategy is None:
        fields, note = _without_flags(config, sections["strategy"], flags)
        fields = work_fields(fields) if searched else fields
    record = import_record(config, nouns, fields)
    record["notes"] += [note] if note else []
    the_model = Model.validated(sections["model"], source=config.source)
    the_system: Any = system
    if system is None:
        the_system = System.validated(sections["system"], source=config.source)
    if _TOKENS in config:
        run = {"tokens": f"{config[_TOKENS].value:.0f}"} | dict(run)
    return Inputs(
        model=the_model,
        system=the_system,
        strategy=strategy,
        flags=fields | dict(flags),
        run=run,
        config=config if system is None and strategy is None else None,
        changed=frozenset(flags),
        imported=record,
    )


def configuration_of(model: str | Model, tables: str | None = None) -> "AmpedConfig | None":
    """Read an AMPeD configuration and its lookup tables; None if the file is something else.

    Raises
    ------
    InputError
        If the configuration is wrong.
    """
    data = _configuration(model)
    if data is None or isinstance(model, Model):
        return None
    from shardwise.interop.amped.files import read_config  # noqa: PLC0415 - slow to import

    found = None if tables is None else (files.read_mapping(tables), tables)
    return read_config(data, model.strip(), found)


def system_or_config(model: str | Model, system: str | None) -> str:
    """Return the system, or an AMPeD configuration as MODEL, which includes it.

    Raises
    ------
    InputError
        If both are missing.
    """
    if system is not None:
        return system
    if isinstance(model, str):
        if _configuration(model) is not None:
            return model
        if files.is_file_name(model.strip()):
            Model.load(model)  # a fault of the file is more useful
    problem = "Missing argument SYSTEM, such as h100-sxm (to list them: shardwise systems)"
    raise InputError(Fault(source=COMMAND_LINE, problem=problem))


def _configuration(model: str | Model) -> dict[str, object] | None:
    """Read a file that is an AMPeD configuration; None if it is anything else."""
    if isinstance(model, Model):
        return None
    path = model.strip()
    known = path.lower().removesuffix(".gz").endswith(files.SUFFIXES)
    if not known or catalog.find("models", path) is not None:
        return None
    from shardwise.interop.amped.files import looks_like  # noqa: PLC0415 - slow to import

    try:
        data = files.read_mapping(path)
    except InputError:  # reported when it is read as a model
        return None
    return data if looks_like(data) == "configuration" else None


def _without_flags(
    config: "AmpedConfig", strategy: Mapping[str, object], flags: Mapping[str, object]
) -> tuple[dict[str, Any], str]:
    """Strategy fields of the configuration that flags leave, and a note on those removed.

    Fields that contradict the flags are removed; those that follow from degrees are recomputed.
    """
    from shardwise.interop.amped.reader import fields_by_degrees  # noqa: PLC0415 - slow to import

    removed = set()
    if _PLACES & flags.keys():
        removed.add("extents")
    if "gpus" in flags and "dp" not in flags:
        removed.add("dp")
    if "sequence_parallel" in flags:
        removed.add("tp_exchange")
    degrees = {name: value for name, value in strategy.items() if name in _DEGREES - removed}
    degrees |= {name: flags[name] for name in (*_DEGREES, "tp2", "cp", "gpus") if name in flags}
    read = Strategy.validated(degrees, source=COMMAND_LINE)
    dp = read.dp or max((read.gpus or 1) // (read.tp * read.tp2 * read.cp * read.pp), 1)
    experts = int(config["number_of_experts"].value) if "number_of_experts" in config else 1
    fields = {name: value for name, value in strategy.items() if name not in _BY_DEGREES}
    fields |= fields_by_degrees(tp=read.tp, pp=read.pp, dp=dp, experts=experts)
    fields = {name: value for name, value in fields.items() if name not in removed | flags.keys()}
    if dropped := sorted(removed & strategy.keys()):
        text = ", ".join(f"{name} {strategy[name]}" for name in dropped)
        return fields, f"{text} of the file ignored: overridden on the command line"
    return fields, ""
