"""Forks of Megatron-LM: how their files are recognized, their options and their defaults.

Megatron-DeepSpeed 4efb479d of 2025-07-16 (megatron/arguments.py) and BigScience's fork of it;
MindSpeed-LLM c77308a1 of 2026-08-21 (mindspeed_llm/features_manager); Pai-Megatron-Patch; BigCode's
Megatron-LM 7c325cd3 (megatron/arguments.py).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from shardwise.config import files
from shardwise.config.launch import Origin
from shardwise.errors import Fault, InputError, allowed_words
from shardwise.launchers.deepspeed.files import config_fields
from shardwise.launchers.megatron.arguments import Arguments, Words, WrittenOption
from shardwise.launchers.megatron.core_stack import Fields, Value
from shardwise.launchers.sections import Found
from shardwise.launchers.shell import shown
from shardwise.units import read_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A trainer with the command line of Megatron-LM and options of its own."""

    title: str
    stack: str
    text: re.Pattern[str] | None
    """What its files have besides options, such as names of modules."""
    marks: frozenset[str]
    """Options that no other trainer has."""
    words: Words
    defaults: Fields = field(default_factory=dict)
    complete: Callable[["Reading"], None] = lambda _: None
    """Fill in what follows from several options."""


@dataclass(slots=True, kw_only=True)
class Reading:
    """Options of a fork on their way to fields."""

    arguments: Arguments
    documents: Mapping[str, str]
    """Files that the script writes."""
    sibling: Callable[[str], str | None]
    """Text of a file that lies next to it, if it is there."""
    defaults: dict[str, Value]
    origins: dict[str, Origin] = field(default_factory=dict)
    """Origins of fields of a strategy that no option alone decides."""

    @property
    def fields(self) -> dict[str, Value]:
        """Fields that the file sets."""
        return self.arguments.fields

    def whole(self, name: str) -> int | None:
        """Take out a field of the fork that is a whole number."""
        found = self.fields.pop(name, None)
        if isinstance(found, float) and found.is_integer():  # --zero-stage is printed as 1.0
            return int(found)
        if found is None or (isinstance(found, int) and not isinstance(found, bool)):
            return found
        problem = "must be a whole number"
        fault = Fault.of(f"--{name.replace('_', '-')}", found, problem, self.arguments.source)
        self.arguments.faults.append(fault)
        return None

    def depth(self) -> int:
        """Layers of the model; 0 where the file has none."""
        found = self.fields.get("num_layers")
        return found if isinstance(found, int) else 0

    def note(self, flag: str, value: object, because: str) -> None:
        """Note an option that the prediction does not use as it is."""
        self.arguments.note(flag, (str(value),), because)

    def set_stages(self, counts: Sequence[int]) -> None:
        """Set the layers of stages, chunk after chunk."""
        self.fields["pipeline_model_parallel_layout"] = f"E{'|'.join('t' * n for n in counts)}L"


# --- Megatron-DeepSpeed ---------------------------------------------------------------------------

PRINTED = ""
"""Name of the configuration that a run prints, among the files that a script writes."""
_CONFIG, _STEPS = "deepspeed_config", "gradient_accumulation_steps"


def _complete_deepspeed(reading: Reading) -> None:
    """Experts of every n-th layer, sequence parallelism, and the JSON of DeepSpeed."""
    fields = reading.fields
    every = reading.whole("expert_interval")
    experts = fields.get("num_moe_experts")
    if experts and experts != 1:
        pattern = tuple(int((at + 1) % (every or 2) == 0) for at in range(reading.depth()))
        (reading.defaults if every is None else fields)["moe_layer_freq"] = pattern
        if not fields.pop("enable_expert_tensor_parallelism", False):
            reading.defaults["expert_tensor_parallel_size"] = 1
    if fields.pop("disable_moe_token_dropping", False):
        fields.pop("moe_expert_capacity_factor", None)
        reading.defaults["moe_expert_capacity_factor"] = None
    ulysses = reading.whole("ds_sequence_parallel_size")
    if ulysses is not None and ulysses > 1:
        fields |= {"context_parallel_size": ulysses, "cp_comm_type": ("a2a",)}
    if "embedding" in str(fields.pop("partition_method", "")):
        fields |= dict.fromkeys(_BY_EMBEDDING, True)
    if (gate := fields.pop("glu_activation", None)) is not None:
        fields |= {"gated_linear_unit": True, "activation_func": _GATES.get(str(gate), str(gate))}
    _read_configuration(reading)


