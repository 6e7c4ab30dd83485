"""`shardwise coverage`."""

from shardwise.analysis.coverage import coverage
from shardwise.cli.help import with_help
from shardwise.cli.options import JSON_FLAG, MODEL_OR_NONE, OUTPUT_OPTION, SYSTEM_OR_NONE
from shardwise.cli.output import printed, show
from shardwise.config.model import Model
from shardwise.config.system import System


@with_help(
    examples=[
        "shardwise coverage",
        "shardwise coverage llama3-70b",
        "shardwise coverage qwen3-30b-a3b mi300x",
    ]
)
def command(
    *,
    model: str | None = MODEL_OR_NONE,
    system: str | None = SYSTEM_OR_NONE,
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """What measured runs cover: model x accelerator x software x feature.

    A cell is measured, similar (a model of about the size, accelerators of the same generation,
    software of the same framework) or extrapolated. Estimates and searches say which they are.
    """
    the_model = None if model is None else Model.load(model)
    found = coverage(the_model, None if system is None else System.load(system))
    show(
        found.to_dict,
        printed("coverage_map:print_coverage_map", found),
        json=json,
        output=output,
    )
    return 0
