"""The models of the catalog are the published ones: names, sources and parameter counts."""

from collections.abc import Iterator
from typing import Any

import pytest

from rows import each_row
from shardwise import catalog
from shardwise.config.model import Model
from shardwise.ops.param_count import count_parameters

NAMES = catalog.names("models")

# Catalog name, published number of parameters, and by how much the print may be off: nothing for
# the size of a released checkpoint, else half of its last printed digit.
PUBLISHED = [
    # Checkpoints on Hugging Face, with the rotary tables of some and a stored copy of a tied head
    # left out.
    ("llama2-7b", 6_738_415_616, 0),
    ("llama2-13b", 13_015_864_320, 0),
    ("llama2-70b", 68_976_648_192, 0),
    ("llama3-8b", 8_030_261_248, 0),
    ("llama3-70b", 70_553_706_496, 0),
    ("llama3-405b", 405_853_388_800, 0),
    ("mistral-7b", 7_241_732_096, 0),
    ("mistral-7b-v0.3", 7_248_023_552, 0),
    ("qwen3-0.6b", 596_049_920, 0),
    ("qwen3-1.7b", 1_720_574_976, 0),
    ("qwen3-4b", 4_022_468_096, 0),
    ("qwen3-8b", 8_190_735_360, 0),
    ("qwen3-14b", 14_768_307_200, 0),
    ("qwen3-32b", 32_762_123_264, 0),
    ("llama-33b", 32_528_943_616, 0),
    ("llama3.2-1b", 1_235_814_400, 0),
    ("llama3.2-3b", 3_212_749_824, 0),
    ("mixtral-8x7b", 46_702_792_704, 0),
    ("mixtral-8x22b", 140_620_634_112, 0),
    ("qwen2-7b", 7_615_616_512, 0),
    ("qwen2-72b", 72_706_203_648, 0),
    ("qwen2.5-7b", 7_615_616_512, 0),
    ("qwen2.5-14b", 14_770_033_664, 0),
    ("qwen2.5-0.5b", 494_032_768, 0),
    ("qwen2.5-1.5b", 1_543_714_304, 0),
    ("qwen2.5-3b", 3_085_938_688, 0),
    ("smollm3-3b", 3_075_098_624, 0),
    ("tinyllama-1.1b", 1_100_048_384, 0),
    ("phi-3-mini", 3_821_079_552, 0),
    ("phi-4", 14_659_507_200, 0),
    ("mistral-small-24b", 23_572_403_200, 0),
    ("qwen2.5-32b", 32_763_876_352, 0),
    ("qwen2.5-72b", 72_706_203_648, 0),
    ("qwen2-57b-a14b", 57_408_658_944, 0),
    ("qwen3-30b-a3b", 30_532_122_624, 0),
    ("qwen3-235b-a22b", 235_093_634_560, 0),
    ("qwen3-coder-480b-a35b", 480_154_875_392, 0),
    ("deepseek-moe-16b", 16_375_728_128, 0),
    ("deepseek-v2-lite", 15_706_484_224, 0),
    ("deepseek-v2", 235_741_434_880, 0),
    ("gemma2-2b", 2_614_341_888, 0),
    ("gemma2-9b", 9_241_705_984, 0),
    ("gemma2-27b", 27_227_128_320, 0),
    ("gemma3-1b", 999_885_952, 0),
    ("gpt-oss-20b", 20_914_757_184, 0),
    ("gpt-oss-120b", 116_829_156_672, 0),
    ("ling-1t", 999_705_328_640, 0),
    ("deepseek-v3.2", 671_877_944_064, 0),
    ("deepseek-v4-flash", 284_332_240_471, 0),
    ("deepseek-v4-pro", 1_572_997_201_763, 0),
    ("glm-5", 743_911_218_432, 0),
    ("glm-5.2", 743_377_019_904, 0),
    ("glm-5.3-flash", 313_326_828_862, 0),
    ("minimax-m3", 426_174_572_928, 0),
    ("gemma-4-26b-a4b", 25_233_141_760, 0),
    ("gemma-4-31b", 30_697_345_280, 0),
    ("gemma-4-e2b", 4_628_569_344, 0),
    ("gemma-4-e4b", 7_463_013_376, 0),
    ("mimo-v2-flash", 308_778_780_864, 0),
    ("step-3.7-flash", 196_000_000_000, 500_000_000),
    ("olmo2-7b", 7_298_617_344, 0),
    ("olmo2-13b", 13_716_198_400, 0),
    ("olmo2-32b", 32_234_279_936, 0),
    # The same without modules of multi-token prediction and the scales of 8-bit weights.
    ("deepseek-v3", 671_026_419_200, 0),
    ("kimi-k2", 1_026_408_232_448, 0),
    ("glm4.5", 352_797_829_024, 0),
    ("glm4.5-air", 106_852_251_264, 0),
    # The same without the vision tower and what connects it.
    ("llama4-scout", 107_769_861_120, 0),
    ("llama4-maverick", 400_711_848_960, 0),
    ("gemma3-4b", 3_880_263_168, 0),
    ("gemma3-12b", 11_766_034_176, 0),
    ("gemma3-27b", 27_009_346_304, 0),
    # Closed forms that equal modules of transformers 5.24 on the meta device, with the selection
    # biases that it has as buffers; without modules of multi-token prediction.
    ("nemotron-h-4b", 4.489e9, 0.0005e9),
    ("nemotron-h-8b", 8.101e9, 0.0005e9),
    ("nemotron-h-47b", 46.792e9, 0.0005e9),
    ("nemotron-h-56b", 56.324e9, 0.0005e9),
    ("nemotron-3-nano", 31.578e9, 0.0005e9),
    ("nemotron-3.5-lightning", 31.578e9, 0.0005e9),
    ("nemotron-3-super", 120.669e9, 0.0005e9),
    ("nemotron-3-ultra", 549.309e9, 0.0005e9),
    ("qwen3-next-80b-a3b", 79.674e9, 0.0005e9),
    ("qwen3.5-27b", 26.896e9, 0.0005e9),
    ("qwen3.5-35b-a3b", 34.661e9, 0.0005e9),
    ("qwen3.5-122b-a10b", 122.112e9, 0.0005e9),
    ("qwen3.5-397b-a17b", 396.346e9, 0.0005e9),
    ("kimi-linear-48b-a3b", 49.123e9, 0.0005e9),
    ("minimax-text-01", 456.090e9, 0.0005e9),
    ("minimax-m1", 456.090e9, 0.0005e9),
    ("lfm2-1.2b", 1.170e9, 0.0005e9),
    ("lfm2-8b-a1b", 8.340e9, 0.0005e9),
    ("lfm3", 1.729e9, 0.0005e9),
    ("jamba-1.5-mini", 51.570e9, 0.0005e9),
    ("jamba-1.5-large", 398.555e9, 0.0005e9),
    ("falcon-h1-34b", 33.642e9, 0.0005e9),
    ("granite-4.0-h-small", 32.207e9, 0.0005e9),
    ("olmo-hybrid-7b", 7.431e9, 0.0005e9),
    # arXiv 2507.22448 and the model card, which transformers cannot confirm.
    ("falcon-h1-7b", 7.586e9, 0.0005e9),
    ("kimi-k3", 2800e9, 50e9),
    # arXiv 2005.14165 table D.1, millions.
    ("gpt3-13b", 12_850e6, 5e6),
    ("gpt3-175b", 174_600e6, 50e6),
    # arXiv 2104.04473 table 1, billions; 22B and the NeMo sizes by their names.
    ("megatron-126m", 126e6, 0.5e6),
    ("megatron-5b", 5e9, 0.5e9),
    ("megatron-22b", 22e9, 0.5e9),
    ("megatron-40b", 39.1e9, 0.05e9),
    ("megatron-1t", 1008.0e9, 0.05e9),
    ("gpt3-1t", 1008.0e9, 0.05e9),
    ("turing-530b", 529.6e9, 0.05e9),
    # arXiv 2112.11446 table 1, 2203.15556 table 4, 2112.00861.
    ("gopher-280b", 280e9, 0.5e9),
    ("chinchilla-70b", 70e9, 0.5e9),
    ("anthropic-52b", 52e9, 0.5e9),
    # arXiv 2204.02311 table 1; 540.354 without the scales of the norms, 540.356 with them.
    ("palm-540b", 540.35e9, 0.01e9),
    # Lingvo prints this for its recipe of LaMDA's shape, whose every layer has its own table of
    # relative positions; T5, which LaMDA cites, shares one.
    ("lamda-137b", 137_702_416_384, 63 * 32 * 128),
]