_GATES = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}
_BY_EMBEDDING = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


def _read_configuration(reading: Reading) -> None:
    """Take ZeRO of the JSON that the script writes or names; the command line's stage without."""
    fields = reading.fields
    name = fields.pop(_CONFIG, None)
    if not fields.pop("deepspeed", False) and name is None:
        return
    stage = reading.whole("zero_stage")
    text = _text_of(reading, str(name)) if isinstance(name, str) else None
    if text is None:
        if name is not None:
            used = "0 is assumed" if stage is None else f"--zero-stage {stage} is used"
            because = f"the file is not here: its ZeRO stage is not known, {used}"
            reading.note("--deepspeed_config", shown(str(name)), because)
        fields["zero_stage"] = stage or 0
        reading.origins |= {"zero": Origin.ASSUMED} if stage is None else {}
        return
    name = shown(str(name))
    found = Found(name)
    try:
        data = files.parse_json(text, name)
        own = config_fields(data if isinstance(data, Mapping) else {}, found, model=None, gpus=None)
    except InputError as error:
        reading.arguments.faults += error.faults
        return
    reading.arguments.faults += found.faults
    zero = int(str(own.get("zero", 0)))
    if stage is not None and stage != zero:
        reading.note("--zero-stage", stage, f"{name} has stage {zero}, which counts")
    fields["zero_stage"] = zero
    steps = data.get(_STEPS) if isinstance(data, Mapping) else None
    _take(reading, own | ({_STEPS: steps} if isinstance(steps, int) else {}), name)


def _take(reading: Reading, own: Mapping[str, object], name: str) -> None:
    """Take over what the JSON decides besides the ZeRO stage."""
    fields = reading.fields
    for key, field_name in _FROM_CONFIG.items():
        if own.get(key):
            fields[field_name] = True
    for key in (_STEPS, "global_batch_size"):
        if (number := own.get(key)) is not None:
            fields.setdefault(key, int(str(number)))
    micro = fields.get("micro_batch_size")
    if own.get("micro_batch_size") not in (None, micro):
        problem = f"{name} has train_micro_batch_size_per_gpu {own['micro_batch_size']}"
        fault = Fault.of("--micro-batch-size", micro, problem, reading.arguments.source)
        reading.arguments.faults.append(fault)


_FROM_CONFIG = {"dp_overlap": "overlap_grad_reduce", "offload_optimizer": "optimizer_cpu_offload"}


def _text_of(reading: Reading, name: str) -> str | None:
    """The text of a file that the script writes, or that lies next to it."""
    plain = str(PurePath(name))
    if PRINTED in reading.documents:
        return reading.documents[PRINTED]
    for target, text in reading.documents.items():
        if str(PurePath(target)) == plain:
            return text
    return reading.sibling(plain)


