"""HTTP connections: those that send no request do not take the places of those that do.

uvicorn counts a connection from its start, and has no timeout for a request that does not end its
headers; without limits, clients without the token could use up all connections.
"""

import asyncio
import time

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_WAITING, MOST_WAITING_OF_ADDRESS = 256, 64
WAIT_SECONDS = 20
"""From the start of a connection, or its last answer, to the end of a request's headers."""


class Connection(H11Protocol):
    """A connection of uvicorn that is closed if it waits too long, or if too many wait.

    A connection waits while no request is in progress: its headers have not all arrived. Where too
    many wait, of one address or of all, the one that has waited longest is closed. A client that
    sends its request at once is therefore served however many others send none.
    """

    waits_since: float | None = None
    """None while a request is in progress."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request."""
        super().connection_made(transport)
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop()

    def data_received(self, data: bytes) -> None:
        """Stop waiting where this completes the headers of a request."""
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._note()

    @property
    def address(self) -> str:
        """Address of the client."""
        return self.client[0] if self.client else ""

    def drop(self) -> None:
        """Close the connection at once."""
        self._stop()
        self.transport.abort()

    def _note(self) -> None:
        """Start or stop waiting, as the state of the connection says."""
        upgraded = self.transport.get_protocol() is not self
        answers = self.cycle is not None and not self.cycle.response_complete
        if upgraded or answers or self.transport.is_closing():
            self._stop()
        elif self.waits_since is None:
            self.waits_since = time.monotonic()
            self._timer = self.loop.call_later(WAIT_SECONDS, self.drop)
            self._make_room()

    def _stop(self) -> None:
        self.waits_since = None
        if self._timer is not None:
            self._timer.cancel()

    def _make_room(self) -> None:
        """Close the connection that has waited longest where too many wait."""
        of_server = [one for one in self.connections if isinstance(one, Connection)]
        waiting = [(one.waits_since, one) for one in of_server if one.waits_since is not None]
        near = [pair for pair in waiting if pair[1].address == self.address]
        for group, most in ((near, MOST_WAITING_OF_ADDRESS), (waiting, MOST_WAITING)):
            if len(group) > most:
                min(group, key=lambda pair: pair[0])[1].drop()
