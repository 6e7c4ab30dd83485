"""Models, systems and strategies drawn from the catalog and from the declared values of fields."""

from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import Any

from shardwise import Model, Strategy, System, catalog, estimate_many
from shardwise.config.strategy_fields import COLUMNS
from strategy_values import values_of

# Numbers that split or fill what a row has; those declared, 1 to 4, rarely would.
_NUMBERS: dict[str, list[Any]] = {
    "seq_len": [2048, 4096, 8192],
    "document_len": [512, 1024],
    "tp": [1, 1, 2, 4, 8],
    "cp": [1, 1, 1, 2],
    "dp": [1, 2, 4, 8],
    "micro_batch_size": [1, 1, 2],
}
_ALWAYS = ("tp", "cp", "dp", "micro_batch_size", "pp", "vpp", "ep")
_FOLLOWING = ("gpus", "global_batch_size")
_BATCH = 64


def pairs(each: int) -> list[tuple[str, str]]:
    """Names of every system with as many models, and of every model with one of them or more."""
    models, systems = catalog.names("models"), catalog.names("systems")
    step = next(n for n in (7, 11, 13) if len(models) % n)  # so that all models are met
    numbers = range(max(each * len(systems), len(models)))
    return [(models[step * at % len(models)], systems[at % len(systems)]) for at in numbers]


def selected(model: str, system: str, *, answered: int, refused: int) -> list[dict[str, Any]]:
    """So many drawn strategies that are answered, then so many that are refused."""
    rows: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    drawn = drawn_rows(model, system)
    while len(rows[True]) < answered or len(rows[False]) < refused:
        some = list(islice(drawn, _BATCH))
        table = estimate_many(model, system, [Strategy.validated(row) for row in some])
        for at, row in enumerate(some):
            rows[table.reason(at) is None].append(row)
    return rows[True][:answered] + rows[False][:refused]


def drawn_rows(model: str, system: str) -> Iterator[dict[str, Any]]:
    """Draw without end: small degrees, and other values in up to four fields."""
    draw = Random(f"{model} {system}")  # noqa: S311 - no secret
    kinds, rates = Model.load(model).layers, System.load(system).accelerator.matrix
    layers = sum(kind.count for kind in kinds)
    depths = [pp for pp in (1, 1, 2, 3, 4, 8) if layers % pp == 0]
    numbers = _NUMBERS | {
        "pp": depths,
        "vpp": [vpp for vpp in (1, 1, 1, 2) if layers % (depths[-1] * vpp) == 0],
        "ep": [1, 1, 2, 4] if any(kind.moe for kind in kinds) else [1],
    }
    dtype = next(word for word in COLUMNS["dtype"].words if word in rates)
    while True:
        row = {name: draw.choice(numbers[name]) for name in _ALWAYS}
        row["global_batch_size"] = row["dp"] * row["micro_batch_size"] * draw.choice([4, 8, 12])
        row |= {"dtype": dtype, "any_software": draw.random() < 2 / 3}
        names = sorted(COLUMNS.keys() - _FOLLOWING)
        for name in draw.sample(names, draw.choice([0, 1, 2, 2, 3, 4])):
            row[name] = draw.choice(numbers.get(name) or values_of(COLUMNS[name]))
        if row.get("stack") or draw.random() < 1 / 2:
            row["stack"] = draw.choice(catalog.names("stacks"))
        if row.get("stage_layers"):
            depth, more = divmod(layers, row["pp"])
            row["stage_layers"] = [depth + (at < more) for at in range(row["pp"])]
        yield row
