"""NERSC's transformer-perf-estimates: its formulas exactly as published, faults included.

Repository ShashankSubramanian/transformer-perf-estimates, commit 54278b0 (2024-10-02); paper arXiv
2410.00273. Section numbers in the docstrings are those of the project's specification of it. Every
formula is one function on arrays whose rows are configurations.

How far each part is to be trusted:

- Layers, times, totals, memory and search reproduce its stored results to rounding.
- Its authors report 2 to 26 % between the model and runs on 512 A100. Collectives of more than 64
  MiB among up to 64 nodes with all their NICs are within 8 % of measured ones; small ones are timed
  at half of their measured time.
- Not modeled: embeddings, head, loss, optimizer step, recompute, workspace, residuals.

Faults reproduced:

- the layer norms of SUMMA are l / m1 wide where e / m1 is meant, and so is what its stages hand on;
- messages between domains cost nothing where some stages share a domain;
- an all-reduce has its factor 2 only where it spans domains with several members in each;
- nic_factor is ignored for groups with one member per domain;
- remainders of divisions are dropped;
- data-parallel communication hides behind passes with communication of their own; FLOPs depend on
  the system; biases after the row split are unsplit in 1d, and of width e / m1 in 2d-seqp's
  attention.
"""

from shardwise.predecessors.nersc.files import NerscModel, NerscSystem
from shardwise.predecessors.nersc.reference.layers import (
    METHODS,
    Method,
    NerscConfiguration,
    check_together,
    collective_time,
)
from shardwise.predecessors.nersc.reference.optimum import (
    Found,
    SearchResult,
    configuration_words,
    count,
    layer_statistics,
    search,
    statistics,
)

__all__ = [
    "METHODS",
    "Found",
    "Method",
    "NerscConfiguration",
    "NerscModel",
    "NerscSystem",
    "SearchResult",
    "check_together",
    "collective_time",
    "configuration_words",
    "count",
    "layer_statistics",
    "search",
    "statistics",
]
