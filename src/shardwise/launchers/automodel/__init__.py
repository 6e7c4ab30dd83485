"""NeMo AutoModel: plans as configurations, and configurations and commands as strategies."""

from shardwise.launchers.automodel.reader import NAME, RELEASE, TITLE, read, recognise
from shardwise.launchers.automodel.writer import faults, write
from shardwise.launchers.launch import (
    DOCUMENTS,
    NO_OPTIONS,
    NOT_SELECTIVE,
    PLACED,
    Launcher,
    fields_named,
)

SAYS = fields_named(
    "gpus tp cp pp ep vpp dp dp_shard micro_batch_size global_batch_size seq_len dtype recompute"
    " zero fsdp_reshard grad_sync optimizer lora_rank lora_targets adapter base_weights"
    " weight_dtype master_dtype moment_dtype gradient_dtype loss attention_kernel compile task"
    " quantization quantized_weights schedule dispatcher tp_exchange batching"
)
_DATA = {name: why for name, why in DOCUMENTS.items() if name != "batching"}
_MORE = {
    "reduce_dtype": "mp_policy decides it, in fp32 by default",
    "lora_parts": "lora_targets says the same by modules",
    "expert_kernel": "backend.experts decides it, and others than that of the stack are refused",
    "tp_overlap": "tp_plan of the model's code decides it",
}
LAUNCHER = Launcher(
    name=NAME,
    title=TITLE,
    releases=(RELEASE,),
    endings=(".yaml", ".yml"),
    recognise=recognise,
    read=read,
    faults=faults,
    write=write,
    yours="folder of the model, data set, learning rate, epochs, checkpoints",
    says=SAYS,
    ignores=NO_OPTIONS | _DATA | PLACED | NOT_SELECTIVE | _MORE,
)
