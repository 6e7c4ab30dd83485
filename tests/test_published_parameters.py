"""Parameters of published models, to the last one.

Published counts of parameters are those of the safetensors of each model on huggingface.co; the
architectures are those of the config.json beside them.
"""

from described_layers import gqa, mla, mlp, model, moe, runs
from rows import each_row
from shardwise.config.model import Model
from shardwise.ops.param_count import count_parameters


def gpt_oss(layers: int, experts: int) -> Model:
    """Sinks, biases everywhere, a window in every second layer."""
    kinds = [
        runs(
            layers // 2,
            gqa(64, 8, 64, bias="all", sinks=True, window=window),
            moe(experts, 4, 2880, bias=True, router_bias=True),
        )
        for window in (128, None)
    ]
    return model(2880, 201088, *kinds, interleave=[1, 1])


V3_MOE = moe(256, 8, 2048, shared_ffn=2048, selection_bias=True)
SCOUT = gqa(40, 8, 128, qk_norm="unweighted")
PUBLISHED = {
    "deepseek-ai/DeepSeek-V3": (
        model(7168, 129280, runs(3, mla(128, 1536), mlp(18432)), runs(58, mla(128, 1536), V3_MOE)),
        671_026_419_200,
        37_552_297_472,
    ),
    "deepseek-ai/DeepSeek-V2": (
        model(
            5120,
            102400,
            runs(1, mla(128, 1536), mlp(12288)),
            runs(59, mla(128, 1536), moe(160, 6, 1536, shared_ffn=3072)),
        ),
        235_741_434_880,
        21_375_800_320,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": (
        model(
            2048,
            102400,
            runs(1, mla(16, None), mlp(10944)),
            runs(26, mla(16, None), moe(64, 6, 1408, shared_ffn=2816)),
        ),
        15_706_484_224,
        2_661_150_208,
    ),
    "mistralai/Mixtral-8x7B-v0.1": (
        model(4096, 32000, runs(32, gqa(32, 8, 128), moe(8, 2, 14336))),
        46_702_792_704,
        12_879_925_248,
    ),
    "mistralai/Mixtral-8x22B-v0.1": (
        model(6144, 32000, runs(56, gqa(48, 8, 128), moe(8, 2, 16384))),
        140_620_634_112,
        39_152_031_744,
    ),
    "Qwen/Qwen3-235B-A22B": (
        model(4096, 151936, runs(94, gqa(64, 4, 128, qk_norm="head"), moe(128, 8, 1536))),
        235_093_634_560,
        22_190_763_520,
    ),
    "Qwen/Qwen3-30B-A3B": (
        model(2048, 151936, runs(48, gqa(32, 4, 128, qk_norm="head"), moe(128, 8, 768))),
        30_532_122_624,
        3_353_032_704,
    ),
    "meta-llama/Llama-4-Scout-17B-16E, text": (
        model(5120, 202048, runs(48, SCOUT, moe(16, 1, 8192, shared_ffn=8192))),
        107_769_861_120,
        17_172_894_720,
    ),
    "meta-llama/Llama-4-Maverick-17B-128E, text": (
        model(
            5120,
            202048,
            runs(24, SCOUT, mlp(16384)),
            runs(24, SCOUT, moe(128, 1, 8192, shared_ffn=8192)),
            interleave=[1, 1],
        ),
        400_711_848_960,
        17_184_691_200,
    ),
    "openai/gpt-oss-20b": (gpt_oss(24, 32), 20_914_757_184, 4_187_440_704),
    "openai/gpt-oss-120b": (gpt_oss(36, 128), 116_829_156_672, 5_711_982_912),
    "allenai/OLMo-2-1124-7B": (
        model(4096, 100352, runs(32, gqa(32, 32, 128, qk_norm="width"), mlp(11008), norms="post")),
        7_298_617_344,
        7_298_617_344,
    ),
    "google/gemma-2-9b": (
        model(
            3584,
            256000,
            runs(42, gqa(16, 8, 256), mlp(14336, "geglu"), norms="both"),
            tied_embeddings=True,
        ),
        9_241_705_984,
        9_241_705_984,
    ),
}


@each_row("name", PUBLISHED)
def test_published_parameters(name: str) -> None:
    """To the last one; those that a token passes through are our own sum."""
    described, total, active = PUBLISHED[name]
    counted = count_parameters(described)
    assert (counted.total, counted.active) == (total, active)
    assert sum(counted.breakdown.values()) == total


def test_parameters_of_multi_token_prediction() -> None:
    """One of DeepSeek V3's layers of experts, a projection of 2 h to h and three norms."""
    described = PUBLISHED["deepseek-ai/DeepSeek-V3"][0].model_copy(update={"mtp": 1})
    counted = count_parameters(described)
    assert counted.total == 671_026_419_200
    layer = 187_107_328 + 257 * 3 * 7168 * 2048 + 256 * 7169 + 2 * 7168
    assert counted.mtp == layer + 2 * 7168**2 + 3 * 7168
    assert count_parameters(described.model_copy(update={"mtp": 2})).mtp == 2 * counted.mtp
