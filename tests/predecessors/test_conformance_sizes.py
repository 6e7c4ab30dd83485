"""How large each difference from Calculon is: docs/from/calculon.md says what its runs give."""

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import pytest

from calculon_runs import RUNS, calculon_model, calculon_system, float8, pairs
from generated import check
from shardwise import InputError
from shardwise.predecessors.calculon.files import CalculonExecution
from shardwise.predecessors.calculon.reference import Infeasible, statistics

pytestmark = pytest.mark.any_software

PAGE = Path(__file__).parents[2] / "docs/from/calculon.md"
ROW = re.compile(
    r"^\| (?P<what>[^|]+) \| (?P<there>[^|]+) \| (?P<here>[^|]+) \| (?P<size>[^|]+) \|$"
)


def ratios(values: Iterable[tuple[float | None, float | None]]) -> list[float]:
    """First over second, where there is a second and the first is not nothing."""
    return [one / other for one, other in values if one and other]


def times(found: list[float]) -> str:
    """Least, median and largest of some ratios."""
    return f"{min(found):.1f} to {max(found):.1f} times, median {median(found):.1f}"


def fewer(found: list[float]) -> str:
    """How much less than one they are, least to most, in percent."""
    return f"{100 * (1 - max(found)):.0f} to {100 * (1 - min(found)):.0f} %"


def more(found: list[float]) -> str:
    """How much more than one they are, least to most, in percent."""
    return f"{100 * (min(found) - 1):.0f} to {100 * (max(found) - 1):.0f} %"


def ends() -> list[float]:
    """Share of the step that the slowest stage spends beyond one in the middle."""
    found = []
    for _, _, result in pairs():
        if result.strategy["pp"] > 2:
            passes = [stage.micro_batch_s for stage in result.stages]
            beyond = (max(passes) - min(passes)) * result.micro_batches
            found.append(1 + beyond / result.step_time_s)
    return found


def slower_overlap() -> str:
    """Runs that Calculon's gradient overlap makes slower."""
    slower = tried = 0
    for case, theirs, _ in pairs():
        if case["execution"]["data_par"] == 1 or not case["execution"]["training"]:
            continue
        both = []
        for overlap in (False, True):
            execution = case["execution"] | {"data_par_overlap": overlap}
            if execution == case["execution"]:
                both.append(theirs["total_time"])
                continue
            run = calculon_model(case["model"]), calculon_system(case["system"], case["overrides"])
            try:
                both.append(statistics(*run, CalculonExecution.parse(execution))["total_time"])
            except (Infeasible, InputError):
                break
        else:
            tried += 1
            slower += both[1] > both[0] * (1 + 1e-9)
    return f"slower with it in {slower} of {tried}"


def forgotten_inputs() -> list[float]:
    """Stored activations of a block with ring overlap over those without, nothing recomputed."""
    found = []
    for case in RUNS["cases"]:
        if case["id"].startswith("fig7/") and case["id"].endswith("_seq"):
            run = calculon_model(case["model"]), calculon_system(case["system"])
            plain, ring = (
                CalculonExecution.parse(
                    case["execution"] | {"tensor_par_overlap": overlap, "seq_par_ag_redo": False}
                )
                for overlap in ("none", "ring")
            )
            stored = [statistics(*run, e)["block_act_storage_space"] for e in (ring, plain)]
            found.append(stored[0] / stored[1])
    return found


def sizes() -> dict[str, str]:
    """By the first cell of its row: the size of a difference over the runs."""
    runs, beyond = pairs(), ends()
    selective = [run for run in runs if run[0]["execution"]["activation_recompute"] == "attn_only"]
    reduced = [
        run
        for run in selective
        if run[0]["execution"]["tensor_par_comm_type"] == "ar"
        and run[0]["execution"]["tensor_par_overlap"] == "none"
    ]
    edges = [run for run in runs if run[2].strategy["tp_exchange"] == "p2p_rs_ag"]
    moved = [run for run in runs if run[0]["execution"]["optimizer_offload"]]

    def of(name, value, rows=runs) -> list[float]:
        """Ours over theirs."""
        return ratios((value(result), theirs[name]) for _, theirs, result in rows)

    flops = of("block_fw_flops", lambda r: r.layers[0].forward.flops)
    flops += of("block_agrad_flops", lambda r: r.layers[0].input_grad.flops)
    again = of("block_re_flops", lambda r: r.layers[0].recompute.flops)
    again_bytes = of("block_re_mem_accessed", lambda r: r.layers[0].recompute.bytes)
    offload = ratios(
        (theirs["fw_offload_exposed_time"] + theirs["bw_offload_exposed_time"], r.time_s["offload"])
        for _, theirs, r in moved
    )
    needed = of("weight_offload_bw_req", lambda r: r.required_bandwidth.offload_weights)
    return {
        "embedding, head, loss": f"{more(beyond)} of the step, median "
        f"{100 * (median(beyond) - 1):.1f} %",
        "recompute in sums": f"there FLOPs {times([1 / x for x in again])}; bytes "
        + times([1 / x for x in again_bytes]),
        "gradient overlap": slower_overlap(),
        "input of a gathered product, overlapped, not gathered again": "there "
        f"{fewer(forgotten_inputs())} of the activations missing",
        "selective recompute without sequence parallelism": "there "
        + fewer([1 / x for x in of("block_act_storage_space", _kept, reduced)])
        + " of the activations missing",
        "selective recompute": "here "
        + more(of("block_re_time", lambda r: r.layers[0].recompute.time_s, selective))
        + " more recomputed time",
        "scatter between stages only": "transfers here "
        + times(of("pp_comm_link_time", lambda r: r.comm_s["pp"].total, edges)),
        "additions of a reduction": "collectives here "
        + fewer(of("baseblock_fw_tp_time", lambda r: r.layers[0].tp_forward.time_s))
        + " shorter",
        "vector FLOPs, traffic of element-wise kernels": "FLOPs here "
        f"{100 * (min(flops) - 1):+.1f} to {100 * (max(flops) - 1):+.1f} %, bytes forward "
        + fewer(of("block_fw_mem_accessed", lambda r: r.layers[0].forward.bytes))
        + " fewer",
        "gradient of weights": "bytes here "
        + times(of("block_wgrad_mem_accessed", lambda r: r.layers[0].weight_grad.bytes)),
        "optimizer step": "here " + times(of("optim_step_time", lambda r: r.time_s["optimizer"])),
        "optimizer offload": f"there exposed {times(offload)}",
        "other offload": f"bandwidth to hide weights here {times(needed)}",
        "float8": "steps here "
        + times(
            ratios((result.step_time_s, theirs["total_time"]) for _, theirs, result in float8())
        ),
        "working sets": "here "
        + fewer(of("block_act_working_space", lambda r: r.layers[0].working_bytes))
        + " smaller",
    }


def _kept(result) -> float:
    return result.layers[0].kept_bytes


def test_the_page_says_how_large_each_difference_is():
    """The last cell of a row, computed from the runs."""
    lines = PAGE.read_text(encoding="utf-8").split("\n")
    expected = sizes()
    renewed = []
    for line in lines:
        row = ROW.match(line)
        size = expected.pop(row["what"], None) if row else None
        renewed.append(line if size is None else line.replace(f"| {row['size']} |", f"| {size} |"))
    assert expected == {}
    check(PAGE, "\n".join(renewed))
