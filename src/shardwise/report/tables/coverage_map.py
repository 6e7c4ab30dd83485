"""What measured runs cover, as a table."""

from rich.text import Text

from shardwise.analysis.coverage import FEATURES, CoverageMap, CoverageRow
from shardwise.report.console import plain_table, show

_NOTE = (
    "numbers: measured runs of the model on the system with the software, by feature; ~: similar "
    "runs, of models with half to twice the parameters on accelerators of the same generation with "
    "software of the same framework; -: extrapolated. bf16 or fp16; long: more than 8,192 tokens"
)


def print_coverage_map(found: CoverageMap) -> None:
    """Print a line for each system and software."""
    model = found.model or "all models"
    title = f"{model} on {found.system or 'all systems'}: coverage by {found.runs:,} measured runs"
    if not found.rows:
        show(Text(f"{title}\nextrapolated: no measured or similar run", style="bold"))
        return
    features = [name for name in FEATURES if any(row.word(name)[0] != "e" for row in found.rows)]
    table = plain_table("system", "software", "runs", *features, left=2)
    for row in found.rows:
        cells = (_cell(row, name) for name in ("any", *features))
        table.add_row(row.system, row.software, *cells)
    show(Text(f"\n{title}", style="bold"), table, Text(_NOTE, style="dim"))


def _cell(row: CoverageRow, feature: str) -> str:
    word = row.word(feature)
    if word == "measured":
        return f"{row.measured[feature]:,}"
    return f"~{row.similar[feature]:,}" if word == "similar" else "-"
