"""How a user may specify a model to shard, and how each becomes a profile.

Module statistics have one profile. A torch module is traced for every batch; a model of the
catalog, or a file of one, is profiled from shardwise's own operations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardwise import catalog
from shardwise.config import files
from shardwise.config.model import Model
from shardwise.config.system import System
from shardwise.errors import Fault, InputError
from shardwise.foreign import is_launch
from shardwise.fsdp.from_catalog import profile_of
from shardwise.fsdp.from_statistics import profile_of_statistics
from shardwise.fsdp.plan import Dtype
from shardwise.fsdp.profile import Profile
from shardwise.huggingface.formats import looks_like as is_config_json
from shardwise.huggingface.hub import is_hub_id
from shardwise.predecessors.fsdp_ilp import files as fsdp_ilp
from shardwise.predecessors.fsdp_ilp.files import ModuleInfo

if TYPE_CHECKING:
    from shardwise.fsdp.trace import LoadedModel


Kind = Literal["statistics", "module", "operations"]
"""A file of module statistics, a torch module, or shardwise's own operations."""

_CONFIG = "config.json"
# A file of a thousand modules with its trade-off curves takes some megabytes.
_MOST_FILE_BYTES = 256 * 2**20
_FACTORY_SEQ_LEN = 1024


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardableModel:
    """A model to shard."""

    kind: Kind
    profile: Callable[[int], Profile]
    """By sequences on a GPU; statistics have one profile for all."""
    load: "Callable[[], LoadedModel] | None" = None
    """Builds the torch module, if there is one."""
    seq_len: int | None = None
    """Tokens of a sequence, if known."""
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelReference:
    """The kind of a model and where it is; nothing is traced or profiled yet."""

    kind: Kind
    what: Any
    """Module information, what `load_module` takes, or what `Model.load` takes."""

    def shardable(
        self, system: System | None, *, batch: int, seq_len: int | None, dtype: Dtype
    ) -> ShardableModel:
        """The model to shard."""
        if self.kind == "statistics":
            stored = profile_of_statistics(self.what)
            return ShardableModel(kind=self.kind, profile=lambda _batch: stored)
        if system is None:
            problem = "is missing: kernels need one to be timed"
            raise InputError(Fault(field="system", problem=problem))
        make = _module if self.kind == "module" else _operations
        return make(self.what, system, batch, seq_len, dtype)


def find_model(source: object, *, traced: bool = True) -> ModelReference:
    """Find the kind of a source, of files by their content."""
    if isinstance(source, ModuleInfo):
        return ModelReference(kind="statistics", what=source)
    if isinstance(source, Model):
        return ModelReference(kind="operations", what=source)
    if not isinstance(source, (str, Path)):
        return ModelReference(kind="module", what=source)
    text = str(source)
    if _is_file(source):
        return _of_file(Path(source), traced=traced)
    return ModelReference(kind="module" if ":" in text else "operations", what=text)


def _is_file(source: str | Path) -> bool:
    """Whether a text means a file or a folder, and no entry of the catalog or of the hub."""
    text = str(source)
    if catalog.find("models", text) is not None:
        return False
    return isinstance(source, Path) or (files.is_file_name(text) and not is_hub_id(text))


def _of_file(path: Path, *, traced: bool) -> ModelReference:
    if files.is_folder(path):
        folder, path = path, path / _CONFIG
        if not files.is_file(path):
            problem = f"the folder has no {_CONFIG}, which describes a model of Hugging Face"
            raise InputError.at(str(folder), problem)
    if not files.has_known_ending(path) and is_launch(path):
        raise InputError.at(str(path), "is a launch file; a model is expected")
    data = files.read_mapping(path, most_bytes=_MOST_FILE_BYTES)
    if fsdp_ilp.looks_like(data):
        return ModelReference(kind="statistics", what=fsdp_ilp.module_info(data, source=str(path)))
    if is_config_json(data) and traced:
        _need_torch(str(path))
        return ModelReference(kind="module", what=str(path))
    return ModelReference(kind="operations", what=str(path))


def _need_torch(source: str) -> None:
    """Refuse to trace a config where what that takes is not installed."""
    packages = {"torch": "'shardwise[torch]'", "transformers": "transformers"}
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        problem = (
            f"a config of Hugging Face is traced with {' and '.join(missing)}: pip install "
            f"{' '.join(packages[name] for name in missing)}; or give --no-trace (traced=False) "
            "to use shardwise's own operations"
        )
        raise InputError.at(source, problem)


def _operations(
    what: Any, system: System, batch: int, seq_len: int | None, dtype: Dtype
) -> ShardableModel:
    """A model of the catalog or of a file, by shardwise's own operations."""
    del batch
    model = Model.load(what)
    tokens = model.seq_len if seq_len is None else seq_len
    if tokens is None:
        problem = f"is missing: {model.name} does not say how many tokens a sequence has"
        raise InputError(Fault(field="seq_len", problem=problem))

    @cache
    def of_batch(size: int) -> Profile:
        return profile_of(model, system, batch=size, seq_len=tokens, dtype=dtype)

    return ShardableModel(kind="operations", profile=of_batch, seq_len=tokens)


def _module(
    what: object, system: System, batch: int, seq_len: int | None, dtype: Dtype
) -> ShardableModel:
    """A torch module, traced once for each batch."""
    from shardwise.fsdp.trace import load_module, trace  # noqa: PLC0415 - torch's half

    if seq_len is None and isinstance(what, str) and what.endswith(".json"):
        problem = "is missing: a config does not say how many tokens a sequence has"
        raise InputError(Fault(field="seq_len", problem=problem))
    tokens = _FACTORY_SEQ_LEN if seq_len is None else seq_len

    @cache
    def of_batch(size: int) -> Profile:
        return trace(what, system=system, batch=size, seq_len=tokens, dtype=dtype)

    default = f"seq_len {tokens}, where the module does not make its own inputs"
    return ShardableModel(
        kind="module",
        profile=of_batch,
        load=lambda: load_module(what, batch=batch, seq_len=tokens),
        seq_len=tokens,
        assumed=() if seq_len is not None else (default,),
    )
