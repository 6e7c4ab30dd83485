"""Names and files of the catalog: models, systems and stacks, each figure with its source."""

from functools import cache
from pathlib import Path

__all__ = ["OTHER_NAMES", "canonical", "find", "holds", "names"]

_ROOT = Path(__file__).parent
OTHER_NAMES = {
    "systems": {
        "4090": "rtx-4090",
        "910b": "ascend-910b",
        "a5000": "rtx-a5000",
        "a6000": "rtx-a6000",
        "a800": "a800-sxm",
        "ascend910b": "ascend-910b",
        "b200": "b200-sxm",
        "b300": "b300-sxm",
        "dgx-b200": "b200-sxm",
        "dgx-b300": "b300-sxm",
        "dgx-h100": "h100-sxm",
        "dgx-h200": "h200-sxm",
        "gaudi-2": "gaudi2",
        "gb200": "gb200-nvl72",
        "gb300": "gb300-nvl72",
        "h200": "h200-sxm",
        "h800": "h800-sxm",
        "ironwood": "tpu-v7x",
        "tpu-v7": "tpu-v7x",
        "tpu7x": "tpu-v7x",
        "rtx4090": "rtx-4090",
        "trainium": "trainium1",
        "trillium": "tpu-v6e",
        "trn1": "trainium1",
        "trn1.32xlarge": "trainium1",
        "v4": "tpu-v4",
        "v5e": "tpu-v5e",
        "v5p": "tpu-v5p",
        "v6e": "tpu-v6e",
    }
}
"""What people call an entry whose name says more, by folder. A100, H100 and V100 come in several
forms, so one of these has to be named."""


@cache
def _entries(folder: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted((_ROOT / folder).glob("*.yaml"))}


def names(folder: str) -> list[str]:
    """Return the names of all entries in one folder of the catalog, in order."""
    return list(_entries(folder))


def canonical(name: str) -> str:
    """Return the catalog spelling of a name: lower case, dashes (`GPT3_1T` -> `gpt3-1t`)."""
    return name.lower().replace("_", "-").replace(" ", "-")


def find(folder: str, name: str) -> Path | None:
    """Return the file of a catalog entry, or None if nothing there is called so."""
    called = canonical(name)
    return _entries(folder).get(OTHER_NAMES.get(folder, {}).get(called, called))


def holds(path: str | Path) -> bool:
    """Whether a file is one of the catalog."""
    return Path(path).resolve().is_relative_to(_ROOT)