_DEEPSPEED_NEUTRAL = re.compile(
    r"""--(
    deepspeed_mpi | deepspeed-activation-checkpointing | no-pipeline-parallel | deepscale(_config)?
    | moe-(eval-capacity-factor|min-capacity|loss-coeff) | create-moe-param-group
    | disable-moe-top2-2nd-expert-sampling | universal-checkpoint | zero-contigious-gradients
    | zero-reduce-scatter | use-pin-memory | repeated-dataloader | trust-remote-code
    | return-data-index | data-efficiency-curriculum-learning | use-dataset-only | inference
    | ds-inference | kill-switch-.* | codecarbon-dir | abort-on-unmet-fused-kernel-constraints
    | reset-progress | norm-target-loss | skip-train-iteration-range | loss-on-targets-only
    | (train|valid|test)-weighted-split-paths(-path)? | sync-tp-duplicated-parameters
    | rotary-position-embeddings-theta | ds_fused_adam | lazy-mpu-init | DDP-impl | prescale-grad
    | embedding-weights-in-fp32 | disable-mem-efficient-ln | no-log-.* | num-experts-teacher
    | contigious-checkpointing | synchronize-each-layer | eval-iters | no-persist-layer-norm
    | no-(masked-softmax|bias-gelu|bias-dropout)-fusion | data-impl | seed | warmup
    )""",
    re.VERBOSE,
)
_DEEPSPEED = Fork(
    title="Megatron-DeepSpeed",
    stack="megatron-deepspeed-2022",
    text=re.compile(r"(?m)^[^#\n]*\bdeepspeed +(?:--?\w+[= ]\S+ +)*\S*pretrain_\w+\.py"),
    marks=frozenset(
        (
            *("--deepspeed", "--deepspeed_config", "--deepspeed-config", "--zero-stage"),
            *("--deepspeed-activation-checkpointing", "--moe-expert-parallel-size"),
            *("--ds-sequence-parallel-size", "--no-pipeline-parallel", "--expert-interval"),
            *("--moe-train-capacity-factor", "--enable-zbh1-pipeline"),
        )
    ),
    words=Words(
        valued={
            "--topk": "moe_router_topk",
            "--expert-interval": "expert_interval",
            "--moe-expert-parallel-size": "expert_model_parallel_size",
            "--moe-train-capacity-factor": "moe_expert_capacity_factor",
            "--num-key-value-heads": "num_query_groups",
            "--ds-sequence-parallel-size": "ds_sequence_parallel_size",
            "--zero-stage": "zero_stage",
            "--gas": _STEPS,
            "--pipe-parallel-size": "pipeline_model_parallel_size",
            "--glu-activation": "glu_activation",
            "--pp-partition-method": "partition_method",
            "--deepspeed_config": _CONFIG,
            "--deepspeed-config": _CONFIG,
        },
        paths=("--deepspeed_config", "--deepspeed-config"),
        short={
            "--deepspeed": {"deepspeed": True},
            "--cpu-optimizer": {"optimizer_cpu_offload": True},
            "--enable-zbh1-pipeline": {"pipeline_schedule": "zb-h1"},
            "--enable-expert-tensor-parallelism": {"enable_expert_tensor_parallelism": True},
            "--disable-moe-token-dropping": {"disable_moe_token_dropping": True},
            "--use-flash-attn-v2": {"attention_backend": "flash"},
            "--use-flash-attn-v1": {"attention_backend": "flash"},
            "--use-flash-attn-triton": {"attention_backend": "flash"},
            "--use-flash-attn-builder": {"attention_backend": "flash"},
        },
        neutral=_DEEPSPEED_NEUTRAL,
    ),
    defaults={
        "attention_backend": "local",
        "moe_router_topk": 1,
        "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_permute_fusion": True,
        "moe_grouped_gemm": True,
    },
    complete=_complete_deepspeed,
)
_BIG_SCIENCE = replace(
    _DEEPSPEED,
    title="BigScience's Megatron-DeepSpeed",
    text=re.compile(r"(?i)bigscience"),
    marks=frozenset(
        (
            *("--pp-partition-method", "--abort-on-unmet-fused-kernel-constraints"),
            *("--embed-layernorm", "--sync-tp-duplicated-parameters", "--kill-switch-path"),
            *("--glu-activation", "--codecarbon-dir"),
        )
    ),
)


# --- MindSpeed ------------------------------------------------------------------------------------


