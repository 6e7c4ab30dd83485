"""What rows say in prose: in notes, titles and texts; which remarks are used, and which are not."""

import re
from collections.abc import Iterator, Mapping

from published_rows.row import Run
from published_rows.words import truth
from shardwise.config.model import Model
from shardwise.config.plain import separated
from shardwise.launchers.megatron.core_strategy import OFFLOAD_MODULES
from shardwise.units import read_whole
from shardwise.validate.measured.runs import NO_EFFECT, NOT_USED

_NATURAL = re.compile(
    r"natural(ly)? (rout|balanc)|rout\w* (is |was )?not (forced|balanced)|un-?(forced|balanced)|"
    r"imbalanced|not (force-?)?balanced|no forced|real(istic)? routing|^natural$|aux_?loss|"
    r"auxiliary loss",
    re.IGNORECASE,
)
_OPEN = re.compile(r"not (stated|captured|known)|unknown")
_BALANCED = re.compile(
    r"force[d-]* ?(load )?balanc|(fake |force )?balanced gate|perfectly balanced|uniform rout|"
    r"random(ized)? rout|^(balanced|forced)$",
    re.IGNORECASE,
)
_RATIO = re.compile(r"imbalance(?: factor| ratio)?(?: of)? ?[=:]? ?(\d{1,3}(?:\.\d{1,6})?)")
_MUON = re.compile(r"\bmuon\b", re.IGNORECASE)
_UNSPLIT = re.compile(
    r"(no|without) sequence[- ]parallel|sequence[- ]parallel(ism)? off", re.IGNORECASE
)
_OFFLOADED = re.compile(
    r"(activations?|optimizer(?: states?)?|weights|parameters)"
    r"(?: \w+){0,2} (?:off-?load|on the (?:host|cpu))|"
    r"(?:cpu|host)[- ]?(?:off-?load\w*)(?: of)?(?: the)? (activations?|optimizer|weights|param)|"
    r"(activations?|optimizer|weight|param\w*)[- ]off-?load",
    re.IGNORECASE,
)
_LESS_AT_ENDS = re.compile(
    r"one layer (removed|fewer|less) (from|in|on) (the )?first and", re.IGNORECASE
)
_LAYOUT = re.compile(
    r"layout \[([\d, ]{3,})\]|layers per stage:? \[?([\d, ]{3,})\]?", re.IGNORECASE
)
_LAST = re.compile(r"\((\d{1,4}) layers per stage, (\d{1,4}) in the (first|last)\)")
_PADDED = re.compile(r"padded \(?(?:to )?(\d{4,7})\b")
_MULTIPLE = re.compile(r"pad\w* .{0,30}multiple of (\d{1,5})(\*TP| x TP)?")
_LENGTH = re.compile(
    r"(?:documents|samples) of (\d{1,7}) tokens|"
    r"(?:mean|average) (?:document|sample|sequence)? ?length (?:of |is )?(\d{1,7})"
)
_SQUAD = re.compile(r"(?i)packed.*squad|squad.*packed|packed sequences")
_USED = (
    _NATURAL, _BALANCED, _RATIO, _MUON, _UNSPLIT, _OFFLOADED, _LESS_AT_ENDS, _LAYOUT, _LAST,
    _PADDED, _MULTIPLE, _LENGTH, _SQUAD,
    re.compile(
        r"no gradient bucketing|tokendrop|capacity factor 1|packed to 8192|rank ?\d|r ?= ?\d|"
        r"trainable embedding|cumulative|1F1B|global batch|micro.?batch|\bGBS\b|inactive|"
        r"vocab \d+ padded|gradient accumulation \d"
    ),
)  # fmt: skip
# Words of remarks that say what ran, rather than how it was measured.
_TOPICS = re.compile(
    r"\b(pack\w*|window\w*|swa|rout\w*|balanc\w*|off-?load\w*|graphs?|muon|optimizer|compiled?|"
    r"overlap\w*|recompute\w*|checkpointing|remat\w*|fus(?:ed|ion)|unfused|kernels?|determinis\w*|"
    r"power|watts?|\d+ ?W|zero-?\d?|fsdp|hsdp|shard\w*|dropout|residual|parallel|lora|adapters?|"
    r"frozen|vboost|clocks?|expandable|backend|attention|attn|stochastic|gc|bucket\w*|"
    r"split|layers per|uneven|dropless|capacity|loss fusion|liger|cce|cross.entropy|pinned|"
    r"natural|imbalanc\w*|unbalanced|sequence|ulysses|prefetch\w*|accumulat\w*|fp32|fp8|bf16|"
    r"padd\w*|without|disabled|enabled)\b",
    re.IGNORECASE,
)
# Of remarks on how something was measured, counted or found.
_ORIGIN = re.compile(
    r"\b(section|steps?|iterations?|mean|median|averag\w*|print\w*|table|config\w*|yaml|doc|README|"
    r"TFLOP\S*|tok/s|tokens/s|samples/s|MFU|FLOPs|spread|regraded|stated|published|revision\w*|"
    r"loss(es)? (is|was|moves|remained|of)|checkpoint at|grad norm|recipe|paper|script|"
    r"inferred|matches|captured|memory|restores|estimator|assumed|digits|commit)\b",
    re.IGNORECASE,
)
IMBALANCE = 1.5
"""Tokens of the busiest rank over an even split where a router is not forced to balance: steps of
one configuration with natural routing took 1.09 to 1.25 times as long as with forced balance."""