# Catalog name, parameters that one token passes through by model card or report, in billions, and
# whether they count the table of the input (None: nor the head). Some round the last digit, some
# cut it off.
ACTIVE = [
    ("deepseek-moe-16b", 2.8, True),
    ("deepseek-v2", 21, True),
    ("deepseek-v2-lite", 2.4, False),
    ("deepseek-v3", 37, False),
    ("deepseek-v3.2", 37, False),
    ("deepseek-v4-flash", 13, False),
    ("deepseek-v4-pro", 49, False),
    ("gemma-4-26b-a4b", 4, True),
    ("glm-5", 40, False),
    ("glm-5.2", 40, False),
    ("glm-5.3-flash", 17, True),  # no count is published
    ("mimo-v2-flash", 15, True),
    ("minimax-m3", 23, None),
    ("step-3.7-flash", 11, True),
    ("glm4.5", 32, False),
    ("glm4.5-air", 12, False),
    ("gpt-oss-20b", 3.61, False),
    ("gpt-oss-120b", 5.13, False),
    ("granite-4.0-h-small", 9, True),
    ("jamba-1.5-large", 94, True),
    ("jamba-1.5-mini", 12, True),
    ("kimi-k2", 32, False),
    ("kimi-k3", 104, False),
    ("kimi-linear-48b-a3b", 3, False),
    ("lfm2-8b-a1b", 1.5, True),
    ("ling-1t", 50, False),
    ("llama4-maverick", 17, True),
    ("llama4-scout", 17, True),
    ("minimax-m1", 45.9, None),
    ("minimax-text-01", 45.9, None),
    ("mixtral-8x7b", 12.9, True),
    ("mixtral-8x22b", 39, True),
    ("nemotron-3-nano", 3.2, False),
    ("nemotron-3.5-lightning", 3.2, False),
    ("nemotron-3-super", 12, False),
    ("nemotron-3-ultra", 55, False),
    ("qwen2-57b-a14b", 14, True),
    ("qwen3-30b-a3b", 3, True),
    ("qwen3-next-80b-a3b", 3, False),
    ("qwen3.5-35b-a3b", 3, False),
    ("qwen3.5-122b-a10b", 10, True),
    ("qwen3.5-397b-a17b", 17, True),
    ("qwen3-235b-a22b", 22, True),
    ("qwen3-coder-480b-a35b", 35, True),
]

