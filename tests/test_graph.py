"""The compute graph: sums of the estimate on its nodes, tensors read and written on its edges."""

import json
import re
from pathlib import Path
from shutil import which
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import samples
from shardwise import Model, estimate
from shardwise.analysis.graph.build import graph_of
from shardwise.analysis.graph.edges import linked
from shardwise.analysis.graph.records import INPUT, OUTPUT, ComponentGraph, ComputeGraph, GraphEdge
from shardwise.analysis.results import Estimate
from shardwise.cli import run as command
from shardwise.report.graph import graph_dot, graph_mermaid, write_graph

pytestmark = pytest.mark.any_software

EXCHANGED = ("tp_forward", "tp_backward", "tp_again", "cp", "ep")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama3-70b", {"gpus": 64, "tp": 8, "pp": 2, "gbs": 64, "tp_exchange": "rs_ag"}),
    ("gpt3-175b", {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "recompute": "selective"}),
    ("palm-540b", {"gpus": 64, "tp": 8, "pp": 8, "gbs": 64, "recompute": "full"}),
    ("llama3-8b", {"gpus": 8, "cp": 8, "cp_exchange": "all_to_all", "gbs": 8}),
    ("llama3-8b", {"gpus": 8, "cp": 4, "gbs": 8, "training": False}),
    (
        "gpt3-175b",
        {"gpus": 64, "tp": 4, "tp2": 2, "tp_exchange": "summa", "summa_panels": 4, "gbs": 64},
    ),
    (
        "deepseek-v3",
        {"gpus": 256, "tp": 2, "tp_exchange": "rs_ag", "pp": 16, "ep": 8, "gbs": 512}
        | {"schedule": "dualpipe", "quantization": "fp8_block", "optimizer": "muon", "zero": 1},
    ),
    ("gemma3-4b", {"gpus": 8, "tp": 4, "gbs": 8, "lora_rank": 8}),
    (
        "qwen3-30b-a3b",
        {"gpus": 16, "ep": 8, "gbs": 32, "pp": 2, "vpp": 2, "stack": "torchtitan-eager"},
    ),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]} {list(case[1])[-1]}")
def case(request: pytest.FixtureRequest) -> tuple[ComputeGraph, Estimate]:
    model, strategy = request.param
    drawn = graph_of(model, "h100-sxm", strategy)
    return drawn, estimate(model, "h100-sxm", strategy, operations=True)


def test_only_what_recomputes_runs_again(case: tuple[ComputeGraph, Estimate]) -> None:
    """No pass is said to recompute where nothing is computed again."""
    graph, result = case
    for part in graph.parts:
        recomputes = part.name.startswith("layer") and result.strategy["recompute"] != "none"
        assert part.reruns == (part.runs if recomputes else 0)


def test_sums_of_a_step_are_those_of_the_estimate(case: tuple[ComputeGraph, Estimate]) -> None:
    """Matrix FLOPs to the last one; kernels, exchanges and weights of all stages."""
    graph, result = case
    rows = [row for row in result.operations or () if row.part != "step"]
    kernels = [row for row in rows if row.group == 1]
    exchanges = [row for row in rows if row.group > 1]

    def summed(name: str, group: list[Any]) -> float:
        return sum(row.count * result.micro_batches * getattr(row, name) for row in group)

    totals = graph.totals
    assert totals.matrix_flops == result.matrix_flops
    assert totals.flops == pytest.approx(summed("flops", kernels), rel=1e-12)
    assert totals.kernel_s == pytest.approx(summed("time_s", kernels), rel=1e-12)
    assert totals.volume_bytes == pytest.approx(summed("volume_bytes", exchanges), rel=1e-12)
    assert totals.exchange_s == pytest.approx(summed("time_s", exchanges), rel=1e-12)
    assert totals.exposed_s == pytest.approx(summed("exposed_s", exchanges), rel=1e-12)
    assert totals.parameters == pytest.approx(sum(stage.parameters for stage in result.stages))


