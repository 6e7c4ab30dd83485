"""A published `config.json` is the model of the catalog, with the parameters of its checkpoint."""

import gzip
import json

import huggingface_counts as counts
from huggingface_configs import CONFIGS, FAMILIES, FOLDER, MORE, compared, load
from rows import each_row
from shardwise import Model, catalog
from shardwise.huggingface.readers import FAMILIES as RECORDS
from shardwise.huggingface.readers import MODEL_TYPES, READERS
from shardwise.ops.param_count import count_parameters

# The catalog describes its window as full attention.
OTHERWISE = {"mistral-7b"}
IN_CATALOG = sorted(set(CONFIGS) & set(catalog.names("models")) - OTHERWISE)


@each_row("name", IN_CATALOG)
def test_a_file_gives_the_model_of_the_catalog(name):
    """All but its sequences, which a config.json does not say."""
    model = Model.load(FOLDER / f"{name}.json")

    assert model.seq_len is None
    assert compared(Model.load(name)) == compared(model)


def test_every_family_has_a_file():
    """Each record is tried on what was published, or on what its class writes."""
    tried = {MODEL_TYPES.get(c["model_type"]) for c in CONFIGS.values() if "text_config" not in c}
    tried |= {
        MODEL_TYPES[c["text_config"]["model_type"]] for c in CONFIGS.values() if "text_config" in c
    }
    tried |= {row["architecture"] for row in FAMILIES.values()}

    tried |= {"BailingMoeV2ForCausalLM", "ViTModel", "MiniMaxM1ForCausalLM"}
    tried |= {"MiniMaxText01ForCausalLM"}
    tried |= {name for config in MORE.values() for name in config["architectures"]}
    records = [RECORDS[name] for name in tried & READERS.keys()]
    assert [name for name in READERS if RECORDS[name] not in records] == []


@each_row("name", CONFIGS)
def test_parameters_are_those_of_the_tensors(name):
    """Counted from the modules of each architecture, apart from the package."""
    assert counts.language_model(CONFIGS[name]) == count_parameters(load(name)).total


# Sizes of checkpoints on the hub, in parameters, of what is not in the catalog.
CHECKPOINTS = [
    ("command-r", 34_980_831_232),
    ("falcon-7b", 6_921_720_704),
    ("gemma-7b", 8_537_680_896),
    ("gpt2", 124_439_808),
    ("olmo3-7b", 7_298_011_136),
    ("phi3-mini", 3_821_079_552),
    ("pythia-6.9b", 6_857_302_016),
    ("starcoder2-3b", 3_030_371_328),
]


@each_row(("name", "published"), CHECKPOINTS)
def test_parameters_are_those_of_the_checkpoint(name, published):
    """To the last one."""
    assert count_parameters(load(name)).total == published


@each_row(
    ("name", "published", "tower"),
    [
        ("llama4-scout", 108_641_793_536, counts.vision_of_llama4),
        ("llama4-maverick", 401_583_781_376, counts.vision_of_llama4),
        ("gemma3-4b", 4_300_079_472, counts.siglip_with_projector),
        ("gemma3-12b", 12_187_325_040, counts.siglip_with_projector),
        ("gemma3-27b", 27_432_406_640, counts.siglip_with_projector),
        ("llava-1.5-7b", 7_063_427_072, counts.clip_with_projector),
    ],
)
def test_language_model_and_tower_are_the_checkpoint(name, published, tower):
    """What is described and what is left out are all there is."""
    assert count_parameters(load(name)).total + tower(CONFIGS[name]) == published


@each_row(
    ("name", "published"),
    [
        ("deepseek-v3", 684_531_386_000),
        ("glm4.5", 358_337_791_296),
        ("glm4.5-air", 110_468_824_832),
    ],
)
def test_the_module_for_prediction_is_the_rest_of_the_checkpoint(name, published):
    """One more layer, two norms, a projection, a head norm, both tables; in 8 bits also scales."""
    model = load(name)
    h, last = model.hidden, model.layers[-1]
    one = model.model_copy(update={"layers": (last.model_copy(update={"count": 1}),), "mtp": 0})
    layer = count_parameters(one).total - 2 * model.vocab * h - h
    module = layer + 2 * h + 2 * h * h + h + 2 * model.vocab * h
    scales = counts.block_scales(CONFIGS[name], modules=1) if name == "deepseek-v3" else 0

    assert model.mtp == 1
    assert count_parameters(model).total + module + scales == published


def test_a_file_is_named_by_its_folder_or_by_what_it_says(tmp_path):
    """All of them are called config.json."""
    folder = tmp_path / "My_Model"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(CONFIGS["gpt2"]))
    assert Model.load(file).name == "my-model"

    file.write_text(json.dumps(CONFIGS["gpt2"] | {"_name_or_path": "openai-community/gpt2-XL"}))
    assert Model.load(file).name == "gpt2-xl"
    assert Model.load(CONFIGS["gpt2"]).name == "model"

    # Dots that are no ending stay, as in names of the catalog.
    other = tmp_path / "Llava-1.5_7b.json"
    other.write_text(json.dumps(CONFIGS["gpt2"]))
    assert Model.load(other).name == "llava-1.5-7b"
    with gzip.open(tmp_path / "v0.1.json.gz", "wt") as packed:
        json.dump(CONFIGS["gpt2"], packed)
    assert Model.load(tmp_path / "v0.1.json.gz").name == "v0.1"


def test_what_was_read_is_written_and_read_again(tmp_path):
    """A model of the hub is one of ours from then on."""
    for name in ("llama4-maverick", "deepseek-v2-lite", "gemma3-4b"):
        model = load(name)
        model.to_file(tmp_path / "m.yaml")
        assert Model.load(tmp_path / "m.yaml") == model