# What the parameter calculator of Calculon 0.1.0 prints, in billions.
CALCULON = [
    ("calculon-anthropic-52b", 52.033),
    ("calculon-chinchilla", 64.869),
    ("calculon-gopher-280b", 258.587),
    ("calculon-gpt3-13b", 12.941),
    ("calculon-gpt3-175b", 174.616),
    ("calculon-lamda", 103.526),
    ("calculon-megatron-126m", 0.125949),
    ("calculon-megatron-5b", 5.051),
    ("calculon-megatron-22b", 22.074),
    ("calculon-megatron-40b", 39.096),
    ("calculon-megatron-1t", 1008.039),
    ("calculon-palm-540b", 428.625),
    ("calculon-turing-530b", 529.601),
]

# Layers alone by section 4 of arXiv 2410.00273's model, exactly: in each 12 e^2 weights, 6 e biases
# and 4 e of norms. Its authors print 1,006.7 billion for the first (notebook of their statistics).
NERSC = [
    ("nersc-gpt3-1t", 128 * (12 * 25600**2 + 10 * 25600)),
    ("nersc-gpt3-175b", 96 * (12 * 12288**2 + 10 * 12288)),
    ("vit-era5", 48 * (12 * 12288**2 + 10 * 12288)),
]


@each_row("name", NAMES)
def test_model_is_named_after_its_file(name: str) -> None:
    """Every file of the catalog loads, and the model has the name of the file."""
    model = Model.load(name)

    assert name == model.name


@each_row("name", NAMES)
def test_every_figure_has_a_source(name: str) -> None:
    """Each value of a model is covered by a prefix in its sources."""
    model = Model.load(name)
    missing = [path for path in _fields(model) if not _prefixes(path) & set(model.sources)]

    assert not missing


@each_row("name", NAMES)
def test_every_source_has_a_figure(name: str) -> None:
    """Each prefix in the sources covers a value of the model."""
    model = Model.load(name)
    known = {prefix for path in _fields(model) for prefix in _prefixes(path)}

    assert set(model.sources) <= known


