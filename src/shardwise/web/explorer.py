"""What one client's page shows: its plan, its theme, and the answers that it waits for."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from nicegui import ui

from shardwise.web.state import MOST_PINS, State
from shardwise.web.workers import Jobs, Pool, faults_of

View = dict[str, Any]


class Tab(Protocol):
    """A tab of the page."""

    async def renew(self) -> None:
        """Compute what follows from the state of the page, and show it."""

    def show(self, view: View) -> None:
        """Show a view in place of an older one; one with `faults` shows these alone."""


class Explorer:
    """The state of a page; inputs set it, and the open tab shows what follows."""

    def __init__(self, pool: Pool, jobs: Jobs) -> None:
        self.pool, self.jobs = pool, jobs
        self.state = State()
        self.show_inputs: Callable[[], None] = lambda: None
        """Puts the state into the inputs."""
        self.open_tab: Callable[[], Tab] | None = None
        """Returns the tab that is shown; None: the page is not built yet."""
        self.prefers_dark = False
        """Theme of the browser."""
        self._dark = ui.dark_mode(value=None)
        self._task: asyncio.Task[None] | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        ui.context.client.on_delete(self._close)

    @property
    def is_dark(self) -> bool:
        """Whether charts are drawn for a dark page."""
        return self.prefers_dark if self._dark.value is None else bool(self._dark.value)

    def switch_theme(self) -> None:
        """Change between light and dark."""
        self._dark.set_value(not self.is_dark)
        self.refresh()

    def set_field(self, name: str, value: str | None) -> None:
        """Set a field of the strategy, and renew the answer."""
        self.set_state(self.state.with_field(name, value))

    def set_state(self, state: State, *, show: bool = False) -> None:
        """Show another state; with `show`, in the inputs too."""
        self.state = state
        if show:
            self.show_inputs()
        self.refresh()

    def refresh(self) -> None:
        """Renew the address and the open tab; an answer that is still computed is dropped."""
        query = self.state.to_query()
        ui.run_javascript(f"history.replaceState(null, '', '?{query}')")
        if self._task is not None:
            self._task.cancel()
        if self.open_tab is not None:
            tab = self.open_tab()
            self._task = self.start(tab.renew(), tab.show)

    def start(
        self, work: Coroutine[Any, Any, None], show: Callable[[View], None]
    ) -> asyncio.Task[None]:
        """Do the work of a tab in the background, until the page is closed."""
        task = asyncio.create_task(guarded(work, show))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _close(self) -> None:
        """Stop the work: nobody sees what it finds."""
        for task in self.tasks:
            task.cancel()

    async def ask(self, view: Callable[..., View], *arguments: Any) -> View:
        """Compute a view in a worker; what goes wrong comes back as `faults`."""
        try:
            return await self.pool.run(view, *arguments)
        except Exception as error:  # noqa: BLE001 - the page shows every fault
            return faults_view(error)

    def pin(self) -> None:
        """Add the plan of the page to those that are compared."""
        address = replace(self.state, pinned=(), tab="estimate").to_query()
        if len(self.state.pinned) >= MOST_PINS:
            ui.notify(f"at most {MOST_PINS} plans are compared", type="warning")
        elif address in self.state.pinned:
            ui.notify("this plan is pinned", type="info")
        else:
            self.set_state(replace(self.state, pinned=(*self.state.pinned, address)))
            ui.notify("Pinned", type="positive")


async def guarded(work: Awaitable[None], show: Callable[[View], None]) -> None:
    """Do the work of a tab; if it fails, show why, in place of older figures."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the page shows every fault
        show(faults_view(error))


def faults_view(error: Exception) -> View:
    """Return the view of an error."""
    return {"faults": [str(fault) for fault in faults_of(error)]}
