"""`Table`: strategies as columns, one row each; the form that every formula works on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from shardwise.arrays import Bools, Column, Floats, Ints, among
from shardwise.config.data_lengths import MicroBatch, micro_batch
from shardwise.config.degrees import refuse_levels
from shardwise.config.enums import (
    ROUTED_EXPERTS,
    ZERO_GRADIENTS,
    ZERO_WEIGHTS,
    AttentionKernel,
    Batching,
    CheckpointPlace,
    Compile,
    CpuOptimizer,
    CudaGraphs,
    Dispatcher,
    Dtype,
    ExpertKernel,
    GradSync,
    GraphScope,
    Loss,
    Optimizer,
    Quantization,
    Recompute,
    RecomputePart,
    Reference,
    Schedule,
    Task,
    TpExchange,
)
from shardwise.config.model import Model
from shardwise.config.stack import DEFAULT_STACK, Stack
from shardwise.config.strategy import Strategy
from shardwise.config.strategy_columns import LISTS, columns_of
from shardwise.config.strategy_fields import COLUMNS, FIELDS, Kind, StrategyField
from shardwise.config.system import System
from shardwise.config.system_columns import SystemColumns, SystemRows
from shardwise.errors import Fault, InputError
from shardwise.records import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Resolved strategies as columns of equal length.

    `strategy_fields.Kind` says what a column holds. Lists of layers, extents and stacks are
    positions in `stage_lists`, `extent_lists` and `stacks`. `with_choices` tries several values on
    all rows.
    """

    gpus: Ints
    tp: Ints
    tp2: Ints
    pp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    dp: Ints
    vpp: Ints
    micro_batch_size: Ints
    global_batch_size: Ints
    seq_len: Ints
    document_len: Ints
    batching: Ints
    zero: Ints
    dp_shard: Ints
    fsdp_prefetch: Ints
    first_stage_layers: Ints
    last_stage_layers: Ints
    recompute_layers: Ints
    lora_rank: Ints
    summa_panels: Ints
    expert_capacity: Floats
    expert_imbalance: Floats
    loss_tokens: Floats
    training: Bools
    quantized_weights: Bools
    fsdp_reshard: Bools
    embedding_as_layer: Bools
    loss_as_layer: Bools
    any_software: Bools
    expert_overlap: Bools
    tp_regather: Bools
    dp_overlap: Bools
    fused_activation: Bools
    offload_weights: Bools
    offload_activations: Bools
    offload_optimizer: Bools
    offload_nvme: Bools
    dtype: Ints
    quantization: Ints
    dispatcher: Ints
    dispatch_dtype: Ints
    attention: Ints
    attention_kernel: Ints
    recompute: Ints
    schedule: Ints
    placement: Ints
    tp_exchange: Ints
    tp_overlap: Ints
    cp_exchange: Ints
    grad_sync: Ints
    loss: Ints
    expert_kernel: Ints
    cuda_graphs: Ints
    compile: Ints
    optimizer: Ints
    cpu_optimizer: Ints
    host_threads: Ints
    task: Ints
    reference_model: Ints
    adapter: Ints
    base_weights: Ints
    checkpoint_place: Ints
    weight_dtype: Ints
    master_dtype: Ints
    moment_dtype: Ints
    gradient_dtype: Ints
    reduce_dtype: Ints
    recompute_parts: Ints
    frozen: Ints
    lora_parts: Ints
    lora_targets: Ints
    offload_parts: Ints
    graph_scope: Ints
    tp_tier: Ints
    cp_tier: Ints
    dp_tier: Ints
    pp_tier: Ints
    stack: Ints
    stacks: tuple[Stack, ...]
    stage_layers: Ints
    """-1 without a list."""
    data_lengths: Ints
    """-1 where all sequences are of `seq_len`."""
    extents: Ints
    """Position in `extent_lists`, -1 where the placement decides."""
    stage_lists: tuple[tuple[int, ...], ...] = ()
    extent_lists: tuple[str, ...] = ()
    length_lists: tuple[tuple[int, ...], ...] = ()
    systems: SystemRows | None = None
    """Of each row, where they do not all run on the same."""
    named: frozenset[str] | None = None
    """Fields whose values a search names, of rows that avoid what was reported; None: these rows do
    not (see `config.capabilities.Reported`)."""

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def sequence_parallel(self) -> Bools:
        """Whether norms and residuals are split along the sequence."""
        return self.tp_exchange == TpExchange.RS_AG.code

    @property
    def summa(self) -> Bools:
        """Whether products are 2D: among one rank nothing is split."""
        return (self.tp_exchange == TpExchange.SUMMA.code) & (self.tp * self.tp2 > 1)

    @property
    def fused_attention(self) -> Bools:
        """Whether the kernel in effect is a fused one that runs the dtype of the row."""
        kernel = self.in_effect("attention_kernel")
        with_fp32 = self.by_stack(lambda stack: stack.flash_fp32)
        with_fp32 |= among(kernel, [word.code for word in AttentionKernel if word.runs_fp32])
        fused: Bools = kernel != AttentionKernel.UNFUSED.code
        return fused & (with_fp32 | (self.dtype != Dtype.FP32.code))

    @property
    def expert_kernels(self) -> Ints:
        """Codes of `ExpertKernel` in effect; the stack may fuse them in some recipes only."""
        fused = self.in_recipes(lambda stack: stack.fused_expert_recipes)
        by_stack = np.where(fused, ExpertKernel.FUSED.code, self.in_effect("expert_kernel"))
        return np.where(self.expert_kernel == ExpertKernel.STACK.code, by_stack, self.expert_kernel)

    def in_recipes(self, recipes: Callable[[Stack], tuple[Quantization, ...]]) -> Bools:
        """Whether the low-precision recipe of each row is one of those that its stack lists."""
        bits = self.by_stack(lambda stack: float(Quantization.bits(recipes(stack))))
        return bits.astype(np.int64) >> self.quantization & 1 == 1

    @property
    def fuses_experts(self) -> Bools:
        """Whether grouped kernels run all expert GEMMs of a rank with their activation."""
        return self.expert_kernels == ExpertKernel.FUSED.code

    @property
    def runs_experts_apart(self) -> Bools:
        """Whether the GEMMs of each expert are kernels of their own."""
        return among(self.expert_kernels, (ExpertKernel.LOOP.code, ExpertKernel.CALLS.code))

    def by_expert_kernel(self, value: Callable[[Stack], float]) -> Floats:
        """A figure of expert GEMMs of each row (`Stack.with_expert_kernel`)."""
        kernels = self.expert_kernels

        def figure(word: ExpertKernel) -> Floats:
            if not np.any(kernels == word.code):
                return np.zeros(kernels.shape)
            return self.by_stack(lambda stack: float(value(stack.with_expert_kernel(word))))

        by_word = [figure(word) for word in ExpertKernel]
        found: Floats = np.choose(kernels, by_word)
        return found

    @property
    def graphs(self) -> Ints:
        """Codes of `CudaGraphs` in effect.

        A stack's own word holds where graphs can capture layers: not with activations of layers on
        the host; graphs of single layers neither with recompute of full layers or of `moe`
        (Megatron-Core 0.19, transformer_config.py). Megatron users turn graphs off then.
        """
        found = self.in_effect("cuda_graphs")
        single = found == CudaGraphs.PARTIAL.code
        full = self.recompute == Recompute.FULL.code
        moe = RecomputePart.bits((RecomputePart.MOE,))
        again = full | (
            (self.recompute == Recompute.SELECTIVE.code) & (self.recompute_parts & moe > 0)
        )
        layers = self.moves_activations & (self.offload_parts == 0)
        off = (self.cuda_graphs == CudaGraphs.STACK.code) & (layers | (single & again))
        return np.where(off, CudaGraphs.NONE.code, found)

    @property
    def captured_modules(self) -> Ints:
        """Modules of layers that partial graphs capture, as bits of `GraphScope`; else 0."""
        usual = GraphScope.bits(set(GraphScope) - {GraphScope.MOE})
        named = np.where(self.graph_scope > 0, self.graph_scope, usual)
        return np.where(self.graphs == CudaGraphs.PARTIAL.code, named, 0)

    @property
    def captures_step(self) -> Bools:
        """Whether one CUDA graph captures forward and backward of the step."""
        full: Bools = self.graphs == CudaGraphs.FULL.code
        return full

    @property
    def own_graph_pools(self) -> Ints:
        """Captured modules with memory in addition to that of eager layers, as bits.

        Those of graphs of layers that share no pool; of a full graph, experts that drop no tokens,
        whose buffers hold more than those of an even load.
        """
        alone = self.by_stack(lambda stack: not stack.shared_graph_pools)
        spare = self.captures_step & (self.expert_capacity == 0)
        return np.where(alone, self.captured_modules, 0) + np.where(spare, ROUTED_EXPERTS, 0)

    @property
    def compiles_layers(self) -> Bools:
        """Whether layers are compiled, by the strategy or by the stack."""
        compiled: Bools = self.in_effect("compile") >= Compile.LAYERS.code
        return compiled

    @property
    def compiles_loss(self) -> Ints:
        """Whether the strategy's own word compiles the loss.

        1 if it does, -1 if it compiles nothing, 0 where the loss of the stack applies.
        """
        said = np.where(self.compile >= Compile.LOSS.code, 1, -1)
        return np.where(self.compile == Compile.STACK.code, 0, said)

    @property
    def loss_in_effect(self) -> Ints:
        """Codes of the losses of rows: their own or their stack's, compiled as `compile` says.

        torch.compile makes an eager loss a compiled one; without it a compiled one runs eagerly.
        """
        loss, open_ = self.in_effect("loss"), self.loss == Loss.STACK.code
        compiled = open_ & (self.compiles_loss > 0) & (loss == Loss.EAGER.code)
        eager = open_ & (self.compiles_loss < 0) & (loss == Loss.COMPILED.code)
        loss = np.where(compiled, Loss.COMPILED.code, loss)
        return np.where(eager, Loss.EAGER.code, loss)

    def by_compile(self, figure: str) -> Floats:
        """A figure of each row's stack with layers compiled as in the row (`Stack.as_compiled`)."""
        compiles = self.compiles_layers

        def of(compiled: bool) -> Floats | float:
            if not np.any(compiles == compiled):
                return 0.0
            return self.by_stack(lambda stack: float(getattr(stack.as_compiled(compiled), figure)))

        return np.where(compiles, of(compiled=True), of(compiled=False))

    @property
    def panels(self) -> Ints:
        """Panels of 2D products: as set, else the fewest that divide evenly on every rank."""
        if not np.any(summa := self.summa):
            return np.ones_like(self.tp)
        least = np.lcm(self.tp, self.tp2)
        return np.where(summa, np.where(self.summa_panels > 0, self.summa_panels, least), 1)

    @property
    def pipelined(self) -> Bools:
        """Whether there are several stages."""
        return self.pp > 1

    @property
    def joins_ends(self) -> Bools:
        """Whether the first pipeline rank has both the embedding and the head."""
        return among(self.schedule, (Schedule.ZB_V.code, Schedule.DUALPIPE.code))

    @property
    def sends_once(self) -> Bools:
        """Whether a token for several experts of a rank or node travels there once."""
        once = np.array([word.sends_once for word in Dispatcher])[self.dispatcher]
        return once & (self.ep * self.etp > 1)

    @property
    def gathers_tokens(self) -> Bools:
        """Whether ranks that share experts gather all of their tokens."""
        return (self.dispatcher == Dispatcher.ALL_GATHER.code) & (self.ep * self.etp > 1)

    @property
    def overlaps_experts(self) -> Bools:
        """Whether communication of experts runs behind the compute of another micro-batch."""
        return (self.expert_overlap | (self.schedule == Schedule.DUALPIPE.code)) & self.training

    @property
    def overlaps_by_nodes(self) -> Bools:
        """Whether communication of experts overlaps node by node, as in Megatron-Core."""
        sends = self.ep * self.etp > 1
        paired = self.schedule == Schedule.DUALPIPE.code
        return self.expert_overlap & self.training & sends & ~paired

    @property
    def recomputes_some(self) -> Bools:
        """Whether only some of the layers recompute."""
        return self.recompute_layers > 0

    @property
    def syncs_once(self) -> Bools:
        """Whether ZeRO-2 and ZeRO-3 reduce the gradients of several micro-batches once per step."""
        sharded: Bools = (self.zero >= ZERO_GRADIENTS) & self.training
        if not np.any(sharded):
            return sharded
        alone = self.by_stack(lambda stack: stack.grad_sync == GradSync.STEP)
        piped = self.by_stack(lambda stack: stack.pipeline_grad_sync == GradSync.STEP)
        by_stack = (self.grad_sync == GradSync.STACK.code) & np.where(self.pipelined, piped, alone)
        named = self.grad_sync == GradSync.STEP.code
        return sharded & (named | by_stack) & (self.micro_batches > 1)

    @property
    def stays_gathered(self) -> Bools:
        """Whether ZeRO-3 gathers weights once per step, for all of its micro-batches."""
        once: Bools = self.syncs_once & ~self.fsdp_reshard & (self.zero >= ZERO_WEIGHTS)
        return once

    @property
    def may_update_on_host(self) -> Bools:
        """Whether processors of the host may update the weights.

        Not those of muon, which needs matrix products, and not with 8-bit state, which is paged
        (bitsandbytes, whose kernels run on the accelerator).
        """
        on_accelerator = [Optimizer.MUON.code, Optimizer.ADAMW_8BIT.code]
        moves = self.offload_optimizer & self.training
        rows: Bools = moves & ~among(self.optimizer, on_accelerator)
        return rows

    @property
    def updates_on_host(self) -> Bools:
        """Whether the processors of the host update the weights."""
        on_host = self.in_effect("cpu_optimizer") != CpuOptimizer.NONE.code
        rows: Bools = self.may_update_on_host & on_host
        return rows

    @property
    def updates_early(self) -> Bools:
        """Whether the host updates during backward (`CpuOptimizer.SUPEROFFLOAD`)."""
        early = self.in_effect("cpu_optimizer") == CpuOptimizer.SUPEROFFLOAD.code
        rows: Bools = self.may_update_on_host & early
        return rows

    @property
    def threads(self) -> Ints:
        """Threads of a rank on the host: as set, else those of the stack."""
        own = self.by_stack(lambda stack: float(stack.host_threads))
        found: Ints = np.where(self.host_threads > 0, self.host_threads, own.astype(np.int64))
        return found

    @property
    def offloads_checkpoints(self) -> Bools:
        """Whether the inputs of fully recomputed layers wait on the host."""
        host = self.checkpoint_place == CheckpointPlace.HOST.code
        full = self.recompute == Recompute.FULL.code
        return host & full & ~self.offload_activations & self.training

    @property
    def moves_activations(self) -> Bools:
        """Whether saved activations of layers are offloaded: all, some parts, or checkpoints."""
        return self.offload_activations | self.offloads_checkpoints

    def _of_batches(self, figure: Callable[..., float], usual: Column, *more: Ints) -> Floats:
        """A figure of the micro-batches of rows with `data_lengths`; of others the usual one.

        Parameters
        ----------
        figure
            Of a `MicroBatch` and the values of the columns `more`.
        """
        found = np.array(usual, dtype=np.float64)
        rows = np.flatnonzero(self.data_lengths >= 0)
        if rows.size:
            count = self.micro_batch_size * self.sequences_per_sample
            columns = (self.data_lengths, self.batching, self.seq_len, count, *more)
            keys, position = np.unique(
                np.stack([column[rows] for column in columns]), axis=1, return_inverse=True
            )
            lists = self.length_lists
            found[rows] = np.array(
                [
                    figure(micro_batch(lists[one], Batching.from_code(word), row, count), *own)
                    for one, word, row, count, *own in keys.T.tolist()
                ]
            )[position.reshape(-1)]
        return found

    @property
    def usual_sequences(self) -> Floats:
        """Sequences of the usual micro-batch (`config.data_lengths.MicroBatch`)."""
        count = self.micro_batch_size * self.sequences_per_sample
        return self._of_batches(lambda one: one.sequences, count)

    @property
    def usual_len(self) -> Floats:
        """Tokens of each of them, with padding."""
        return self._of_batches(lambda one: one.seq_len, self.seq_len)

    @property
    def usual_document_len(self) -> Floats:
        """Tokens that attention of a token stays inside of."""
        packed = np.where(self.document_len > 0, self.document_len, self.seq_len)
        return self._of_batches(lambda one: one.document_len, packed)

    @property
    def longest_len(self) -> Floats:
        """Tokens of each sequence of the longest micro-batch, which memory must hold."""
        return self._of_batches(lambda one: one.longest, self.seq_len)

    @property
    def longest_document_len(self) -> Floats:
        """Tokens that attention of a token of the longest micro-batch stays inside of."""
        return np.where(self.document_len > 0, self.document_len * 1.0, self.longest_len)

    @property
    def trained_len(self) -> Floats:
        """Tokens of a sequence, or packed row, without padding."""
        return self._of_batches(lambda one: one.trained, self.seq_len)

    @property
    def attention_len(self) -> Ints:
        """Length at which attention costs what the data's does; 0: that of a full sequence."""
        return np.rint(self._of_batches(lambda one: one.attention_len, self.document_len)).astype(
            np.int64
        )

    @property
    def batch_wait(self) -> Floats:
        """Time that ranks wait for the longest micro-batch of all, over that of their own.

        Replicas that gather weights or reduce gradients with each micro-batch wait each time. Sums
        of m micro-batches differ by 1 / sqrt(m) of that.
        """
        if not np.any(self.data_lengths >= 0):
            return np.zeros(self.data_lengths.shape)
        each = (self.zero == ZERO_WEIGHTS) & ~self.stays_gathered
        each |= (self.zero == ZERO_GRADIENTS) & ~self.syncs_once
        once = self._of_batches(MicroBatch.wait, np.zeros(self.data_lengths.shape), self.dp)
        return once / np.sqrt(np.where(each, 1, self.micro_batches))

    @property
    def sequences_per_sample(self) -> Ints:
        """Sequences of a sample: a chosen and a rejected answer in tasks on pairs."""
        return np.where(np.array([word.pairs for word in Task])[self.task], 2, 1)

    @property
    def has_reference(self) -> Bools:
        """Whether the loss reads log-probabilities of a reference model."""
        found: Bools = np.array([word.has_reference for word in Task])[self.task]
        return found

    @property
    def rates_answers(self) -> Bools:
        """Whether the head has one column (a reward model)."""
        found: Bools = self.task == Task.RM.code
        return found

    @property
    def compares_answers(self) -> Bools:
        """Whether the loss reads log-probabilities of answers (dpo, orpo, kto)."""
        return among(self.task, (Task.DPO.code, Task.ORPO.code, Task.KTO.code))

    @property
    def runs_reference(self) -> Bools:
        """Whether the reference model runs in a step."""
        kinds = (Reference.COPY.code, Reference.COPY_HOST.code, Reference.ADAPTER_OFF.code)
        return among(self.references, kinds)

    @property
    def references(self) -> Ints:
        """Codes of `Reference`, of which `usual` is none here."""
        usual = np.where(self.lora_rank > 0, Reference.ADAPTER_OFF.code, Reference.COPY.code)
        found = np.where(self.reference_model == Reference.USUAL.code, usual, self.reference_model)
        return np.where(self.has_reference & self.training, found, Reference.USUAL.code)

    @property
    def unlearned_passes(self) -> Ints:
        """Forward passes of a micro-batch without gradients.

        That of the reference model, if not before training. kto pairs each batch with one of
        mismatched answers, on which policy and reference run forward (TRL 1.9, kto_trainer.py).
        """
        mismatched = np.where((self.task == Task.KTO.code) & self.training, 1, 0)
        return self.runs_reference * (1 + mismatched) + mismatched

    @property
    def micro_batches(self) -> Ints:
        """Micro-batches of one replica in a step."""
        return self.global_batch_size // (self.dp * self.micro_batch_size)

    @property
    def replicas(self) -> Ints:
        """Ranks that hold the same weights but those of experts."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> Ints:
        """Ranks that hold the same experts."""
        return self.tp * self.tp2 * self.cp * self.dp // (self.etp * self.ep)

    @property
    def shard_share(self) -> Floats:
        """Part of the replicas that share one set of shards: all, but for hybrid sharding."""
        return np.where(self.dp_shard > 0, self.dp_shard / self.dp, 1.0)

    @overload
    def by_stack(self, value: Callable[[Stack], bool]) -> Bools: ...

    @overload
    def by_stack(self, value: Callable[[Stack], float]) -> Floats: ...

    def by_stack(self, value: Callable[[Stack], float]) -> Bools | Floats:
        """Evaluate a function of a stack for the stack of each row."""
        values = np.array([value(stack) for stack in self.stacks])
        values = values if values.dtype == np.bool_ else values.astype(np.float64)
        return values[self.stack]

    def in_effect(self, name: str) -> Ints:
        """Codes of a choice that strategies may leave to their stack: that of the stack then.

        The first word of the field of a strategy is `stack`; the stack has a field of the same name
        and words.
        """
        own = np.array([getattr(stack, name).code for stack in self.stacks])[self.stack]
        column: Ints = getattr(self, name)
        return np.where(column == 0, own, column)

    def take(self, index: Ints | Bools | slice) -> "Table":
        """Return some of the rows, with every choice."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        selected = {
            n: column if column.ndim > 1 else column[index] for n, column in columns.items()
        }
        systems = None if self.systems is None else self.systems.take(index)
        return replace(self, **selected, systems=systems)

    def only_row(self) -> dict[str, object] | None:
        """Values of the columns of one row, and its lists; None of other rows.

        Numbers up to `MOST` stay exact in float64.
        """
        if len(self.stacks) != 1 or len(self) != 1 or self.systems is not None:
            return None
        columns, lists = _columns_of(self), (self.stage_lists, self.extent_lists, self.length_lists)
        if any(column.ndim > 1 for column in columns):
            return None
        row = dict(zip(COLUMNS, np.concatenate(columns).tolist(), strict=True))
        names = ("stage_lists", "extent_lists", "length_lists")
        return row | dict(zip(names, lists, strict=True)) | {"pipelined": row["pp"] > 1}

    def on(self, system: System) -> System:
        """The system that the rows run on: that of the call, or each row's own."""
        return system if self.systems is None else self.systems.system

    def on_each(self, systems: SystemColumns) -> tuple["Table", Ints]:
        """Return every row on each system, the first system first, and which row each one is."""
        rows = np.tile(np.arange(len(self)), len(systems))
        position = np.repeat(np.arange(len(systems)), len(self))
        on_each = SystemRows(columns=systems, position=position)
        return self.take(rows).changed(systems=on_each), rows

    def replaced(self, other: "Table", names: Iterable[str]) -> "Table":
        """Take some columns from another table of as many rows, with the lists they stand for."""
        columns: dict[str, object] = {name: getattr(other, name) for name in names}
        columns |= {LISTS[name]: getattr(other, LISTS[name]) for name in names if name in LISTS}
        return self.changed(**columns)

    def changed(self, **columns: Any) -> "Table":
        """Return the rows with other columns."""
        return replace(self, **columns)

    @staticmethod
    def joined(tables: "Sequence[Table]") -> "Table":
        """Rows of several tables of the same stacks, one after the other."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(table, name) for table in tables]) for name in COLUMNS
        }
        lists: dict[str, Any] = {}
        for column in ("extents", "stage_layers", "data_lengths"):
            listed = LISTS[column]
            every = dict.fromkeys(one for table in tables for one in getattr(table, listed))
            numbers = {one: number for number, one in enumerate(every)}
            lists[listed] = tuple(numbers)
            columns[column] = np.concatenate(
                [
                    np.array([*map(numbers.__getitem__, getattr(table, listed)), -1])[
                        getattr(table, column)
                    ]
                    for table in tables
                ]
            )
        return replace(tables[0], **columns, **lists)

    @staticmethod
    def by_row(tables: "Sequence[Table]", which: Ints) -> "Table":
        """Take each row from one of several tables of as many rows, which may differ in stacks."""
        every = [stack for table in tables for stack in table.stacks]
        stacks = tuple(stack for i, stack in enumerate(every) if stack not in every[:i])
        same = [table.changed(stacks=stacks, stack=table.stack_codes(stacks)) for table in tables]
        rows = np.arange(len(which))
        return same[0].changed(
            **{name: np.stack([getattr(t, name) for t in same])[which, rows] for name in COLUMNS}
        )

    def stack_codes(self, stacks: "Sequence[Stack]") -> Ints:
        """Position of the stack of each row among other stacks."""
        return np.array([stacks.index(stack) for stack in self.stacks])[self.stack]

    def with_choices(self, choices: Mapping[str, Column]) -> "Table":
        """Try several values of fields of `Group.CHOICE` on every row.

        These columns then have shape (choices, 1), and whatever depends on them (choices, rows):
        what does not is still evaluated once a row.
        """
        columns: dict[str, Any] = {name: column[:, np.newaxis] for name, column in choices.items()}
        return replace(self, **columns)

    def strategy(self, row: int) -> Strategy:
        """Return one row as a `Strategy`."""
        values: dict[str, Any] = {name: self._value(field, row) for name, field in COLUMNS.items()}
        return Strategy(**values, sequence_parallel=bool(self.sequence_parallel[row]))

    def column(self, name: str) -> Any:
        """Return the column of a field in a form that `Table.of` takes."""
        column = getattr(self, name)
        if name not in LISTS:
            return column
        values = (*getattr(self, LISTS[name]), None)  # -1 stands for none
        return [values[at] for at in column.tolist()]

    def _value(self, field: StrategyField, row: int) -> object:
        """One value of a column, as the field of a strategy has it."""
        value = getattr(self, field.name)[row].item()
        match field.kind:
            case Kind.WORD:
                return field.words[value]
            case Kind.SET:
                return (
                    (field.word_type.from_bits(value) or None)
                    if field.optional
                    else field.word_type.from_bits(value)
                )
            case Kind.LIST | Kind.STACK:
                return getattr(self, LISTS[field.name])[value] if value >= 0 else None
            case Kind.TIER:
                return value if value >= 0 else None
        return (value or None) if field.optional else value

    def to_columns(self) -> dict[str, Any]:
        """Return the columns by field of `Strategy`, words as words, what is open as NaN."""
        columns = {name: self._plain(field) for name, field in COLUMNS.items()}
        columns["sequence_parallel"] = self.sequence_parallel
        return {name: columns[name] for name in FIELDS}

    def _plain(self, field: StrategyField) -> NDArray[Any]:
        """A column as people write it."""
        column = getattr(self, field.name)
        match field.kind:
            case Kind.WORD:
                return np.array(field.words)[column]
            case Kind.SET:
                return np.array([" ".join(field.word_type.from_bits(b)) for b in column.tolist()])
            case Kind.LIST | Kind.STACK:
                texts = [_text(value) for value in getattr(self, LISTS[field.name])]
                return np.array([*texts, ""])[column]
            case Kind.TIER:
                return np.where(column < 0, np.nan, column)
        return np.where(column == 0, np.nan, column) if field.optional else column

    @classmethod
    def of(
        cls,
        model: Model,
        rows: "Mapping[str, Any] | Sequence[Strategy] | Any",
        on: System | str = DEFAULT_STACK,
    ) -> "Table":
        """Build a table from strategies, a mapping of columns, or a data frame.

        Missing columns have the defaults of `Strategy`; a single value holds for all
        rows. A row without a stack has that of the system.

        Raises
        ------
        InputError
            If a column is unknown, of the wrong type, or of another length than the others.
        """
        if isinstance(rows, Table):
            return rows
        if isinstance(rows, Mapping):
            refuse_levels(rows)
            return cls(**columns_of(model, rows, on))
        if isinstance(rows, Strategy):
            rows = [rows]
        if isinstance(rows, Sequence) and not isinstance(rows, str):
            if all(isinstance(row, (Strategy, Mapping)) for row in rows):
                resolved = [Strategy.load(row).resolved(model, on) for row in rows]
                if len(resolved) == 1:  # single values are read faster than lists
                    return cls(**columns_of(model, dict(resolved[0]), on))
                listed: dict[str, Any] = {}
                for name in Strategy.model_fields:
                    values = [getattr(row, name) for row in resolved]
                    # A set is for all rows as it is; one field has their number.
                    single = values and name != "tp" and not isinstance(values[0], tuple)
                    first = values[0] if single else None
                    same = first is not None and all(value is first for value in values)
                    listed[name] = first if same else values
                return cls(**columns_of(model, listed, on))
        elif hasattr(rows, "to_numpy") and hasattr(rows, "columns"):
            named = {name: rows[name].to_numpy() for name in rows.columns}
            return cls(**columns_of(model, named, on))
        problem = "a table is a mapping of columns, a data frame, or a list of strategies"
        raise InputError(Fault(source="strategies", value=rows, has_value=True, problem=problem))


_columns_of = attrgetter(*COLUMNS)


def _text(value: Stack | str | tuple[int, ...]) -> str:
    """A stack, extents or the layers of stages as text."""
    if isinstance(value, Stack):
        return value.name
    return value if isinstance(value, str) else " ".join(map(str, value))
