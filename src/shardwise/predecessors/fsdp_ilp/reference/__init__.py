"""The FSDP unit planner of scyther: its program exactly as published, faults included.

Repository sanketpurandare/scyther, commit 9cd9397 (2024-10-14), `fsdp_ilp.py` and the files it
calls. Section numbers in the docstrings are those of the project's specification of it. Its choice
of units is solved in two ways with the same optima: as it is written, and as a flow with no big M.

Faults reproduced:

- modules without parameters and each holder of tied ones may be units; tied ones count once in the
  root and twice among units, so the root's share is too small;
- the all-gather that begins the backward pass is free; compute of modules that are no unit hides
  nothing; where no unit follows, a latency is paid, unless it is the last module;
- the peak adds twice the largest unit to the worst moment, whether they meet or not, and leaves out
  optimizer states and master weights;
- units that are set are not refused when one is inside another, but counted twice;
- in the program as written, and only there, its M of a second cuts off slower collectives.

Not reproduced: reduce-scatter may have its own times in a file, where its command line uses those
of all-gather; CBC's answer at its time limit is not called optimal.
"""

from shardwise.predecessors.fsdp_ilp.comm import (
    GENERATIONS,
    CommTimes,
    Generation,
    Line,
    comm_times,
    parse_comm,
    read_comm,
)
from shardwise.predecessors.fsdp_ilp.reference.closed_form import (
    GIB,
    Columns,
    Plain,
    columns,
    exposed_ms,
    peak_gib,
    plain,
)
from shardwise.predecessors.fsdp_ilp.reference.milp import SOLVERS, Solver
from shardwise.predecessors.fsdp_ilp.reference.solve import (
    FORMULATIONS,
    Formulation,
    FsdpIlpResult,
    solve,
)

__all__ = [
    "FORMULATIONS",
    "GENERATIONS",
    "GIB",
    "SOLVERS",
    "Columns",
    "CommTimes",
    "Formulation",
    "FsdpIlpResult",
    "Generation",
    "Line",
    "Plain",
    "Solver",
    "columns",
    "comm_times",
    "exposed_ms",
    "parse_comm",
    "peak_gib",
    "plain",
    "read_comm",
    "solve",
]
