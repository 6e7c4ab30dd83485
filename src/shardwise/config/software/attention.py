"""Attention kernels: which accelerators run them, and which one PyTorch and TE choose by default.

The facts are `catalog/software/attention.yaml`, each with its source.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from shardwise import catalog
from shardwise.config import files
from shardwise.config.base import ConfigBase, Count
from shardwise.config.enums import AttentionKernel, Generation
from shardwise.config.software.record import library_releases

Release = Annotated[
    tuple[int, ...], BeforeValidator(lambda text: release_numbers(text) if text else text)
]
"""Numbers of a release: 2.5.1."""

_LIBRARIES = {
    "sdpa": ("torch", "pytorch"),
    "flash": ("flash-attn",),
    "te": ("transformer-engine",),
}
"""Names of the library whose kernel a word stands for."""


class KernelFacts(ConfigBase):
    """What runs one attention kernel."""

    runs_on: tuple[Generation, ...]
    widest_head: Count | None = None
    """Widest head [elements]; None: no known limit."""
    widest_head_on: Mapping[Generation, Count] = Field(default_factory=dict)
    """The same where an accelerator has another limit."""
    because: str
    source: str

    def widest(self, generation: Generation) -> int | None:
        """Widest head on an accelerator; None: no known limit."""
        return self.widest_head_on.get(generation, self.widest_head)


class Choice(ConfigBase):
    """The kernel that releases of a library choose on some accelerators."""

    kernel: AttentionKernel
    since: Release = ()
    below: Release = ()
    """First release that it is not true of; empty: true of the newest one."""
    cuda: Count | None = None
    """Least major release of CUDA that the wheel is built for."""
    generations: tuple[Generation, ...] = tuple(Generation)
    source: str


class AttentionFacts(ConfigBase):
    """The facts of `catalog/software/attention.yaml`."""

    kernels: Mapping[AttentionKernel, KernelFacts]
    sdpa: tuple[Choice, ...]
    flash: tuple[Choice, ...]
    te: tuple[Choice, ...]


@cache
def attention_facts() -> AttentionFacts:
    """Return the facts of the catalog."""
    path = Path(catalog.__file__).parent / "software" / "attention.yaml"
    return AttentionFacts.validated(files.read_mapping(path), source=path.stem)


def sdpa_kernel(
    torch_release: str, generation: Generation, wheel_cuda: str | None = None
) -> AttentionKernel:
    """Kernel that `scaled_dot_product_attention` chooses, without a mask, for usual heads.

    Parameters
    ----------
    torch_release
        Such as 2.8 or 2.5.1+cu124; 2.5 is 2.5.0.
    wheel_cuda
        CUDA that the wheel is built for, 12.8 or cu128; None: that of the release's default wheel.
    """
    local = torch_release.partition("+cu")[2]
    cuda = _cuda_major(wheel_cuda or (f"cu{local}" if local else ""))
    return _chosen(attention_facts().sdpa, torch_release, generation, cuda)


def te_kernel(te_release: str, generation: Generation) -> AttentionKernel:
    """Kernel that Transformer Engine chooses, with flash-attn installed, for usual heads."""
    return _chosen(attention_facts().te, te_release, generation, 0)


def kernel_of(
    word: str, generation: Generation | None, libraries: Mapping[str, str], month: str = ""
) -> AttentionKernel:
    """Kernel that a word stands for; `sdpa`, `flash` and `te` are what their library has.

    Parameters
    ----------
    libraries
        Releases that are known, by name.
    month
        Month of the software, whose newest release of a library holds where none is known.
    """
    if word not in _LIBRARIES:
        return AttentionKernel(word)
    if generation is None:
        return AttentionKernel.BEST
    names = _LIBRARIES[word]
    release = next((libraries[name] for name in names if name in libraries), "")
    release = release or release_in(names[0], month)
    if word == "te":
        # Figures of A100 were fitted to runs of Transformer Engine, with whatever it chooses there.
        is_fitted = generation == Generation.AMPERE
        return AttentionKernel.BEST if is_fitted else te_kernel(release, generation)
    if word == "flash":
        return _chosen(attention_facts().flash, release, generation, 0)
    return sdpa_kernel(release, generation, libraries.get("cuda"))


def release_in(library: str, month: str) -> str:
    """Newest release of a library in a month, or of all where that is empty."""
    releases = library_releases()[library]
    known = [name for name, of in releases.items() if of <= (month or of)]
    return max(known or list(releases)[:1], key=release_numbers)


def runs_on(kernel: AttentionKernel, generation: Generation | None) -> bool:
    """Whether an accelerator runs a kernel, as far as is known."""
    facts = attention_facts().kernels.get(kernel)
    return facts is None or generation in (None, Generation.OTHER, *facts.runs_on)


def _chosen(
    choices: tuple[Choice, ...], release: str, generation: Generation, cuda: int
) -> AttentionKernel:
    numbers = release_numbers(release)
    for one in choices:
        in_time = one.since <= numbers and not (one.below and numbers >= one.below)
        if in_time and generation in one.generations and cuda >= (one.cuda or 0):
            return one.kernel
    return AttentionKernel.BEST


def release_numbers(text: str) -> tuple[int, ...]:
    """Numbers of a release, at least three: 2.10.0 of 2.10, 2.5.1 of v2.5.1+cu124.

    Raises
    ------
    ValueError
        If the text does not begin with numbers.
    """
    parts = text.strip().removeprefix("v").partition("+")[0].split(".")
    digits = [part for part in parts[:3] if part.isdecimal()]
    if not digits:
        raise ValueError(f"{text}: must be a release such as 2.5.1")
    return tuple(map(int, (*digits, "0", "0")[:3]))


def _cuda_major(text: str) -> int:
    """12 of cu128, 12.8 and 12; 0 where it is not known."""
    digits = text.strip().lower().removeprefix("cu")
    if not digits:
        return 0
    return int(digits.partition(".")[0] if "." in digits else digits[:2])
