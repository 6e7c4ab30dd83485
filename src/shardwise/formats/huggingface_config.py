"""One Hugging Face config.json: keys read with their defaults, and all that is wrong with them."""

from collections.abc import Mapping
from typing import Any

from shardwise.errors import Fault, InputError
from shardwise.noun import MOST, MOST_LAYERS

__all__ = ["MOST", "Config"]

# What changes the architecture, by the key that says so. Where a family does not read such a key,
# it must have a value that stands for nothing.
_MATTERS = {
    "add_cross_attention": "cross-attention",
    "add_full_attention_sink_bias": "sinks of attention",
    "add_swa_attention_sink_bias": "sinks of attention",
    "alibi": "ALiBi positions",
    "attention_bias": "biases of the attention",
    "attention_chunk_size": "attention in chunks",
    "bias": "biases",
    "cross_attention_layers": "cross-attention",
    "hidden_size_per_layer_input": "embeddings of every layer",
    "hybrid_override_pattern": "hybrid layers",
    "index_n_heads": "sparse attention",
    "index_topk": "sparse attention",
    "is_encoder_decoder": "an encoder beside the decoder",
    "kv_lora_rank": "latent attention",
    "layer_types": "kinds of layers",
    "linear_attn_config": "linear attention",
    "linear_num_value_heads": "linear attention",
    "mamba_d_state": "Mamba layers",
    "mamba_num_heads": "Mamba layers",
    "mlp_bias": "biases of the MLP",
    "moe_num_experts": "experts",
    "n_routed_experts": "experts",
    "num_experts": "experts",
    "num_kv_shared_layers": "layers that share keys and values",
    "num_local_experts": "experts",
    "num_mtp_modules": "multi-token prediction",
    "num_nextn_predict_layers": "multi-token prediction",
    "parallel_attn": "attention and MLP side by side",
    "q_lora_rank": "latent attention",
    "qkv_bias": "biases of the attention",
    "qk_layernorm": "norms of queries and keys",
    "sliding_window": "sliding windows",
    "ssm_cfg": "Mamba layers",
    "ssm_state_size": "Mamba layers",
    "use_bias": "biases",
    "use_bidirectional_attention": "attention in both directions",
    "use_parallel_residual": "attention and MLP side by side",
    "use_qk_norm": "norms of queries and keys",
    "use_qkv_bias": "biases of the attention",
    "word_embed_proj_dim": "an embedding of another width",
}
_NOTHING: tuple[object, ...] = (None, False, 0, "", [], {})
_ALL_ALIKE = {"full_attention"}
_OF_OTHER_HEADS = ("classifier_", "summary_")
_EXPERTS = frozenset({"moe_num_experts", "n_routed_experts", "num_experts", "num_local_experts"})


class Config:
    """The keys of a config.json, or of the language model nested in it.

    A wrong value is noted and read as the smallest that is right, so that one look finds all that
    is wrong; `refuse` raises what was noted.
    """

    def __init__(self, data: Mapping[str, Any], *, source: str, prefix: str = "") -> None:
        self.data = data
        self.source = source
        self.prefix = prefix
        self.faults: list[Fault] = []
        self._read: set[str] = set()

    def value(self, key: str) -> Any:
        """The value of a key; None where it is null or missing."""
        self._read.add(key)
        return self.data.get(key)

    def wrong(self, key: str, problem: str, value: object = ...) -> None:
        """Note that a key is wrong; `value` is shown unless it is left out."""
        has_value = value is not ...
        field = f"{self.prefix}{key}"
        shown = value if has_value else None
        fault = Fault(
            source=self.source, field=field, value=shown, has_value=has_value, problem=problem
        )
        if fault not in self.faults:  # a key may be read for several fields
            self.faults.append(fault)

    def count(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1; without a default it must be there."""
        value = self.value(key)
        if value is None and default is None:
            self.wrong(key, "is missing and has no default")
            return 1
        return self._integer(key, default if value is None else value, least=1)

    def whole(self, key: str, default: int = 0) -> int:
        """An integer of at least 0."""
        value = self.value(key)
        return self._integer(key, default if value is None else value, least=0)

    def needed(self, *keys: str) -> None:
        """Note keys that are missing; the defaults of the class are used by no published file."""
        for key in keys:
            if self.value(key) is None:
                self.wrong(key, "is missing and has no default")

    def _integer(self, key: str, value: object, *, least: int) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST:
            return value
        self.wrong(key, f"must be an integer from {least} to {MOST}", value)
        return least

    def depth(self, key: str) -> int:
        """Number of layers."""
        layers = self.count(key)
        if layers > MOST_LAYERS:
            self.wrong(key, f"must be at most {MOST_LAYERS}", layers)
            return 1
        return layers

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(key, "must be true or false", value)
        return bool(value)

    def share(self, key: str, default: float) -> float:
        """A number from 0 to 1; newer files keep those of positions inside `rope_parameters`."""
        value = self.value(key)
        inside = self.value("rope_parameters")
        if value is None and isinstance(inside, Mapping):
            value = inside.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            self.wrong(key, "must be a number from 0 to 1", value)
            return default
        return float(value)

    def one_of(self, key: str, allowed: Mapping[str, str], default: str | None = None) -> str:
        """What a word of the file stands for."""
        value = self.value(key)
        word = default if value is None else value
        if isinstance(word, str) and word in allowed:
            return allowed[word]
        if word is None:
            self.wrong(key, "is missing and has no default")
        else:
            self.wrong(key, f"allowed: {', '.join(allowed)}", word)
        return next(iter(allowed.values()))

    def numbers(self, key: str) -> list[int]:
        """A list of integers; empty where it is null or missing."""
        value = self.value(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            self.wrong(key, "must be a list of integers", value)
            return []
        return value

    def drops(self) -> bool:
        """Whether any probability of dropout is above 0."""
        keys = [key for key in self.data if key.endswith(("_dropout", "_pdrop"))]
        return any(self.share(key, 0.0) > 0 for key in keys if not key.startswith(_OF_OTHER_HEADS))

    def refuse_unread(self, architecture: str) -> None:
        """Note every key that changes the architecture in a way its family does not read."""
        for key, what in _MATTERS.items():
            value = self.data.get(key)
            nothing = value in _NOTHING or (key in _EXPERTS and value == 1)
            if key == "layer_types" and isinstance(value, list):
                nothing = {str(kind) for kind in value} <= _ALL_ALIKE
            if key not in self._read and not nothing:
                self.wrong(key, f"{what}: not modelled for {architecture}", value)

    def refuse(self) -> None:
        """Raise what was noted, if anything."""
        if self.faults:
            raise InputError(self.faults)
