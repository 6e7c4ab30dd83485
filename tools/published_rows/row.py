"""A published training run as its source describes it, mostly in words.

A value that a source does not have is None. Unknown keys are available through `extra`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from published_rows.words import named_features
from shardwise.config.base import MOST, MOST_LAYERS, ConfigBase
from shardwise.errors import InputError
from shardwise.units import read_whole
from shardwise.validate.measured.runs import Amount, Count, Grade, PrecisionClass


def _integer(value: object) -> object:
    """Convert 4.0 to 4: spreadsheets print whole numbers so."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _every_rank(value: object) -> object:
    """Convert text to a number: torchtitan's settings print degrees so, -1 for the rest."""
    number = read_whole(value) if isinstance(value, str) else None
    return value if number is None else number


def _nothing(value: object) -> object:
    return {} if value is None else value


# Strict: a number in quotation marks is a mistake in the table.
Whole = Annotated[int, Field(strict=True, ge=0, le=MOST)]
Flag = Annotated[bool, Field(strict=True)]
Layers = Annotated[int, Field(strict=True, ge=1, le=MOST_LAYERS)]
Batch = Annotated[Count, BeforeValidator(_integer)]
Group = Annotated[int, BeforeValidator(_every_rank), Field(strict=True, ge=-1, le=MOST)]
Words = Annotated[Mapping[str, Any], BeforeValidator(_nothing)]


class _Section(ConfigBase):
    """A section of a row; unknown keys are allowed."""

    model_config = ConfigDict(extra="allow")

    @property
    def extra(self) -> Mapping[str, Any]:
        """Values of unknown keys."""
        return self.model_extra or {}


class Origin(_Section):
    """Source of a row."""

    title: str | None = None
    ref: str | None = None
    """Repository and path, paper or page."""


class Architecture(_Section):
    """The trained model, as its source describes it."""

    name: str = Field(min_length=1)
    arch: str | None = None
    """Kind: dense-decoder, moe-decoder, encoder (BERT), hybrid-mamba2 ..."""
    params_b: Amount | None = None
    params_active_b: Amount | None = None
    layers: Layers | None = None
    hidden: Count | None = None
    ffn: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    vocab: Count | None = None
    tied_embeddings: Flag | None = None
    mlp: str | None = None
    attention: str | None = None
    norm: str | None = None
    pos_emb: str | None = None
    linear_bias: Flag | str | None = None
    """Text where some products have one: `qkv only`."""
    experts: Whole | None = None
    topk: Whole | None = None
    moe_ffn: Whole | None = None
    shared_expert_ffn: Whole | None = None
    dense_layers: Whole | None = None
    """Leading layers without experts."""
    mtp_layers: Whole | None = None
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Whole | None = None
    v_head_dim: Count | None = None
    seq_len: Count | None = None
    notes: str | None = None


class Hardware(_Section):
    """The machine."""

    accelerator: str = Field(min_length=1)
    family: str | None = None
    variant: str | None = None
    mem_gb: Amount | None = None
    count: Count | None = None
    """Accelerators; for Trainium chips, of two cores each."""
    per_node: Count | None = None
    nvlink_domain: Count | None = None
    intra: str | None = None
    inter: str | None = None


class Software(_Section):
    """The framework."""

    framework: str | None = None
    version: str | None = None
    container: str | None = None


class Parallelism(_Section):
    """Degrees; `dp` is the full data-parallel size, which EP and ETP subdivide."""

    dp: Count | None = None
    tp: Count | None = None
    sp: Flag | None = None
    pp: Count | None = None
    vpp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None
    etp: Count | None = None
    fsdp_shard: Group | None = None
    """Ranks of a sharding group; -1: the rest after the other degrees."""
    zero_stage: Annotated[int, Field(strict=True, ge=0, le=3)] | None = None
    distributed_optimizer: Flag | None = None


class Measured(_Section):
    """Measured values, as printed."""

    step_time_s: Amount | None = None
    tokens_per_s_per_gpu: Amount | None = None
    tflops_per_gpu: Amount | None = None
    flops_type: str | None = None
    """What the source counts as FLOPs."""
    mfu: Amount | None = None
    hfu: Amount | None = None
    peak_mem_gib: Amount | None = None
    peak_mem_reserved_gib: Amount | None = None
    mem_metric: str | None = None


class Derived(_Section):
    """Values derived from the printed ones."""

    step_time_s: Amount | None = None
    step_time_note: str | None = None
    step_time_s_from_tflops: Amount | None = None
    """Present if the printed tokens per second are rounded."""
    tokens_per_s_per_gpu: Amount | None = None
    tokens_per_s_per_gpu_from_tflops: Amount | None = None
    implied_gflop_per_token: Amount | None = None


