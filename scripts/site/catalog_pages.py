"""Pages of the catalog: models by family, systems, stacks, recipes, each figure with its source."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape

from shardwise import Model, Recipe, Stack, System, catalog, estimate_recipe
from shardwise.config.base import Source, Sourced
from shardwise.config.capabilities import Values, described
from shardwise.ops.param_count import count_parameters
from shardwise.report.console import count, gib, percent
from shardwise.report.tables.catalog import (
    MODEL_HEADS,
    STACK_HEADS,
    STACK_NOTES,
    SYSTEM_HEADS,
    figures_of,
    host_memory_lines,
    model_row,
    stack_row,
    system_row,
)
from shardwise.report.tables.recipes import signed
from tables import anchor, cell, page, table


@cache
def _models() -> dict[str, Model]:
    return {name: Model.load(name) for name in catalog.names("models")}


@cache
def _systems() -> dict[str, System]:
    return {name: System.load(name) for name in catalog.names("systems")}


@cache
def _stacks() -> dict[str, Stack]:
    return {name: Stack.load(name) for name in catalog.names("stacks")}


def _families() -> dict[str, list[Model]]:
    """Models by the letters that their names begin with: llama, qwen."""
    found: dict[str, list[Model]] = {}
    for name, model in _models().items():
        found.setdefault(re.split(r"[^a-z]", name, maxsplit=1)[0], []).append(model)
    return found


def models() -> str:
    """Return the tables of all models, one for each family."""
    parts = []
    for family, members in _families().items():
        rows = []
        for model in members:
            name, *figures = model_row(model)
            rows.append([f"[{cell(name)}](models/{family}.md#{anchor(name)})", *figures])
        parts.append(f"## {family}\n\n{table(MODEL_HEADS, rows, right=len(MODEL_HEADS) - 1)}")
    return "\n".join(parts)


def systems() -> str:
    """Return the table of all systems."""
    rows = [_linked("systems", system_row(system)) for system in _systems().values()]
    return table(SYSTEM_HEADS, rows, right=len(SYSTEM_HEADS) - 1)


def stacks() -> str:
    """Return the table of all stacks."""
    rows = [_linked("stacks", stack_row(stack)) for stack in _stacks().values()]
    return table(STACK_HEADS, rows) + "\n" + "\n".join(STACK_NOTES) + ".\n"


def _linked(folder: str, row: Iterator[str]) -> list[str]:
    name, *facts = map(cell, row)
    return [f"[{name}]({folder}/{name}.md)", *facts]


def recipes() -> str:
    """Return the table of all recipes, each with model, system and source."""
    heads = ("recipe", "model", "system", "GPUs", "stack", "measured", "estimated", "error")
    rows, sources = [], []
    for name in catalog.names("recipes"):
        recipe, found = Recipe.load(name), estimate_recipe(name)
        mine = found.estimate
        stack = mine.strategy["stack"]
        rows.append(
            [
                cell(name),
                _link(recipe.model, "models"),
                _link(recipe.system, "systems"),
                f"{recipe.gpus:,}",
                _link(stack["base"] if isinstance(stack, Mapping) else stack, "stacks"),
                f"{found.measured_tokens_per_s_per_gpu:,.0f}",
                f"{mine.tokens_per_s_per_gpu:,.0f}",
                signed(found.error),
            ]
        )
        memory = f"{gib(mine.memory_bytes.reserved)} of {gib(mine.memory_bytes.capacity)} GiB"
        source = recipe.source
        origin = f"{source.title}; {source.ref}"
        sources.append([cell(name), cell(recipe.description), cell(origin), memory])
    note = "Measured and estimated: tokens/s per GPU.\n\n## Sources\n\n"
    about = ("recipe", "what it is", "source of the measured values", "estimated memory")
    return table(heads, rows, right=3) + "\n" + note + table(about, sources)


def _link(name: str, folder: str) -> str:
    """Return a link to the page of a catalog entry; the name of anything else."""
    if name not in catalog.names(folder):
        return cell(name)
    if folder != "models":
        return f"[{cell(name)}]({folder}/{name}.md)"
    family = next(f for f, members in _families().items() if name in {m.name for m in members})
    return f"[{cell(name)}](models/{family}.md#{anchor(name)})"


def pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of the page of each family, system and stack."""
    for family, members in _families().items():
        yield (
            f"catalog/models/{family}.md",
            page(family, f"# {family}\n\n" + "".join(map(_model, members))),
        )
    for name, system in _systems().items():
        yield f"catalog/systems/{name}.md", page(name, f"# {name}\n\n{_system(system)}")
    for name, stack in _stacks().items():
        yield f"catalog/stacks/{name}.md", page(name, f"# {name}\n\n{_stack(stack)}")


