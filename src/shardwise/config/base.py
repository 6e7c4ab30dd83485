"""Base of the config types: frozen, keyword-only, validated, loaded by name or from a file."""

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from shardwise import catalog
from shardwise.config import files, readers
from shardwise.config.described import Described
from shardwise.config.enums import Word
from shardwise.config.expressions.records import Resolved, Row, has_figures
from shardwise.config.expressions.resolve import Chain, resolve, row_of
from shardwise.config.problems import problem_of, refuse_foreign
from shardwise.errors import (
    Fault,
    InputError,
    UnknownNameError,
    allowed_words,
    did_you_mean,
    nearest,
    shorten,
)
from shardwise.frozen import frozen
from shardwise.records import replace


def _no_flag(value: object) -> object:
    if isinstance(value, (bool, np.bool_)):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004 - for pydantic
    return value


MOST = 2**31
"""Products of a few numbers up to here stay exact in the float64 of the maths."""
NO_FLAG = BeforeValidator(_no_flag)
"""Stands behind the bounds of a number, so that its JSON Schema has them."""
Count = Annotated[int, Field(ge=1, le=MOST), NO_FLAG]
Whole = Annotated[int, Field(ge=0, le=MOST), NO_FLAG]
Number = Annotated[float, NO_FLAG]
MISSING = {
    "gpus": "is missing: number of GPUs, such as gpus=64",
    "global_batch_size": "is missing: sequences per step, such as gbs=128",
}
"""Problems of the fields that every run needs; the command line writes its options there."""
MOST_LAYERS = 10_000
"""Layers are looked at one by one; no published model has a tenth of this."""