def texts(run: Run) -> Iterator[str]:
    """Yield the remarks of a row, phrase by phrase."""
    for text in (run.notes, run.model.notes, run.parallelism.extra.get("note")):
        yield from filter(None, (part.strip() for part in re.split(r"[;.]\s|[;.]$", text or "")))


def _found(pattern: re.Pattern[str], run: Run) -> re.Match[str] | None:
    return next(filter(None, map(pattern.search, texts(run))), None)


def imbalance_of(run: Run, assumed: list[str]) -> float | None:
    """Tokens of the busiest rank over an even split; None: even, or the row does not say."""
    if (run.parallelism.ep or 1) == 1:
        return None
    features = run.features
    stated = features.get("expert_imbalance")
    if stated is None and (ratio := _found(_RATIO, run)):
        stated = ratio[1]
    if stated is not None and str(stated).replace(".", "", 1).isdigit():
        return max(float(stated), 1.0)
    said = [text for text in texts(run) if not _OPEN.search(text)]
    said += [str(features.get(name) or "") for name in ("routing", "moe")]
    forced = features.get("force_load_balancing")
    if truth(forced) or any(map(_BALANCED.search, said)):
        return None
    if forced is not None or any(map(_NATURAL.search, said)):
        assumed.append(f"{IMBALANCE} times an even load on the busiest experts")
        return IMBALANCE
    return None


def is_muon(run: Run) -> bool:
    """Whether its optimizer is Muon."""
    named = str(run.features.get("optimizer") or "")
    return bool(_MUON.search(named) or (not named and _found(_MUON, run)))


def is_unsplit(run: Run) -> bool:
    """Whether it says that it has no sequence parallelism."""
    stated = run.features.get("sequence_parallel")
    return (stated is not None and not truth(stated)) or _found(_UNSPLIT, run) is not None


_OFFLOAD_FIELDS = {
    "optim": "offload_optimizer",
    "state": "offload_optimizer",
    "weight": "offload_weights",
    "param": "offload_weights",
    "activ": "offload_activations",
}
# What the value `true` or `cpu` of a feature offloads; FSDP's offloads shards and their states.
_OFFLOADS: Mapping[str, tuple[str, ...]] = {
    "optimizer_offload": ("offload_optimizer",),
    "param_offload": ("offload_weights",),
    "activation_offloading": ("offload_activations",),
    "cpu_offload": ("offload_weights", "offload_optimizer"),
}


def offload_fields(run: Run) -> dict[str, object]:
    """Fields of what is offloaded to the host."""
    fields: dict[str, object] = {}
    modules = str(run.features.get("offload_modules") or "")
    if parts := tuple(part for part, word in OFFLOAD_MODULES.items() if word in modules):
        fields |= {"offload_activations": True, "offload_parts": parts}
    for name, usual in _OFFLOADS.items():
        text = str(run.features.get(name) or "").lower()
        if text in ("", "false", "0", "no", "off", "none"):
            continue
        named = {field for word, field in _OFFLOAD_FIELDS.items() if word in text}
        fields |= dict.fromkeys(named or usual, True)
    if str(run.features.get("optimizer_offload_fraction")) in ("1", "1.0"):
        fields["offload_optimizer"] = True
    for text in texts(run):
        for said in _OFFLOADED.finditer(text):
            what = next(filter(None, said.groups())).lower()
            fields[next(f for word, f in _OFFLOAD_FIELDS.items() if what.startswith(word))] = True
    return fields


def document_length(run: Run) -> int | None:
    """Mean length of the documents packed into a sequence; None: the row does not say."""
    stated = read_whole(str(run.features.get("document_len")))
    if stated is None and (found := _found(_LENGTH, run)):
        stated = read_whole(next(filter(None, found.groups())))
    seq_len = run.model.seq_len
    return stated if stated and seq_len and stated < seq_len else None


def is_packed_squad(run: Run) -> bool:
    """Whether it packs the paragraphs and questions of SQuAD, on which NeMo's recipes fine-tune."""
    return run.task in ("sft", "lora") and _found(_SQUAD, run) is not None