def test_sums_of_a_layer_are_those_of_the_estimate(case: tuple[ComputeGraph, Estimate]) -> None:
    """Each kind by phase: FLOPs, bytes, time; exchanges, weights and what is kept."""
    graph, result = case
    layers = [part for part in graph.parts if part.name.startswith("layer")]
    assert [part.count for part in layers] == [layer.count for layer in result.layers]
    for part, layer in zip(layers, result.layers, strict=True):
        for name, work in part.phases.items():
            told = getattr(layer, name).to_dict()
            for figure, value in work.to_dict().items():
                assert value == pytest.approx(told[figure], rel=1e-12)
        exchanges = [getattr(layer, name) for name in EXCHANGED]
        assert part.volume_bytes == pytest.approx(sum(one.volume_bytes for one in exchanges))
        assert part.exchange_s == pytest.approx(sum(one.time_s for one in exchanges))
        assert part.exposed_s == pytest.approx(sum(one.exposed_s for one in exchanges))
        assert part.parameters == pytest.approx(layer.parameters)
        assert part.saved_bytes == pytest.approx(layer.kept_bytes)


def test_edges_lead_from_input_to_output(case: tuple[ComputeGraph, Estimate]) -> None:
    """All ends exist; every node is on a way from the input to the output; there are no circles."""
    graph, _ = case
    for part in graph.parts:
        after: dict[str, set[str]] = {node.id: set() for node in part.nodes}
        for edge in part.edges:
            after[edge.source].add(edge.target)
            assert edge.bytes > 0
        reached: dict[str, set[str]] = {}
        for _ in after:
            reached = {a: b.union(*(reached.get(c, set()) for c in b)) for a, b in after.items()}
        for node in part.nodes:
            assert node.id not in reached[node.id]
            assert node.id == OUTPUT or OUTPUT in reached[node.id]
            assert node.id == INPUT or node.id in reached[INPUT]
    layers = [node.holds for node in graph.stages]
    whole = {part.name: part.count for part in graph.parts}
    assert {name: sum(holds.get(name, 0) for holds in layers) for name in whole} == whole


def part_of(model: Model, name: str = "layer 0", **strategy: Any) -> ComponentGraph:
    software = strategy.pop("software", {"attention_kernel": "best"})
    given = {"dp": 1, "mbs": 2, "gbs": 2, "stack": samples.stack(**software)} | strategy
    graph = graph_of(model, samples.system(), given)
    return next(part for part in graph.parts if part.name == name)


def between(part: ComponentGraph, source: str, target: str) -> GraphEdge:
    (edge,) = (e for e in part.edges if (e.source, e.target) == (source, target))
    return edge


def test_tensors_of_a_layer_by_hand() -> None:
    """64 tokens of width 64 on two ranks that split the sequence; 5 of 4 heads' widths each."""
    part = part_of(samples.llama(), tp=2, tp_exchange="rs_ag")
    shapes = {
        (INPUT, "attention.norm"): ("stream", (32, 64)),
        ("attention.norm", "attention.qkv/before"): ("normed", (32, 64)),
        ("attention.qkv/before", "attention.qkv"): ("normed", (64, 64)),
        ("attention.qkv", "attention.rope"): ("queries, keys, values", (64, 48)),
        ("attention.core", "attention.out"): ("heads", (64, 32)),
        ("attention.out", "attention.out/after"): ("attention", (64, 64)),
        ("attention.out/after", "attention.residual"): ("attention", (32, 64)),
        ("mlp.up", "mlp.activation"): ("inner", (64, 192)),
        ("mlp.activation", "mlp.down"): ("activated", (64, 96)),
        ("mlp.residual", OUTPUT): ("stream", (32, 64)),
    }
    for ends, (name, shape) in shapes.items():
        edge = between(part, *ends)
        assert (edge.tensor, edge.shape, edge.dtype) == (name, shape, "bf16")
        assert edge.bytes == 2 * shape[0] * shape[1]
    gathered = next(node for node in part.nodes if node.id == "attention.qkv/before")
    ahead = next(one for one in gathered.exchanges if one.phase == "forward")
    assert ahead.volume_bytes == between(part, "attention.qkv/before", "attention.qkv").bytes


