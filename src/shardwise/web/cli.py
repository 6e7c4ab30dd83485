"""`shardwise explore`."""

import html
import os
import tempfile
import webbrowser
from pathlib import Path
from urllib.parse import quote

from shardwise.analysis.saved import MOST_BYTES
from shardwise.analysis.saved_plan import split_plan
from shardwise.cli.help import with_help
from shardwise.cli.options import arg, flag_fault, opt
from shardwise.cli.output import note
from shardwise.config import files
from shardwise.config.arguments import whole_number
from shardwise.errors import Fault, InputError

_LOCAL = ("127.0.0.1", "::1", "localhost")
_PORT = "8765"
_MOST_PORT = 65_535
_LEAST_TOKEN = 12
_TOKEN_VARIABLE = "SHARDWISE_TOKEN"  # noqa: S105 - a name


@with_help(examples=["shardwise explore --port 8765", "shardwise explore found.json#3"])
def command(
    file: str | None = arg(
        "[FILE[#N]]",
        "Saved estimate or search (--json, --output) to open: its best plans, or plan N.",
        default=None,
    ),
    *,
    host: str = opt(
        "--host ADDRESS",
        f"Address to listen on; addresses other than localhost need a token. Default: {_LOCAL[0]}.",
        default=_LOCAL[0],
    ),
    port: str = opt("--port N", f"Port to listen on. Default: {_PORT}.", default=_PORT),
    token: str | None = opt(
        "--token TEXT",
        "Text that clients must know: ?token=TEXT in the first address, or the header "
        "'Authorization: Bearer TEXT'. Other users of the machine can read it in the list of "
        f"processes: prefer --token-file, or the environment variable {_TOKEN_VARIABLE}.",
    ),
    token_file: str | None = opt("--token-file FILE", "File that contains the token alone."),
    allow_host: list[str] | None = opt(
        "--allow-host NAME",
        "Another name under which clients reach the server, as through a proxy: "
        "example.com, or example.com:8443 if the port is not that of http or https. May be "
        "repeated.",
    ),
    no_open: bool = opt("--no-open", "Do not open the page in a browser."),
) -> int:
    """Serve the explorer, a page with sliders, and the REST API under /api/v1.

    The page needs no internet. The address holds all that it shows: a link reproduces the view.
    """
    number = whole_number("port", port)
    if number is None or not 1 <= number <= _MOST_PORT:
        raise flag_fault("port", port, f"must be from 1 to {_MOST_PORT}")
    token = _token(token, token_file)
    if host not in _LOCAL and token is None:
        raise flag_fault("host", host, "needs --token-file: other machines could reach it")
    try:
        from shardwise.web.serve import serve  # noqa: PLC0415 - an extra
    except ImportError:
        problem = "the explorer needs NiceGUI, which is not installed: pip install 'shardwise[web]'"
        raise InputError(Fault(problem=problem)) from None
    shown = f"[{host}]" if ":" in host else host
    query = "" if file is None else f"?{_query(file)}"
    address = f"http://{shown}:{number}/{query}"
    note(f"serving {address} (stop with Ctrl+C)")

    with tempfile.TemporaryDirectory(prefix="shardwise-") as folder:

        def ready() -> None:
            if not no_open:
                webbrowser.open(address if token is None else _with_token(address, token, folder))

        serve(
            host=host,
            port=number,
            token=token,
            allowed_hosts=tuple(allow_host or ()),
            ready=ready,
        )
    return 0


def _token(entered: str | None, path: str | None) -> str | None:
    """Return the token of an option, of a file or of the environment."""
    if entered is not None and path is not None:
        raise flag_fault("token-file", path, "--token sets the token too; use one of them")
    flag, token = "token", entered
    if path is not None:
        flag, token = "token-file", files.read_text(path).strip()
    elif entered is None:
        token = os.environ.get(_TOKEN_VARIABLE)
    if token is not None and len(token) < _LEAST_TOKEN:
        problem = f"must have at least {_LEAST_TOKEN} characters"
        raise flag_fault(flag, "*" * len(token), problem)
    return token


def _query(file: str) -> str:
    """Return the address of the page that shows a saved result."""
    from shardwise.web.saved import query_of  # noqa: PLC0415 - slow to import

    path, number = split_plan(file)
    return query_of(files.read_mapping(path, most_bytes=MOST_BYTES), path, number)


def _with_token(address: str, token: str, folder: str) -> str:
    """Return a page that only this user can read, and that opens an address with its token.

    A browser gets its address as an argument, which other users can read.
    """
    joint = "&" if "?" in address else "?"
    target = html.escape(f"{address}{joint}token={quote(os.fsencode(token))}")
    page = Path(folder, "open.html")
    page.write_text(f'<meta http-equiv="refresh" content="0; url={target}">', encoding="utf-8")
    return page.as_uri()
