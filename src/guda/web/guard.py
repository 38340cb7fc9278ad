"""Guard: requests that are refused before they reach Gradio, and headers that keep the browser on this server.

Gradio fetches an address that it finds behind `file=` or `proxy=`, and answers pages of other origins. This server
asks nothing of the network, and what a visitor's browser may do here is for pages from here alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")

HEADERS = {
    "content-security-policy": "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; "
    "connect-src 'self' data: blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}

FETCHES = re.compile(r"/(file(=|/)\s*https?:|proxy=)", re.IGNORECASE)

MANIFEST = "/manifest.json"  # every page links to it, it needs no login, and it would reveal the run's name

PORTS = {"http": 80, "https": 443}


class Guard:
    """ASGI middleware. `local`: only loopback names are answered, so that no stranger's name can be pointed here."""

    def __init__(self, app: Any, local: bool = False) -> None:
        self.app, self.local = app, local

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return

        async def tell(message: Any) -> None:
            if message["type"] == "http.response.start":
                extra = ((k.encode(), v.encode()) for k, v in HEADERS.items())
                message = message | {"headers": [*message.get("headers", []), *extra]}
            await send(message)

        why = self.refusal(scope["path"], scope["headers"])
        if why and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif why:
            await _reply(tell, 403, "text/plain; charset=utf-8", why + "\n")
        elif scope["path"] == MANIFEST:
            await _reply(tell, 200, "application/manifest+json", "{}")
        else:
            await self.app(scope, receive, tell)

    def refusal(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Why a request is refused; empty if it is accepted."""
        if FETCHES.search(path) or FETCHES.search(unquote(path)):  # servers decode once, proxies may have encoded twice
            return "This server fetches nothing from other addresses."
        found = {key.lower(): value.decode("latin-1") for key, value in headers}
        host, origin = found.get(b"host", ""), found.get(b"origin")
        if self.local and _name(f"//{host}") not in LOOPBACK:
            return "This server answers only on this machine: open the address that guda serve printed."
        if origin is not None and not _same(origin, host):
            return "This request comes from a page of another server. A proxy in front must forward the Host header."
        return ""


def _name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _same(origin: str, host: str) -> bool:
    """An origin names no port where it is the scheme's own; a Host may."""
    try:
        there = urlsplit(origin)
        here = urlsplit(f"//{host}")
        usual = PORTS.get(there.scheme)
        return (
            usual is not None
            and there.hostname is not None
            and (there.hostname, there.port or usual) == (here.hostname, here.port or usual)
        )
    except ValueError:
        return False


async def _reply(send: Any, status: int, kind: str, text: str) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]})
    await send({"type": "http.response.body", "body": text.encode()})