def test_residual_branches_are_told_apart() -> None:
    """The stream passes attention and the feed-forward block; in a parallel layer both at once."""
    part = part_of(samples.model())
    past = [(e.source, e.target) for e in part.edges if e.kind == "residual"]
    assert past == [(INPUT, "attention.residual"), ("attention.residual", "mlp.residual")]
    beside = part_of(samples.model(samples.layer(parallel=True)), tp=2, tp_exchange="rs_ag")
    past = [(e.source, e.target) for e in beside.edges if e.kind == "residual"]
    assert past == [(INPUT, "residual")]
    into = {e.source for e in beside.edges if e.target == "attention.out/after"}
    assert into == {"attention.out", "mlp.down"}
    out_of = {e.target for e in beside.edges if e.source == "attention.qkv/before"}
    assert out_of == {"attention.qkv", "mlp.up"}


def test_a_second_norm_gathers_its_own_output() -> None:
    """GPT-NeoX: both norms read the stream, and the MLP reads the second one."""
    layer = samples.layer(parallel=True, second_norm=True)
    part = part_of(samples.model(layer), tp=2, tp_exchange="rs_ag")
    assert {e.target for e in part.edges if e.source == INPUT} == {"norm", "mlp.norm", "residual"}
    assert {e.target for e in part.edges if e.source == "mlp.norm"} == {"mlp.up/before"}
    into = {e.source for e in part.edges if e.target == "attention.out/after"}
    assert into == {"attention.out", "mlp.down"}


def test_unfused_attention_is_cut_around_its_softmax() -> None:
    """Scores, softmax, values in a row; their products are those of the operation."""
    part = part_of(samples.model(), software={"attention_kernel": "unfused"})
    scores = between(part, "attention.scores", "attention.softmax")
    assert (scores.tensor, scores.shape) == ("scores", (16, 32, 32))
    assert between(part, "attention.softmax", "attention.values").shape == (16, 32, 32)
    nodes = {node.id: node for node in part.nodes}
    ahead = nodes["attention.values"].phases["forward"].matrix_flops
    assert ahead == 2 * 16 * 32 * 32 * 8
    back = {name: nodes[f"attention.{name}"].phases["input_grad"] for name in ("scores", "values")}
    assert back["scores"].matrix_flops == back["values"].matrix_flops == 2 * ahead


def test_latent_attention_and_experts_branch() -> None:
    """Two narrow paths and the shared keys; routed and shared experts side by side."""
    part = part_of(samples.deepseek(), "layer 1", tp=2, tp_exchange="rs_ag")
    assert between(part, "attention.kv_down", "attention.rope/before").shape == (32, 4)
    assert between(part, "attention.rope/before", "attention.rope").shape == (64, 4)
    assert between(part, "attention.kv_norm", "attention.kv_up/before").shape == (32, 16)
    readers = {e.target for e in part.edges if e.source == "mlp.norm"}
    assert readers == {"moe.shared_up/before", "moe.router", "moe.dispatch"}
    assert {e.source for e in part.edges if e.target == "moe.add"} == {
        "moe.combine",
        "moe.shared_down/after",
    }
    assert between(part, "moe.dispatch", "moe.up").shape == (64, 64)  # 32 tokens, two copies each
    assert between(part, "moe.up", "moe.activation").shape == (8, 8, 64)


def test_adapters_stand_beside_their_product() -> None:
    """A reads what the product reads, B is added to what it gives."""
    links = {
        (one.source, one.target): one.kind
        for one in linked(["a.up", "a.up.lora_a", "a.up.lora_b", "b"])
    }
    assert links == {
        (INPUT, "a.up"): "data",
        ("a.up", "b"): "data",
        ("b", OUTPUT): "data",
        (INPUT, "a.up.lora_a"): "adapter",
        ("a.up.lora_a", "a.up.lora_b"): "adapter",
        ("a.up.lora_b", "b"): "adapter",
    }


