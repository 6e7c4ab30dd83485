"""An AMPeD configuration, which brings model, system, strategy and tokens."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.config import files
from shardwise.config.expressions.formula import canonical_names
from shardwise.config.inputs import Inputs, is_file
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_input import work_fields
from shardwise.config.system import System
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.predecessors.amped.files import ROWS, AmpedConfig, looks_like, read_config

if TYPE_CHECKING:
    from shardwise.predecessors.amped.files import Purpose

log = logging.getLogger("shardwise")

_TOKENS = "tokens_to_train"
# Strategy fields about placement: fields of a user replace the extents of the file.
_PLACES = frozenset({"tp", "tp2", "pp", "cp", "dp", "ep", "gpus", "placement", "extents"})
_PLACES |= {"tp_tier", "pp_tier", "cp_tier", "dp_tier"}
_DEGREES = frozenset({"tp", "pp", "dp"})
# Strategy fields that follow from the degrees.
_BY_DEGREES = frozenset({"tp_exchange", "tp_overlap", "zero", "ep"})


def scenario_fields(
    data: Mapping[str, object], source: str
) -> tuple[Mapping[Any, Mapping[str, Any]], float | None] | None:
    """Return the fields of model, system and strategy, and the tokens; None of another file."""
    if looks_like(data) != "configuration":
        return None
    from shardwise.predecessors.amped.import_record import fields_of_several  # noqa: PLC0415 - slow to import

    config = read_config(data, source)
    fields = fields_of_several(("model", "system", "strategy"), config, files.entry_name(source))
    return fields, config[_TOKENS].value if _TOKENS in config else None


def brought(
    model: str,
    system: Any,
    strategy: Any,
    fields: Mapping[str, Any],
    *,
    run: Mapping[str, Any],
    tables: str | Path | None = None,
    rows: Mapping[str, str] | None = None,
    searched: bool = False,
) -> Inputs | None:
    """Read what an AMPeD configuration brings; None if the file is something else."""
    config = configuration_of(model, tables, rows)
    if config is None:
        return None
    from shardwise.predecessors.amped.import_record import (  # noqa: PLC0415 - slow to import
        fields_of_several,
        import_record,
    )

    log.info("configuration %s, lookup tables %s", model, config.tables_source or "none")
    short = canonical_names(Strategy)
    own = {short.get(name, name): value for name, value in fields.items()}
    nouns: list[Purpose] = ["model"]
    nouns += ["system"] if system is None else []
    nouns += ["strategy"] if strategy is None else []
    nouns += ["run"] if "tokens" not in run else []
    sections = fields_of_several(nouns, config, files.entry_name(model.strip()))
    described: dict[str, Any] = {}
    note = ""
    if strategy is None:
        described, note = _without(config, sections["strategy"], own)
        described = work_fields(described) if searched else described
    record = import_record(config, nouns, described)
    record["notes"] += [note] if note else []
    the_system = system
    if system is None:
        the_system = System.validated(sections["system"], source=config.source)
    if _TOKENS in config:
        run = {"tokens": f"{config[_TOKENS].value:.0f}"} | dict(run)
    return Inputs(
        model=Model.validated(sections["model"], source=config.source),
        system=the_system,
        strategy=strategy,
        fields=described | own,
        run=run,
        config=config if system is None and strategy is None else None,
        changed=frozenset(own),
        imported=record,
    )


def configuration_of(
    model: object, tables: str | Path | None = None, rows: Mapping[str, str] | None = None
) -> AmpedConfig | None:
    """Read an AMPeD configuration and its lookup tables; None if the file is something else."""
    data = _configuration(model)
    if data is None:
        return None
    found = None if tables is None else (files.read_mapping(tables), str(tables))
    return read_config(_with_rows(data, {} if rows is None else rows), str(model).strip(), found)


def is_configuration(model: str) -> bool:
    """Whether a file is an AMPeD configuration."""
    return _configuration(model) is not None


def _configuration(model: object) -> dict[str, object] | None:
    """Read a file that is an AMPeD configuration; None if it is anything else."""
    if not is_file(model):
        return None
    try:
        data = files.read_mapping(str(model).strip())
    except InputError:  # reported when it is read as a model
        return None
    return data if looks_like(data) == "configuration" else None


def _with_rows(data: Mapping[str, Any], rows: Mapping[str, str]) -> dict[str, Any]:
    """The configuration, with other rows of the lookup tables."""
    found = dict(data)
    if not isinstance(rows, Mapping):
        raise InputError(Fault.of("rows", rows, 'must be rows by name: {"accelerator": "A100"}'))
    for name, row in rows.items():
        if name not in ROWS:
            raise InputError(Fault.of("rows", name, allowed_words(name, ROWS)))
        category = found.get(ROWS[name])
        lookup = category.get("lookup_config") if isinstance(category, Mapping) else None
        if not isinstance(category, Mapping) or not isinstance(lookup, Mapping):
            problem = f"the configuration looks up nothing of {ROWS[name]}"
            raise InputError(Fault.of("rows", name, problem))
        changed = {"lookup_config": {**lookup, "lookup_table_row": row}}
        found[ROWS[name]] = {**category, **changed}
    return found


def _without(
    config: AmpedConfig, strategy: Mapping[str, object], fields: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Strategy fields of the configuration that a user leaves, and a note on those removed.

    Fields that contradict the user's are removed; those that follow from degrees are recomputed.
    """
    from shardwise.predecessors.amped.reader import fields_by_degrees  # noqa: PLC0415 - slow to import

    removed = set()
    if _PLACES & fields.keys():
        removed.add("extents")
    if "gpus" in fields and "dp" not in fields:
        removed.add("dp")
    if "sequence_parallel" in fields:
        removed.add("tp_exchange")
    degrees = {name: value for name, value in strategy.items() if name in _DEGREES - removed}
    degrees |= {name: fields[name] for name in (*_DEGREES, "tp2", "cp", "gpus") if name in fields}
    read = Strategy.validated(degrees, source="strategy")
    dp = read.dp or max((read.gpus or 1) // (read.tp * read.tp2 * read.cp * read.pp), 1)
    experts = int(config["number_of_experts"].value) if "number_of_experts" in config else 1
    found = {name: value for name, value in strategy.items() if name not in _BY_DEGREES}
    found |= fields_by_degrees(tp=read.tp, pp=read.pp, dp=dp, experts=experts)
    found = {name: value for name, value in found.items() if name not in removed | fields.keys()}
    if dropped := sorted(removed & strategy.keys()):
        text = ", ".join(f"{name} {strategy[name]}" for name in dropped)
        return found, f"{text} of the file ignored: overridden by other fields"
    return found, ""
