"""Rows of measured runs as nouns, and our files of them."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise import InputError
from shardwise.config.plain import as_json
from shardwise.validate.measured.run import Run, RunFault
from shardwise.validate.measured.store import load_runs, pack, read_runs, shipped, unpack

# As the sources print them: torchtitan, SimuMax, Narayanan, Megatron-Bridge.
ROWS = json.loads((Path(__file__).parent / "data" / "measured_rows.json").read_text())
PAGE = Path(__file__).parent.parent / "docs" / "accuracy" / "measured-runs.md"
LEAST = {"id": "a", "model": {"name": "m"}, "hardware": {"accelerator": "H100"}}
PACKED = {"format": "shardwise-measured-runs-1", "group": "g"}
NO_RUNS = (
    "holds no measured runs; allowed: a JSON list or lines of rows with an id, or a packed "
    "file of measured runs"
)
# Rows of each group by grade A, B, C.
COUNTS = {
    "AMD Primus blogs/docs": (0, 0, 14),
    "AWS Trainium": (0, 4, 2),
    "Ascend ModelLink/MindSpeed-LLM README table": (0, 16, 1),
    "AuroraGPT ALCF notes (Intel Max 1550)": (5, 12, 0),
    "BigNLP / NeMo-Megatron launcher A100 tables": (0, 13, 17),
    "BigScience BLOOM topology tuning": (13, 88, 0),
    "FlagPerf (BAAI) training reference results": (11, 6, 0),
    "FlashAttention training README": (0, 4, 0),
    "Google gpu-recipes": (0, 0, 3),
    "Google tpu-recipes logs (Trillium, v5p)": (13, 7, 0),
    "IBM fms-acceleration benchmarks": (41, 51, 0),
    "IBM fms-fsdp": (0, 2, 4),
    "Intel Gaudi 2 page": (0, 0, 7),
    "InternEvo 7B tables": (40, 15, 0),
    "JAX-Toolbox MaxText": (1, 0, 0),
    "JAX-Toolbox Pax GPT": (0, 9, 0),
    "Korthikanti 2022 table 5, fig 1/7": (8, 4, 0),
    "Llama 3 herd table 4": (0, 3, 0),
    "MLPerf Training v4.1/v5.0/v5.1 logs": (14, 97, 50),
    "MT-NLG 530B": (0, 3, 0),
    "MaxText TPU v4/v5e/v5p tables": (31, 4, 0),
    "Megatron-Bridge model verification cards": (11, 2, 70),
    "Megatron-Bridge performance skill ablations": (6, 6, 7),
    "Megatron-Bridge performance summaries 25.09-26.08": (147, 70, 27),
    "Megatron-LM README H100 weak/strong scaling": (0, 16, 0),
    "Megatron-LM functional-test golden values (memory/speed)": (4, 2, 14),
    "MosaicML llm-foundry throughput tables": (141, 29, 0),
    "NVIDIA DGX Cloud Benchmarking recipes v24.11-v25.05": (177, 73, 10),
    "Narayanan 2021 tables 1-2": (0, 20, 0),
    "NeMo 24.07-25.07 performance docs and launcher tables": (28, 43, 0),
    "NeMo AutoModel performance summary": (4, 8, 2),
    "Nemotron-4 340B table": (0, 3, 0),
    "OneFlow DLPerf GPT (V100)": (10, 0, 0),
    "OneFlow LiBai vs Megatron tables": (0, 0, 65),
    "PaddleNLP pretraining table": (3, 3, 0),
    "Published total GPU-hours": (0, 0, 15),
    "Pythia": (6, 1, 0),
    "Qwen README fine-tuning profile": (0, 22, 17),
    "SimuMax measured runs": (30, 0, 0),
    "Single-point papers (PaLM, LLaMA-65B, DeepSeek-V3, GLM-130B, BloombergGPT, BLOOM)": (0, 2, 1),
    "chenyaofo A800 DeepSpeed gist": (0, 0, 3),
    "torchao float8/MX e2e benchmarks": (6, 5, 2),
    "torchtitan benchmarks": (21, 10, 0),
    "torchtune README tables": (1, 5, 4),
    "vTrain multi-node ground truth": (0, 88, 0),
}
fast = examples(60)
words = st.text("ab- @{", max_size=3)
values = st.none() | st.booleans() | st.integers(0, 3) | st.floats(0, 3) | words
parts = st.dictionaries(words, values | st.lists(values, max_size=2), max_size=3)
rows = st.fixed_dictionaries(
    {"id": words, "group": st.sampled_from(["g", "h 1"]), "model": parts, "recompute": st.none()},
    optional={
        "source": parts,
        "features": st.dictionaries(words, values | parts, max_size=2),
        "measured": parts,
        "notes": words,
        "precision": st.none() | words,
    },
)


def _run(**fields):
    return Run.validated({**LEAST, **fields})


def test_all_sources_are_there_by_grade():
    """1,853 runs, as many of each source and grade as were collected, each with its origin."""
    found = Counter((run.group, run.grade) for run in load_runs())
    assert {g: tuple(found[g, grade] for grade in "ABC") for g, _ in found} == COUNTS
    assert len({run.id for run in load_runs()}) == 1853
    assert all(run.source.title and run.source.ref for run in load_runs())


def test_a_file_is_what_its_rows_are_packed_to():
    """Nothing is lost or changed on the way from file to rows and back."""
    files = shipped()
    assert pack(unpack(files)) == files
    assert sum(len(text.encode()) for text in files.values()) < 1.4e6


def test_rows_are_as_their_sources_print_them():
    """Four rows copied from tables and logs, each key and null of them, are in our files."""
    found = {row["id"]: row for row in unpack(shipped())}
    for row in ROWS:
        assert json.dumps(found[row["id"]], sort_keys=True) == json.dumps(row, sort_keys=True)


@fast
@example([{"id": n, "group": "g", "model": {"": 1, " ": None}} for n in "ab"])
@given(st.lists(rows, max_size=5))
def test_packing_loses_nothing(some):
    """Any rows come back with each key, type and null, group by group in their order."""
    packed = pack(some)
    expected = [row for group in ("g", "h 1") for row in some if row["group"] == group]
    found = sorted(unpack(packed), key=lambda row: row["group"])
    assert as_json(found, sort_keys=True) == as_json(expected, sort_keys=True)
    assert pack(unpack(packed)) == packed


def test_what_rows_share_is_written_once():
    """A part of two rows, and what most of a group say, stand in a file once."""
    source = {"title": "a paper", "ref": "arXiv"}
    model = {"name": "m", "layers": 3}
    some = [
        {"id": str(n), "group": "G", "source": source, "model": model, "measured": {"mfu": 0.5}}
        for n in range(3)
    ]
    packed = pack(some)
    assert list(packed) == ["g.json"]
    assert packed["g.json"].count("a paper") == packed["g.json"].count("layers") == 1
    assert packed["g.json"].count("0.5") == 3
    assert json.loads(packed["g.json"])["rows"][2] == {"id": "2", "measured": {"mfu": 0.5}}


def test_runs_that_share_a_part_share_its_noun():
    """So that all are read in a tenth of a second."""
    runs = [run for run in load_runs() if run.group == "SimuMax measured runs"]
    assert len({id(run.hardware) for run in runs}) == len({id(run.source) for run in runs}) == 1
    assert len({id(run.measured) for run in runs}) == 30


def test_a_file_of_ones_own_may_have_any_of_three_forms(tmp_path):
    """A JSON list, lines of JSON, one row, and our own form, gzipped or not, read alike."""
    lines = [json.dumps(row) for row in ROWS[:1]]
    (packed,) = pack(ROWS[:1]).values()
    texts = {"list": json.dumps(ROWS[:1], indent=1), "packed": packed, "line": lines[0]}
    texts["row"] = json.dumps(ROWS[0], indent=1)
    expected = (Run.validated(ROWS[0]),)
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert read_runs(tmp_path / name) == expected
    (tmp_path / "x.gz").write_bytes(gzip.compress(packed.encode()))
    assert read_runs(tmp_path / "x.gz") == expected
    (tmp_path / "lines").write_text("\n\n".join(map(json.dumps, ROWS)) + "\n")
    assert [run.id for run in read_runs(tmp_path / "lines")] == [row["id"] for row in ROWS]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty"),
        ("[{]", "line 1: not JSON: Expecting property name enclosed in double quotes"),
        ('{"id": "a"}\n\n{"id": }', "line 3: not JSON: Expecting value"),
        ('[{"id": "a", "id": "b"}]', "key 'id' is set twice"),
        *(
            (text, NO_RUNS)
            for text in ("[]", "3", '{"m": 1}', '[{"id": "a"}, 2]', '[[{"id": "a"}]]')
        ),
        ('{"format": "x"}', "format: 'x': allowed: shardwise-measured-runs-1"),
        (
            json.dumps({**PACKED, "rows": [{"id": "a", "model": "m"}]}),
            "a: model: 'm': no section of that name in `shared`",
        ),
    ],
)
def test_other_files_are_refused(tmp_path, text, problem):
    """The message names the file and what is allowed."""
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {problem}')}"):
        read_runs(path)


def test_a_file_of_faults_alone_is_not_read_to_its_end(tmp_path):
    """Of lines of faulty rows about 100 faults are found, even if the last line is no JSON."""
    path = tmp_path / "f.jsonl"
    path.write_text('{"id": "a"}\n' * 200 + "{")
    with pytest.raises(InputError) as raised:
        read_runs(path)
    assert 100 <= len(raised.value.faults) < 110
    path.write_text("\n\n" + json.dumps(LEAST) + "\n{\n")
    with pytest.raises(InputError, match="line 4: not JSON"):
        read_runs(path)


def test_each_fault_of_a_file_is_named(tmp_path):
    """File, row, field, value and what is allowed, of every row at once."""
    bad = [
        {**LEAST, "model": {"name": "m", "layers": "32"}},
        {**LEAST, "id": "b", "hardware": {"accelerator": "H100", "count": -8}},
        {**LEAST, "id": "c", "measured": {"step_time_s": True}, "grade": "D", "source": "paper"},
        {**LEAST, "id": "d", "micro_batch": 1.5, "parallelism": {"fsdp_shard": "all", "tp": 2.0}},
        {"id": "e", "features": ["x"]},
    ]
    path = tmp_path / "f.json"
    path.write_text(json.dumps(bad))
    with pytest.raises(InputError) as raised:
        read_runs(path)
    assert str(raised.value).split("\n") == [
        f"{path}: {line}"
        for line in (
            "a: model.layers: '32': must be a whole number",
            "b: hardware.count: -8: must be at least 1",
            "c: grade: 'D': allowed: A, B, C",
            "c: source: 'paper': must be a mapping",
            "c: measured.step_time_s: true: must be a number",
            "d: parallelism.tp: 2.0: must be a whole number",
            "d: parallelism.fsdp_shard: 'all': must be a whole number",
            "d: micro_batch: 1.5: must be a whole number",
            "e: model: is missing and has no default",
            "e: hardware: is missing and has no default",
            "e: features: ['x']: must be a mapping",
        )
    ]


def test_a_wrong_row_is_refused_and_the_others_are_read(tmp_path):
    """Each with all its faults; a second row of one id is wrong."""
    path = tmp_path / "f.json"
    rows = [
        {**LEAST, "id": "g"},
        {**LEAST, "id": "b", "hardware": {"accelerator": "H100", "count": -8}, "grade": "D"},
        {**LEAST, "id": "g"},
    ]
    path.write_text(json.dumps(rows))
    first, wrong, again = read_runs(path)
    assert not isinstance(first, RunFault)
    counts = "hardware.count: -8: must be at least 1"
    assert wrong.fault == f"grade: 'D': allowed: A, B, C; {counts}"
    assert (again.id, again.fault) == ("g", "id: is set twice")


def test_what_a_row_does_not_say_is_none():
    """A row needs a name, a model and an accelerator; keys of its own are kept."""
    run = _run(measured=None, features=None, source=None)
    assert (run.grade, run.micro_batch, run.recompute, run.source.ref) == (None,) * 4
    assert (run.model.hidden, run.hardware.count, run.parallelism.tp) == (None,) * 3
    assert (run.features, run.measured.step_time_s, run.derived.step_time_s) == ({}, None, None)
    assert (run.measured_step_time_s, run.tokens_per_step, run.scale) == (None, None, "unknown")
    own = _run(colour="red", measured={"watts": 3}, parallelism={"hsdp": True})
    assert (own.extra, own.measured.extra) == ({"colour": "red"}, {"watts": 3})
    assert own.parallelism.extra == {"hsdp": True}


def test_numbers_of_spreadsheets_and_settings_are_read():
    """A batch of 4.0 is one of 4; torchtitan's degree may be text, -1 is what is left."""
    run = _run(micro_batch=4.0, parallelism={"fsdp_shard": "-1"})
    assert (run.micro_batch, run.parallelism.fsdp_shard) == (4, -1)
    assert isinstance(run.micro_batch, int)


