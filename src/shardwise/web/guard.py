"""What stands before every request: limits on size, depth and time of a body, and the token."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from shardwise.config.parse import parse
from shardwise.config.plain import as_json
from shardwise.errors import Fault, InputError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BYTES = 2 * 2**20
"""Of a request. The largest model file of the catalog has a few kilobytes."""
_BODY_SECONDS = 20.0
_COOKIE = "shardwise_token"
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"SAMEORIGIN"),
)


class Guard:
    """ASGI middleware; requests that it refuses reach no other code."""

    def __init__(self, app: App, *, token: str | None, api: str) -> None:
        self._app, self._token, self._api = app, token, api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and pass it on with its body, which was read completely."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if self._token is not None and not _has_token(scope, self._token):
            await _refuse(scope, send, 401, "needs the token: open the address with ?token=...")
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._checked_body(scope["path"], receive)
        except _RefusedError as refused:
            await _refuse(scope, send, refused.status, *refused.problems)
            return
        cookie = None
        if self._token is not None:
            cookie = f"{_COOKIE}={quote(self._token)}; HttpOnly; SameSite=Strict; Path=/"
        await self._app(scope, _replayed(body, receive), _with_headers(send, cookie))

    async def _checked_body(self, path: str, receive: Receive) -> bytes:
        """Return a full body, that of the API within the limits of `config.parse`."""
        try:
            body = await asyncio.wait_for(_read(receive), _BODY_SECONDS)
            if body and path.startswith(self._api):
                parse(body.decode(), ".json", "request", most_bytes=MOST_BYTES)
        except TimeoutError:
            raise _RefusedError(408, f"took more than {_BODY_SECONDS:g} s to arrive") from None
        except UnicodeDecodeError:
            raise _RefusedError(422, "is not UTF-8 text") from None
        except InputError as error:
            raise _RefusedError(422, *(fault.problem for fault in error.faults)) from None
        return body


class _RefusedError(Exception):
    """A request that no other code gets."""

    def __init__(self, status: int, *problems: str) -> None:
        super().__init__(*problems)
        self.status, self.problems = status, problems


async def _read(receive: Receive) -> bytes:
    """Return a full body; refuse it as soon as it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > MOST_BYTES:
            raise _RefusedError(413, f"is larger than {MOST_BYTES // 2**20} MiB")
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a function that hands on a body that was read, and then waits for the end."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _has_token(scope: Scope, token: str) -> bool:
    """Whether a request names the token: in a header, in the address or in the cookie."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    cookie = SimpleCookie()
    try:
        cookie.load(headers.get("cookie", ""))
    except Exception:  # noqa: BLE001 - a cookie that cannot be read is none
        cookie = SimpleCookie()
    named = [
        headers.get("authorization", "").removeprefix("Bearer "),
        *parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", []),
        *([unquote(cookie[_COOKIE].value)] if _COOKIE in cookie else []),
    ]
    return any(hmac.compare_digest(one.encode(), token.encode()) for one in named)


def _with_headers(send: Send, cookie: str | None) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            more = [*_HEADERS, *([(b"set-cookie", cookie.encode())] if cookie else [])]
            message["headers"] = [*message.get("headers", []), *more]
        await send(message)

    return sent


async def _refuse(scope: Scope, send: Send, status: int, *problems: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    faults = [Fault(source="request", problem=problem) for problem in problems]
    text = as_json({"errors": [{"message": str(fault)} for fault in faults]}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
