"""Small tables of kernels in files, and a round machine to predict them by hand."""

import polars as pl

from shardwise.config.system import System

# From shared tables of ai-dynamo/aiconfigurator (commit 095f58a): DeepGEMM in SGLang 0.5.14, one
# NVIDIA H100, time with the quantising of the input.
DEEPGEMM_H100 = pl.DataFrame(
    [
        ("h100_sxm", "fp8_block", 4096, 1024, 4096, 111.3),
        ("h100_sxm", "fp8_block", 4097, 1024, 4096, 50.2),
        ("h100_sxm", "fp8_block", 2561, 1024, 4096, 103.8),
        ("h100_sxm", "fp8_block", 3072, 1024, 4096, 45.8),
        ("h100_sxm", "fp8_block", 32768, 1024, 4096, 330.9),
    ],
    schema=["gpu", "dtype", "m", "n", "k", "latency_us"],
    orient="row",
)

THROTTLE = {"slowdown": 0, "after": 1e-3}
MATMUL = {
    "efficiency": 1,
    "fill_depth": 0,
    "fill_tiles": 0,
    "memory_efficiency": 1,
    "launch": 0,
    "throttle": THROTTLE,
}
ATTENTION = {
    "tile": 128,
    "efficiency": {"64": 1},
    "longest_weight": 0,
    "memory_efficiency": 1,
    "launch": 0,
    "throttle": THROTTLE,
}
EXPERTS = MATMUL | {
    "row_step": 64,
    "pair_bytes": 0,
    "token_bytes": 0,
    "inner_bytes": 0,
    "choice_bytes": 0,
}


def machine(**benchmark):
    """100 TFLOP/s in bf16, 200 in fp8, 1 TB/s, 100 multiprocessors; kernels as they are given."""
    fields = System.load("h100-sxm").to_dict()
    chip = fields["accelerator"]
    chip["matrix"] = {"bf16": 1e14, "fp8": 2e14, "fp16": 1e14, "tf32": 5e13, "fp32": 1e13}
    chip["multiprocessors"] = 100
    chip["memory"][0]["bandwidth"] = 1e12
    chip["benchmark"] = benchmark or None
    fields["sources"] = {}
    return System.validated(fields)


def saved(folder, kind, rows, ending=".csv"):
    """Write rows (columns by name) as a table of a kind."""
    frame = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(rows)
    path = folder / f"{kind}{ending}"
    if ending == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, compression="gzip" if ending.endswith(".gz") else "uncompressed")
    return path