def vocabulary(run: Run, size: int) -> int:
    """The padded vocabulary, where a row says to what it is padded."""
    multiple = read_whole(str(run.features.get("vocab_multiple")))
    if multiple is None and (found := _found(_MULTIPLE, run)):
        multiple = read_whole(found[1])
        multiple = multiple and multiple * ((run.parallelism.tp or 1) if found[2] else 1)
    if multiple:
        return -(-size // multiple) * multiple
    padded = _found(_PADDED, run)
    return max(size, read_whole(padded[1]) or 0) if padded else size


# Layers with a window and layers without one that take turns; without numbers, one of each.
_TURNS = (
    re.compile(r"alternating full ?/ ?sliding[- ]window[- ](?P<window>\d{1,7})"),
    re.compile(
        r"(?P<local>\d{1,3}):(?P<full>\d{1,3}) ?(?:local|sliding)[^(\d]*\((?:window )?"
        r"(?P<window>\d{1,7})"
    ),
    re.compile(
        r"(?P<local>\d{1,3}) (?:sliding|local) ?\(window (?P<window>\d{1,7})[^)]*\) ?: ?"
        r"(?P<full>\d{1,3}) (?:full|global)"
    ),
)
_WINDOW = re.compile(
    r"(?:sliding[- ]window|\bswa\b|\bwindow(?:ed)?(?: attention| size)?|\blocal attention)"
    r"[^;,.\d:]{0,24}?"
    r"[-(=: ](\d{2,7})\b",
    re.IGNORECASE,
)
_ONE_NUMBER = re.compile(r"\D*(\d{1,7})\b[\s,\d)\]]*")


def window_of(run: Run) -> tuple[int, int, int] | None:
    """Layers with a sliding window and layers without one in turn, and the window; None: none.

    A window of a sequence or more changes nothing.
    """
    found = _stated_window(run)
    return found if found and 1 < found[2] < (run.model.seq_len or 0) else None


def _stated_window(run: Run) -> tuple[int, int, int] | None:
    text = run.model.attention or ""
    for found in filter(None, (pattern.search(text) for pattern in _TURNS)):
        turns = {"local": 1, "full": 1} | {name: int(n) for name, n in found.groupdict().items()}
        return turns["local"], turns["full"], turns["window"]
    extra = run.model.extra.get("sliding_window") or run.features.get("sliding_window")
    one = _ONE_NUMBER.fullmatch(str(extra or "")) or next(
        filter(None, map(_WINDOW.search, (text, str(extra or ""), *texts(run)))), None
    )
    return (1, 0, int(one[1])) if one else None


_PER_LAYER = re.compile(r"^[\s\[(]*\d+(?:[\s,x+]+\d+)*[\s\])]*$")


def stage_fields(run: Run, model: Model, chunks: int) -> dict[str, object]:
    """Layers of the stages where a row moves some, or counts embedding or head as a layer."""
    features, depth = run.features, model.depth
    sizes = _sizes(features.get("pp_layout"))
    if sizes is None and (layout := _found(_LAYOUT, run)):
        sizes = _sizes(next(filter(None, layout.groups())))
    if sizes and len(sizes) == chunks and sum(sizes) == depth:
        return {"stage_layers": sizes}
    ends = {
        name: value
        for name in ("first_stage_layers", "last_stage_layers")
        if (value := read_whole(str(features.get(name)))) is not None
    }
    if last := _found(_LAST, run):
        ends = {f"{last[3]}_stage_layers": int(last[2])}
    if ends:
        return dict(ends)
    both = truth(features.get("account_for_embedding_and_loss_in_pipeline_split"))
    both = both or "embedding counted" in str(features.get("pp_partition") or "")
    both = both or _found(_LESS_AT_ENDS, run) is not None
    counted: dict[str, object] = {
        name: True
        for name in ("embedding_as_layer", "loss_as_layer")
        if both or truth(features.get(name))
    }
    return counted if counted and (depth + len(counted)) % chunks == 0 else {}


def _sizes(value: object) -> tuple[int, ...] | None:
    """Layers of each stage, from a list or text such as 3+4x14+2; None: neither."""
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value or "")
    if not _PER_LAYER.match(text):
        return None
    counts = [read_whole(item) for item in separated(re.sub(r"[\[\]()]", "", text))]
    return None if None in counts else tuple(count or 0 for count in counts)


def ignored_remarks(run: Run) -> Iterator[str]:
    """Yield remarks on what ran that nothing reads, and that there are others."""
    if re.search(r"sliding|window|\bswa\b", run.model.attention or "") and not _stated_window(run):
        yield f"model.attention {run.model.attention!r}: no size of the window"
    others = False
    for text in dict.fromkeys(texts(run)):
        if any(pattern.search(text) for pattern in (*_USED, _WINDOW)):
            continue
        if _TOPICS.search(text) and not _ORIGIN.search(text):
            yield f"notes {text[:120]!r}: {NOT_USED}"
        else:
            others = True
    if others:
        yield f"notes: {NO_EFFECT} (other remarks)"
