"""Published figures beside ours and Calculon's; the output says which are formulas."""

import json

import pytest

from shardwise import InputError
from shardwise.config.model import Model
from shardwise.predecessors.validate.seqsel import Published
from shardwise.validate import COLLECTIONS, SUITES, validate
from shardwise.validate.scores import Score

GIB = 2**30
PARTS = ["fig1_state", "fig1_activations", "fig7_activations", "tab4_layer", "tab5_step_time"]


@pytest.fixture(scope="module")
def parts():
    """The parts of the suite by name."""
    return {part.name: part for part in validate("seqsel").parts}


def _paper_bytes(name, mode):
    """Activations of the first stage after section 4 of arXiv 2205.05198, worked out here."""
    model, layout = Model.load(name), Published.load("seqsel").models[name]
    a, h, s, t = model.layers[0].attention.heads, model.hidden, 2048, layout.tp
    sbh = s * layout.micro_batch_size * h
    per_layer = {
        "none": sbh * (10 + 24 / t + 5 * a * s / (h * t)),
        "seq": sbh / t * (34 + 5 * a * s / h),
        "sel": sbh * (10 + 24 / t),
        "seqsel": sbh * 34 / t,
        "full": 2 * sbh,
    }
    p, v = layout.pp, layout.vpp
    return per_layer[mode] * model.depth * (1 + (p - 1) / (p * v) if v > 1 else 1)


def test_parameters_and_optimizer_are_within_1_percent_of_figure_1(parts):
    """Ours holds biases and norms beside the matrices of the formula: a little more, never less."""
    errors = [row.ours_error for row in parts["fig1_state"].rows]
    assert len(errors) == 4
    assert all(0 < error < 0.01 for error in errors)


@pytest.mark.parametrize("part", ["fig1_activations", "fig7_activations"])
def test_activations_are_within_3_percent_of_the_formulas(parts, part):
    """Every case of both figures."""
    assert parts[part].ours.max < 0.03


def test_activations_are_those_of_the_papers_formulas(parts):
    """Our operations keep to the byte what section 4 of the paper counts."""
    for row in parts["fig1_activations"].rows:
        assert row.ours * GIB == pytest.approx(_paper_bytes(*row.case.split()), rel=1e-12)
    for row in parts["fig7_activations"].rows:
        name, mode = row.case.split()
        share = _paper_bytes(name, mode) / _paper_bytes(name, "none")
        assert row.ours == pytest.approx(100 * share, rel=1e-12)


def test_the_references_of_both_figures_are_formulas(parts):
    """Figure 1 equals the closed forms, figure 7 is within 0.14 points of them."""
    for row in parts["fig1_state"].rows:
        model, layout = Model.load(row.case), Published.load("seqsel").models[row.case]
        parameters = 12 * model.depth * model.hidden**2 / (layout.tp * layout.pp)
        assert row.reference * GIB == pytest.approx(18 * parameters, rel=1e-12)
    for row in parts["fig1_activations"].rows:
        assert row.reference * GIB == pytest.approx(_paper_bytes(*row.case.split()), rel=1e-12)
    for row in parts["fig7_activations"].rows:
        name, mode = row.case.split()
        share = 100 * _paper_bytes(name, mode) / _paper_bytes(name, "none")
        assert abs(row.reference - share) < 0.14


def test_step_times_are_within_8_percent_of_table_5(parts):
    """All eight runs on average, and none far off."""
    assert len(parts["tab5_step_time"].rows) == 8
    assert parts["tab5_step_time"].ours.mape <= 0.08
    assert parts["tab5_step_time"].ours.max < 0.15


def test_passes_of_a_layer_are_within_15_percent_of_table_4(parts):
    """Both passes in five modes; what is run again lies in the backward pass."""
    found = {row.case: row.ours for row in parts["tab4_layer"].rows}
    assert len(found) == 10
    assert parts["tab4_layer"].ours.max < 0.15
    assert found["none forward"] == found["full forward"] == found["sel forward"]
    again = found["full backward"] - found["none backward"]
    assert again == pytest.approx(found["full forward"], rel=1e-3)
    assert 0 < found["sel backward"] - found["none backward"] < again
    assert parts["tab4_layer"].theirs is None


@pytest.mark.parametrize(
    ("part", "count", "mean", "largest"),
    [
        ("fig1_state", 4, 8.49, 10.84),
        ("fig1_activations", 8, 2.08, 8.74),
        ("fig7_activations", 16, 8.36, 30.41),
        ("tab5_step_time", 8, 3.65, 8.87),
    ],
)
def test_calculon_has_the_errors_that_it_prints(parts, part, count, mean, largest):
    """As Calculon 0.1.0's own llm-validation, in percent; figure 7 without its column of 100 %."""
    score = parts[part].theirs
    assert score.n == count
    assert 100 * score.mape == pytest.approx(mean, abs=0.01)
    assert 100 * score.max == pytest.approx(largest, abs=0.01)