def test_stages_of_the_model() -> None:
    """Chunks in turn, what a stage hands over, and a pipeline there and back."""
    model = samples.llama(layers=[samples.layer(count=8, attention={"bias": "none"})])
    given = {"dp": 1, "mbs": 2, "gbs": 16, "stack": samples.stack(), "pp": 2}
    graph = graph_of(model, samples.system(), given | {"vpp": 2})
    assert [(node.name, node.stage, node.rank) for node in graph.stages] == [
        ("embedding", 0, 0),
        ("2 x layer 0", 0, 0),
        ("2 x layer 0", 1, 1),
        ("2 x layer 0", 2, 0),
        ("2 x layer 0", 3, 1),
        ("head", 3, 1),
    ]
    handed = [(edge.kind, edge.bytes) for edge in graph.edges]
    assert handed == [("stage" if 0 < n < 4 else "data", 64 * 64 * 2) for n in range(5)]
    back = graph_of(model, samples.system(), given | {"schedule": "zb-v"})
    assert [node.rank for node in back.stages] == [0, 0, 1, 1, 0, 0]


DOT_STRING = r'"(?:[^"\\]|\\.)*"'


def test_dot_is_what_graphviz_reads(case: tuple[ComputeGraph, Estimate]) -> None:
    """Every line is a statement of the language; every edge is between nodes that are declared."""
    text = graph_dot(case[0])
    pairs = rf"(?:[a-z]+=(?:{DOT_STRING}|[a-z]+|[0-9]+) ?)+"
    statement = re.compile(
        rf"digraph {DOT_STRING} \{{|  subgraph [a-z0-9_]+ \{{|  (?:node|edge) \[{pairs}\]|"
        rf"    ({DOT_STRING}) \[{pairs}\]|    ({DOT_STRING}) -> ({DOT_STRING}) \[{pairs}\]|"
        rf" +{pairs}| *\}}"
    )
    matches = [statement.fullmatch(line) for line in text.splitlines()]
    assert [line for line, found in zip(text.splitlines(), matches, strict=True) if not found] == []
    ends = [line.strip() for line in text.splitlines()]
    assert sum(line.endswith("{") for line in ends) == ends.count("}")
    declared = {found[1] for found in matches if found and found[1]}
    named = {found[n] for found in matches if found and found[2] for n in (2, 3)}
    assert named <= declared
    operations = {f'"{part.name}/{node.id}"' for part in case[0].parts for node in part.nodes}
    assert operations <= declared


def test_mermaid_is_a_flowchart(case: tuple[ComputeGraph, Estimate]) -> None:
    """Every line is a statement of the language; ids are plain, unique and declared before use."""
    graph, _ = case
    lines = graph_mermaid(graph).splitlines()
    assert lines[:4] == ["---", f'title: "{graph.model} on h100-sxm"', "---", "flowchart TB"]
    string, name = r'"(?:[^"#<>\\]|#[0-9]+;|<br/>)*"', "c[0-9]+(?:n[0-9]+)?"
    statement = re.compile(
        rf"  subgraph ({name}) \[{string}\]|  end|"
        rf"    ({name})\[{string}\]:::([a-z_]+)|"
        rf"    ({name}) (?:-->|==>|-\.->)\|{string}\| ({name})|"
        r"  classDef ([a-z_]+) [a-z0-9:#,]+"
    )
    matches = [statement.fullmatch(line) for line in lines[4:]]
    assert [line for line, found in zip(lines[4:], matches, strict=True) if not found] == []
    found = [match for match in matches if match]
    boxes = [match[2] for match in found if match[2]]
    assert len(set(boxes)) == len(boxes)
    assert {match[n] for match in found if match[4] for n in (4, 5)} <= set(boxes)
    assert {match[3] for match in found if match[3]} <= {match[6] for match in found}
    assert len(boxes) >= sum(len(part.nodes) for part in graph.parts)
    assert sum(bool(match[4]) for match in found) >= sum(len(part.edges) for part in graph.parts)


