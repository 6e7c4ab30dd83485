#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
# Megatron-LM, options of core_v0.19.0.
# On every node: NODE_RANK=0 MASTER_ADDR=HOST bash FILE; with Slurm: sbatch FILE.
# MEGATRON is the folder of Megatron-LM.
set -euo pipefail

export CUDA_DEVICE_MAX_CONNECTIONS=1
NNODES=4
GPUS_PER_NODE=8
MEGATRON=${MEGATRON:-.}
MASTER_PORT=${MASTER_PORT:-6000}

MODEL_ARGS=(
  --swiglu
  --group-query-attention
  --num-layers 32
  --hidden-size 4096
  --ffn-hidden-size 14336
  --num-attention-heads 32
  --num-query-groups 8
  --kv-channels 128
  --seq-length 8192
  --max-position-embeddings 8192
  --position-embedding-type rope
  --rotary-percent 1
  --normalization RMSNorm
  --softmax-type vanilla
  --hidden-dropout 0
  --attention-dropout 0
  --make-vocab-size-divisible-by 128
  --vocab-size 128255
  --disable-bias-linear
  --untie-embeddings-and-output-weights
)

PARALLELISM_ARGS=(
  --tensor-model-parallel-size 4
  --pipeline-model-parallel-size 2
  --context-parallel-size 1
  --expert-model-parallel-size 1
  --sequence-parallel
  --tp-comm-overlap
)

OPTIMIZER_ARGS=(
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  --optimizer adam
  --grad-reduce-in-bf16
)

BATCH_ARGS=(
  --micro-batch-size 1
  --global-batch-size 64
  --bf16
  --cross-entropy-loss-fusion
  --attention-backend auto
  --cuda-graph-impl none
  --cross-entropy-fusion-impl native
)

DATA_ARGS=(
  --mock-data
  --tokenizer-type NullTokenizer
  --train-iters 100
  --eval-iters 0
  --lr 1e-4
  --min-lr 1e-5
  --lr-decay-style cosine
  --lr-warmup-iters 10
  --weight-decay 0.1
  --clip-grad 1.0
  --log-interval 1
  --log-throughput
)

PROGRAM=("$MEGATRON/pretrain_gpt.py"
  "${MODEL_ARGS[@]}"
  "${PARALLELISM_ARGS[@]}"
  "${OPTIMIZER_ARGS[@]}"
  "${BATCH_ARGS[@]}"
  "${DATA_ARGS[@]}"
)
RANKS=(--nproc-per-node "$GPUS_PER_NODE" --nnodes "$NNODES")
if [ -n "${SLURM_JOB_ID:-}" ]; then
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  srun --ntasks-per-node 1 torchrun "${RANKS[@]}" --rdzv-backend c10d \
    --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" "${PROGRAM[@]}"
else
  torchrun "${RANKS[@]}" --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "$MASTER_PORT" \
    "${PROGRAM[@]}"
fi
