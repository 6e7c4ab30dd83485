"""`shardwise export`: DeepFlow's six lines, shapes as CSV, products and graph as files."""

import csv
import json
from typing import Any

import pytest

import amped_samples
import samples
from rows import each_row
from shardwise import InputError, Model, estimate
from shardwise.report.deepflow import deepflow_rows, deepflow_text
from written import record_of

pytestmark = pytest.mark.any_software


def parsed(text: str) -> list[tuple[int, int, int]]:
    """Read it as DeepFlow does: no header, three integers between blanks on every line."""
    lines = []
    for line in text.splitlines():
        m, k, n = line.split()
        lines.append((int(m), int(k), int(n)))
    return lines


def test_six_lines_by_hand() -> None:
    """GPT-3 with a batch of 64 sequences over 2 replicas and 8 stages: 8192 tokens."""
    strategy = {"gpus": 128, "tp": 8, "pp": 8, "gbs": 64}
    lines = parsed(deepflow_text("gpt3-175b", strategy))
    assert lines == [
        (3 * 8192, 12288, 128 * 96),
        (8192, 128, 2048 * 96),
        (8192, 2048, 128 * 96),
        (8192, 12288, 12288),
        (8192, 12288, 4 * 12288),
        (8192, 4 * 12288, 12288),
    ]
    assert deepflow_text("gpt3-175b", strategy).count("\n") == 6


@each_row("model", [samples.model(), samples.llama()])
@each_row(("dp", "pp"), [(1, 1), (2, 1), (2, 2)])
def test_flops_are_those_of_the_layer(model: Model, dp: int, pp: int) -> None:
    """All six lines: the forward products of a layer over the whole batch, all scores counted."""
    strategy = {
        "dp": dp,
        "pp": pp,
        "mbs": 2,
        "gbs": 8,
        "stack": samples.stack(attention_kernel="unfused"),
    }
    result = estimate(model, samples.system(), strategy)
    written = sum(2 * m * k * n for m, k, n in parsed(deepflow_text(model, strategy)))
    layer = result.layers[0].forward.matrix_flops
    assert written * dp * pp == layer * result.micro_batches * dp


