"""Published rows, and the files that hold them."""

import gzip
import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from profiles import examples
from published_rows.packed import load_rows, pack, read_rows, row_files, unpack
from published_rows.row import Run, RunFault
from rows import each_row
from shardwise import InputError
from shardwise.config.plain import as_json

# As the sources print them: torchtitan, SimuMax, Narayanan, Megatron-Bridge.
ROWS = json.loads((Path(__file__).parent / "measured_rows.json").read_text())
LEAST = {"id": "a", "model": {"name": "m"}, "hardware": {"accelerator": "H100"}}
PACKED = {"format": "shardwise-measured-runs-1", "group": "g"}
NO_RUNS = (
    "holds no measured runs; allowed: a JSON list or lines of rows with an id, or a packed "
    "file of measured runs"
)
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


def test_a_file_is_what_its_rows_are_packed_to():
    """Nothing is lost or changed on the way from file to rows and back."""
    files = row_files()
    assert pack(unpack(files)) == files
    assert sum(len(text.encode()) for text in files.values()) < 1.4e6


def test_rows_are_as_their_sources_print_them():
    """Four rows copied from tables and logs, each key and null of them, are in our files."""
    found = {row["id"]: row for row in unpack(row_files())}
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
    runs = [run for run in load_rows() if run.group == "SimuMax measured runs"]
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
        assert read_rows(tmp_path / name) == expected
    (tmp_path / "x.gz").write_bytes(gzip.compress(packed.encode()))
    assert read_rows(tmp_path / "x.gz") == expected
    (tmp_path / "lines").write_text("\n\n".join(map(json.dumps, ROWS)) + "\n")
    assert [run.id for run in read_rows(tmp_path / "lines")] == [row["id"] for row in ROWS]


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
        read_rows(path)


def test_a_file_of_faults_alone_is_not_read_to_its_end(tmp_path):
    """Of lines of faulty rows about 100 faults are found, even if the last line is no JSON."""
    path = tmp_path / "f.jsonl"
    path.write_text('{"id": "a"}\n' * 200 + "{")
    with pytest.raises(InputError) as raised:
        read_rows(path)
    assert 100 <= len(raised.value.faults) < 110
    path.write_text("\n\n" + json.dumps(LEAST) + "\n{\n")
    with pytest.raises(InputError, match="line 4: not JSON"):
        read_rows(path)


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
        read_rows(path)
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
    first, wrong, again = read_rows(path)
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
    assert (run.measured_step_time_s, run.tokens_per_step) == (None, None)
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
    assert sum(run.measured_step_time_s is not None for run in load_rows()) == 1739


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
    """By the type of products alone, whatever else the source says."""
    assert _run(precision=text).precision_class == kind


def test_experts_make_a_run_one_of_a_mixture():
    """By their number, or where it is unpublished by the kind of model."""
    assert _run(model={"name": "m", "experts": 8}).kind == "moe"
    assert _run(model={"name": "m", "arch": "hybrid-mamba2-latentmoe"}).is_moe
    assert _run(model={"name": "m", "experts": 0, "arch": "dense-decoder"}).kind == "dense"


def test_a_run_is_of_a_family_and_a_study():
    """By the words of its row, else by what there is."""
    run = _run(hardware={"accelerator": "H100 94GB", "family": "H100"}, group="g")
    assert (run.accelerator, run.study) == ("H100", "g")
    bare = _run(source={"title": "t"})
    assert (bare.accelerator, bare.study, _run().study) == ("H100", "t", "unknown")
