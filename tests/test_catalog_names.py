"""What people call models and systems: which entry it is, the note on it, and suggestions."""

import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import examples
from rows import each_row
from shardwise import Model, Stack, System, UnknownNameError, catalog, estimate
from shardwise.catalog import aliases

SYSTEMS = {
    "h100": "h100-sxm",
    "H100-80GB": "h100-sxm",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "h100_sxm5": "h100-sxm",
    "h100-80gb-pcie": "h100-pcie",
    "a100": "a100-80gb-sxm",
    "a100-sxm": "a100-80gb-sxm",
    "A100-SXM4-40GB": "a100-40gb-sxm",
    "a100-40gb": "a100-40gb-sxm",
    "a100 pcie": "a100-80gb-pcie",
    "v100": "v100-sxm-32gb",
    "b200": "b200-sxm",
    "gb200": "gb200-nvl72",
    "h200": "h200-sxm",
    "mi300": "mi300x",
}
MODELS = {
    "llama-3.1-70b": "llama3-70b",
    "meta-llama/Llama-3.1-70B": "llama3-70b",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama3-8b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama3-70b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "zai-org/GLM-4.5-Air": "glm4.5-air",
    "gpt-3": "gpt3-175b",
    "Qwen3-30B": "qwen3-30b-a3b",
    "qwen3-235b": "qwen3-235b-a22b",
    "Qwen/Qwen2-57B-Instruct": "qwen2-57b-a14b",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "llama3-70b",
}
CALLED = [("systems", *pair) for pair in SYSTEMS.items()]
CALLED += [("models", *pair) for pair in MODELS.items()]
HUB = re.compile(r"config\.json of ([\w-]+/[\w.-]*\w)")


@each_row(("folder", "called", "name"), CALLED)
def test_entries_are_found_by_what_people_call_them(folder, called, name):
    """The most common form, if there are several."""
    assert catalog.find(folder, called).stem == name


def test_ids_of_the_hub_that_entries_cite_need_no_network():
    """Each is the entry that cites it."""
    cited = {
        (match, name)
        for name in catalog.names("models")
        for source in Model.load(name).sources.values()
        for match in HUB.findall(source.text)
        if match.split("/")[0].lower() in aliases.OWNERS
    }
    wrong = {
        (called, name)
        for called, name in cited
        if (found := catalog.find("models", called)) is None or found.stem != name
    }
    assert len(cited) > 40
    assert wrong == set()


@pytest.mark.parametrize("folder", ["models", "systems"])
def test_every_entry_is_called_by_its_own_name(folder):
    """No other name hides one, and no two entries are called alike."""
    for name in catalog.names(folder):
        for called in (name, name.upper(), name.replace("-", "_")):
            assert catalog.find(folder, called).stem == name
        assert aliases.meant(folder, name, catalog.names(folder)) in (
            None,
            aliases.Alias(name),
        ) or (folder == "systems")


@examples(200)
@given(st.data())
def test_words_of_a_system_mean_one_that_has_them(data):
    """In any number and case; the chip is among them."""
    name = data.draw(st.sampled_from(catalog.names("systems")))
    words = name.split("-")
    some = data.draw(st.lists(st.sampled_from(words), unique=True, min_size=1))
    called = data.draw(st.sampled_from([str.upper, str.lower]))("_".join(some))
    found = catalog.find("systems", called)
    if found is not None and catalog.canonical(called) not in aliases._SYSTEMS:  # noqa: SLF001
        meant = set(aliases.words_of_system("-".join(some)))  # 80g is 80gb
        assert meant <= set(found.stem.split("-")) | {"80gb"}


def test_a_model_of_an_unknown_owner_is_none_of_the_catalog():
    """It may have any shape."""
    assert catalog.find("models", "somebody/llama3-8b") is None


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    """As it did before there were such names."""
    monkeypatch.chdir(tmp_path)
    System.load("b200-sxm").to_file("h100.yaml")
    (tmp_path / "h100").write_bytes((tmp_path / "h100.yaml").read_bytes())
    assert catalog.find("systems", "h100") is None


def test_a_note_says_what_a_name_means(shardwise):
    """On stderr, once; results have the name of the entry."""
    words = ("estimate", "llama-3.1-8b", "h100", "--gpus", 8, "--gbs", 8, "--zero", 3)
    code, out, err = shardwise(*words)
    assert code == 0
    assert "llama3-8b on h100-sxm" in out
    assert err.splitlines() == [
        "note: llama-3.1-8b means llama3-8b",
        "note: h100 means h100-sxm (also: h100-sxm-500w, h100-nvl, h100-pcie)",
    ]
    assert shardwise("systems", "H100_SXM")[2] == ""
    assert shardwise("systems", "h100")[2].startswith("note: h100 means h100-sxm (also: ")
    assert shardwise("models", "Qwen/Qwen3-8B")[1].startswith("qwen3-8b: ")