def test_calculons_step_times_are_its_own(parts):
    """Seconds that Calculon 0.1.0 prints for table 5."""
    expected = [1.39560, 1.13667, 18.0288, 13.6381, 49.8926, 34.4728, 90.0809, 66.0407]
    found = [row.theirs for row in parts["tab5_step_time"].rows]
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_score_is_of_signed_errors():
    """+1 % and -3 %: mean size 2 %, largest 3 %, bias -1 %."""
    score = Score.of([0.01, -0.03])
    assert (score.n, score.max) == (2, 0.03)
    assert (score.mape, score.bias) == pytest.approx((0.02, -0.01))


def test_every_figure_has_a_source():
    """Figures 1 and 7 are published, table 5 is measured; each names the paper."""
    published = Published.load("seqsel")
    for field in ("figure_1_state_gib", "figure_1_activations_gib", "figure_7_percent"):
        assert published.sources[field].kind == "published"
        assert "arXiv 2205.05198, figure" in published.source_text(field)
    assert published.sources["table_5_s"].kind == "measured"
    assert published.source_text("models.megatron-22b.tp").startswith("arXiv 2205.05198")


def test_the_tables_say_what_is_formula_and_what_was_measured(shardwise):
    """Which references are formulas, what was tuned or fitted to what, and what is left out."""
    summary = shardwise("validate", "seqsel")[1]
    assert "all 16" in " ".join(summary.split())
    assert "gpt3-175b full" not in summary
    code, out, err = shardwise("validate", "seqsel", "--rows")
    assert (code, err) == (0, "")
    told = " ".join(out.split())
    assert told.count("formula: the paper's own, not a measurement") == 2
    assert "formula: a chart of the paper's own formulas, within 0.14 points of them, not a" in told
    assert "measured: 8 runs on NVIDIA A100" in told
    assert "so read them as tuned to it" in told
    assert "a fit to 729 published runs that these 8 are among" in told
    assert "None was set for these 8" in told
    assert "Embedding and head are left out" in told
    assert "mask of the embedding's dropout is left out" in told
    assert "gpt3-175b full 18.13" in told
    assert all(part in out for part in PARTS)
    assert max(map(len, out.splitlines())) <= 100


def test_json_has_rows_and_a_summary(shardwise, tmp_path):
    """The record is in the file alone; errors are predicted over reference, minus one."""
    path = tmp_path / "scores.json"
    code, out, _ = shardwise("validate", "seqsel", "--json", "--output", path)
    assert (code, out) == (0, "")
    record = json.loads(path.read_text())
    assert list(record["summary"]) == PARTS
    assert len(record["rows"]) == 46
    assert len({row["id"] for row in record["rows"]}) == 46
    for row in record["rows"]:
        timed = {"measured_step_time_s", "predicted_step_time_s"}
        assert timed & set(row) == (timed if row["part"] == "tab5_step_time" else set())
        assert set(row) - timed == {
            "id",
            "error",
            "part",
            "case",
            "unit",
            "kind",
            "reference",
            "ours",
            "ours_error",
            "calculon",
            "calculon_error",
        }
        assert row["ours_error"] == pytest.approx(row["ours"] / row["reference"] - 1)
        assert row["error"] == row["ours_error"]
        if row["part"] == "tab5_step_time":
            times = (row["measured_step_time_s"], row["predicted_step_time_s"])
            assert times == (row["reference"], row["ours"])
        assert row["kind"] == ("measured" if row["part"].startswith("tab") else "formula")
        if row["part"] == "tab4_layer":
            assert row["calculon"] is row["calculon_error"] is None
        else:
            error = row["calculon"] / row["reference"] - 1
            assert row["calculon_error"] == pytest.approx(error)
    assert {row["unit"] for row in record["rows"]} == {"GiB", "percent", "ms", "s"}
    for name, scores in record["summary"].items():
        errors = [row["ours_error"] for row in record["rows"] if row["part"] == name]
        assert scores["n"] == len(errors)
        assert scores["ours"]["bias"] == pytest.approx(sum(errors) / len(errors))
        fields = {"mape", "max", "bias", "median", "median_ape", "p90"}
        assert set(scores["ours"]) == fields
        assert set(scores["calculon"] or fields) == fields


def test_without_a_suite_they_are_listed(shardwise):
    """One line each, or as JSON."""
    code, out, _ = shardwise("validate")
    assert code == 0
    assert all(name in out and summary in out for name, (summary, _) in SUITES.items())
    _, out, _ = shardwise("validate", "--json")
    assert list(json.loads(out)["suites"]) == [*SUITES, *COLLECTIONS]


def test_an_unknown_suite_is_refused(shardwise):
    """One line that names what is allowed, and exit code 2."""
    with pytest.raises(InputError, match="allowed: seqsel"):
        validate("nothing")
    code, out, err = shardwise("validate", "seqsal")
    assert (code, out) == (2, "")
    assert err == (
        "error: suite: 'seqsal': no such suite; allowed: seqsel, simumax, nersc-collectives, "
        "amped, runs, kernels; did you mean 'seqsel'?\n"
    )