def test_the_time_of_a_step_is_the_most_exact_there_is():
    """Printed before derived, from TFLOP/s before from rounded tokens, from tokens last."""
    derived = {"step_time_s": 3.0, "step_time_s_from_tflops": 2.0}
    assert _run(measured={"step_time_s": 1.0}, derived=derived).measured_step_time_s == 1.0
    assert _run(derived=derived).measured_step_time_s == 2.0
    assert _run(derived={"step_time_s": 3.0}).measured_step_time_s == 3.0
    hardware = {"accelerator": "H100", "count": 8}
    rate = {"tokens_per_s_per_gpu": 1024}
    model = {"name": "m", "seq_len": 4096}
    run = _run(model=model, hardware=hardware, global_batch=16, measured=rate)
    assert run.tokens_per_step == 65_536
    assert run.measured_step_time_s == 8.0
    assert _run(model=model, global_batch=16, measured=rate).measured_step_time_s is None
    assert sum(run.measured_step_time_s is not None for run in load_runs()) == 1725


@each_row(
    ("text", "kind"),
    [
        ("bf16", "bf16"),
        ("bfloat16", "bf16"),
        ("TE bf16", "bf16"),
        ("bf16 compute, fp32 weights/grads/optimizer", "bf16"),
        ("bf16 autocast + fp32 optimizer", "bf16"),
        ("bf16 autocast ; FSDP MP mode DEFAULT", "bf16"),
        ("fp16 or bf16 (before BF16Optimizer; grads accumulated in 16 bit)", "bf16"),
        ("fp16 mixed", "fp16"),
        ("fp8 (delayed scaling, hybrid, fp8 params)", "fp8"),
        ("float8 tensorwise dynamic (linears) with float8 all-gather", "fp8"),
        ("mxfp8", "mxfp8"),
        ("fp8_mx", "mxfp8"),
        ("nvfp4", "nvfp4"),
        ("FP32", "fp32"),
        ("tf32", "unknown"),
        ("bnb nf4 4-bit base weights, bfloat16 mixed (autocast)", "bf16"),
        ("gptq 4-bit base weights, float16 (pure; weights and state)", "fp16"),
        ("fp8 or nvfp4 (ambiguous)", "unknown"),
        ("parenthesised variant (MXFP8 or BF16: label not visible)", "unknown"),
        (None, "unknown"),
    ],
)
def test_precisions_fall_into_classes(text, kind):
    """By the type of products alone, whatever else the source tells."""
    assert _run(precision=text).precision_class == kind


