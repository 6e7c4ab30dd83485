"""What one client's page shows: its plan, its theme, and the answers that it waits for."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Protocol

from nicegui import ui

from shardwise.web.state import MOST_PINS, Named, State
from shardwise.web.workers import Jobs, Pool, faults_of

View = dict[str, Any]
_MOST_PAST = 100


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
        self.launcher: str | None = None
        """Launcher of the software of the last estimate."""
        self.show_changes: Callable[[], None] = lambda: None
        """Shows whether there is something to undo."""
        self.past: list[State] = []
        """Earlier states, the last one last."""
        self.future: list[State] = []
        """States that were undone, the next one last."""
        self.prefers_dark = False
        """Theme of the browser."""
        self.busy = ui.linear_progress(show_value=False).classes("sw-busy")
        """Visible while an answer is computed."""
        self.busy.props('indeterminate aria-label="Computing"').set_visibility(False)
        self.summary = ui.label().mark("summary")
        """What a phone shows at its lower edge; a link past the inputs on any screen."""
        self._asked = 0
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

    def set_field(self, name: str, value: str | None, group: str = "strategy") -> None:
        """Set a field of the strategy or another group, and renew the answer."""
        self.set_state(self.state.with_field(name, value, group))

    def set_state(self, state: State, *, show: bool = False) -> None:
        """Show another state; with `show`, in the inputs too."""
        if changed := _changed(self.state, state):
            # Steps of one slider are one change.
            again = bool(self.past) and changed == _changed(self.past[-1], self.state)
            if not (again and len(changed) == 1 and not show):
                self.past = [*self.past[-_MOST_PAST:], self.state]
            self.future = []
        self._move(state, show=show)

    def undo(self, steps: int = 1) -> None:
        """Go back to an earlier state."""
        for _ in range(min(steps, len(self.past))):
            self.future.append(self.state)
            self.state = self.past.pop()
        self._move(self.state, show=True)

    def redo(self) -> None:
        """Take back the last undo."""
        if self.future:
            self.past.append(self.state)
            self._move(self.future.pop(), show=True)

    def load(self, offer: Mapping[str, Any]) -> None:
        """Show a plan in the inputs and the tab of its estimate, on its system if it names one."""
        state = self.state
        if "system" in offer and offer["system"] != state.system.name:
            state = state.with_named("system", Named(name=offer["system"]))
        strategy = dict(offer["strategy"])
        self.set_state(replace(state, strategy=strategy, tab="estimate"), show=True)

    def _move(self, state: State, *, show: bool) -> None:
        self.state = state
        if show:
            self.show_inputs()
        self.show_changes()
        self.refresh()

    def refresh(self) -> None:
        """Renew the address and the open tab; an answer that is still computed is dropped."""
        query = self.state.to_query()
        ui.run_javascript(f"history.replaceState(null, '', '?{query}')")
        if self._task is not None:
            self._task.cancel()
        if self.state.tab != "estimate":
            self.summary.set_text("Results")
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
        task.add_done_callback(lambda _: work.close())  # of a task that never started
        return task

    def _close(self) -> None:
        """Stop the work: nobody sees what it finds."""
        for task in self.tasks:
            task.cancel()

    async def ask(self, view: Callable[..., View], *arguments: Any) -> View:
        """Compute a view in a worker; what goes wrong comes back as `faults`."""
        self.busy.set_visibility(True)
        self._asked += 1
        try:
            return await self.pool.run(view, *arguments)
        except Exception as error:  # noqa: BLE001 - the page shows every fault
            return faults_view(error)
        finally:
            self._asked -= 1
            if not self._asked and not self.busy.is_deleted:
                self.busy.set_visibility(False)

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


def _changed(before: State, after: State) -> list[str]:
    """Names of what differs between two states, in the order of `State.changes`."""
    return [words.split(" ")[0] for words in before.changes(after)]


async def guarded(work: Awaitable[None], show: Callable[[View], None]) -> None:
    """Do the work of a tab; if it fails, show why, in place of older figures."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the page shows every fault
        show(faults_view(error))


def faults_view(error: Exception) -> View:
    """Return the view of an error."""
    return {"faults": [str(fault) for fault in faults_of(error)]}
