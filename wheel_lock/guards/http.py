"""A fence in a header of HTTP, from the holder to the service that writes.

The holder sends `headers(lock)` with its request. The service has `AsgiFences` or `WsgiFences` read the header; its handler
gives the fence to the guard of its transaction, because only there the check and the write are one step. The header is
believed: it is for services that trust one another, since a forged large fence would shut all holders out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from wheel_lock.errors import StaleFence
from wheel_lock.guards.fences import Fence, Fenced, fence_of

__all__ = ["HEADER", "KEY", "AsgiFences", "WsgiFences", "headers", "parse"]

HEADER = "Wheel-Lock-Fence"
"""The name of the header. Its value is the number, a space, and the name, percent-encoded."""
KEY = "wheel_lock.fence"
"""Where a handler finds the `Fence`, in ASGI's scope or WSGI's environ; None if the request has none."""
_NAME = re.compile(r"[A-Za-z0-9._~%-]+")  # so two headers, which servers join with a comma, are refused
UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
WsgiApp: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
App = TypeVar("App")


def headers(lock: Fenced) -> dict[str, str]:
    """Return the header that carries the fence of ``lock``. Raises what `fence_of` does."""
    held = fence_of(lock)
    return {HEADER: f"{held.fence} {quote(held.name, safe='')}"}


def parse(value: str) -> Fence:
    """Return the fence in the value of a header. Raises ValueError if there is none."""
    number, _, name = value.partition(" ")
    if not (number.isascii() and number.isdigit() and len(number) <= 16 and _NAME.fullmatch(name)):
        raise ValueError(f"{HEADER}: the value must be a fence and a name, not {value!r:.80}")
    return fence_of((unquote(name, errors="strict"), int(number)))


class _Fences(Generic[App]):
    def __init__(self, app: App, required: Collection[str] = UNSAFE) -> None:
        self._app = app
        self._required = frozenset(required)

    def _read(self, method: str, value: str | None) -> tuple[Fence | None, str | None]:
        """Return the fence, and the status line of a refusal, if any."""
        if value is None:
            return None, "428 Precondition Required" if method.upper() in self._required else None
        try:
            return parse(value), None
        except ValueError:
            return None, "400 Bad Request"


class AsgiFences(_Fences[AsgiApp]):
    """ASGI middleware: reads the header into ``scope["wheel_lock.fence"]``, and answers 409 to a `StaleFence` of the app.

    Args:
        app: The application.
        required: Methods whose requests are answered with 428 if they have no fence.
    """

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = False

        async def note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        values = [
            value.decode("latin-1") for name, value in scope["headers"] if name.lower() == HEADER.lower().encode()
        ]
        scope[KEY], refusal = self._read(scope["method"], ",".join(values) if values else None)
        if refusal is None:
            try:
                return await self._app(scope, receive, note)
            except StaleFence:
                if started:
                    raise
                refusal = "409 Conflict"
        fields = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(refusal))]
        await send({"type": "http.response.start", "status": int(refusal[:3]), "headers": fields})
        await send({"type": "http.response.body", "body": refusal.encode()})


class WsgiFences(_Fences[WsgiApp]):
    """WSGI middleware: reads the header into ``environ["wheel_lock.fence"]``, and answers 409 to a `StaleFence` of the app.

    Args:
        app: The application. One that answers exceptions itself, as Flask and Django do, needs a handler of `StaleFence`.
            One that is a generator function begins behind this, so the server gets its `StaleFence`.
        required: Methods whose requests are answered with 428 if they have no fence.
    """

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Handle one request."""
        value = environ.get("HTTP_" + HEADER.upper().replace("-", "_"))
        environ[KEY], refusal = self._read(environ["REQUEST_METHOD"], value)
        started, errors = False, []

        def note(*answer: Any) -> Any:
            nonlocal started
            started = True
            return start_response(*answer)

        if refusal is None:
            try:
                return self._app(environ, note)
            except StaleFence:
                refusal = "409 Conflict"
                if started:  # then a server wants the error, too
                    errors.append(sys.exc_info())
        start_response(refusal, [("Content-Type", "text/plain"), ("Content-Length", str(len(refusal)))], *errors)
        return [refusal.encode()]
