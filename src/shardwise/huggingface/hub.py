"""config.json of a model on the Hugging Face hub, fetched once and saved in the user's cache.

Public files only. The address of the hub is that of the environment variable HF_ENDPOINT, or the
one that an installed `huggingface_hub` has.
"""

import json
import os
import platform
import re
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from shardwise.config import files
from shardwise.errors import Fault, InputError, UnknownNameError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TIMEOUT_S = 10.0
_MAX_BYTES = 2**20  # the largest config.json of a language model has some ten kilobytes
_GATED = (401, 403)
_MISSING = 404
_OR_FILE = "download its config.json and give the file"


def is_hub_id(name: str) -> bool:
    """Whether a name has the form owner/name of a model on the hub, and not that of a file."""
    if not _ID.fullmatch(name) or name.removesuffix(".gz").endswith(files.SUFFIXES):
        return False
    return not files.exists(name.split("/", maxsplit=1)[0])


def fetch_config(name: str) -> dict[str, Any]:
    """The config.json of a model, from the cache or else from the hub.

    Raises
    ------
    InputError
        If the hub has no such file, keeps it behind a gate, or cannot be reached.
    """
    endpoint = _endpoint(name)
    host = re.sub(r"[^\w.-]", "_", urlsplit(endpoint).netloc)
    place = _cache_folder() / "hub" / host / f"{name}.json"
    if files.is_file(place):
        return files.read_mapping(place)
    content = _download(f"{endpoint}/{name}/resolve/main/config.json", name)
    data = _parsed(content, name)
    _keep(place, content)
    return data


def _endpoint(name: str) -> str:
    """Where the hub is."""
    given = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/")
    if given and urlsplit(given).scheme not in {"http", "https"}:
        problem = "must begin with http:// or https://"
        raise InputError(Fault.of("HF_ENDPOINT", given, problem))
    if given:
        return given
    try:
        return str(import_module("huggingface_hub.constants").ENDPOINT).rstrip("/")
    except ImportError:
        problem = (
            "no such model in the catalog, and no such file; to look on the Hugging Face hub, set "
            f"the environment variable HF_ENDPOINT to its address, or {_OR_FILE}"
        )
        raise UnknownNameError(_fault(name, problem)) from None


def _cache_folder() -> Path:
    """The folder in which the platform has programs keep what they can fetch again."""
    system = platform.system()
    if system == "Windows":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif system == "Darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "shardwise"


def _download(url: str, name: str) -> bytes:
    try:
        with urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http or https
            content: bytes = answer.read(_MAX_BYTES + 1)
    except HTTPError as error:
        error.close()
        if error.code == _MISSING:
            problem = "no such model in the catalog, no such file, and none on the hub (HTTP 404)"
            raise UnknownNameError(_fault(name, problem)) from None
        reason = f"answered HTTP {error.code}"
        if error.code in _GATED:
            reason = f"has no such model or keeps it behind a gate (HTTP {error.code})"
        raise InputError(_fault(name, f"the hub {reason}; {_OR_FILE}")) from None
    except (OSError, HTTPException) as error:
        reason = str(getattr(error, "reason", "") or error or type(error).__name__)
        problem = f"the hub cannot be reached ({reason}); {_OR_FILE}"
        raise InputError(_fault(name, problem)) from None
    if len(content) > _MAX_BYTES:
        raise InputError(_fault(name, f"what the hub sent is larger than {_MAX_BYTES} bytes"))
    return content


def _parsed(content: bytes, name: str) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise InputError(_fault(name, f"what the hub sent is no config.json; {_OR_FILE}"))
    return data


def _keep(place: Path, content: bytes) -> None:
    """Write to the cache; where that cannot be, the next call fetches again."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(place, content)
    except (OSError, InputError):
        return


def _fault(name: str, problem: str) -> Fault:
    return Fault(source="model", value=name, has_value=True, problem=problem)
