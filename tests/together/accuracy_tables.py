"""The tables of docs/accuracy, from predictions of all shipped runs."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log10

import numpy as np

import interval_tables
from catalog_fit.fit import load_parameters
from page_tables import share, signed, table
from shardwise import catalog
from shardwise.analysis.prediction_interval import (
    distinguishable_ratio,
    error_levels,
    left_out_sizes,
)
from shardwise.analysis.validated_runs import validated_runs
from shardwise.config.stack import Stack
from shardwise.config.system import System
from shardwise.predecessors.validate.references import references
from shardwise.validate import validate
from shardwise.validate.calibrate.from_runs import level_of
from shardwise.validate.measured.predict import Prediction
from shardwise.validate.measured.scoreboard import RunScore, ScoredRun, scoreboard
from shardwise.validate.measured.statistics import left_out_errors, summary

HEADS = ("n", "mean size", "median", "9 of 10 below", "bias", "skill", "in interval")
MAKERS = {
    "NVIDIA": r"^(A100|A800|H100|H200|H800|B200|B300|GB200|GB300|V100)",
    "Google TPU": "^TPU",
    "AMD": "^MI",
    "Intel Gaudi": "^Gaudi",
    "AWS Trainium": "^Trainium",
}
NAMES = {"calculon": "Calculon", "nersc": "NERSC's model", "amped": "AMPeD",
         "simumax": "SimuMax, B200", "simumax-a100": "SimuMax, A100"}  # fmt: skip
FAR = 0.15
DRAWS = 20
LEAST_OTHERS = 3


@dataclass(frozen=True)
class Cause:
    """Rows that something is wrong with, or that the model lacks something for."""

    rows: str
    """What their ids match."""
    what: str
    why: str
    known: bool
    """Whether it was verified; else it is supposed."""


CAUSES = (
    Cause("narayanan21-t2-zero3", "DeepSpeed's ZeRO-3 of 2021", "768 and 1,536 GPUs take "
          "equally long for the same batch: communication at a small part of the network's rate",
          known=True),
    Cause(r"mbridge-26.06.01-gpt-oss-120b-GB.00-FP8_MX", "Megatron-Bridge 26.06.01, GPT-OSS in "
          "mxfp8", "1.6 times slower than the same configuration in 26.06 and 26.08", known=True),
    Cause(r"mbridge-26.02.*qwen3-235b-a22b-B300-FP8_MX", "Megatron-Bridge 26.02, Qwen3-235B on "
          "B300", "1.8 times slower than release 26.04 with larger micro-batches", known=True),
    Cause(r"mbridge-25.11-qwen3-30b-a3b-B200-FP8_MX", "Megatron-Bridge 25.11, Qwen3-30B on B200",
          "two to three times slower than the releases before and after", known=True),
    Cause(r"mbridge-(25.11|26.02)-qwen3-30b-a3b-H100", "Megatron-Bridge 25.11 and 26.02, "
          "Qwen3-30B on H100", "26.02 is 1.7 times slower than 26.04 without a pipeline",
          known=True),
    Cause(r"mbridge-25.(09|11)-qwen3-235b.*GB[23]00", "Megatron-Bridge 25.09 and 25.11, Qwen3-235B "
          "on NVL72", "the rows do not name dispatcher and graphs; neighbors in the same release "
          "use HybridEP and partial graphs", known=False),
    Cause(r"gpt-oss-120b", "GPT-OSS with Megatron-Bridge and AutoModel", "attention sinks and "
          "clamped activations run in kernels that are not modeled; AutoModel does not publish "
          "how experts are spread", known=False),
    Cause(r"mbridge-26.*qwen3-235b", "Megatron-Bridge 26, Qwen3-235B", "uneven stages: 94 layers "
          "on 8 stages, whose layout is not published", known=False),
    Cause(r"mbskill-qwen30b-epoverlap-off", "Megatron-Bridge, Qwen3-30B without overlap of "
          "experts", "time of the host", known=False),
    Cause("automodel-(deepseek|qwen3|nemotron)", "AutoModel with recomputed experts", "its "
          "balanced gate sends a token to experts in a row, on fewer ranks than random routing "
          "reaches", known=True),
    Cause("float8-rowwise|torchao-llama3-8b-H100-2", "torchtitan and torchao, rows scaled one by "
          "one in fp8", "its kernel was slower than bf16", known=True),
    Cause("torchao-llama3-8b-B200", "torchao on B200", "the accelerators are power limited; the "
          "limit is not published", known=True),
    Cause("torchao-llama3-8b-H100", "torchao on H100", "probably 500 W, as torchtitan's H100, with "
          "which the errors are -2 and -1 %", known=False),
    Cause("torchao-llama3-8b-MI300X", "torchao on MI300X", "products of PyTorch are not tuned as "
          "those of the submissions to MLPerf that the figures were fitted to", known=False),
    Cause("torchtitan-asynctp-8b-float8-tensorwise", "torchtitan, asynchronous tensor parallelism "
          "in fp8", "casts and scales of small products", known=False),
    Cause("mcore-func-gpt3_7b.*gb200", "Megatron-LM's functional tests on GB200",
          "deterministic kernels without fused accumulation of gradients", known=True),
    Cause("mosaic-a100_40gb-70b-s2048-64g-mb2|mosaic-.*30b-s8192-8g-mb1", "MosaicML at the limit "
          "of memory", "the allocator tries again and gathers wait", known=False),
    Cause("mosaic-.*760m", "MosaicML, 760M with short sequences", "time of the host and of the "
          "data loader", known=False),
    Cause("aurora-42b", "AuroraGPT 42B", "widths of 8,160 and 4,778 do not fill tiles, which the "
          "formula of products does not charge", known=False),
    Cause("aurora-70b-z3hpz", "AuroraGPT 70B with ZeRO 3", "secondary shards of weights (ZeRO++) "
          "are not modeled", known=True),
    Cause("aurora-small", "AuroraGPT, small models", "time of the host on tiles", known=False),
    Cause(r"dlperf-oneflow-2D_\dx8x1", "OneFlow, tensor parallelism with replicas over nodes",
          "its collectives do not overlap", known=False),
    Cause("fmsacc-base-santacoder", "SantaCoder on two GPUs", "hooks of FSDP take about 10 ms of "
          "the host per layer", known=False),
    Cause("fmsacc-base-mixtral", "Mixtral with adapters in transformers", "experts run one by one "
          "in Python", known=False),
    Cause("bloom-tune-0(0|1)", "BLOOM with hidden size 14,400", "the number of layers was "
          "inferred; nothing overlaps in some of these runs", known=False),
    Cause("bloom-tune", "other topologies of BLOOM", "settings of the cluster changed between "
          "tables (PCIe and NUMA), and communication of the early ones is slower", known=False),
    Cause("vtrain", "vTrain", "network and recompute are its defaults, not "
          "published", known=False),
    Cause("dgxc.*grok", "Grok-1", "capacity of experts is not published", known=False),
    Cause("(dgxc|nemo).*lora|(dgxc|nemo).*sft|mlperf.*lora", "LoRA and SFT of NeMo and MLPerf",
          "packed documents are shorter than assumed; adapters are in qkv alone", known=False),
    Cause("(dgxc|nemo).*llama-?4|nemo-.*mixtral", "Llama 4 and Mixtral of NeMo", "dispatcher and "
          "balance of experts are not published", known=False),
    Cause("nemo-24.03.01-llama2-7b", "NeMo, 32,768 to a million tokens", "recompute is not stated "
          "for long sequences", known=False),
    Cause("neuron-trn1", "Trainium", "two rows contradict their own node count", known=True),
    Cause("tpu-recipes|maxtext-v5", "TPU", "offload and rematerialization of XLA are modeled in "
          "outline only", known=False),
)  # fmt: skip


def blocks(predictions: Sequence[Prediction], typed: Sequence[Prediction]) -> dict[str, str]:
    """Text of every block of the page, by name, in order."""
    board = scoreboard(predictions, references=references(predictions))
    unseen = left_out_errors(predictions)
    return {
        "headline": _headline(predictions, board),
        "paths": _paths(board.rows, scoreboard(typed).rows),
        "paths_by_source": _paths_by_source(board.rows, scoreboard(typed).rows),
        "by_source": interval_tables.by_source(),
        "coverage_by_source": interval_tables.coverage_by_source(),
        "accelerators_out": interval_tables.accelerators_out(),
        "sources": _groups(board.rows, "source"),
        "accelerators": _groups(board.rows, "accelerator"),
        "kinds": _kinds(board),
        "order": _order(predictions),
        "weak": _weak(board.rows),
        "causes": _causes(board.rows),
        "predecessors": _predecessors(board),
        "memory": _memory(board, predictions),
        "memory_short": _memory_short(board),
        "memory_interval": interval_tables.memory_interval(),
        "intervals": interval_tables.intervals(board),
        "levels": interval_tables.levels(),
        "coverage": interval_tables.coverage(),
        "calibration": _calibration(predictions, unseen),
        "parameters": _parameters(),
        "simumax": _simumax(),
        "seqsel": _seqsel(),
        "collectives": _collectives(),
        "collectives_by_gpus": _collectives_by_gpus(),
    }


def _headline(predictions: Sequence[Prediction], board) -> str:
    rows = []
    for name, score in board.left_out.items():
        rows.append((f"grade A, NVIDIA, **own source left out**: {name}", *_cells(score)))

    def add(name: str, some: Sequence[Prediction]) -> None:
        score = scoreboard(some, among=predictions).overall
        if score.errors.n:
            rows.append((name, *_cells(score)))

    for grade, told in (("A", "all sources in the fit"), ("B", "in no fit")):
        some = [one for one in predictions if one.run.grade == grade and _maker(one) == "NVIDIA"]
        for kind in ("all", "dense", "moe"):
            of_kind = [one for one in some if kind in ("all", one.run.kind)]
            add(f"grade {grade}, NVIDIA, {told}: {kind}", of_kind)
    for maker in list(MAKERS)[1:]:
        good = [one for one in predictions if one.run.grade in ("A", "B")]
        add(f"grades A and B, {maker}", [one for one in good if _maker(one) == maker])
    add("grade C, all", [one for one in predictions if one.run.grade == "C"])
    return table(("runs", *HEADS), rows)


def _paths(rows: Sequence[ScoredRun], typed: Sequence[ScoredRun]) -> str:
    """Both paths by grade: each run once, and each source once."""
    lines = []
    for name, some in (("as typed", typed), ("tuned by hand", rows)):
        for grade in ("A", "B"):
            good = [row for row in _good(some) if row.grade == grade]
            score = summary(np.array([row.error for row in good]))
            inside = float(np.mean([_inside(row) for row in good]))
            sources = list(_by_source(good).values())
            sizes = float(np.mean([summary(np.array([r.error for r in s])).mape for s in sources]))
            held = float(np.mean([np.mean([_inside(row) for row in s]) for s in sources]))
            cells = (str(score.n), share(score.mape), signed(score.bias), share(inside))
            lines.append((name, grade, *cells, str(len(sources)), share(sizes), share(held)))
    heads = ("n", "mean size", "bias", "in interval", "sources", "mean of sources", "in interval")
    return table(("software", "grade", *heads), lines)


def _paths_by_source(rows: Sequence[ScoredRun], typed: Sequence[ScoredRun]) -> str:
    """Both paths by source and grade, those of most runs first."""
    tuned, plain = (_by_source(_good(some)) for some in (rows, typed))
    lines = []
    for key, some in sorted(plain.items(), key=lambda item: (-len(item[1]), item[0])):
        cells: list[str] = []
        for of_path in (some, tuned[key]):
            score = summary(np.array([row.error for row in of_path]))
            inside = float(np.mean([_inside(row) for row in of_path]))
            cells += [share(score.mape), signed(score.bias), share(inside)]
        lines.append((*key, str(len(some)), *cells))
    heads = (
        "as typed: mean size",
        "bias",
        "in interval",
        "tuned: mean size",
        "bias",
        "in interval",
    )
    return table(("source", "grade", "n", *heads), lines)


def _by_source(rows: Sequence[ScoredRun]) -> dict[tuple[str, str], list[ScoredRun]]:
    """Runs with an interval, by source and grade."""
    found: dict[tuple[str, str], list[ScoredRun]] = {}
    for row in rows:
        if row.interval is not None:
            found.setdefault((row.source, row.grade), []).append(row)
    return found


def _maker(one: Prediction) -> str:
    return next((m for m, p in MAKERS.items() if re.search(p, one.run.accelerator)), "other")


def _groups(rows: Sequence[ScoredRun], by: str) -> str:
    """Grades A and B apart, those of most runs first."""
    known = validated_runs()
    unseen = _unseen()
    sizes = left_out_sizes(known)
    inside_left_out = (-sizes.slower <= known.errors) & (known.errors <= sizes.faster)
    covered = dict(zip(known.ids, inside_left_out.tolist(), strict=True))
    groups: dict[tuple[str, str], list[ScoredRun]] = {}
    for row in _good(rows):
        groups.setdefault((getattr(row, by), row.grade), []).append(row)
    total = {name: sum(len(s) for (n, _), s in groups.items() if n == name) for name, _ in groups}
    lines = []
    for (name, grade), some in sorted(groups.items(), key=lambda g: (-total[g[0][0]], g[0])):
        score = summary(np.array([row.error for row in some]))
        left = summary(np.array([unseen[row.id] for row in some if row.id in unseen]))
        inside = [_inside(row) for row in some if row.interval is not None]
        held = [covered[row.id] for row in some if row.id in covered]
        cells = (share(left.mape), share(float(np.mean(held)) if held else np.nan))
        more = (share(score.mape), share(score.median_ape), share(score.p90), signed(score.bias))
        lines.append((name, grade, str(score.n), *cells, *more, share(float(np.mean(inside)))))
    heads = (by, "grade", "n", "left out: mean size", "in interval", "bundled: mean size",
             *HEADS[2:5], HEADS[-1])  # fmt: skip
    return table(heads, lines, left=2)


def _unseen() -> dict[str, float]:
    """Errors of validated runs with their source left out of the fit."""
    known = validated_runs()
    return dict(zip(known.ids, np.expm1(known.errors).tolist(), strict=True))


def _inside(row: ScoredRun) -> bool:
    low, high = row.interval
    return low <= row.measured_step_time_s <= high


def _kinds(board) -> str:
    rows = []
    for by in ("grade", "scale", "precision"):
        for name, score in board.groups[by].items():
            if score.errors.n:
                rows.append((f"{by} {name}", *_cells(score)))
    return table(("runs", *HEADS), rows)


def _order(predictions: Sequence[Prediction]) -> str:
    lines = []
    for grade in ("A", "B"):
        told = scoreboard([one for one in predictions if one.run.grade == grade]).ranking
        cells = (f"{told.pairs:,}", share(told.in_order), str(told.studies), f"{told.tau:.2f}")
        lost = (str(told.choices), share(told.regret), share(told.most_regret))
        lines.append((f"grade {grade}", *cells, *lost))
    heads = ("runs", "pairs", "in order", "studies", "Kendall's tau", "choices", "regret", "most")
    least = share(distinguishable_ratio() - 1)
    apart = f"Measurements can separate two plans whose predictions differ by {least} or more."
    return table(heads, lines) + "\n\n" + apart


def _good(rows: Sequence[ScoredRun]) -> list[ScoredRun]:
    return [row for row in rows if row.error is not None and row.grade in ("A", "B")]


def _weak(rows: Sequence[ScoredRun]) -> str:
    """Sources that are far off in the mean, with their own runs left out of the fit."""
    unseen = _unseen()
    groups: dict[tuple[str, str], list[float]] = {}
    for row in _good(rows):
        groups.setdefault((row.source, row.grade), []).append(unseen.get(row.id, row.error))
    scores = {key: summary(np.array(errors)) for key, errors in groups.items()}
    ordered = sorted(scores.items(), key=lambda item: -item[1].mape)
    lines = [
        (*key, str(score.n), share(score.mape), signed(score.bias))
        for key, score in ordered
        if score.mape >= FAR
    ]
    return table(("source", "grade", "n", "mean size", "bias"), lines, left=2)


def _causes(rows: Sequence[ScoredRun]) -> str:
    """Every run of grades A and B with a large error, by its cause or else its source."""
    groups: dict[tuple[str, str, str], list[ScoredRun]] = {}
    for row in _far(rows):
        groups.setdefault(_cause(row), []).append(row)
    lines = []
    for (what, why, known), some in groups.items():
        errors = np.array([row.error for row in some])
        worst = max(errors, key=abs)
        cells = (str(len(some)), signed(float(errors.mean())), signed(float(worst)))
        lines.append((-len(some), (what, why, known, *cells)))
    ordered = [line for _, line in sorted(lines)]
    heads = ("runs", "cause", "known or supposed", "n", "mean error", "worst")
    return table(heads, ordered, left=3)


def _far(rows: Sequence[ScoredRun]) -> list[ScoredRun]:
    return [row for row in _good(rows) if abs(row.error) >= FAR]


def _cause(row: ScoredRun) -> tuple[str, str, str]:
    for cause in CAUSES:
        if re.search(cause.rows, row.id):
            return cause.what, cause.why, "known" if cause.known else "supposed"
    return "others", "not known", "-"


def _predecessors(board) -> str:
    lines = []
    for name, score in board.references.items():
        theirs, ours = score.theirs, score.ours
        cells = (share(theirs.mape), share(theirs.median_ape), signed(theirs.bias))
        mine = (share(ours.mape), share(ours.median_ape), signed(ours.bias))
        lines.append((NAMES.get(name, name), str(theirs.n), str(score.refused), *cells, *mine))
    heads = ("predecessor", "n", "refused", "mean size", "median", "bias", "ours: mean size",
             "median", "bias")  # fmt: skip
    return table(heads, lines)


def _memory(board, predictions: Sequence[Prediction]) -> str:
    """By the metric of each source."""
    metrics: dict[str, str] = {"all": ""}
    for one in predictions:
        if one.run.measured_memory_gib is not None:
            found = metrics.setdefault(one.run.source, "")
            metric = one.run.measured.memory_metric
            if metric not in found:
                metrics[one.run.source] = f"{found}, {metric}".removeprefix(", ")
    groups = {"all": board.overall, **board.groups["source"]}
    lines = [
        (name, metrics[name], str(m.n), share(m.mape), share(m.median_ape), share(m.p90),
         signed(m.bias))
        for name, score in groups.items()
        if (m := score.memory).n
    ]  # fmt: skip
    heads = ("source", "metric", "n", "mean size", "median", "9 of 10 below", "bias")
    return table(heads, lines, left=2)


def _memory_short(board) -> str:
    memory = board.overall.memory
    return (
        f"Peak memory of {memory.n} runs is {share(memory.mape)} off on average (median "
        f"{share(memory.median_ape)}). How far off\n"
        "it is in 8 of 10 cases depends on what is known:"
    )


def _calibration(predictions: Sequence[Prediction], unseen: dict[str, float]) -> str:
    """Errors of the other runs of a study before and after some of it were taken for its level."""
    studies: dict[tuple[str, str, str], list[float]] = {}
    for one in predictions:
        if one.run.id in unseen:
            key = one.run.source, one.run.accelerator, one.run.kind
            studies.setdefault(key, []).append(np.log1p(unseen[one.run.id]))
    random, spread = np.random.default_rng(0), error_levels()
    lines = []
    for count in (1, 3, 5):
        told = []
        for errors in map(np.array, studies.values()):
            for _ in range(DRAWS if errors.size >= count + LEAST_OTHERS else 0):
                drawn = random.permutation(errors.size)
                some, others = errors[drawn[:count]], errors[drawn[count:]]
                shifts = [0.0, some.mean()]
                if count > 1:
                    found = level_of(some, prior=spread.between, scatter=spread.within)
                    shifts.append(found.expected)
                told.append([errors.size, *(np.abs(np.expm1(others - s)).mean() for s in shifts)])
        columns = np.array(told).T
        means = [float(np.average(column, weights=columns[0])) for column in columns[1:]]
        cells = [share(mean) for mean in means] + ["refused"] * (4 - len(columns))
        lines.append((str(count), str(len(told) // DRAWS), *cells))
    heads = ("runs drawn", "studies", "as predicted", "less their mean", "by `calibrate`")
    return table(heads, lines)


def _parameters() -> str:
    """Every number that the runs decide, as it was before and as it is."""
    lines = []
    for parameter in load_parameters():
        now = list(_figures(parameter))
        values = [value for _, value in now]
        before = [_back(parameter, value) for value in values]
        sd = parameter.moved / parameter.spread
        cells = (_range(before), f"{_scale(parameter, parameter.spread)}", _range(values),
                 _scale(parameter, parameter.moved, signed=True), f"{sd:+.1f}")  # fmt: skip
        lines.append((parameter.name, *cells))
    return table(("parameter", "without it", "known to", "now", "moved", "in deviations"), lines)


def _scale(parameter, offset: float, *, signed: bool = False) -> str:
    """How far that is: of the figure, or of the odds of a share."""
    percent = 100 * (exp(offset) - 1)
    text = f"{percent:+.0f} %" if signed else f"{percent:.0f} %"
    return text + (" of odds" if parameter.scale == "logit" else "")


def _back(parameter, value: float) -> float:
    if parameter.scale == "log":
        return value * exp(-parameter.moved)
    if not 0 < value < 1:
        return value
    return 1 / (1 + (1 / value - 1) * exp(parameter.moved))


def _figures(parameter) -> Iterator[tuple[str, float]]:
    """Numbers that it moves, of all entries of the catalog."""
    noun = {"systems": System, "stacks": Stack}[parameter.of]
    for name in parameter.names:
        if name not in catalog.names(parameter.of):
            continue
        values = noun.load(name).to_dict()
        for field in parameter.fields:
            for value in _at(values, field.split(".")):
                if value:
                    yield name, float(value)


def _at(values, parts) -> Iterator[float]:
    if not parts:
        if isinstance(values, dict):
            for one in values.values():
                yield from _at(one, [])
        elif values is not None:
            yield values
        return
    head, *rest = parts
    if isinstance(values, list):
        if int(head) < len(values):
            yield from _at(values[int(head)], rest)
    elif isinstance(values, dict):
        for key in values if head == "*" else [head]:
            if key in values:
                yield from _at(values[key], rest)


def _range(values: Sequence[float]) -> str:
    told = list(dict.fromkeys(_number(value) for value in sorted(values)))
    if not told:
        return "-"
    return told[0] if len(told) == 1 else f"{told[0]} to {told[-1]}"


def _number(value: float) -> str:
    if value and not -3 < log10(abs(value)) < 4:
        return f"{value:.2e}"
    return f"{value:.3g}"


def _simumax() -> str:
    lines = []
    for part in validate("simumax").parts:
        ours, theirs = part.ours, part.theirs
        cells = (share(ours.mape), share(ours.max), signed(ours.bias))
        beside = ("-", "-") if theirs is None else (share(theirs.mape), signed(theirs.bias))
        lines.append((part.title, str(ours.n), *cells, *beside))
    heads = ("part", "n", "mean size", "largest", "bias", "SimuMax: mean size", "bias")
    return table(heads, lines)


def _seqsel() -> str:
    lines = []
    for part in validate("seqsel").parts:
        ours, theirs = part.ours, part.theirs
        cells = (part.kind, str(ours.n), share(ours.mape), share(ours.max), signed(ours.bias))
        other = ("-", "-", "-")
        if theirs is not None:
            other = (share(theirs.mape), share(theirs.max), signed(theirs.bias))
        lines.append((part.title, *cells, *other))
    heads = ("part", "against", "n", "mean size", "largest", "bias",
             "Calculon: mean size", "largest", "bias")  # fmt: skip
    return table(heads, lines, left=2)


def _collectives() -> str:
    lines = []
    for part in validate("nersc-collectives").parts:
        s = part.ours
        sizes = map(share, (s.median_ape, s.mape, s.p90))
        lines.append((part.name.replace("_", " "), str(s.n), signed(s.median), *sizes))
    heads = ("part", "n", "median with sign", "median", "mean size", "9 of 10 below")
    return table(heads, lines)


def _collectives_by_gpus() -> str:
    lines = []
    for part in validate("nersc-collectives").parts[1::3]:
        scores = [part.groups[f"{gpus} per node"] for gpus in (1, 2, 4)]
        cells = (f"{signed(score.median)} / {share(score.median_ape)}" for score in scores)
        lines.append((part.name.replace("_", " "), *cells))
    return table(("part", "1 GPU", "2 GPUs", "4 GPUs"), lines)


def _cells(score: RunScore) -> tuple[str, ...]:
    errors = score.errors
    sizes = (errors.mape, errors.median_ape, errors.p90)
    rest = (signed(errors.bias), share(score.skill), share(score.coverage))
    return (f"{errors.n:,}", *map(share, sizes), *rest)
