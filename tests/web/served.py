"""The server of the explorer, in a thread."""

import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from shardwise.web.serve import SETTINGS, Server


@contextmanager
def serving(**options):
    """A server on a free port as `serve` starts it, and the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    one = Server(**options)
    server = uvicorn.Server(uvicorn.Config(one.app, port=port, **SETTINGS))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
        assert thread.is_alive()
    yield one, port
    server.should_exit = True
    thread.join(30)
