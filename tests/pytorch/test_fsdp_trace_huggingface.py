"""A `config.json` of transformers is traced without its weights."""

import json

import pytest

from shardwise import Model, estimate
from shardwise.errors import InputError

torch = pytest.importorskip("torch")

from shardwise.fsdp.trace import load_module  # noqa: E402 - only where torch is
from traced_modules import BF16, check_ranges, only, traced, weight  # noqa: E402


def config(tmp_path, **fields):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return tmp_path


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
QWEN3_MOE = LLAMA | {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "head_dim": 16,
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
}


class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("transformers")

    @pytest.mark.parametrize(
        "fields", [LLAMA, GPT2, QWEN3_MOE, MIXTRAL], ids=lambda f: f["model_type"]
    )
    def test_a_config_is_all_that_is_needed(self, tmp_path, fields):
        """Each layer runs once; every weight is trained in the segments of its holder."""
        profile = traced(config(tmp_path, **fields))
        check_ranges(profile)
        assert profile.never_run == ()
        assert all(one.gradient_segment >= 0 for one in profile.parameters)
        assert profile.source == str(tmp_path / "config.json")
        assert len(profile.positions) == len(profile.modules)

    def test_layers_are_alike(self, tmp_path):
        """Each holds as much more, and takes as long."""
        profile = traced(config(tmp_path, **(LLAMA | {"num_hidden_layers": 4})))
        layers = [only(profile, f"model.layers.{n}") for n in range(1, 4)]
        for way in ("forward", "backward"):
            ranges = [slice(*getattr(layer, way)) for layer in layers]
            assert profile.seconds[ranges[1]] == pytest.approx(profile.seconds[ranges[2]])
        ends = [profile.end_bytes[layer.forward[1] - 1] for layer in layers]
        assert ends[2] - ends[1] == ends[1] - ends[0] > 0

    def test_rotary_embeddings_have_no_backward(self, tmp_path):
        rotary = only(traced(config(tmp_path, **LLAMA)), "model.rotary_emb")
        assert rotary.backward[0] == rotary.backward[1]

    def test_no_mask_is_made_of_whole_sequences(self, tmp_path):
        """A mask of 512 x 512 would stand in for causal attention, which needs none."""
        path = config(tmp_path, **(LLAMA | {"num_hidden_layers": 1}))
        short, long = traced(path, seq_len=512), traced(path, seq_len=1024)
        assert long.resident_bytes.max() < 2.01 * short.resident_bytes.max()

    def test_tied_heads(self, tmp_path):
        profile = traced(config(tmp_path, **GPT2))
        tied = weight(profile, "transformer.wte.weight")
        names = [profile.modules[place].name for place in tied.holders]
        assert names == ["transformer.wte", "lm_head"]

    def test_experts_share_the_tokens(self, tmp_path):
        profile = traced(config(tmp_path, **QWEN3_MOE))
        assert any("every expert takes as many tokens" in text for text in profile.assumed)

    def test_a_config_that_is_none(self, tmp_path):
        with pytest.raises(InputError, match="no config that transformers knows"):
            traced(config(tmp_path, model_type="nothing-known"))

    @pytest.mark.parametrize("fields", [LLAMA, GPT2], ids=lambda f: f["model_type"])
    @pytest.mark.parametrize("again", [False, True])
    def test_the_peak_is_that_of_torch(self, tmp_path, fields, again):
        """Byte for byte what `torch.distributed._tools.MemTracker` counts."""
        mem_tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")
        fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
        load = load_module(config(tmp_path, **fields))

        def made():
            module = load.build()
            if again:
                module.activation_checkpointing_enable()
            return module

        profile = traced(made)
        with fake_tensor.FakeTensorMode(), load.stand_ins():
            torch.set_default_dtype(torch.bfloat16)
            try:
                module = made()
                _, called = load.inputs(module, 2, 16)
                tracker = mem_tracker.MemTracker()
                tracker.track_external(module, *called.values())
                with tracker:
                    load.loss(module(**called)).backward()
            finally:
                torch.set_default_dtype(torch.float32)
        (counted,) = tracker.get_tracker_snapshot("peak").values()
        weights = sum(one.numel * one.element_bytes for one in profile.parameters)
        assert profile.resident_bytes.max() + weights + profile.fixed_bytes == counted["Total"]

    def test_seconds_are_near_an_estimate(self, tmp_path):
        """Four layers of Llama 2 7B, 4096 tokens, on an H100: within 15 % of `estimate`."""
        fields = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}
        fields |= {"num_key_value_heads": 32, "num_hidden_layers": 4, "vocab_size": 32000}
        profile = traced(config(tmp_path, **(LLAMA | fields)), batch=1, seq_len=4096)
        data = Model.load("llama2-7b").to_dict()
        data["layers"][0]["count"] = 4
        run = {"gpus": 1, "gbs": 1, "mbs": 1, "seq_len": 4096, "stack": "torchtitan-eager"}
        expected = estimate(Model.load(data), "h100-sxm", run).time_s
        whole = expected["forward"] + expected["backward"]
        assert profile.seconds.sum() == pytest.approx(whole, rel=0.15)

    def test_a_vision_model_is_given_images(self, tmp_path):
        """Its rates of dropped paths are read off a tensor while it is built."""
        fields = {"model_type": "convnext", "hidden_sizes": [8, 8, 8, 8], "drop_path_rate": 0.1}
        profile = traced(config(tmp_path, depths=[1, 1, 1, 1], image_size=64, **fields))
        check_ranges(profile)
        assert profile.fixed_bytes == 2 * 3 * 64 * 64 * BF16

    def test_an_encoder_and_a_decoder(self, tmp_path):
        fields = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
        fields |= {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 2}
        profile = traced(config(tmp_path, vocab_size=100, **fields))
        check_ranges(profile)
        assert only(profile, "encoder").forward[1] <= only(profile, "decoder").forward[0]