def test_grouped_queries_and_gates_have_their_own_widths() -> None:
    """Llama's sample: 8 heads over 2 in (8 + 4) / 8 of the rows, gate and up in 2 x 192 columns."""
    lines = deepflow_rows(samples.llama(), {"gpus": 1, "gbs": 2})
    assert lines[0] == (64 * 12 // 8, 64, 64)
    assert lines[4:] == ((64, 64, 384), (64, 192, 64))


def test_rows_must_be_whole() -> None:
    """A batch that replicas and stages do not share evenly is refused by name, not cut off."""
    with pytest.raises(InputError, match=r"global_batch_size.*96 tokens / \(dp 1 x pp 64\)"):
        deepflow_rows(samples.model(), {"dp": 1, "pp": 64, "gbs": 3})
    odd = samples.llama(layers=[samples.layer(attention={"heads": 7, "kv_heads": 1})], seq_len=31)
    with pytest.raises(InputError, match="heads = 9/7 is not"):
        deepflow_rows(odd, {"gpus": 1, "gbs": 1})


@each_row(
    ("model", "strategy", "field"),
    [
        ("mixtral-8x7b", {}, "layers.moe"),
        ("deepseek-v3", {}, "layers.attention.latent"),
        ("deepseek-v3", {}, "2 kinds of layers"),
        (samples.model(samples.layer(attention={"window": 8})), {}, "layers.attention.window"),
        (samples.model(position="relative-xl"), {}, "position"),
        ("llama3-8b", {"cp": 2}, "cp: 2"),
        ("llama3-8b", {"lora_rank": 8}, "lora_rank: 8"),
        ("llama3-8b", {"document_len": 1024}, "document_len: 1024"),
    ],
)
def test_what_the_format_has_no_words_for(model: Any, strategy: dict[str, Any], field: str) -> None:
    """Each is refused by its name."""
    with pytest.raises(InputError, match=field):
        deepflow_text(model, {"gpus": 8, "gbs": 8} | strategy)


def test_the_shapes_of_amped_are_not_divided(shardwise: Any, tmp_path: Any) -> None:
    """64 sequences of 128 tokens, all of them; the output has the width of the model on both sides.

    From its own configuration and from shardwise's model, whatever the degrees are.
    """
    file, rows = tmp_path / "config.json", 64 * 128
    file.write_text(json.dumps(amped_samples.small()))
    code, out, _ = shardwise("export", "deepflow", file, "--reference", "amped")
    assert (code, parsed(out)) == (
        0,
        [
            (3 * rows, 256, 256),
            (rows, 64, 128 * 4),
            (rows, 128, 256),
            (rows, 256, 256),
            (rows, 256, 256),
            (rows, 256, 1024),
        ],
    )
    code, out, _ = shardwise("export", "deepflow", *WORDS, "--reference", "amped")
    assert (code, parsed(out)[0]) == (0, (3 * 64 * 2048, 12288, 12288))
    more = ["--reference", "amped", "-o", tmp_path / "mat_dims.txt"]
    assert shardwise("export", "deepflow", *WORDS, *more)[:2] == (0, "")
    assert (tmp_path / "mat_dims.txt").read_text() == out


WORDS = ["gpt3-175b", "h100-sxm", "--gpus", "64", "--tp", "8", "--pp", "8", "--gbs", "64"]


def test_deepflow_on_the_command_line(shardwise: Any, tmp_path: Any) -> None:
    """Text to a file or standard output, and the real shapes beside it."""
    code, out, _ = shardwise("export", "deepflow", *WORDS)
    assert (code, len(parsed(out))) == (0, 6)
    text, shapes = tmp_path / "mat_dims.txt", tmp_path / "shapes.csv"
    code, printed, _ = shardwise("export", "deepflow", *WORDS, "-o", text, "--csv", shapes)
    assert (code, printed, text.read_text()) == (0, "", out)
    rows = list(csv.DictReader(shapes.read_text().splitlines()))
    assert list(rows[0]) == [
        *("part", "operation", "direction", "batch", "m", "k", "n", "dtype", "count")
    ]
    scores = next(row for row in rows if row["operation"] == "attention.core")
    assert [scores[side] for side in ("batch", "m", "k", "n")] == ["12", "2048", "128", "2048"]


def test_a_configuration_of_amped_tells_all(shardwise: Any, tmp_path: Any) -> None:
    """64 sequences of 128 tokens over dp 2 x 4 and pp 2; width 256, 4 heads of 64, inner 1024."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(amped_samples.small()))
    code, out, _ = shardwise("export", "deepflow", file)
    rows = 64 * 128 // (2 * 4 * 2)
    assert (code, parsed(out)) == (
        0,
        [
            (3 * rows, 256, 256),
            (rows, 64, 128 * 4),
            (rows, 128, 256),
            (rows, 256, 256),
            (rows, 256, 1024),
            (rows, 1024, 256),
        ],
    )


def test_gemms_and_graph_on_the_command_line(shardwise: Any, tmp_path: Any) -> None:
    """CSV and JSON of one list; the graph in any of its forms; - is standard output."""
    code, out, _ = shardwise("export", "gemms", *WORDS, "-o", "-")
    assert code == 0
    file = tmp_path / "gemms.json"
    assert shardwise("export", "gemms", *WORDS, "-o", file)[0] == 0
    record = record_of(file.read_text())
    rows = list(csv.DictReader(out.splitlines()))
    assert sum(int(row["flops"]) for row in rows) == record["matrix_flops"]
    assert set(record) == {"model", "system", "strategy", "matrix_flops", "gemms"}
    code, out, _ = shardwise("export", "graph", *WORDS)
    assert json.loads(out)["totals"]["matrix_flops"] == record["matrix_flops"]
    picture = tmp_path / "graph.mmd"
    assert shardwise("export", "graph", *WORDS, "-o", picture)[0] == 0
    assert "flowchart TB" in picture.read_text()


@each_row(
    ("words", "told"),
    [
        (["gems", *WORDS], "did you mean 'gemms'"),
        (["gemms", *WORDS, "-o", "gemms.txt"], "allowed endings: .csv"),
        (["graph", *WORDS, "-o", "graph.jpg"], "allowed endings: .json, .dot, .mmd"),
        (["gemms", *WORDS, "--reference", "amped"], "is for `export deepflow`"),
        (["deepflow", *WORDS, "--reference", "nersc"], "reference: 'nersc': allowed: amped"),
        (["deepflow", *WORDS, "--reference", "amped", "--csv", "a.csv"], "has no effect with"),
        (["graph", *WORDS, "--csv", "shapes.csv"], "is for `export deepflow`"),
        (["deepflow", *WORDS, "--csv", "shapes.txt"], "allowed endings: .csv"),
        (["deepflow", *WORDS, "-o", "a.csv", "--csv", "./a.csv"], "is also the file of output"),
        (["deepflow", *WORDS, "-o", "no/such/file.txt"], "no such folder"),
    ],
)
def test_refusals(shardwise: Any, words: list[str], told: str) -> None:
    """One line, exit code 2, nothing written."""
    code, out, err = shardwise("export", *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert told in err


def test_text_is_not_written_as_another_format(shardwise, tmp_path):
    """DeepFlow's lines are no JSON."""
    page = tmp_path / "x.json"
    code, _, err = shardwise("export", "deepflow", *WORDS, "-o", page)
    assert (code, page.exists()) == (2, False)
    assert err == f"error: {page}: cannot be written; DeepFlow's shapes are text, as in .txt\n"


def test_a_plan_of_described_software_is_written(shardwise: Any, tmp_path: Any) -> None:
    """Its stack is a mapping; the file is read back as the user describes its software."""
    words = ("llama3-8b", "h100-sxm", "--gpus", 1, "--gbs", 8, "--seq-len", 2048)
    path = tmp_path / "lora.yaml"
    code, _, err = shardwise("export", "trl", *words, "--finetune", "lora", "-o", path)
    assert (code, path.exists()) == (0, True)
    assert "the file, read back as trl, is the plan" in err
    assert "still to set: data set" in err
