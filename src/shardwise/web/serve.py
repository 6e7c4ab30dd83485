"""The server of the explorer: the page, the API, and their processes."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from shardwise._version import __version__
from shardwise.errors import Fault, InputError
from shardwise.web.api import PREFIX, add_api
from shardwise.web.connections import WAIT_SECONDS, Connection
from shardwise.web.guard import Guard, Hosts
from shardwise.web.workers import Jobs, Pool

_SEARCHES, _MOST_SEARCHES, _SEARCH_SECONDS = 2, 64, 300.0
SETTINGS: dict[str, Any] = {
    "http": Connection,
    "timeout_keep_alive": WAIT_SECONDS,
    # Together less than the 1,024 files that many systems let a process open.
    "limit_concurrency": 700,
    "backlog": 128,
    # The address of a page may contain several uploaded models.
    "h11_max_incomplete_event_size": 2**18,
    "log_level": "warning",
    "server_header": False,
}
"""Of uvicorn."""


class Server:
    """An application with its worker processes."""

    def __init__(
        self,
        *,
        token: str | None = None,
        hosts: Hosts | None = None,
        processes: int | None = None,
        page: bool = True,
        ready: Callable[[], object] | None = None,
    ) -> None:
        self.pool = Pool(processes or max(2, os.cpu_count() or 2))
        self.jobs = Jobs(running=_SEARCHES, most=_MOST_SEARCHES, most_seconds=_SEARCH_SECONDS)

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            warming = asyncio.create_task(self._warm(ready))
            yield
            warming.cancel()
            self.jobs.close()
            self.pool.close()

        self.app = FastAPI(
            title="shardwise",
            version=__version__,
            summary="Step time, memory and cost of training a transformer on a cluster.",
            docs_url=None,
            redoc_url=None,
            openapi_url=f"{PREFIX}/openapi.json",
            lifespan=lifespan,
        )
        add_api(self.app, self.pool, self.jobs)
        if page:
            from nicegui import core  # noqa: PLC0415 - slow to import

            from shardwise.web.page import add_page  # noqa: PLC0415 - slow to import

            add_page(self.app, self.pool, self.jobs)
            core.sio.eio.cors_allowed_origins = []  # the guard checks; by default, all are let in
        self.app.add_middleware(Guard, token=token, hosts=hosts or Hosts(), api=PREFIX)

    async def _warm(self, ready: Callable[[], object] | None) -> None:
        """Start the processes of the pool, so that the first question does not wait for them."""
        await self.pool.ready()
        if ready is not None:
            await asyncio.to_thread(ready)


def serve(
    *,
    host: str,
    port: int,
    token: str | None = None,
    allowed_hosts: tuple[str, ...] = (),
    ready: Callable[[], object] | None = None,
) -> None:
    """Serve until interrupted."""
    _check_address(host, port)
    server = Server(token=token, hosts=Hosts(bound=host, allowed=allowed_hosts), ready=ready)
    uvicorn.run(server.app, host=host, port=port, **SETTINGS)


def _check_address(host: str, port: int) -> None:
    """Refuse an address in use before anything is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except (OSError, OverflowError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            # Names that no server knows, text that is no name, and addresses of other machines.
            of_host = isinstance(error, (socket.gaierror, ValueError))
            if of_host or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
                fault = Fault.of("host", host, f"is no address of this machine: {reason}")
            else:
                fault = Fault.of("port", port, f"cannot be used on {host}: {reason}")
            raise InputError(fault) from None