def _complete_mindspeed(reading: Reading) -> None:
    """Dense first layers, layers that do nothing, shared experts, and lists of layers."""
    fields = reading.fields
    fields.pop("attention_backend", None)  # the kernel of CANN
    _drop_noop_layers(reading)
    if (listed := fields.pop("num_layer_list", None)) is not None:
        items = [read_whole(part) for part in str(listed).strip("[]()").split(",")]
        counts = [one for one in items if one]
        if len(counts) == len(items) and sum(counts) == reading.depth():
            reading.set_stages(counts)
        else:
            reading.note("--num-layer-list", listed, "is no list of all layers by stage")
    dense = reading.whole("first_k_dense_replace")
    depth = reading.depth()
    every = fields.get("moe_layer_freq", 1)
    if dense is not None and dense > 0 and isinstance(every, int) and every:
        pattern = (int(at >= dense and at % every == 0) for at in range(depth))
        fields["moe_layer_freq"] = tuple(pattern)
    shared = reading.whole("n_shared_experts")
    width = fields.get("moe_ffn_hidden_size") or fields.get("ffn_hidden_size")
    if shared and isinstance(width, int):
        fields.setdefault("moe_shared_expert_intermediate_size", shared * width)
    if fields.pop("moe_tp_extend_ep", False):
        fields["expert_tensor_parallel_size"] = 1
    kind = fields.pop("context_parallel_algo", None)
    if kind is not None:
        types = {
            "megatron_cp_algo": "p2p",
            "ulysses_cp_algo": "a2a",
            "kvallgather_cp_algo": "allgather",
        }
        fields["cp_comm_type"] = (types.get(str(kind), "a2a+p2p"),)
    if fields.pop("schedules_method", None) == "dualpipev":
        fields["pipeline_schedule"] = "zb-v"
        reading.note("--schedules-method", "dualpipev", "predicted as zb-v")


def _drop_noop_layers(reading: Reading) -> None:
    """Layers that do nothing: stages and chunks are cut with them, the model is without."""
    fields, depth = reading.fields, reading.depth()
    text = fields.pop("noop_layers", None)
    items = text if isinstance(text, tuple) else str(text).split(",")
    if text is None or not depth:
        return
    idle = {read_whole(str(one).strip()) for one in items}
    pp, vpp = (fields.get(name) or 1 for name in (_PP, _VPP))
    if isinstance(pp, int) and isinstance(vpp, int) and pp > 1 and depth % (pp * vpp) == 0:
        each = depth // (pp * vpp)
        counts = [
            sum(at not in idle for at in range(first, first + each))
            for first in range(0, depth, each)
        ]
        reading.set_stages(counts)
    fields["num_layers"] = depth - len(idle.intersection(range(depth)))


_PP, _VPP = "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"
_MINDSPEED_NEUTRAL = re.compile(
    r"""--(
    use-fused-(swiglu|rmsnorm|rotary-pos-emb) | no-shared-storage | handler-name | model-type-hf
    | enable-(hf2mg|mg2hf)-convert | disable-gloo-group | norm-topk-prob | seq-aux | manual-gc.*
    | reset-(attention-mask|position-ids) | rope-scaling-.* | gemm-gradient-accumulation-fusion
    | no-(masked-softmax|bias-gelu|bias-dropout|rope)-fusion | use-glm-rope | hccl-op-mode | spec
    | init-norm-weight-in-fp32 | shape-order | input-jitter | append-eod | ai-framework
    | attention-mask-type | (low|high)-freq-factor | long-factor | short-factor | longrope-.*
    | rope-factor | original-seq-len | apply-rope-no-in-complex | add-rmsnorm-offset
    | (short|long)-mscale | router-gating-in-fp32 | topk-softmax-in-fp32 | rmsnorm-weight-in-fp32
    | sparse-mode | prompt-type | no-pad-to-seq-lengths | is-instruction-dataset | fix-router
    | transformer-impl | mla-fa-without-pad | mla-mm-split | use-fused-ring-attention-update
    )""",
    re.VERBOSE,
)
_MINDSPEED = Fork(
    title="MindSpeed-LLM",
    stack="mindspeed-2024",
    text=re.compile(r"mindspeed_llm|modellink|ascend-toolkit|NPUS_PER_NODE"),
    marks=frozenset(
        (
            *("--use-fused-rotary-pos-emb", "--use-fused-swiglu", "--use-fused-rmsnorm"),
            *("--context-parallel-algo", "--first-k-dense-replace", "--noop-layers"),
            *("--moe-permutation-async-comm", "--reuse-fp32-param", "--use-ascend-mc2"),
            *("--n-shared-experts", "--swap-attention", "--no-shared-storage"),
        )
    ),
    words=Words(
        valued={
            "--first-k-dense-replace": "first_k_dense_replace",
            "--n-shared-experts": "n_shared_experts",
            "--noop-layers": "noop_layers",
            "--moe-intermediate-size": "moe_ffn_hidden_size",
            "--context-parallel-algo": "context_parallel_algo",
            "--schedules-method": "schedules_method",
            "--num-layer-list": "num_layer_list",
        },
        short={
            "--moe-tp-extend-ep": {"moe_tp_extend_ep": True},
            "--geglu": {"gated_linear_unit": True, "activation_func": "gelu"},
            "--gelu-tanh": {"gated_linear_unit": True, "activation_func": "gelu"},
            "--multi-head-latent-attention": {"multi_latent_attention": True},
            "--shared-expert-gate": {"moe_shared_expert_gate": True},
        },
        neutral=_MINDSPEED_NEUTRAL,
    ),
    complete=_complete_mindspeed,
)