class Run(_Section):
    """One measured training run."""

    id: str = Field(min_length=1)
    group: str | None = None
    """The collection that it belongs to."""
    grade: Grade | None = None
    source: Annotated[Origin, BeforeValidator(_nothing)] = Origin()
    year: Count | None = None
    task: str | None = None
    """pretrain, sft, lora; pretrain-total: a full project with its restarts."""
    model: Architecture
    hardware: Hardware
    software: Annotated[Software, BeforeValidator(_nothing)] = Software()
    precision: str | None = None
    parallelism: Annotated[Parallelism, BeforeValidator(_nothing)] = Parallelism()
    micro_batch: Batch | None = None
    global_batch: Batch | None = None
    """Sequences in a step."""
    recompute: Mapping[str, Any] | None = None
    attention_impl: str | None = None
    features: Annotated[Words, AfterValidator(named_features)] = Field(default_factory=dict)
    """By the one name of each (`words.FEATURES`)."""
    measured: Annotated[Measured, BeforeValidator(_nothing)] = Measured()
    derived: Annotated[Derived, BeforeValidator(_nothing)] = Derived()
    notes: str | None = None

    @property
    def is_moe(self) -> bool:
        """Whether it has experts; `arch` alone says so for hybrids of unpublished sizes."""
        return bool(self.model.experts) or "moe" in (self.model.arch or "")

    @property
    def kind(self) -> Literal["dense", "moe"]:
        """`moe` if it has experts, else `dense`."""
        return "moe" if self.is_moe else "dense"

    @property
    def accelerator(self) -> str:
        """The family of its accelerators, or else their name."""
        return self.hardware.family or self.hardware.accelerator

    @property
    def study(self) -> str:
        """Its collection, else the title of its source."""
        return self.group or self.source.title or "unknown"

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens of a global batch."""
        if self.global_batch is None or self.model.seq_len is None:
            return None
        return self.global_batch * self.model.seq_len

    @property
    def measured_step_time_s(self) -> float | None:
        """Step time: printed, or from the most exact of the printed values [s].

        In this order: as printed; from TFLOP/s, if tokens per second are rounded (only then rows
        have it); as derived; from tokens per second and the batch.
        """
        printed, derived = self.measured, self.derived
        for found in (printed.step_time_s, derived.step_time_s_from_tflops, derived.step_time_s):
            if found is not None:
                return found
        tokens, count, rate = (
            self.tokens_per_step,
            self.hardware.count,
            printed.tokens_per_s_per_gpu,
        )
        if tokens is None or count is None or rate is None:
            return None
        return tokens / (rate * count)

    @property
    def measured_memory_gib(self) -> float | None:
        """Peak memory of an accelerator by the row's metric (`measured.mem_metric`)."""
        found = self.measured.peak_mem_gib
        return self.measured.peak_mem_reserved_gib if found is None else found

    @property
    def precision_class(self) -> PrecisionClass:
        """The type of matrix products.

        fp16 or bf16 counts as bf16, as both have one rate; one of several types of different rates
        counts as unknown.
        """
        return _precision_class(self.precision or "")


# The first match of a word is its type: `fp8_mx` before `fp8`.
_TYPES: tuple[tuple[str, PrecisionClass], ...] = (
    (r"mx_?fp8|(fp|float)8_?mx", "mxfp8"),
    (r"(nv_?)?(fp|float)4", "nvfp4"),
    (r"(fp|float)8", "fp8"),
    (r"bf16|bfloat16", "bf16"),
    (r"(fp|float)16|half", "fp16"),
    (r"(fp|float)32", "fp32"),
)


def _precision_class(text: str) -> PrecisionClass:
    """Type of products in a source's text; `(`, `,`, `;` or `+` begin the types of other tensors.

    Examples
    --------
    >>> _precision_class("bf16 compute, fp32 weights/grads/optimizer")
    'bf16'
    >>> _precision_class("fp8 or nvfp4 (ambiguous)")
    'unknown'
    """
    # A quantized base is converted to the type that follows it.
    text = re.sub(r"^.*base weights,\s*", "", text.lower())
    products = re.split(r"[(,;+]", text, maxsplit=1)[0]
    found = {
        next((kind for pattern, kind in _TYPES if re.match(pattern, word)), None)
        for word in re.split(r"[\s/]+", products)
    } - {None}
    if found == {"bf16", "fp16"}:
        return "bf16"
    (only,) = found if len(found) == 1 else {None}
    return only or "unknown"


class RunFault(Run):
    """A row that is not valid, and why."""

    fault: str

    @classmethod
    def of(cls, name: str, error: InputError) -> "RunFault":
        """Return the row of a name with all its faults."""
        text = "; ".join(str(replace(fault, source="")) for fault in error.faults)
        unknown = {"model": {"name": "unknown"}, "hardware": {"accelerator": "unknown"}}
        return cls.validated({"id": name, "fault": text, **unknown}, source=name)
