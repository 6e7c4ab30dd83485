"""Plans as shell scripts and argument files of Megatron-LM."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.config.enums import (
    ZERO_GRADIENTS,
    CudaGraphs,
    Dtype,
    ExpertKernel,
    Loss,
    TpOverlap,
)
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.errors import Fault, InputError
from shardwise.launchers.launch import (
    LaunchFile,
    LaunchPlan,
    as_comments,
    captured_graphs,
    nodes_of,
    thread_variables,
)
from shardwise.launchers.megatron.core_hybrid import SPEC, is_hybrid
from shardwise.launchers.megatron.core_options import core_faults, core_fields
from shardwise.launchers.megatron.core_stack import Fields, Value
from shardwise.launchers.megatron.options import ACTIVATIONS, OPTIONS, RING_PRODUCTS, written

SCRIPT, ARGUMENTS = ".sh", ".txt"
_OVERLAP_FILE = "tp_comm_overlap.yaml"
_GELU = (False, "gelu")
_OF_ACTIVATION = {pair: flag for flag, pair in ACTIVATIONS.items()} | {_GELU: ""}
_TRAINING: tuple[tuple[str, ...], ...] = (
    ("--mock-data",),
    ("--tokenizer-type", "NullTokenizer"),
    ("--train-iters", "100"),
    ("--eval-iters", "0"),
    ("--lr", "1e-4"),
    ("--min-lr", "1e-5"),
    ("--lr-decay-style", "cosine"),
    ("--lr-warmup-iters", "10"),
    ("--weight-decay", "0.1"),
    ("--clip-grad", "1.0"),
    ("--log-interval", "1"),
    ("--log-throughput",),
)
"""Data and hyperparameters with which a script runs as it is; none of them changes a step."""

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """Options on lines of their own, and what they are about."""

    title: str
    lines: tuple[Words, ...]


def faults(model: Model, strategy: Strategy) -> Iterator[Fault]:
    """Yield what Megatron-LM has no option for, in a strategy that its stack can run."""
    yield from core_faults(model, strategy)
    for number, layer in enumerate(model.layers):
        block = layer.mlp or layer.moe
        activation = None if block is None else block.activation
        if activation is not None and activation not in ("swiglu", "gelu", "relu2"):
            field = f"layers.{number}.{'mlp' if layer.mlp else 'moe'}.activation"
            problem = "Megatron-LM: no option; allowed: swiglu, gelu, relu2"
            yield Fault.of(field, activation, problem, f"model {model.name}")
    if strategy.expert_kernel == ExpertKernel.FUSED:
        problem = "Megatron-LM: no option here; Megatron-Bridge has one; allowed: stack, calls"
        yield Fault.of("expert_kernel", strategy.expert_kernel, problem)
    if strategy.loaded_stack().quantized_activation_input:
        problem = "Megatron-LM: no option; allowed: false"
        yield Fault.of("stack.quantized_activation_input", True, problem)
    if strategy.loss == Loss.IN_PLACE:
        problem = "Megatron-LM refuses --cross-entropy-fusion-impl te since core 0.19; nearest: "
        yield Fault.of("loss", strategy.loss, problem + Loss.VOCAB_PARALLEL_FUSED)


def write(plan: LaunchPlan, release: str, ending: str) -> tuple[LaunchFile, ...]:
    """Write the files of a plan.

    Raises
    ------
    InputError
        If an argument file is not enough.
    """
    ring = plan.strategy.tp_overlap == TpOverlap.RING and bool(core_fields(plan)["tp_comm_overlap"])
    if ending == ARGUMENTS:
        if ring:
            problem = f"needs a file of its own, which a script writes; allowed ending: {SCRIPT}"
            raise InputError(Fault.of("tp_overlap", TpOverlap.RING, problem))
        return (LaunchFile(ending=ARGUMENTS, text=_argument_file(plan, release)),)
    return (LaunchFile(ending=SCRIPT, text=_script(plan, release, ring=ring), executable=True),)


# --- Options --------------------------------------------------------------------------------------


def _sections(plan: LaunchPlan) -> list[_Section]:
    """All options of a plan."""
    fields = _on_command_line(core_fields(plan))
    sections = []
    for title, options in OPTIONS.items():
        lines = [written(one, fields.get(one.field)) for one in options]
        of_model = _model_lines(fields) if title == "model" else []
        found = (*of_model, *(line for line in lines if line is not None))
        if found:
            sections.append(_Section(title=title, lines=found))
    more = (*_TRAINING, *_companions(plan))
    return [*sections, _Section(title="data and training", lines=more)]


def _on_command_line(fields: Fields) -> dict[str, Value]:
    """Fields as the command line has them."""
    changed = dict(fields)
    if fields["pipeline_model_parallel_layout"] is not None:
        changed["virtual_pipeline_model_parallel_size"] = None
    if fields["cross_entropy_loss_fusion"]:
        changed["cross_entropy_fusion_impl"] = "native"
    if not fields["bf16"]:  # --grad-reduce-in-bf16 is of bf16
        changed["grad_reduce_in_fp32"] = None
    if fields["num_distributed_optimizer_instances"] == 1:
        changed["num_distributed_optimizer_instances"] = None
    if not fields["gated_linear_unit"]:
        changed["bias_activation_fusion"] = None
    if fields["virtual_pipeline_model_parallel_size"] is None:
        changed["overlap_p2p_comm"] = None
    vocab = fields["vocab_size"]
    if isinstance(vocab, int):  # NullTokenizer adds one
        changed["vocab_size"] = vocab - 1
    return changed


def _model_lines(fields: Fields) -> list[Words]:
    """Options of an architecture that are not named as their field."""
    lines: list[Words] = []
    pair = bool(fields["gated_linear_unit"]), str(fields["activation_func"])
    if flag := _OF_ACTIVATION[pair]:
        lines.append((flag,))
    if fields.get("num_query_groups") is not None:
        lines.append(("--group-query-attention",))
    return lines


def _companions(plan: LaunchPlan) -> Iterator[Words]:
    """Options that others need."""
    strategy = plan.strategy
    fields = core_fields(plan)
    if strategy.dtype == Dtype.FP16 and fields["grad_reduce_in_fp32"]:
        yield ("--accumulate-allreduce-grads-in-fp32",)
    if fields["use_megatron_fsdp"]:
        yield "--ckpt-format", "fsdp_dtensor"
    if fields["use_torch_fsdp2"]:
        yield "--ckpt-format", "torch_dist"
    if captured_graphs(plan.model, strategy) == CudaGraphs.FULL:
        yield ("--no-check-for-nan-in-loss-and-grad",)
    if is_hybrid(plan.model):
        yield "--spec", *SPEC
    if plan.model.has_experts:
        yield "--moe-router-load-balancing-type", "aux_loss"
        yield "--moe-aux-loss-coeff", "1e-3"


def environment(plan: LaunchPlan) -> dict[str, str]:
    """Return variables of the environment that a plan needs."""
    strategy = plan.strategy
    found = thread_variables(strategy)
    blackwell = any(name.startswith("fp4") for name in plan.system.accelerator.matrix)
    fsdp = strategy.zero >= ZERO_GRADIENTS
    if fsdp or strategy.expert_overlap:
        # FSDP refuses 1, overlap of experts warns (arguments.py:1031-1190, 1453-1479).
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    elif (strategy.tp > 1 or strategy.cp > 1) and not blackwell:
        found["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if strategy.offload_activations:  # Transformer Engine 2.10 and later (arguments.py:1935)
        found["NVTE_CPU_OFFLOAD_V1"] = "1"
    return found


# --- Files ----------------------------------------------------------------------------------------


def _argument_file(plan: LaunchPlan, release: str) -> str:
    nodes, per_node = nodes_of(plan.system, plan.strategy.gpus or 1)
    start = f"torchrun --nproc-per-node {per_node} --nnodes {nodes}"
    variables = " ".join(f"{name}={value}" for name, value in environment(plan).items())
    head = [
        f"Options of Megatron-LM, core_v{release}.",
        f"{f'{variables} ' if variables else ''}{start} {_program(plan)} $(grep -v '^#' FILE)",
        *plan.comments,
    ]
    lines = [as_comments(head).rstrip("\n")]
    for section in _sections(plan):
        lines += [f"# {section.title}", *(" ".join(line) for line in section.lines)]
    return "\n".join(lines) + "\n"


def _script(plan: LaunchPlan, release: str, *, ring: bool) -> str:
    nodes, per_node = nodes_of(plan.system, plan.strategy.gpus or 1)
    head = [
        f"Megatron-LM, options of core_v{release}.",
        "On every node: NODE_RANK=0 MASTER_ADDR=HOST bash FILE; with Slurm: sbatch FILE.",
        "MEGATRON is the folder of Megatron-LM.",
        *plan.comments,
    ]
    sections = _sections(plan)
    names = [f"{section.title.partition(' ')[0].strip(',').upper()}_ARGS" for section in sections]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={per_node}",
        as_comments(head).rstrip("\n"),
        "set -euo pipefail",
        "",
        *(f"export {name}={value}" for name, value in environment(plan).items()),
        f"NNODES={nodes}",
        f"GPUS_PER_NODE={per_node}",
        "MEGATRON=${MEGATRON:-.}",
        "MASTER_PORT=${MASTER_PORT:-6000}",
    ]
    for name, section in zip(names, sections, strict=True):
        lines += ["", f"{name}=("]
        lines += [f"  {' '.join(map(shlex.quote, line))}" for line in section.lines]
        lines.append(")")
    if ring:
        lines += _overlap_lines(names[0])
    return "\n".join([*lines, "", *_start_lines(names, _program(plan))]) + "\n"


def _overlap_lines(name: str) -> list[str]:
    """Overlap around a ring for every product that has it (transformer_engine, module/base.py)."""
    return [
        "",
        f"cat > {_OVERLAP_FILE} << 'EOF'",
        *(f"{product}: {{method: ring_exchange}}" for product in RING_PRODUCTS),
        "EOF",
        f"{name}+=(--tp-comm-overlap-cfg {_OVERLAP_FILE})",
    ]


def _program(plan: LaunchPlan) -> str:
    return "pretrain_hybrid.py" if is_hybrid(plan.model) else "pretrain_gpt.py"


def _start_lines(names: Sequence[str], program: str) -> list[str]:
    """Start of the ranks: one torchrun on every node, by srun inside a job of Slurm."""
    lines = [
        f'PROGRAM=("$MEGATRON/{program}"',
        *(f'  "${{{name}[@]}}"' for name in names),
        ")",
    ]
    return [
        *lines,
        'RANKS=(--nproc-per-node "$GPUS_PER_NODE" --nnodes "$NNODES")',
        'if [ -n "${SLURM_JOB_ID:-}" ]; then',
        '  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        '  srun --ntasks-per-node 1 torchrun "${RANKS[@]}" --rdzv-backend c10d \\',
        '    --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" "${PROGRAM[@]}"',
        "else",
        '  torchrun "${RANKS[@]}" --node-rank "${NODE_RANK:-0}" \\',
        '    --master-addr "${MASTER_ADDR:-localhost}" --master-port "$MASTER_PORT" \\',
        '    "${PROGRAM[@]}"',
        "fi",
    ]
