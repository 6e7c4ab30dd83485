"""What stands before every request: hosts and origins, the token, and limits of a body."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from socket import gethostname
from typing import Any
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlsplit

from shardwise.config.parse import parse
from shardwise.config.plain import as_json
from shardwise.errors import Fault, InputError
from shardwise.web.api import faults_record

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BYTES = 2 * 2**20
"""Of a request. The largest model file of the catalog has a few kilobytes."""
_BODY_SECONDS = 20.0
_COOKIE = "shardwise_token"
_LOCAL = ("localhost", "127.0.0.1", "::1")
_ALL_ADDRESSES = ("0.0.0.0", "::", "")  # noqa: S104 - compared with
# NiceGUI's pages run scripts that stand in the page and compile templates.
_CONTENT = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
_HEADERS = (
    (b"content-security-policy", _CONTENT.encode()),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Names under which a server is reached: others point at it to pass for it."""

    bound: str = _LOCAL[0]
    """Name or address that the server listens on."""
    allowed: tuple[str, ...] = ()
    """More names, with their port unless it is the default one: those of a proxy."""

    def __post_init__(self) -> None:
        """Refuse what is no name of a host."""
        problem = "must be a name, with a port if need be, as in example.com or example.com:8443"
        wrong = [name for name in self.allowed if _host_name(name) is None]
        if wrong:
            raise InputError([Fault.of("allow-host", name, problem) for name in wrong])

    def serves(self, authority: str) -> bool:
        """Whether a request for a host, with or without a port, is for this server."""
        name = _host_name(authority)
        if name is None:
            return False
        if self.bound in _ALL_ADDRESSES and (_is_address(name) or name == gethostname().lower()):
            return True  # an address cannot be made to point here, as a name of others can
        return name in (*_LOCAL, _host_name(self.bound), *map(_host_name, self.allowed))

    def trusts(self, origin: str, authority: str) -> bool:
        """Whether a page of an origin may use the server, which was requested as a host."""
        scheme, _, its = origin.lower().partition("://")
        own = (authority.lower(), *(name.lower() for name in self.allowed))
        return scheme in ("http", "https") and its in own


def _host_name(authority: str) -> str | None:
    """Name or address of `name`, `name:port`, `1.2.3.4:port` or `[::1]:port`, in lower case."""
    text = f"[{authority}]" if _is_address(authority) and ":" in authority else authority
    try:
        parts = urlsplit(f"//{text}")
        valid = parts.netloc == text and "@" not in text and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return parts.hostname if valid else None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware; requests that it refuses reach no other code."""

    def __init__(self, app: App, *, token: str | None, hosts: Hosts, api: str) -> None:
        self._app, self._hosts, self._api = app, hosts, api
        self._token = None if token is None else _bytes(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and pass it on with its body, which was read completely."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
            if scope["type"] == "http":
                receive = _replayed(await self._checked_body(scope["path"], receive), receive)
        except _RefusedError as refused:
            await _refuse(scope, send, refused)
            return
        cookie = None
        if self._token is not None:
            cookie = f"{_COOKIE}={quote(self._token)}; HttpOnly; SameSite=Strict; Path=/"
        await self._app(scope, receive, _with_headers(send, cookie))

    def _check(self, scope: Scope) -> None:
        """Refuse requests of other sites, without the token, or of another type than JSON."""
        host = _header(scope, b"host").decode("latin-1")
        if not self._hosts.serves(host):
            problem = "no server of this name; see --allow-host"
            raise _RefusedError(421, Fault.of("host", host, problem, "request"))
        origin = _header(scope, b"origin").decode("latin-1")
        if origin and not self._hosts.trusts(origin, host):
            problem = "pages of other sites may not use this server; see --allow-host"
            raise _RefusedError(403, Fault.of("origin", origin, problem, "request"))
        if self._token is not None and not _has_token(scope, self._token):
            raise _refused(401, "needs the token: open the address with ?token=...")
        if scope["path"].startswith(self._api) and scope.get("method") == "POST":
            kind = _header(scope, b"content-type").decode("latin-1")
            if kind.partition(";")[0].strip().lower() != "application/json":
                problem = "must be application/json"
                raise _RefusedError(415, Fault.of("content-type", kind, problem, "request"))

    async def _checked_body(self, path: str, receive: Receive) -> bytes:
        """Return a full body, that of the API within the limits of `config.parse`."""
        try:
            body = await asyncio.wait_for(_read(receive), _BODY_SECONDS)
            if body and path.startswith(self._api):
                parse(body.decode(), ".json", "request", most_bytes=MOST_BYTES)
        except TimeoutError:
            raise _refused(408, f"took more than {_BODY_SECONDS:g} s to arrive") from None
        except UnicodeDecodeError:
            raise _refused(422, "is not UTF-8 text") from None
        except InputError as error:
            raise _refused(422, *(fault.problem for fault in error.faults)) from None
        return body


class _RefusedError(Exception):
    """A request that no other code gets."""

    def __init__(self, status: int, *faults: Fault) -> None:
        super().__init__(*faults)
        self.status, self.faults = status, faults


def _refused(status: int, *problems: str) -> _RefusedError:
    return _RefusedError(status, *(Fault(source="request", problem=one) for one in problems))


async def _read(receive: Receive) -> bytes:
    """Return a full body; refuse it as soon as it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > MOST_BYTES:
            raise _refused(413, f"is larger than {MOST_BYTES // 2**20} MiB")
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a function that hands on a body that was read, and then waits for the end."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _header(scope: Scope, name: bytes) -> bytes:
    """Value of a header; of several, all of them, which no check accepts."""
    return b", ".join(value for key, value in scope["headers"] if key == name)


def _bytes(text: str) -> bytes:
    """Bytes of a text that came from the system or from a request, whatever its letters."""
    return text.encode("utf-8", "surrogateescape")


def _has_token(scope: Scope, token: bytes) -> bool:
    """Whether a request has the token: in a header, in the address or in the cookie."""
    scheme, _, value = _header(scope, b"authorization").partition(b" ")
    query = scope.get("query_string", b"").decode("utf-8", "surrogateescape")
    cookie = _cookie(_header(scope, b"cookie").decode("latin-1"))
    named = [
        *([value.strip()] if scheme.lower() == b"bearer" else []),
        *map(_bytes, parse_qs(query, errors="surrogateescape").get("token", [])),
        *([] if cookie is None else [unquote_to_bytes(cookie)]),
    ]
    return any(hmac.compare_digest(one, token) for one in named)


def _cookie(text: str) -> str | None:
    """The token in a header of cookies; one that cannot be read has none."""
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(text)
    except CookieError:
        return None
    return cookies[_COOKIE].value if _COOKIE in cookies else None


def _with_headers(send: Send, cookie: str | None) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            more = [*_HEADERS, *([(b"set-cookie", cookie.encode())] if cookie else [])]
            message["headers"] = [*message.get("headers", []), *more]
        await send(message)

    return sent


async def _refuse(scope: Scope, send: Send, refused: _RefusedError) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    text = as_json(faults_record(refused.faults)).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *_HEADERS]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
