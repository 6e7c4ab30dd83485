"""`shardwise peers`."""

from collections.abc import Mapping
from functools import partial

from shardwise import registry
from shardwise.analysis.reference_results import known_reference
from shardwise.cli.flags import strategy_of, with_strategy_flags
from shardwise.cli.help import OTHER_MODELS, OUTPUT, with_help
from shardwise.cli.inputs import system_or_config
from shardwise.cli.options import (
    JSON_FLAG,
    MODEL_ARGUMENT,
    OUTPUT_OPTION,
    PLOT_OPTION,
    STRATEGY_OPTION,
    SYSTEM_OR_NONE,
    opt,
    refuse_options,
)
from shardwise.cli.output import Stopwatch, check_different_files, check_pages, log, show
from shardwise.cli.recipes import Chosen
from shardwise.config.inputs import Inputs
from shardwise.config.model import Model
from shardwise.config.strategy import Strategy
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.parallel.process_groups import peers_of
from shardwise.units import read_whole


@with_help(
    "gpus tp cp ep pp dp placement rank",
    examples=["shardwise peers llama3-8b h100-sxm --gpus 64 --tp 8 --pp 2 --rank 0"],
)
@partial(with_strategy_flags, needs_batch=False)
def command(
    *,
    model: str = MODEL_ARGUMENT,
    system: str | None = SYSTEM_OR_NONE,
    strategy: str | None = STRATEGY_OPTION,
    rank: str | None = opt("--rank N", "Only this rank and its peers.", OUTPUT),
    reference: str | None = opt(
        "--reference calculon",
        "Number the ranks as Calculon does; --json and --output write its peers file.",
        OTHER_MODELS,
    ),
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
    plot: str | None = PLOT_OPTION,
    flags: Mapping[str, object],
) -> int:
    """Ranks of every communication group: tensor, context, data and pipeline parallel.

    Ranks are numbered from the innermost network tier outward in the order of the placement, so the
    accelerators of a node have consecutive ranks. In the JSON each rank refers to its groups by
    their positions in the lists of groups; with --rank it lists its peers.
    """
    check_different_files(output=output, plot=plot)
    check_pages(plot)
    if reference is not None:
        refuse_options(f"has no effect with --reference {reference}", plot=plot)
        known_reference(reference, "reference", ("calculon",))
        system = system_or_config(model, system)
        inputs = Inputs(model=model, system=system, strategy=strategy, fields=flags, run={})
        show_calculon = registry.function("show_calculon_peers")
        show_calculon(inputs, partial(_number, rank), json=json, output=output)
        return 0
    watch = Stopwatch()
    chosen = Chosen.of(None, model=model, system=system, strategy=strategy, gpus=flags.get("gpus"))
    inputs = chosen.inputs(flags)
    the_model, the_system = Model.load(inputs.model), System.load(inputs.system)
    log.info("model %s, system %s", the_model.name, the_system.name)
    own = _with_batch(strategy_of(inputs.strategy, inputs.fields))
    found = peers_of(the_model, the_system, own)
    number = _number(rank, len(found))
    one = None if number is None else found.of(number)
    log.info("numbered %d ranks in %s", len(found), watch)

    def tables() -> None:
        from shardwise.report.tables.process_groups import print_peers, print_rank  # noqa: PLC0415 - slow

        if one is None:
            print_peers(found)
        else:
            print_rank(found, one)

    record = (found if one is None else one).to_dict
    if plot is not None:
        registry.load("report.charts.network:write_chart")(found, plot)
        log.info("wrote %s", plot)
    show(lambda: record() | chosen.launch_record(), tables, json=json, output=output)
    return 0


def _with_batch(strategy: Strategy) -> Strategy:
    """The strategy with some global batch where it has none; ranks do not depend on it."""
    if strategy.global_batch_size is not None:
        return strategy
    micro_batches = (strategy.dp or strategy.gpus or 1) * strategy.pp
    batch = strategy.micro_batch_size * micro_batches
    return strategy.model_copy(update={"global_batch_size": batch})


def _number(rank: str | None, ranks: int) -> int | None:
    if rank is None:
        return None
    number = read_whole(rank)
    if number is None:
        problem = f"must be a whole number; allowed: 0 to {ranks - 1}"
        raise InputError.of("rank", rank, problem)
    return number
