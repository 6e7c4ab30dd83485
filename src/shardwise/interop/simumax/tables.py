"""SimuMax's measured efficiencies, by shapes spelt out in keys, as tables of our shapes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.interop.simumax.system_files import OperationClass, SimumaxAccelerator
from shardwise.units import LEAST_SHARE

__all__ = ["attention_table", "grouped_table", "matmul_table"]

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_PHASES = {"TN": "forward", "NN": "input_grad", "NT": "weight_grad"}
_STAGES = {"fwd": "forward", "bwd_grad_act": "input_grad", "bwd_grad_w": "weight_grad"}
_MOST = 2.0  # of a `ShapeTable`

_Measured = list[tuple[str, tuple[float, ...], float]]
"""Phase, shape and share of each kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One measured kernel: what its key says, and its share of the peak of the matrix units."""

    place: str
    """Field of the file."""
    source: str
    key: str
    parts: Mapping[str, str]
    share: float

    def size(self, name: str) -> int:
        """A number of its shape, 1 or more."""
        text = self.parts.get(name, "")
        if not text.isdecimal() or int(text) < 1:
            raise self.fault(f"must have {name}=a whole number")
        return int(text)

    def word(self, name: str, allowed: Mapping[str, Any], default: str = "") -> Any:
        """What one of the words that a key may have stands for."""
        text = self.parts.get(name, default)
        if text not in allowed:
            raise self.fault(f"must have {name}=one of {', '.join(allowed)}")
        return allowed[text]

    def fault(self, problem: str) -> InputError:
        place = {"source": self.source, "field": self.place}
        return InputError(Fault(**place, value=self.key, has_value=True, problem=problem))


def _entries(chip: SimumaxAccelerator, kind: OperationClass, source: str) -> Iterator[_Entry]:
    """What was measured of a class; efficiencies of 0 were not."""
    operation = chip.op.get(kind, chip.op["default"])
    ratio = operation.tflops / chip.op["default"].tflops
    for key, share in (operation.accurate_efficient_factor or {}).items():
        pairs = (part.partition("=") for part in key.split(","))
        entry = _Entry(
            place=f"accelerator.op.{kind}.accurate_efficient_factor",
            source=source,
            key=key,
            parts={name.strip(): value.strip() for name, _, value in pairs},
            share=share * ratio,
        )
        if share == 0:
            continue
        if not LEAST_SHARE <= entry.share <= _MOST:
            raise entry.fault(f"its efficiency must be 0 or from {LEAST_SHARE:g} to {_MOST:g}")
        yield entry


def _fallback(chip: SimumaxAccelerator, kind: OperationClass) -> float:
    operation = chip.op.get(kind, chip.op["default"])
    return operation.efficient_factor * operation.tflops / chip.op["default"].tflops


def _result_bytes(entry: _Entry, dtype: str, *, accumulates: bool) -> float:
    """Bytes moved per element of a result, which is read again where it is added to."""
    size: float = entry.word(dtype, _BYTES, "fp32")
    return 2 * size if accumulates else size


def matmul_table(chip: SimumaxAccelerator, source: str = "") -> dict[str, Any]:
    """Products; those of weight gradients are transposed, so that m and n swap places."""
    measured: _Measured = []
    for entry in _entries(chip, "matmul", source):
        phase = entry.word("layout", _PHASES)
        m, n = ("n", "m") if phase == "weight_grad" else ("m", "n")
        accumulates = entry.parts.get("accumulate") == "True"
        result = _result_bytes(entry, "out_dtype", accumulates=accumulates)
        shape = (entry.size("b"), entry.size(m), entry.size(n), entry.size("k"), result)
        measured.append((phase, shape, entry.share))
    return _of_products("batch", measured, _fallback(chip, "matmul"))


def grouped_table(chip: SimumaxAccelerator, source: str = "") -> dict[str, Any]:
    """Products of experts, named by those of forward: M tokens of each, K inputs, N outputs."""
    measured: _Measured = []
    for entry in _entries(chip, "group_matmul", source):
        phase = entry.word("stage", _STAGES)
        tokens, outputs, inputs = (entry.size(name) for name in "MNK")
        adds = phase == "weight_grad"
        m, n, k = {
            "forward": (tokens, outputs, inputs),
            "input_grad": (tokens, inputs, outputs),
            "weight_grad": (inputs, outputs, tokens),
        }[phase]
        dtype = "main_grad_dtype" if adds else "out_dtype"
        result = _result_bytes(entry, dtype, accumulates=True) if adds else _BYTES["bf16"]
        measured.append((phase, (entry.size("ng"), m, n, k, result), entry.share))
    return _of_products("groups", measured, _fallback(chip, "group_matmul"))


def _of_products(count: str, measured: _Measured, fallback: float) -> dict[str, Any]:
    """A table of products; with the type of results only where a phase has several."""
    results = {(phase, shape[-1]) for phase, shape, _ in measured}
    several = len(results) > len({phase for phase, _ in results})
    sizes = [count, "m", "n", "k", *(["output_bytes"] if several else [])]
    cut = [(phase, shape[: len(sizes)], share) for phase, shape, share in measured]
    return {"sizes": sizes, "rows": _averaged(cut), "fallback": fallback}


def _averaged(
    measured: _Measured,
) -> dict[str, list[list[float]]]:
    """Rows by phase; the mean of what was measured of one shape."""
    found: dict[str, dict[tuple[float, ...], list[float]]] = {}
    for phase, shape, share in measured:
        found.setdefault(phase, {}).setdefault(shape, []).append(share)
    return {
        phase: [[*shape, sum(shares) / len(shares)] for shape, shares in shapes.items()]
        for phase, shapes in found.items()
    }


def attention_table(chip: SimumaxAccelerator, source: str = "") -> dict[str, Any]:
    """Fused attention, with the FLOPs of all pairs, queries and keys and values side by side.

    Backward SimuMax counts 2.5 times the forward FLOPs. Ours are 3 d_qk + 2 d_v per score, where
    forward's are d_qk + d_v, and shares are those of our FLOPs.
    """
    measured: _Measured = []
    kinds: dict[OperationClass, str] = {"sdp_fwd": "forward", "sdp_bwd": "input_grad"}
    for kind, phase in kinds.items():
        entries = list(_entries(chip, kind, source))
        shapes = [_heads(entry) for entry in entries]
        beside = {
            shape for shape, entry in zip(shapes, entries, strict=True) if _is_contiguous(entry)
        }
        for shape, entry in zip(shapes, entries, strict=True):
            if shape in beside and not _is_contiguous(entry):
                continue
            qk, v = shape[-2:]
            ours = (3 * qk + 2 * v) / (2.5 * (qk + v)) if phase == "input_grad" else 1.0
            measured.append((phase, shape, entry.share * ours))
    forward, backward = _fallback(chip, "sdp_fwd"), _fallback(chip, "sdp_bwd")
    return {
        "sizes": ["sequences", "seq_len", "heads", "kv_heads", "head_dim", "v_head_dim"],
        "rows": _averaged(measured),
        # Of both together: of seven parts of the FLOPs two are forward.
        "fallback": 7 / (2 / forward + 5 / backward),
        "counts_all_pairs": True,
    }


def _heads(entry: _Entry) -> tuple[float, ...]:
    names = ("batch", "seq_len", "head_num", "kv_head_num", "qk_head_dim", "v_head_dim")
    return tuple(entry.size(name) for name in names)


def _is_contiguous(entry: _Entry) -> bool:
    return entry.parts.get("qkv_contiguous") == "True"
