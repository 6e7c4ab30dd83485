"""What one client's page shows: its plan, its theme, and the answers that it waits for."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from nicegui import ui

from shardwise.errors import InputError, ShardwiseError
from shardwise.web.state import State
from shardwise.web.workers import Jobs, Pool

MOST_PINS = 8
"""Plans that are compared at most."""


async def _nothing() -> None:
    """Renew nothing: the page is not built yet."""


class Explorer:
    """The state of a page; inputs set it, and the open tab shows what follows."""

    def __init__(self, pool: Pool, jobs: Jobs) -> None:
        self.pool, self.jobs = pool, jobs
        self.state = State()
        self.show_inputs: Callable[[], None] = lambda: None
        """Puts the state into the inputs."""
        self.renew: Callable[[], Awaitable[None]] = _nothing
        """Renews the open tab."""
        self.prefers_dark = False
        """Theme of the browser."""
        self._dark = ui.dark_mode(value=None)
        self._task: asyncio.Task[None] | None = None

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
        self._task = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self.renew()

    async def ask(self, view: Callable[..., Any], *arguments: Any) -> Any:
        """Compute a view in a worker; faults come back as `faults`."""
        try:
            return await self.pool.run(view, *arguments)
        except InputError as error:
            return {"faults": [str(fault) for fault in error.faults]}
        except ShardwiseError as error:
            return {"faults": [str(error)]}

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