def test_names_with_special_characters_are_escaped() -> None:
    """Quotes, backslashes, markup and line breaks of a name stay text in DOT and in Mermaid."""
    model = samples.model(name='odd "<b>#1`\\ &')
    graph = graph_of(model, samples.system(), {"dp": 1, "mbs": 2, "gbs": 2})
    odd = graph.model_copy(update={"model": 'odd "<b>#1`\\ &\nnext'})
    assert graph_dot(odd).splitlines()[0] == 'digraph "odd \\"<b>#1`\\\\ &\\nnext" {'
    mermaid = graph_mermaid(odd).splitlines()
    assert mermaid[1].startswith('title: "odd \\"<b>#1`\\\\ &\\nnext on ')
    title = "odd #34;#60;b#62;#35;1#96;#92; #38;<br/>next"
    assert mermaid[4] == f'  subgraph c0 ["{title}"]'


def test_equal_stages_are_one_group() -> None:
    """A pipeline of 16 stages is drawn as its first, its middle and its last ones."""
    plan = {"gpus": 64, "tp": 4, "pp": 16, "gbs": 64}
    text = graph_dot(graph_of("llama3-70b", "h100-sxm", plan))
    assert re.findall(r"label=\"[0-9]+ x layer 0\\n(.*?)\"", text) == [
        "stage 0, rank 0",
        "stages 1 to 14, each",
        "stage 15, rank 15",
    ]


WORDS = ["estimate", "llama3-8b", "h100-sxm", "--gpus", "8", "--tp", "8", "--gbs", "8"]
STARTS = {".json": b"{", ".dot": b"digraph", ".mmd": b"---\ntitle: ", ".mermaid": b"---\ntitle: "}


def test_files_by_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--graph` writes JSON, DOT or Mermaid, and refuses other suffixes before any work."""
    for suffix, start in STARTS.items():
        file = tmp_path / f"graph{suffix}"
        assert command([*WORDS, "--graph", str(file)]) == 0
        assert file.read_bytes().startswith(start)
    record = json.loads((tmp_path / "graph.json").read_text())
    capsys.readouterr()
    assert command([*WORDS, "--json"]) == 0
    assert record["totals"]["matrix_flops"] == json.loads(capsys.readouterr().out)["matrix_flops"]
    assert command([*WORDS, "--graph", "graph.jpg"]) == 2
    assert "allowed endings: .json, .dot, .mmd" in capsys.readouterr().err


@pytest.mark.skipif(which("dot") is None, reason="graphviz is not installed")
def test_graphviz_draws_every_graph(case: tuple[ComputeGraph, Estimate], tmp_path: Path) -> None:
    """The DOT file is accepted, and the picture names every operation."""
    write_graph(case[0], tmp_path / "graph.svg")
    words = {element.text for element in ET.parse(tmp_path / "graph.svg").iter()}  # noqa: S314
    assert {node.name for part in case[0].parts for node in part.nodes} <= words


def test_graphviz_gets_the_dot_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pictures come from `dot -T...`; its failure is one line that names the file."""
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\necho "<svg $1>"; cat\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for suffix in ("svg", "png", "pdf"):
        file = tmp_path / f"graph.{suffix}"
        assert command([*WORDS, "--graph", str(file)]) == 0
        assert file.read_text().startswith(f'<svg -T{suffix}>\ndigraph "llama3-8b" {{')
    program.write_text("#!/bin/sh\necho 'no such\nfont' >&2; exit 3\n")
    capsys.readouterr()
    broken = tmp_path / "broken.svg"
    assert command([*WORDS, "--graph", str(broken)]) == 2
    assert capsys.readouterr().err == f"error: {broken}: graphviz failed: no such font\n"
    assert not broken.exists()


def test_pictures_need_graphviz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, one line names the file, who draws it, and what needs nothing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "graph.svg"
    assert command([*WORDS, "--graph", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"error: {file}: graphviz draws this file and is not installed "
        "(https://graphviz.org/download); .dot and .mmd need nothing\n"
    )
    assert list(tmp_path.iterdir()) == []
