"""accelerate: plans as its YAML with a tensor-parallel plan, and its YAML as strategies."""

from shardwise.launchers.accelerate.files import NAME, faults, read, recognise, write
from shardwise.launchers.launch import (
    DOCUMENTS,
    MODEL_CODE,
    NO_OPTIONS,
    NOT_SELECTIVE,
    PLACED,
    Launcher,
    fields_named,
)

SAYS = fields_named(
    "gpus tp cp dp micro_batch_size global_batch_size seq_len dtype quantization quantized_weights"
    " recompute zero dp_shard fsdp_reshard optimizer frozen lora_rank lora_parts tp_exchange"
    " cp_exchange grad_sync offload_weights offload_optimizer compile"
)
_NO_STAGES = "the stack refuses pp, without which it has no effect"
_MORE = {
    "expert_kernel": "experts_implementation of the model's configuration decides it",
    "stage_layers": _NO_STAGES,
    "embedding_as_layer": _NO_STAGES,
    "loss_as_layer": _NO_STAGES,
    **dict.fromkeys(
        ("weight_dtype", "master_dtype", "moment_dtype", "gradient_dtype", "reduce_dtype"),
        "mixed precision decides it, and the stack refuses other types",
    ),
}
LAUNCHER = Launcher(
    name=NAME,
    title="accelerate",
    releases=("1.14.0",),
    endings=(".yaml", ".yml"),
    recognise=recognise,
    read=read,
    faults=faults,
    write=write,
    yours="model, sequences, batch and data of the script, learning rate, checkpoints",
    says=SAYS,
    ignores=NO_OPTIONS | DOCUMENTS | MODEL_CODE | PLACED | NOT_SELECTIVE | _MORE,
)