# --- Pai-Megatron-Patch ---------------------------------------------------------------------------

_PAI = Fork(
    title="Pai-Megatron-Patch",
    stack="megatron-lm-2026",
    text=re.compile(r"(?i)megatron_patch|pai-megatron|megatron-lm-\d{6}"),
    marks=frozenset(("--patch-tokenizer-type", "--extra-vocab-size", "--max-padding-length")),
    words=Words(
        valued={
            "--intermediate-size": "ffn_hidden_size",
            "--n-head-kv": "num_query_groups",
            "--shared-moe-ffn-hidden-size": "moe_shared_expert_intermediate_size",
        },
        short={
            "--use-llama2-rotary-position-embeddings": {"position_embedding_type": "rope"},
            "--use-alibi-mask": {"position_embedding_type": "alibi"},
            "--enable-shared-expert": {},
        },
        neutral=re.compile(
            r"--(train-mode|dataset-impl|keep-last|do-.*|no-rope-fusion|transformer-type|append-eod"
            r"|reset-position-ids|manual-gc.*|no-(masked-softmax|bias-gelu|bias-dropout)-fusion"
            r"|convert-checkpoint-.*|no-async-tensor-model-parallel-allreduce|rotary-scale-factor)"
        ),
    ),
)


# --- BigCode --------------------------------------------------------------------------------------


def _complete_bigcode(reading: Reading) -> None:
    """Multi-query attention: one head of keys and values."""
    kind = reading.fields.pop("attention_head_type", "multihead")
    if kind == "multiquery":
        reading.fields["num_query_groups"] = 1
    elif kind != "multihead":
        problem = allowed_words(kind, ("multihead", "multiquery"))
        source = reading.arguments.source
        reading.arguments.faults.append(Fault.of("--attention-head-type", kind, problem, source))


_BIGCODE = Fork(
    title="BigCode's Megatron-LM",
    stack="megatron-lm-2026",
    text=None,
    marks=frozenset(("--attention-head-type", "--fim-rate", "--fim-spm-rate")),
    words=Words(
        valued={"--attention-head-type": "attention_head_type"},
        neutral=re.compile(r"--(fim-.*|structured-logs.*|(train|valid|test)-num-workers)"),
    ),
    complete=_complete_bigcode,
)
FORKS = (_BIG_SCIENCE, _DEEPSPEED, _MINDSPEED, _PAI, _BIGCODE)


def fork_of(text: str, written: Sequence[WrittenOption]) -> Fork | None:
    """Return the fork that a file is for, by its options, else by the words of its text."""
    flags = {flag for flag, _ in written}
    deepspeed = bool(_DEEPSPEED.marks & flags)
    if deepspeed and (_BIG_SCIENCE.marks & flags):
        return _BIG_SCIENCE
    by_option = next((one for one in FORKS if one.marks & flags), None)
    if by_option is not None:
        return by_option
    return next((one for one in FORKS if one.text is not None and one.text.search(text)), None)