class ConfigBase(Described):
    """A frozen, keyword-only record; unknown keys, NaN and infinities are refused."""

    model_config = ConfigDict(str_strip_whitespace=True, validate_default=True)

    def __init__(self, /, **fields: Any) -> None:
        """Validate fields.

        Raises
        ------
        InputError
            With one fault for each thing that is wrong.
        """
        try:
            super().__init__(**fields)
        except ValidationError as error:
            kind = type(self)
            raise InputError(faults_of(kind, error, kind.__name__.lower())) from None
        except Exception as error:
            refuse_foreign(fields, type(self).__name__.lower(), error)
            raise

    # So that pydantic does not call it for records inside others, whose faults name their place.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    CATALOG: ClassVar[str | None] = None
    """Folder of the catalog that has the entries of this config type."""

    WORDS: ClassVar[tuple[str, ...]] = ()
    """Words that `load` reads where the catalog has no entries of this config type."""

    KIND: ClassVar[readers.Kind | None] = None
    """What files of other tools may hold in place of this config type; None: nothing."""

    FIGURES: ClassVar[bool] = False
    """Whether its figures may be looked up, calculated, or left to a base."""

    @classmethod
    def load(cls, name: "str | Path | Mapping[str, Any] | Self") -> Self:
        """Return the config of a catalog name or a YAML, JSON or TOML file (also gzipped).

        A model may also be the owner/name of one on the Hugging Face hub. A config is returned
        unchanged; a mapping is validated. Look-ups and formulas are evaluated.

        Raises
        ------
        InputError
            With one fault for each thing that is wrong.
        """
        return cls.explained(name)[0]

    @classmethod
    def explained(
        cls, name: "str | Path | Mapping[str, Any] | Self", chain: Chain | None = None
    ) -> tuple[Self, Resolved]:
        """Load a config, and say which of its figures were looked up or calculated, and how."""
        chain = chain or Chain()
        if isinstance(name, cls):
            return name, Resolved()
        kind = cls.__name__.lower()
        if isinstance(name, Mapping):
            return cls._of_data(name, kind, kind, chain.with_step(kind))
        if not isinstance(name, (str, Path)):
            problem = f"a {kind} is a {cls.__name__}, a mapping, a catalog name or a file"
            raise InputError(Fault(source=kind, value=name, has_value=True, problem=problem))
        text = str(name).strip()
        if cls.CATALOG is not None:
            path = catalog.find(cls.CATALOG, text)
            if path is not None:
                own = catalog.is_own(path)
                if own or path.stem != text:
                    catalog.note_alias(cls.CATALOG, text)
                return cls._of_catalog(path, path.stat().st_mtime_ns if own else 0)
        may_fetch = isinstance(name, str) and not files.is_catalog_only()
        fetched = cls.fetched(text) if may_fetch else None
        if fetched is not None:
            called = catalog.canonical(text.split("/")[-1])
            return cls.validated(
                cls.native(fetched, name=called, source=text), source=text
            ), Resolved()
        if text and (isinstance(name, Path) or files.is_file_name(text)):
            launch = readers.foreign().launch_fields(cls.KIND, text) if cls.KIND else None
            if launch is not None:
                return cls._of_data(launch, text, text, chain.with_step(text), foreign=False)
            data = files.read_mapping(text)
            readers.foreign().check_kind(cls, data, text)
            return cls._of_data(data, files.entry_name(text), text, chain.with_step(text))
        problem = cls._unknown(text)
        raise UnknownNameError(Fault(source=kind, value=text, has_value=True, problem=problem))

    @classmethod
    def _unknown(cls, text: str) -> str:
        """What is wrong with a name that is none of the catalog, nor of a file."""
        kind = cls.__name__.lower()
        if cls.CATALOG is None:
            words = f"; allowed: {', '.join(cls.WORDS)} or a file" if cls.WORDS else ""
            return f"no such file{words}"
        other = catalog.kind_elsewhere(cls.CATALOG, text)
        if other is not None:
            order = "; the order is MODEL SYSTEM" if {kind, other} == {"model", "system"} else ""
            use = f"; set --recipe {text}" if other == "recipe" else ""
            return f"is a {other}, not a {kind}{order}{use}"
        hint = did_you_mean(catalog.suggested(cls.CATALOG, text))
        if not hint:
            base = catalog.BASES.get(cls.CATALOG)
            own = f"; to make your own: shardwise {cls.CATALOG} {base} -o FILE.yaml" if base else ""
            return f"no such {kind}; to list them: shardwise {cls.CATALOG}{own}"
        and_file = "" if files.is_catalog_only() else ", and no such file"
        return f"no such {kind} in the catalog{and_file}; {hint}"

    @classmethod
    def of_data(cls, data: Mapping[str, Any], name: str, source: str) -> Self:
        """Return the config that a mapping holds, of shardwise or another tool.

        Parameters
        ----------
        name
            Name of a model or system whose data has none.
        """
        return cls._of_data(data, name, source, Chain().with_step(source))[0]

    @classmethod
    def _of_data(
        cls,
        data: Mapping[str, Any],
        name: str,
        source: str,
        chain: Chain,
        *,
        foreign: bool = True,
    ) -> tuple[Self, Resolved]:
        """Validate a mapping of shardwise or another tool; shardwise figures are calculated."""
        data = cls.located(data, source)
        resolved = Resolved(data=data)
        if cls.FIGURES and has_figures(data) and not (foreign and cls.is_foreign(data)):

            def rows(named: str, is_base: bool) -> Row:
                return row_of(named, cls, chain, is_base=is_base)

            resolved = resolve(data, cls, source=source, rows=rows)
        fields = resolved.data
        if foreign:
            fields = cls.native(fields, name=name, source=source)
        try:
            return cls.validated(fields, source=source), resolved
        except InputError as error:
            raise InputError([resolved.with_origin(fault) for fault in error.faults]) from None

    @classmethod
    def located(cls, data: Mapping[str, Any], source: str) -> Mapping[str, Any]:
        """Return a mapping in which the files that it names are found from where we are.

        Configs that name files find them in the folder of the file `source`.
        """
        del source
        return data

    @classmethod
    def is_foreign(cls, data: Mapping[str, Any]) -> bool:
        """Whether a mapping is a file of another tool, which has no shardwise formulas."""
        return cls.KIND is not None and readers.foreign().recognised(data) is not None

    @classmethod
    def fetched(cls, name: str) -> Mapping[str, Any] | None:
        """Return the file that a name stands for elsewhere than in the catalog, if any.

        Nouns that others publish on the network fetch it here.
        """
        del name
        return None

    @classmethod
    def native(cls, data: Mapping[str, Any], *, name: str, source: str) -> Mapping[str, Any]:
        """Return the fields that a mapping holds, translated if it is a file of another tool."""
        if cls.KIND is None:
            return data
        return readers.foreign().native_fields(cls.KIND, data, name=name, source=source)

    @classmethod
    @cache  # configs are frozen, so one of each will do
    def _of_catalog(cls, path: Path, stamp: int) -> tuple[Self, Resolved]:
        """Read an entry; one of a team is read again when its file has another time stamp."""
        source = str(path) if stamp else path.stem
        data = files.read_mapping(path)
        found = cls._of_data(data, path.stem, source, Chain((source,)), foreign=False)
        return found[0], frozen(found[1])

    @classmethod
    def validated(cls, data: Mapping[str, Any], *, source: str = "") -> Self:
        """Validate a mapping; faults name `source`."""
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise InputError(faults_of(cls, error, source)) from None
        except InputError as error:  # of a nested config, which does not know where it stands
            named = [replace(f, source=f.source or source) for f in error.faults]
            raise InputError(named) from None
        except Exception as error:
            refuse_foreign(data, source, error)
            raise

    def explicit_fields(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that were set, as plain values, for others to be put over them.

        Configs that are stated in fields from which other fields follow have those words here.
        """
        del written
        return self.model_dump(mode="json", exclude_unset=True)

    def __repr_args__(self) -> Any:
        """Fields that were set; the others have their defaults."""
        return [(name, getattr(self, name)) for name in self._shown_fields()]

    def _shown_fields(self) -> Iterable[str]:
        """Fields that `repr` shows."""
        return self.set_fields()

    def set_fields(self) -> tuple[str, ...]:
        """Return the names of fields that were set, in the order of their declaration."""
        return tuple(name for name in type(self).model_fields if name in self.model_fields_set)

    def to_dict(self, *, units: bool = False) -> dict[str, Any]:
        """Return plain values, ready for JSON; with `units`, quantities as people write them."""
        return self.model_dump(mode="json", context={"units": units})

    def to_file(self, path: str | Path) -> None:
        """Write YAML or JSON (also `.gz`) that `load` reads as the same config."""
        files.write_mapping(path, self.to_dict(units=True), kind=type(self).__name__.lower())


class Source(ConfigBase):
    """Where a figure comes from."""

    kind: Literal["measured", "fitted", "datasheet", "published", "assumed"]
    """How the figure was obtained."""
    text: str = Field(min_length=1)
    """Who printed or measured it, where and when; for `fitted`, on what and how well."""


def printable(name: str) -> str:
    """Names stand in tables: terminals act on characters that do not print."""
    if not name.isprintable():
        raise ValueError("must have printable characters only")
    return name


class Sourced(ConfigBase):
    """A named config whose figures say where they come from."""

    name: Annotated[str, AfterValidator(printable)] = Field(min_length=1)
    description: str = ""
    sources: Mapping[str, Source] = Field(default_factory=dict)
    """Origin of the figures by dotted field prefix (items of lists by position); the longest
    prefix that fits wins, the empty one covers the rest."""

    def _shown_fields(self) -> Iterable[str]:
        """Only what names it: the figures are many, and `to_dict` has them."""
        return ("name", "description") if self.description else ("name",)

    def source_of(self, field: str) -> Source | None:
        """Return the source that covers a dotted field, if any does."""
        parts = field.split(".")
        prefixes = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
        return next((self.sources[p] for p in prefixes if p in self.sources), None)

    @model_validator(mode="wrap")
    @classmethod
    def _sources_are_of_fields(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuse what no field is called; what a variation of a config took away may be named."""
        made = handler(data)
        for prefix in () if made is data else made.sources:  # a record was checked before
            node: Any = made
            for part in prefix.split(".") if prefix else ():
                fields = _fields(type(node))
                if fields and part not in fields:
                    hint = nearest(part, fields) or f"; {allowed_words(part, fields)}"
                    raise ValueError(f"sources: {shorten(prefix)}: there is no field {part}{hint}")
                node = _value_at(node, part)
        return made


def _value_at(node: Any, part: str) -> Any:
    """What a record, a mapping or a list holds by a name or position; None if it has nothing so."""
    if isinstance(node, BaseModel):
        return getattr(node, part)
    if isinstance(node, Mapping):
        return next((value for key, value in node.items() if str(key) == part), None)
    inside = isinstance(node, (list, tuple)) and part.isdecimal() and int(part) < len(node)
    return node[int(part)] if inside else None


_OF_RECORDS = ("value_error", "union_tag_invalid", "union_tag_not_found")
_WITH_SCHEMA = ("model", "system", "strategy", "stack", "space", "reliability", "recipe")


def faults_of(kind: type[BaseModel], error: ValidationError, source: str = "") -> list[Fault]:
    """What a validation found, in our words."""
    return [_fault(kind, source, details) for details in _root_causes(error.errors())]


def _root_causes(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out that a list is too short where the reason is a fault in one of its items."""
    with_faults = {error["loc"][:end] for error in errors for end in range(len(error["loc"]))}
    return [
        error
        for error in errors
        if not (error["type"] == "too_short" and error["loc"] in with_faults)
    ]


def _fault(config_type: type[BaseModel], source: str, details: ErrorDetails) -> Fault:
    location = details["loc"]
    kind = details["type"]
    # A location without the kinds of records in it, which files have as `kind`.
    field = _dotted(
        tuple(
            part
            for place, part in enumerate(location)
            if part not in {_kind_of(one) for one in _types_at(config_type, location[:place])}
        )
    )
    if kind == "extra_forbidden" and location[-1] in _aliases(config_type):
        return Fault(source=source, field=field, problem="is set twice, by two names")
    if kind == "missing":
        return Fault(source=source, field=field, problem="is missing and has no default")
    if kind == "extra_forbidden":
        name = config_type.__name__.lower()
        listed = f"shardwise schema {name}" if name in _WITH_SCHEMA else ""
        known = sorted({name for t in _types_at(config_type, location[:-1]) for name in _fields(t)})
        key = str(location[-1])
        hint = nearest(key, known) or f"; {allowed_words(key, known, listed)}"
        return Fault(source=source, field=field, problem=f"unknown key{hint}")
    value = details["input"]
    problem = problem_of(config_type, details)
    # A rule of a whole record names what it is about; the record itself would fill the line.
    has_value = not (isinstance(value, Mapping) and kind in _OF_RECORDS)
    return Fault(source=source, field=field, value=value, has_value=has_value, problem=problem)


def _aliases(config_type: type[BaseModel]) -> set[str]:
    """Other names that fields of a config type are read by."""
    choices = [f.validation_alias for f in config_type.model_fields.values()]
    return {
        str(c) for choice in choices if isinstance(choice, AliasChoices) for c in choice.choices
    }


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _kind_of(record: type[BaseModel]) -> str | None:
    """The only word of a record's `kind`, by which a union finds it."""
    field = record.model_fields.get("kind")
    words = words_of(field.annotation) if field is not None and field.is_required() else ()
    return words[0] if len(words) == 1 else None


def _types_at(
    config_type: type[BaseModel], location: tuple[int | str, ...]
) -> list[type[BaseModel]]:
    """Follow a fault's location through the annotations to the records that may stand there."""
    current: list[Any] = [config_type]
    for part in location:
        following: list[Any] = []
        for kind in current:
            fields = _fields(kind)
            if isinstance(part, str) and part in fields:
                following.extend(unfold(fields[part].annotation))
            elif not fields:
                following.extend(unfold(_item_of(kind)))
        current = following or current
    return [kind for kind in current if _fields(kind)]


def _item_of(annotation: Any) -> Any:
    """The type of a tuple's items or a mapping's values."""
    arguments = typing.get_args(annotation)
    first = typing.get_origin(annotation) is tuple
    return arguments[:1] if first else arguments[-1:]


def _fields(kind: Any) -> Mapping[str, Any]:
    is_record = isinstance(kind, type) and issubclass(kind, BaseModel)
    return kind.model_fields if is_record else {}


def words_of(annotation: Any) -> tuple[str, ...]:
    """Words that a field may have, where it may have only words."""
    found: list[str] = []
    for kind in unfold(annotation):
        if typing.get_origin(kind) is Literal:
            found += typing.get_args(kind)
        elif isinstance(kind, type) and issubclass(kind, Word):
            found += kind
    return tuple(found)


def unfold(annotation: Any) -> Iterator[Any]:
    """Yield the members of unions, without annotations."""
    if isinstance(annotation, tuple):
        for item in annotation:
            yield from unfold(item)
        return
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        yield from unfold(typing.get_args(annotation))
    elif origin is typing.Annotated:
        yield from unfold(typing.get_args(annotation)[0])
    else:
        yield annotation
