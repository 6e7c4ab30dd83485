"""Three models of the FSDP planner of scyther: their module information, and its plans."""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from shardwise.predecessors.fsdp_ilp.files import module_info
from shardwise.predecessors.fsdp_ilp.reference import parse_comm

# Three models and what the original planner says of them, see the file's head.
GOLDEN = json.loads((Path(__file__).parent / "data" / "fsdp_ilp.json").read_text(encoding="utf-8"))
SOLVER = "highs" if find_spec("highspy") else "scipy"
CASES = {case["name"]: case for case in GOLDEN["cases"]}
ORDERS = ("fw_pre_order", "fw_post_order", "bw_pre_order", "bw_post_order")


def flat(name):
    """A model's module information as scyther writes it."""
    stored = GOLDEN["module_infos"][name]
    names, columns = stored["names"], stored["columns"]
    orders = {field: [names[i] for i in stored[field]] for field in ORDERS[1:]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    stats = [
        {"fqn": fqn, **row, "grad_per_module": row["param_per_module"]}
        for fqn, row in zip(names, rows, strict=True)
    ]
    return {"fw_pre_order": list(names), **orders, "modstats": stats}


def nested(name):
    """The same as torch holds it."""
    data = flat(name)
    for row in data["modstats"]:
        for field in ("runtime", "memory"):
            if f"ac_{field}" in row:
                row[f"sac_{field}"] = row.pop(f"ac_{field}")
    return {
        "mod_order": {order: data[order] for order in ORDERS},
        "mod_stats": data["modstats"],
    }


@cache
def golden_info(name):
    """A model's module information, checked."""
    return module_info(flat(name))


def parts(name):
    """Module information, communication times, GPUs and forbidden units of a stored case."""
    case = CASES[name]
    info = golden_info(case["module_info"])
    forbidden = [info.names[place] for place in case["forbidden"]]
    return info, parse_comm(case["comm"]), case["world_size"], forbidden


def row_of(info, units):
    """One plan as a row of flags."""
    return np.isin(np.arange(len(info.names)), list(units))
