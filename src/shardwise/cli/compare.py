"""`shardwise compare`."""

import sys
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from shardwise import registry
from shardwise.analysis.comparison import Comparison
from shardwise.analysis.fit_probability import SURE
from shardwise.cli.command_line import command_line
from shardwise.cli.help import with_help
from shardwise.cli.launch import find_launch, launch_record
from shardwise.cli.options import (
    JSON_FLAG,
    OUTPUT_OPTION,
    PLOT_OPTION,
    REPORT_OPTION,
    arg,
    flag_fault,
    missing_flag,
    opt,
    refuse_options,
    with_options,
)
from shardwise.cli.output import (
    check_different_files,
    check_pages,
    log,
    note,
    printed,
    show,
    write_page,
)
from shardwise.config import files
from shardwise.config.arguments import count_of, whole_numbers
from shardwise.config.fine_tuning import METHODS
from shardwise.config.plain import separated
from shardwise.planning.compare import compare
from shardwise.units import read_number

_METHODS = "Methods of fine-tuning (with --models)"
_CHECKS = "Checks of a change"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOptions:
    """Options of a table of methods."""

    models: str | None = opt("--models A,B", "Models to fine-tune.", _METHODS)
    systems: str | None = opt("--systems X,Y", "Systems to fine-tune on.", _METHODS)
    finetune: str | None = opt(
        "--finetune M,M", f"Methods: {', '.join(METHODS)}. Default: lora.", _METHODS
    )
    seq_len: str | None = opt("--seq-len N,N", "Tokens per sequence. Default: 2048.", _METHODS)
    mbs: str | None = opt(
        "--mbs N", "Sequences per forward pass of one replica. Default: 1.", _METHODS
    )

    def found(self) -> Any:
        """Return the table."""
        if self.models is None or self.systems is None:
            raise missing_flag("models" if self.models is None else "systems")
        more: dict[str, Any] = {}
        if self.finetune is not None:
            more["finetune"] = separated(self.finetune)
        if self.seq_len is not None:
            more["seq_lens"] = whole_numbers("seq_len", self.seq_len)
        if self.mbs is not None:
            more["mbs"] = count_of("mbs", self.mbs)
        compare_methods = registry.load("planning.methods:compare_methods")
        return compare_methods(separated(self.models), separated(self.systems), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Conditions on all scenarios but the first."""

    fail_if_slower: str | None = opt(
        "--fail-if-slower PERCENT",
        "Exit with 1 if one takes more than this longer than the first, as in 2%.",
        _CHECKS,
    )
    fail_if_unfit: bool = opt(
        "--fail-if-unfit", "Exit with 1 if one does not fit with 90 %.", _CHECKS
    )
    markdown: bool = opt(
        "--markdown", "Print Markdown, as for a comment on a pull request.", _CHECKS
    )

    def failed(self, found: Comparison) -> list[str]:
        """Return the conditions that do not hold, a line for each."""
        most, lines = _share("fail_if_slower", self.fail_if_slower), []
        for change, one in zip(found.changes, found.scenarios[1:], strict=True):
            if change.share > most:
                allowed = f"--fail-if-slower {self.fail_if_slower}"
                lines.append(f"{one.name} takes {100 * change.share:.1f} % longer ({allowed})")
            likely = float(one.fits) if one.fits_probability is None else one.fits_probability
            if self.fail_if_unfit and likely < SURE:
                lines.append(f"{one.name} fits with {100 * likely:.0f} % (--fail-if-unfit)")
        return lines


def _share(flag: str, text: str | None) -> float:
    """Read a share such as 2%; infinite without a text."""
    if text is None:
        return inf
    number = read_number(text.strip().removesuffix("%"))
    if number is None or number < 0:
        raise flag_fault(flag, text, "must be a percentage of 0 or more, such as 2%")
    return number / 100


@with_help(
    "system fail_if_slower fail_if_unfit markdown plot report json output",
    examples=[
        "shardwise compare before.json after.json --fail-if-slower 2%",
        "shardwise compare --models llama3-8b --systems rtx-4090,l40s --finetune lora,qlora",
    ],
)
@with_options
def command(
    *,
    scenarios: list[str] | None = arg(
        "[FILE...]",
        "Two or more: saved estimates or search results (--json, --output), scenarios "
        "(YAML, JSON, TOML with model, system, strategy), AMPeD configurations or launch files "
        "of trainers; also .gz. Not with --models.",
        default=None,
    ),
    methods: MethodOptions,
    checks: CheckOptions,
    system: str | None = opt("--system SYSTEM", "System of launch files."),
    plot: str | None = PLOT_OPTION,
    report: str | None = REPORT_OPTION,
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """Compare scenarios: what differs, how the results differ, and which inputs explain it.

    The first file is the baseline. A search result stands for its best plan, FILE#3 for plan 3; a
    scenario is estimated. Exit code 1 if none fits in memory, or a condition does not hold.

    With --models and --systems in place of files: the fewest GPUs on which each model can be
    fine-tuned by each method, tokens per second and price.
    """
    if any(value is not None for value in asdict(methods).values()):
        refuse_options(
            "has no effect with --models",
            **asdict(checks),
            system=system,
            plot=plot,
            report=report,
            file=scenarios,
        )
        table = methods.found()
        lacks = "" if any(plan.gpus for plan in table.plans) else "nothing fits"
        tables = printed("methods:print_methods", table)
        show(table.to_dict, tables, json=json, output=output, lacks=lacks)
        return 1 if lacks else 0
    if not scenarios:
        raise missing_flag("file", "is missing: name two or more, or set --models and --systems")
    check_different_files(output=output, plot=plot, report=report)
    if checks.markdown:
        refuse_options("prints where --markdown prints; use one of them", json=json)
    _share("fail_if_slower", checks.fail_if_slower)
    if output is not None:
        files.check_result_ending(output)
    check_pages(plot, report)
    launches = [launch for file in scenarios if (launch := find_launch(file)) is not None]
    if system is not None and not launches:
        refuse_options("is for launch files, and there is none", system=system)
    found = compare(*scenarios, system=system)
    if report is not None:
        write_page("compare", report, found, command_line())
        log.info("wrote %s", report)
    if plot is not None:
        registry.load("report.charts.compare:write_charts")(found, plot)
        log.info("wrote %s", plot)

    failed = checks.failed(found)
    lacks = "" if any(one.fits for one in found.scenarios) else "none fits in memory"
    also = {"launch": [launch_record(launch) for launch in launches]} if launches else {}
    show(
        lambda: found.to_dict() | also,
        (lambda: None) if checks.markdown else printed("compare:print_comparison", found),
        json=json,
        output=output,
        lacks=lacks,
    )
    if checks.markdown:
        sys.stdout.write(registry.load("report.tables.compare:markdown")(found, failed))
    for line in failed:
        note(f"failed: {line}")
    return 1 if lacks or failed else 0
