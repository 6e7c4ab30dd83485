"""Files of other tools: recognised by their content, read as shardwise fields.

A new tool is one folder with `FORMATS` in its `__init__`, and one line here.
"""

from collections.abc import Mapping

from shardwise.config.readers import Kind
from shardwise.errors import Fault, InputError
from shardwise.interop import amped, calculon, huggingface, nersc, simumax
from shardwise.interop.formats import FileFormat

# The first format that recognises a file reads it.
FORMATS: tuple[FileFormat, ...] = (
    *amped.FORMATS,
    *calculon.FORMATS,
    *simumax.FORMATS,
    *nersc.FORMATS,
    *huggingface.FORMATS,
)


def recognised(data: Mapping[str, object]) -> tuple[Kind, str] | None:
    """Return what a file of another tool holds, here and in its own words; None if it is none."""
    found = _format_of(data)
    return None if found is None else (found.kinds[0], f"{found.tool} {found.content}")


def native_fields(
    kind: Kind, data: Mapping[str, object], *, name: str, source: str
) -> Mapping[str, object]:
    """Return the fields of a model, system or strategy in a file.

    A mapping that no other tool would have written is returned as it is.

    Parameters
    ----------
    kind
        What the file should hold.
    name
        Name of a model or system whose file has none.

    Raises
    ------
    InputError
        If the file is another tool's, but bad, or not of this kind.
    """
    found = _format_of(data)
    if found is None:
        return data
    if kind not in found.kinds:
        problem = f"holds a {found.tool} {found.content}, not a {kind}"
        raise InputError(Fault(source=source, problem=problem))
    return found.read(kind, data, name, source)


def fetched_model(name: str) -> Mapping[str, object] | None:
    """Return the config.json of an owner/name on the Hugging Face hub; None for other names."""
    from shardwise.interop.huggingface import hub  # noqa: PLC0415 - slow to import

    return hub.fetch_config(name) if hub.is_hub_id(name) else None


def _format_of(data: Mapping[str, object]) -> FileFormat | None:
    return next((one for one in FORMATS if one.recognise(data)), None)
