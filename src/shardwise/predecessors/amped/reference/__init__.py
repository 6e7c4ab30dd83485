"""AMPeD: its time model exactly as published, faults included.

Moolchandani, Kundu, Ruelens, Vrancx, Evenblij, Perumkunnil: "AMPeD: An Analytical Model for
Performance in Distributed Training of Transformers", ISPASS 2023. Its program could not be had: the
public snapshot has no code. Every formula is one function on arrays, its arguments AMPeD's own
parameter names; times are those of one layer and the global batch unless noted.

How far each part is to be trusted:

- High: names and units of the parameters and of the quantities derived from them
  (`predecessors.amped.formulas`), labels and order of the breakdown.
- Medium: times of compute, tensor, pipeline and data parallelism, the bubble and the total. They
  follow a description of the program as a derivative extended it. Left out as the derivative's own:
  links halved by oversubscription, optical circuit switching, the length of a summarization.
- Low: the all-to-all of experts (`MoE_overhead_per_layer_fw_pass`), of which only what
  it is split over is known; `total_MACs` and what follows from it; the curve of the efficiency,
  whose form was not found: give one as points and a cap. The constant 0.51 was found.
- Its results: none could be compared. Its authors report at most 12 % from what they measured.

Faults reproduced:

- a stage computes its layers one after another, yet the bubble counts the time of one: its compute
  part is too small by the number of layers L;
- activations are as wide as one head, where a is that: what tensor and pipeline parallelism
  send is too small by the number of heads;
- these volumes are of the global batch, not of a replica (only those within a node are divided, by
  the nodes), and latencies are paid once a batch, not with every micro-batch;
- a non-linear operation takes as long as if an accelerator had one core; those of the MLP lack the
  length of a sequence, and so does the head, which counts in every layer instead;
- gating of all layers is added to each of them;
- memory of activations is divided by the replicas twice, that of weights by all accelerators;
- degrees are not checked against layers, heads or batch: micro-batches may be fractions.
"""

from shardwise.predecessors.amped.formulas import layer_shapes
from shardwise.predecessors.amped.reference.optimum import (
    CONSTANTS,
    DEGREES,
    EFFICIENCY,
    LABELS,
    MEMORY,
    MOST_ACCELERATORS,
    TERMS,
    Found,
    MicrobatchEfficiency,
    SearchResult,
    breakdown_text,
    count,
    evaluate,
    search,
    summary_text,
)

__all__ = [
    "CONSTANTS",
    "DEGREES",
    "EFFICIENCY",
    "LABELS",
    "MEMORY",
    "MOST_ACCELERATORS",
    "TERMS",
    "Found",
    "MicrobatchEfficiency",
    "SearchResult",
    "breakdown_text",
    "count",
    "evaluate",
    "layer_shapes",
    "search",
    "summary_text",
]
