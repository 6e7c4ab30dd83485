"""What people see of a result: a few lines, the text of a command, charts, tables in a notebook.

Results know no tables and no charts. `report` registers what shows them when shardwise is imported.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from shardwise.errors import Fault, InputError, nearest

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from plotly.graph_objects import Figure

_ABREAST = 2
"""Charts of a result that a notebook shows."""


class Printout(str):
    """Text of several lines, which a Python prompt shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Reports(Protocol):
    """What `report` provides for results."""

    def brief(self, result: object, /) -> str:
        """Return a result in a few lines."""

    def text(self, result: object, /) -> str:
        """Return what the command prints of a result."""

    def html(self, result: object, /) -> str:
        """Return a result as a piece of HTML."""

    def frame(self, result: object, /) -> Any:
        """Return a result as a data frame of polars."""

    def rows(self, result: Any, source: str, /) -> Any:
        """Return what a table file of a result holds, a data frame of polars."""

    def charts(self, result: object, /) -> "Mapping[str, Figure]":
        """Return the charts of a result, by name; the most important one first."""

    def compare(self, scenarios: Sequence[object], names: Sequence[str] | None, /) -> Any:
        """Return estimates side by side, a `Comparison`."""


_providers: list[Callable[[], Reports]] = []


def register(provider: Callable[[], Reports]) -> None:
    """Set the function that imports and returns the reports; it is called when one is needed."""
    _providers[:] = [provider]


def reports() -> Reports:
    """Return the registered reports."""
    return _providers[-1]()


class Brief:
    """A result that is shown in a few lines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return reports().brief(self)

    def __str__(self) -> str:
        return repr(self)


class Shown(Brief):
    """A result with the text of its command, and with tables in a notebook."""

    __slots__ = ()

    def explain(self) -> Printout:
        """Return the text that the command prints: tables, assumptions and sources.

        Examples
        --------
        >>> from shardwise import estimate
        >>> text = estimate("llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8).explain()
        >>> text.splitlines()[0]
        'llama3-8b on h100-sxm with megatron-bridge-2026 (Megatron-Bridge 0.6, Megatron-Core 0.19)'
        """
        return Printout(reports().text(self))

    def _repr_html_(self) -> str:
        return reports().html(self)


class Charted(Shown):
    """A result with charts, which a notebook shows too."""

    __slots__ = ()

    def plot(self, chart: str | None = None) -> "Figure":
        """Return a chart of the result, a figure of plotly.

        Parameters
        ----------
        chart
            Its name; by default the first one. A wrong name is refused with the names that there
            are.

        Raises
        ------
        InputError
            If there is no such chart, or plotly is not installed: ``pip install
            'shardwise[plots]'``.

        Examples
        --------
        >>> from shardwise import estimate
        >>> result = estimate("llama3-8b", "h100-sxm", gpus=8, tp=8, gbs=8)
        >>> result.plot("memory").write_html("memory.html")  # doctest: +SKIP
        """
        drawn = reports().charts(self)
        if not drawn:
            raise InputError(Fault(field="chart", problem="there is nothing to draw"))
        if chart is None:
            return next(iter(drawn.values()))
        if chart not in drawn:
            problem = f"allowed: {', '.join(drawn)}{nearest(chart, tuple(drawn))}"
            raise InputError(Fault.of("chart", chart, problem))
        return drawn[chart]

    def _ipython_display_(self) -> None:
        """Show tables and charts; without plotly, or outside a notebook, IPython shows the rest."""
        from IPython.core.getipython import get_ipython  # noqa: PLC0415 - IPython calls this
        from IPython.display import display  # noqa: PLC0415 - likewise

        has_plotly = all(find_spec(name) is not None for name in ("plotly", "nbformat"))
        if not has_plotly or not hasattr(get_ipython(), "kernel"):
            raise NotImplementedError
        html, charts = self._repr_html_(), reports().charts(self)
        display({"text/html": html, "text/plain": repr(self)}, raw=True)
        for chart in list(charts.values())[:_ABREAST]:
            display(chart)


class Framed:
    """A result that is also a data frame."""

    __slots__ = ()

    def to_frame(self) -> "pl.DataFrame":
        """Return a data frame of polars."""
        raise NotImplementedError

    def to_pandas(self) -> "pd.DataFrame":
        """Return `to_frame` as a data frame of pandas.

        Raises
        ------
        InputError
            If pandas or pyarrow is not installed: ``pip install 'shardwise[pandas]'``.

        Examples
        --------
        >>> from shardwise import estimate_many
        >>> table = estimate_many("llama3-8b", "h100-sxm", gpus=8, tp=[4, 8], gbs=8)
        >>> table.to_pandas().groupby("tp")["step_time_s"].min()  # doctest: +SKIP
        """
        if any(find_spec(name) is None for name in ("pandas", "pyarrow")):
            problem = "pandas and pyarrow are not installed: pip install 'shardwise[pandas]'"
            raise InputError(Fault(field="to_pandas", problem=problem))
        return self.to_frame().to_pandas()
