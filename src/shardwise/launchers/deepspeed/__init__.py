"""DeepSpeed: plans as its JSON with a launch script, and its JSON as strategies."""

from shardwise.launchers.deepspeed.files import NAME, faults, read, recognise, write
from shardwise.launchers.deepspeed.options import DEGREES
from shardwise.launchers.launch import (
    DOCUMENTS,
    MODEL_CODE,
    NO_OPTIONS,
    NOT_SELECTIVE,
    PLACED,
    Launcher,
    fields_named,
)

_MORE = {
    "compile": "engine.compile() in the script decides it",
    "expert_kernel": "the code of the model decides it",
}
SAYS = fields_named(
    "gpus dp micro_batch_size global_batch_size seq_len dtype recompute zero"
    " fsdp_reshard fsdp_prefetch optimizer frozen lora_rank lora_parts tp_overlap dp_overlap"
    " master_dtype moment_dtype gradient_dtype reduce_dtype"
    " offload_weights offload_activations offload_optimizer offload_nvme cpu_optimizer placement"
).union(one.field for one in DEGREES)
_FIXED = {
    "grad_sync": "the stage decides it: 2 and 3 reduce gradients of each micro-batch",
    "weight_dtype": "the sections bf16 and fp16 store weights in 16 bits",
}
LAUNCHER = Launcher(
    name=NAME,
    title="DeepSpeed",
    releases=("0.19.5",),
    endings=(".json",),
    recognise=recognise,
    read=read,
    faults=faults,
    write=write,
    yours="model, sequences and data of the script, learning rate (optimizer.params), checkpoints",
    says=SAYS,
    ignores=NO_OPTIONS | DOCUMENTS | MODEL_CODE | PLACED | NOT_SELECTIVE | _FIXED | _MORE,
)