def test_in_python_a_warning_is_logged(caplog):
    """By the logger `shardwise.names`."""
    catalog.forget_notes()
    with caplog.at_level(logging.WARNING, logger="shardwise.names"):
        result = estimate("meta-llama/Llama-3.1-8B", "a100", gpus=8, gbs=8)
    assert (result.model, result.system) == ("llama3-8b", "a100-80gb-sxm")
    notes = [record.getMessage() for record in caplog.records if record.name == "shardwise.names"]
    assert notes[0] == "meta-llama/Llama-3.1-8B means llama3-8b"
    assert notes[1].startswith("a100 means a100-80gb-sxm (also: a100-64gb-sxm, ")


def test_files_are_based_on_what_people_call_them(written):
    """With the same note."""
    file = written("mine.yaml", base="h100", name="mine", board_power="500 W")
    assert System.load(file).accelerator == System.load("h100-sxm").accelerator


@each_row(
    ("config", "called", "words"),
    [
        (System, "a100-sxm6-96gb", "did you mean 'a100-40gb-pcie', 'a100-40gb-sxm', "),
        (Model, "llama3-71b", "did you mean 'llama3-70b'?"),
        (Model, "qwen3-31b", "did you mean 'qwen3-32b'?"),
        (Model, "zzz", "model: 'zzz': no such model; to list them: shardwise models"),
        (System, "abacus", "no such system; to list them: shardwise systems"),
        (Stack, "h100", "stack: 'h100': is a system, not a stack"),
        (Model, "llama3-8b-h100-8-bf16", "is a recipe, not a model; set --recipe llama3-8b-h100"),
    ],
)
def test_suggestions_stay_in_the_family(config, called, words):
    """Without an entry nearby, the message has the command that lists all."""
    with pytest.raises(UnknownNameError) as caught:
        config.load(called)
    assert words in str(caught.value)


SUGGESTED = {
    "llama4": ["llama4-maverick", "llama4-scout"],
    "llama3": ["llama3.2-1b", "llama3.2-3b", "llama3-8b", "llama3-70b", "llama3-405b"],
    "llama-70b": ["llama3-70b", "llama2-70b"],
    "llama3.1-9b": ["llama3-8b"],
    "mixtral": ["mixtral-8x7b", "mixtral-8x22b"],
    "gpt": ["gpt3-13b", "gpt-oss-20b", "gpt-oss-120b", "gpt3-175b", "gpt3-1t"],
    "gpt3-6.7b": ["gpt3-13b"],
    "gemma-7b": ["gemma2-9b"],
    "qwen3-coder": ["qwen3-coder-480b-a35b"],
    "calculon-gpt3": ["calculon-gpt3-13b", "calculon-gpt3-175b"],
    "lama3-70b": ["llama3-70b"],
    "mixtral-8x7": ["mixtral-8x7b"],
    "qwn3-8b": ["qwen3-8b"],
    "mistral-8x7b": ["mixtral-8x7b"],
    "tpu": ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x"],
    "tpu-v5": ["tpu-v5e", "tpu-v5p"],
    "h100-sxn": ["h100-sxm"],
    "gb200-nvl36": ["gb200-nvl72"],
    "guadi2": ["gaudi2"],
    "mi350": ["mi350x"],
}
NOTHING = {
    "models": "nemotron-4-340b bloom-176b GPT-NeoX-20B gpt2 gpt4 gpt-4o llama9 opt-175b",
    "systems": "h30 gh300 mi210x a45 h300 b100 b100-sxm gaudi4 tpu-v3 nvidia",
}


@each_row(("called", "names"), SUGGESTED.items())
def test_suggestions_are_of_the_family_generation_and_nearest_size(called, names):
    """Without a size all of them, the smallest first; typos are corrected."""
    folder = "systems" if catalog.find("systems", names[0]) else "models"
    assert catalog.find(folder, called) is None
    assert catalog.suggested(folder, called) == names


@each_row(
    ("folder", "called"),
    [(folder, called) for folder, texts in NOTHING.items() for called in texts.split()],
)
def test_nothing_is_suggested_of_another_family_or_generation(folder, called):
    """However similar the spelling."""
    assert catalog.find(folder, called) is None
    assert catalog.suggested(folder, called) == []


@each_row("called", ["qwen", "qwen3", "llama", "megatron", "qwen3.5"])
def test_at_most_five_of_a_family_are_suggested(called):
    """From its smallest to its largest."""
    names = catalog.suggested("models", called)
    sizes = [float(size[1]) for n in names if (size := re.search(r"-([\d.]+)b", n))]
    family = re.match("[a-z]+", called)[0]
    assert 2 <= len(names) <= 5
    assert all(name.startswith(family) for name in names)
    assert sizes == sorted(sizes)


@examples(300)
@given(st.data())
def test_one_wrong_letter_in_a_name_is_corrected(data):
    """Letters of the family of at least five."""
    known = [n for n in catalog.names("models") if re.match("[a-z]{5}", n) and "-" in n]
    name = data.draw(st.sampled_from([n for n in known if n.split("-")[0] not in aliases.TOOLS]))
    place = data.draw(st.integers(1, 4))
    called = name[:place] + data.draw(st.sampled_from("jkwxyz")) + name[place + 1 :]
    if catalog.find("models", called) is None:
        found = catalog.suggested("models", called)
        assert found
        assert found[0].startswith(name[:1])