def _model(model: Model) -> str:
    counted = count_parameters(model)
    rows = [
        [cell(part), f"{number:,}", percent(number / counted.total)]
        for part, number in counted.breakdown.items()
    ]
    rows.append(["**total**", f"{counted.total:,}", ""])
    rows.append(
        ["active per token", f"{counted.active:,}", percent(counted.active / counted.total)]
    )
    if counted.mtp:
        rows.append(["multi-token prediction, in addition", f"{counted.mtp:,}", ""])
    return (
        f"## {model.name}\n\n{cell(model.description)}\n\n"
        f"{count(counted.total)} parameters: "
        f"`shardwise models {model.name}`\n\n"
        + table(("component", "parameters", "share"), rows, right=2)
        + "\n"
        + _figures(model)
    )


def _system(system: System) -> str:
    facts = zip(SYSTEM_HEADS[1:], list(system_row(system))[1:], strict=True)
    stack = _link(system.stack, "stacks").replace("](stacks/", "](../stacks/")
    rows = [[cell(name), cell(value)] for name, value in facts]
    host = "".join(f"{cell(line)}\n\n" for line in host_memory_lines(system))
    return (
        f"{cell(system.description)}\n\n"
        + table(("", "value"), [*rows, ["default software stack", stack]])
        + f"\n## Figures and sources\n\n`shardwise systems {system.name}`\n\n{host}"
        + _figures(system)
    )


def _stack(stack: Stack) -> str:
    facts = zip(STACK_HEADS[2:], list(stack_row(stack))[2:], strict=True)
    parts = [
        f"{cell(stack.description)}\n",
        table(("", "value"), [[cell(name), cell(value)] for name, value in facts]),
    ]
    can_run = stack.capabilities
    if can_run is None:
        parts.append("Strategies are not bound by what it can run.\n")
    else:
        rows = [[f"`{name}`", cell(described(v))] for name, v in can_run.fields.items()]
        parts += ["## What the release can run\n", table(("field", "values"), rows)]
        limits = [
            [cell(_settings(one.when)), cell(_settings(one.then)), cell(one.because)]
            for one in can_run.combinations.values()
            if one is not None
        ]
        if limits:
            parts.append(table(("where", "then", "because"), limits))
        rules = [word for word, applies in can_run.rules.items() if applies]
        if rules:
            parts.append(f"Rules: {', '.join(f'`{word}`' for word in rules)}.\n")
        source = stack.source_of("capabilities")
        if source is not None:
            parts.append(f"{cell(source.kind)}: {cell(source.text)}\n")
    parts += [f"## Figures and sources\n\n`shardwise stacks {stack.name}`\n", _figures(stack)]
    return "\n".join(parts)


def _settings(fields: Mapping[str, Values]) -> str:
    return ", ".join(f"`{name}` {described(values)}" for name, values in fields.items())


def _figures(config: Sourced) -> str:
    """Every figure with value and origin, then the sources, in HTML: both link to each other."""
    notes: list[Source] = []
    group = ""
    rows = []
    for parent, leaf, value, source in figures_of(config):
        if parent != group:
            group = parent
            rows.append(f'<tr><th colspan="3"><code>{escape(parent)}</code></th></tr>')
        origin = ""
        if source is not None:
            if source not in notes:
                notes.append(source)
            number = notes.index(source) + 1
            link = f"{anchor(config.name)}-source-{number}"
            origin = f'{escape(source.kind)} <a href="#{link}">[{number}]</a>'
        rows.append(
            f"<tr><td><code>{escape(leaf)}</code></td><td>{escape(value)}</td><td>{origin}</td></tr>"
        )
    listed = "".join(
        f'<li id="{anchor(config.name)}-source-{number}">{escape(note.text)} ({note.kind})</li>'
        for number, note in enumerate(notes, start=1)
    )
    return (
        '<div class="figures"><table><thead><tr><th>figure</th><th>value</th><th>origin</th></tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>\n\n"
        f'<ol class="sources">{listed}</ol>\n\n'
    )
