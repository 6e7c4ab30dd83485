"""Words for `shardwise fsdp` that several tests use, and what of a record they compare."""

OPERATIONS = ("llama3.2-1b", "--gpus", 8)
FAST = ("--reshard", "always", "--seconds", 10)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def timeless(record):
    """A record without what differs from run to run, and without where it was read."""
    left_out = ("elapsed_s", "profile_s", "source", "shardwise")
    return {name: value for name, value in record.items() if name not in left_out}