def test_precisions_of_all_runs():
    """Counted by hand from the sources' own words."""
    found = Counter(run.precision_class for run in load_runs())
    assert found == {
        "bf16": 959, "fp16": 244, "fp8": 394, "mxfp8": 153, "nvfp4": 30, "unknown": 73
    }  # fmt: skip


def test_experts_make_a_run_one_of_a_mixture():
    """By their number, or where it is unpublished by the kind of model."""
    assert _run(model={"name": "m", "experts": 8}).kind == "moe"
    assert _run(model={"name": "m", "arch": "hybrid-mamba2-latentmoe"}).is_moe
    assert _run(model={"name": "m", "experts": 0, "arch": "dense-decoder"}).kind == "dense"
    assert Counter(run.kind for run in load_runs()) == {"dense": 1517, "moe": 336}


def test_scales_have_edges():
    """Classes of the number of accelerators."""
    counts = (1, 8, 9, 63, 64, 255, 256, 1023, 1024, 16384)
    scales = [_run(hardware={"accelerator": "H100", "count": n}).scale for n in counts]
    assert scales == [s for s in ("1-8", "9-63", "64-255", "256-1023", "1024+") for _ in "ab"]


def test_a_run_is_of_a_family_and_a_study():
    """By the words of its row, else by what there is."""
    run = _run(hardware={"accelerator": "H100 94GB", "family": "H100"}, group="g")
    assert (run.accelerator, run.study) == ("H100", "g")
    bare = _run(source={"title": "t"})
    assert (bare.accelerator, bare.study, _run().study) == ("H100", "t", "unknown")


def test_the_example_of_the_page_is_read(tmp_path):
    """The row that docs/accuracy/measured-runs.md shows for runs of one's own."""
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "mine.json").write_text(example)
    (run,) = read_runs(tmp_path / "mine.json")
    assert (run.parallelism.dp, run.measured_memory_gib, run.extra) == (32, 61.0, {})
    parts = (run.model, run.hardware, run.software, run.parallelism, run.measured)
    assert all(part.extra == {} for part in parts)


def test_the_page_lists_every_source_with_its_counts():
    """Rows of the table of docs/accuracy/measured-runs.md, those of most runs first."""
    row = re.compile(r"^\| (.+?) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", re.MULTILINE)
    found = row.findall(PAGE.read_text())
    assert {name: tuple(map(int, counts)) for name, _, *counts in found} == COUNTS
    totals = [int(total) for _, total, *_ in found]
    assert totals == sorted((sum(counts) for counts in COUNTS.values()), reverse=True)
    assert totals == [sum(COUNTS[name]) for name, *_ in found]
