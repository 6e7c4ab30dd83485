"""`shardwise explore`."""

import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from shardwise.cli.help import with_help
from shardwise.cli.options import flag_fault, whole_number
from shardwise.cli.output import note
from shardwise.errors import Fault, InputError

_LOCAL = ("127.0.0.1", "::1", "localhost")
_PORT = "8765"
_MOST_PORT = 65_535
_LEAST_TOKEN = 12


@with_help(
    examples=[
        "shardwise explore --port 8765",
    ],
)
def command(
    *,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on; addresses other than localhost need --token. Default: "
            f"{_LOCAL[0]}.",
        ),
    ] = _LOCAL[0],
    port: Annotated[
        str,
        typer.Option("--port", metavar="N", help=f"Port to listen on. Default: {_PORT}."),
    ] = _PORT,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="TEXT",
            envvar="SHARDWISE_TOKEN",
            help="Text that clients must know: ?token=TEXT in the first address, or the header "
            "'Authorization: Bearer TEXT'.",
        ),
    ] = None,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open the page in a browser.")
    ] = False,
) -> int:
    """Serve the explorer, a page with sliders, and the REST API under /api/v1.

    The page needs no internet. The address holds all that it shows: a link reproduces the view.
    """
    number = whole_number("port", port)
    if number is None or not 1 <= number <= _MOST_PORT:
        raise flag_fault("port", port, f"must be from 1 to {_MOST_PORT}")
    if host not in _LOCAL and token is None:
        raise flag_fault("host", host, "needs --token: other machines could reach it")
    if token is not None and len(token) < _LEAST_TOKEN:
        raise flag_fault("token", "*" * len(token), f"must have at least {_LEAST_TOKEN} characters")
    try:
        from shardwise.web.serve import serve  # noqa: PLC0415 - an extra
    except ImportError:
        problem = "the explorer needs NiceGUI, which is not installed: pip install 'shardwise[web]'"
        raise InputError(Fault(problem=problem)) from None
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{number}/"
    note(f"serving {address} (stop with Ctrl+C)")

    def ready() -> None:
        if not no_open:
            webbrowser.open(address if token is None else f"{address}?token={quote(token)}")

    serve(host=host, port=number, token=token, ready=ready)
    return 0
