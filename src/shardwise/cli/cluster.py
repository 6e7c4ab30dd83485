"""`shardwise search MODEL --systems A,B,C`: which cluster."""

from collections.abc import Mapping
from typing import Any

from shardwise import registry
from shardwise.cli.host import with_price
from shardwise.cli.options import (
    flag_fault,
    missing_flag,
    opt,
    positive_number,
    refuse_options,
    used,
)
from shardwise.cli.output import (
    INTERRUPTED,
    check_different_files,
    check_pages,
    note,
    printed,
    progress_bar,
    show,
)
from shardwise.config.arguments import whole_number
from shardwise.config.system import System
from shardwise.planning.cluster_choice import choose_cluster
from shardwise.planning.search.space import Space
from shardwise.planning.training_time import TrainingRun
from shardwise.records import asdict, dataclass

_PANEL = "Cluster (with --systems)"
_NEEDS_SYSTEMS = "needs --systems: it chooses among systems and sizes"
NO_EFFECT = "has no effect with --systems, which lists the best plan of every system and size"
_KEPT = ("max_memory", "reserve", "fits", "jobs", "backend", "plot")
"""Options of a search that the choice of a cluster has, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What is chosen among several systems and sizes."""

    systems: str | None = opt(
        "--systems SYSTEM,...",
        "In place of SYSTEM: find the cheapest system and number of GPUs that meet --deadline, "
        "and the fastest within --budget. Needs --tokens.",
        _PANEL,
    )
    deadline: str | None = opt("--deadline TIME", "Longest training run: 30d, 12h, 6w.", _PANEL)
    budget: str | None = opt("--budget USD", "Highest price of the run: 5M, 250k.", _PANEL)
    price: list[str] | None = opt(
        "--price SYSTEM=USD",
        "Price of a GPU-hour of a system, in place of its own; of one SYSTEM, also USD alone.",
        _PANEL,
    )

    def check_alone(self) -> None:
        """Refuse options that need --systems."""
        refuse_options(_NEEDS_SYSTEMS, deadline=self.deadline, budget=self.budget)

    def priced(self, system: str | System) -> str | System:
        """The one system of a search with the price that is set, as USD or NAME=USD."""
        if not self.price:
            return system
        the_system = System.load(system)
        name, equals, usd = self.price[-1].rpartition("=")
        if len(self.price) > 1 or (equals and System.load(name).name != the_system.name):
            text = ", ".join(self.price)
            raise flag_fault("price", text, f"must be one price, of {the_system.name}")
        return with_price(the_system, usd)

    def read_prices(self) -> dict[str, float]:
        """Prices by system."""
        found: dict[str, float] = {}
        for text in (part for one in self.price or () for part in one.split(",")):
            name, equals, usd = (word.strip() for word in text.partition("="))
            if not equals or not name:
                raise flag_fault("price", text, "must be NAME=USD, as in h100-sxm=2.5")
            if name in found:
                raise flag_fault("price", text, f"{name} is set twice")
            number = positive_number("price", usd, " of USD, as in h100-sxm=2.5")
            found[name] = number or 0.0
        return found


def choose(
    model: str,
    space: Space,
    options: ClusterOptions,
    searched: Any,
    run: TrainingRun | None,
    *,
    json: bool,
    output: str | None,
    ok_if_none: bool,
) -> int:
    """Choose a cluster; print, write and draw the choice."""
    others = {name: value for name, value in asdict(searched).items() if name not in _KEPT}
    refuse_options(NO_EFFECT, **others)
    if run is None:
        raise missing_flag("tokens", "is missing: --systems compares training runs")
    names = [name.strip() for name in (options.systems or "").split(",") if name.strip()]
    plot = searched.plot
    check_different_files(output=output, plot=plot)
    check_pages(plot)
    arguments: Mapping[str, Any] = used(searched, "max_memory", "reserve", "fits", "backend")
    with progress_bar("systems", counted=False) as bar:
        found = choose_cluster(
            model,
            names,
            space,
            tokens=run.tokens,
            deadline=options.deadline,
            budget=options.budget,
            prices=options.read_prices(),
            reliability=run.reliability,
            site=run.site,
            jobs=whole_number("jobs", searched.jobs),
            progress=bar,
            **arguments,
        )
    strategies = sum(one.candidates for one in found.options)
    note(f"{strategies:,} strategies in {found.elapsed_s:.2f} s")
    closing = registry.load("report.tables.cluster:closing")
    lacks = "" if found.feasible else "; ".join(closing(found))

    show(
        found.to_dict,
        printed("cluster:print_cluster", found),
        json=json,
        output=output,
        lacks=lacks,
    )
    if plot is not None and any(one.usd is not None for one in found.options):
        registry.load("report.charts.cluster:write_chart")(found, plot)
    elif plot is not None:
        note(f"{plot}: no chart: no option has days and a price")
    if not found.complete:
        return INTERRUPTED
    return 0 if found.feasible or ok_if_none else 1
