"""What a client may ask, as types, and the answers, computed where no file can be named.

The functions run in worker processes. Answers are the records that `--json` prints.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from shardwise.analysis.fit_probability import SURE, states_load
from shardwise.analysis.results import Estimate
from shardwise.config import files
from shardwise.config.arguments import count_of
from shardwise.config.base import ConfigBase
from shardwise.config.model import Model
from shardwise.config.plain import as_json
from shardwise.config.stack import Stack
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.report.tables.catalog import model_record, stack_record

MOST_LAYER_COSTS = 20_000
"""Of one question; they take some seconds. The models of the catalog need a few hundred."""
# Estimates that a worker saves: one of DeepSeek-V3 with all fields read has 120 KB.
_MOST_RECENT = 32
# The search for the nearest plan evaluates many rows at once, in the time of about so many plans.
_NEAREST_PLANS = 2
_NAME = {"type": "string", "description": "Name of the catalog."}
_Fields = Mapping[str, Any]


def _or_name(config: type[ConfigBase]) -> WithJsonSchema:
    """Schema of a catalog name, or of the fields of a config in any format that `load` reads."""
    own = {"type": "object", "description": f"Fields of a {config.__name__.lower()} file."}
    return WithJsonSchema({"anyOf": [_NAME, own]})


ModelLike = Annotated[str | _Fields, _or_name(Model)]
SystemLike = Annotated[str | _Fields, _or_name(System)]
Count = Annotated[int, Field(ge=1, le=20)]


class Question(ConfigBase):
    """A question of the API; its validator is built at once, as FastAPI expects."""

    model_config = ConfigDict(defer_build=False)


class EstimateQuestion(Question):
    """What one strategy costs."""

    model: ModelLike
    """Catalog name, or the fields of a model file."""
    system: SystemLike
    """Catalog name, or the fields of a system file."""
    strategy: Annotated[_Fields, WithJsonSchema(Strategy.model_json_schema())]
    """Fields of a strategy."""
    operations: bool = False
    """Whether to list every operation of a layer."""


class SearchQuestion(Question):
    """Which strategies are the best."""

    model: ModelLike
    """Catalog name, or the fields of a model file."""
    system: SystemLike
    """Catalog name, or the fields of a system file."""
    space: _Fields
    """Fields of a search space; gpus and gbs at least."""
    objective: str | None = None
    """step_time, tokens_per_s_per_gpu or tokens_per_dollar."""
    fits: float | str | None = SURE
    """Least probability that a plan fits; null: its predicted memory must."""
    top: Count = 10
    """Plans to list."""
    pareto: str | None = None
    """Also the Pareto front of time against memory, gpus or cost."""
    axes: Annotated[tuple[str, ...], Field(max_length=2)] = ()
    """Also the best plan of each combination of values of these fields."""


class ExportQuestion(Question):
    """A plan as the files of a launcher."""

    launcher: str
    """megatron, megatron-bridge, torchtitan, deepspeed or accelerate."""
    model: ModelLike
    """Catalog name, or the fields of a model file."""
    system: SystemLike
    """Catalog name, or the fields of a system file."""
    strategy: Annotated[_Fields, WithJsonSchema(Strategy.model_json_schema())]
    """Fields of a strategy."""
    release: str | None = None
    """Release whose options are written; null: the first that can express the plan."""
    nearest: bool = False
    """Whether to write the nearest plan that the launcher can run, if it cannot run this one."""


def check_cost(model: Model, strategy: Strategy, *, plans: int = 1, nearest: bool = False) -> None:
    """Refuse a question whose answer takes longer than a client waits, before the work starts.

    For k kinds of layers on p pipeline stages, the time of an estimate is at most proportional to
    k (k + p): measured with up to 1,000 kinds and 10,000 stages, 0.05 to 0.25 ms each.
    """
    kinds, stages = len(model.layers), model.depth if nearest else strategy.pp
    costs = (_NEAREST_PLANS if nearest else plans) * kinds * (kinds + stages)
    if costs > MOST_LAYER_COSTS:
        problem = (
            f"{kinds:,} kinds of layers on {'up to ' if nearest else ''}{stages:,} pipeline stages "
            f"need {costs:,} layer costs; a server computes at most {MOST_LAYER_COSTS:,} for a "
            "question"
        )
        raise InputError.at("question", problem, "layers")


def answer_export(question: ExportQuestion) -> dict[str, Any]:
    """Return the files by name, and what differs: plan and request, plan and file read back."""
    from shardwise.launchers.export import download_names, export  # noqa: PLC0415 - slow to import

    with files.catalog_only():
        model, strategy = Model.load(question.model), Strategy.load(question.strategy)
        check_cost(model, strategy, nearest=True)  # a refusal names the nearest plan
        found = export(
            question.launcher,
            model,
            System.load(question.system),
            strategy,
            release=question.release,
            nearest=question.nearest,
        )
    names = download_names(model.name, found.files)
    read = found.read_back
    return files.with_writer(
        {
            "launcher": found.launcher,
            "release": found.release,
            "files": {name: one.text for name, one in names.items()},
            "changes": [one.to_dict() for one in found.changes],
            "step_time_s": found.estimate.step_time_s,
            "file_step_time_s": None if read.estimate is None else read.estimate.step_time_s,
            "file_differences": [one.to_dict() for one in read.differences],
            "fits": found.estimate.fits,
        }
    )


@lru_cache(maxsize=_MOST_RECENT)
def recent_estimate(model: Model, system: System, strategy: Strategy) -> Estimate:
    """Estimate a plan; the last ones are saved: pages go back and forth, and compare plans."""
    from shardwise.estimator import estimate_each  # noqa: PLC0415 - slow to import

    return estimate_each(model, system, [strategy], stated=states_load(strategy))[0]


def answer_estimate(question: EstimateQuestion) -> dict[str, Any]:
    """Return the record of `estimate --json`."""
    from shardwise.estimator import estimate  # noqa: PLC0415 - slow to import

    with files.catalog_only():
        model, strategy = Model.load(question.model), Strategy.load(question.strategy)
        check_cost(model, strategy)
        system = System.load(question.system)
        if question.operations:
            found = estimate(model, system, strategy, operations=True)
        else:
            found = recent_estimate(model, system, strategy)
        return files.with_writer(found.to_dict())


def answer_search(
    question: SearchQuestion, progress: Callable[[int, int, Any], None] | None = None
) -> dict[str, Any]:
    """Return the record of `search --json`."""
    from shardwise.planning.search.run import search  # noqa: PLC0415 - slow to import

    with files.catalog_only():
        found = search(
            Model.load(question.model),
            System.load(question.system),
            question.space,
            objective=question.objective,
            fits=question.fits,
            top=question.top,
            pareto=question.pareto,
            axes=question.axes,
            progress=progress,
        )
        return files.with_writer(found.to_dict())


def estimate_text(question: EstimateQuestion) -> str:
    """Return the answer as JSON: the server passes it on as it is."""
    return as_json(answer_estimate(question))


FOLDERS: Mapping[str, Callable[[str], Mapping[str, Any]]] = {
    "models": lambda name: model_record(Model.load(name)),
    "systems": lambda name: System.load(name).to_dict(),
    "stacks": lambda name: stack_record(Stack.load(name)),
}
"""Folders of the catalog, and how an entry is read."""


def entry_text(folder: str, name: str) -> str:
    """Return one entry of the catalog as JSON."""
    with files.catalog_only():
        return as_json(files.with_writer(FOLDERS[folder](name)))


def link_text(data: Mapping[str, Any], plan: str | None) -> str:
    """Return the link of the page that opens a saved result, as JSON."""
    from shardwise.web.saved import query_of  # noqa: PLC0415 - slow to import

    number = None if plan is None else count_of("plan", plan)
    with files.catalog_only():
        query = query_of(files.without_writer(data, "result"), "result", number)
        return as_json(files.with_writer({"link": f"/?{query}"}))