def test_every_model_is_compared_with_a_published_count() -> None:
    """The tables of published counts name all models of the catalog, each once."""
    compared = [name for name, *_ in (*PUBLISHED, *CALCULON, *NERSC)]

    assert sorted(compared) == sorted(NAMES)


@each_row(("name", "exact"), NERSC)
def test_parameter_count_equals_the_formula_of_nersc(name: str, exact: int) -> None:
    """All weights of the layers, and nothing else."""
    assert count_parameters(Model.load(name)).total == exact


@each_row(("name", "published", "rounding"), PUBLISHED)
def test_parameter_count_equals_the_published_one(
    name: str, published: float, rounding: float
) -> None:
    """The parameters of a model are as many as its authors print, to the last printed digit."""
    count = count_parameters(Model.load(name))

    assert abs(count.total - published) <= rounding


@each_row(("name", "billions", "with_embedding"), ACTIVE)
def test_active_parameters_are_the_published_ones(
    name: str, billions: float, with_embedding: bool | None
) -> None:
    """Of a mixture of experts, one token passes through as many as are printed."""
    count = count_parameters(Model.load(name))
    tables = {True: 0, False: 1, None: 2}[with_embedding]
    active = count.active - tables * count.embedding
    last_digit = 10.0 ** -len(str(billions).partition(".")[2])

    assert abs(active / 1e9 - billions) <= last_digit


def test_every_mixture_of_experts_is_compared() -> None:
    """The table of active counts names all of them; of the others every parameter is active."""
    counts = {name: count_parameters(Model.load(name)) for name in NAMES}
    sparse = sorted(name for name, count in counts.items() if count.active < count.total)

    assert sorted(name for name, *_ in ACTIVE) == sparse


@each_row(("name", "billions"), CALCULON)
def test_parameter_count_equals_that_of_calculon(name: str, billions: float) -> None:
    """Calculon's shapes have as many parameters as Calculon's own formula gives them."""
    model = Model.load(name)
    (layer,) = model.layers
    attention = layer.attention
    hidden, ffn = model.hidden, layer.mlp.ffn
    width = attention.heads * attention.head_dim
    weights = 2 * hidden * ffn + 4 * hidden * width
    biases_and_norms = hidden + ffn + 3 * width + hidden + 4 * hidden
    embedding = (51_200 + (model.seq_len or 0)) * hidden
    expected = layer.count * (weights + biases_and_norms) + embedding

    assert expected == count_parameters(model).total
    assert expected / 1e9 == pytest.approx(billions, abs=0.0005)


@each_row(
    ("name", "embedding"),
    [
        ("llama3-8b", 128_256 * 4096),
        ("qwen3-0.6b", 151_936 * 1024),
        ("gpt3-175b", (50_257 + 2048) * 12_288),
    ],
)
def test_embedding_is_counted_once(name: str, embedding: int) -> None:
    """The embedding is the token table and the learned positions, without an untied head."""
    count = count_parameters(Model.load(name))

    assert embedding == count.embedding


@each_row("name", NAMES)
def test_breakdown_sums_to_the_total(name: str) -> None:
    """The parts of the parameter count sum to the whole."""
    count = count_parameters(Model.load(name))

    assert count.total == sum(count.breakdown.values())


@each_row(
    ("alias", "name"),
    [("GPT3_1T", "gpt3-1t"), ("Llama3 8B", "llama3-8b"), ("PaLM-540B", "palm-540b")],
)
def test_aliases_of_a_name_load_the_same_model(alias: str, name: str) -> None:
    """Case, underscores and spaces do not matter in the name of a model."""
    assert Model.load(name) == Model.load(alias)


def _fields(model: Model) -> list[str]:
    """Name every value a file may set, by its dotted path."""
    figures = model.model_dump(exclude={"name", "description", "sources"})
    return list(_leaves(figures, ""))


def _leaves(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, (list, tuple)):
        parts = list(enumerate(value))
    else:
        yield path
        return
    for key, part in parts:
        yield from _leaves(part, f"{path}.{key}".lstrip("."))


def _prefixes(path: str) -> set[str]:
    parts = path.split(".")
    return {".".join(parts[:length]) for length in range(len(parts) + 1)}
