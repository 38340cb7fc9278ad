"""What stands before Gradio: requests are refused before they reach it, and headers keep the browser on this server.

Gradio fetches an address that it finds behind `file=` or `proxy=`, answers pages of other origins, and reads a body of
any size for as long as it takes to arrive. This server asks nothing of the network, what a visitor's browser may do
here is for pages from here alone, and a body has a limit in bytes and in time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from guda.web.access import Attempts, Token, is_loopback
from guda.web.upload_folder import UploadFolder

HEADERS = {
    "content-security-policy": "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; "
    "connect-src 'self' data: blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}

FETCHES = re.compile(r"/(file(=|/)\s*https?:|proxy=)", re.IGNORECASE)

MANIFEST = "/manifest.json"  # every page links to it, it needs no login, and it would reveal the run's name

UPLOAD = re.compile(r"(/gradio_api)?/upload/?")

LOGIN = re.compile(r"/login/?")

PORTS = {"http": 80, "https": 443}

BODY = 2**20  # bytes of any request but an upload: 64 prompts and the settings of a batch

UPLOADS = 8  # that are received at the same time

IDLE, WHOLE = 30.0, 300.0  # seconds without a byte, and of a whole body


class Refusal(Exception):
    """An answer of the guard's own."""

    def __init__(self, status: int, why: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        super().__init__(why)
        self.status, self.headers = status, headers or []


class Guard:
    """ASGI middleware. `local`: only loopback names are answered, so that no stranger's name can be pointed here.
    `token`: what a link must carry; None where there is a login. `idle`, `whole`: seconds that a body may take."""

    def __init__(
        self, app: Any, local: bool = False, token: Token | None = None, uploads: UploadFolder | None = None,
        idle: float = IDLE, whole: float = WHOLE,
    ) -> None:  # fmt: skip
        self.app, self.local, self.token, self.uploads = app, local, token, uploads
        self.idle, self.whole = idle, whole
        self.attempts = Attempts()
        self._receiving = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        answer = Answer(send)
        try:
            headers = {key.lower(): value.decode("latin-1") for key, value in scope["headers"]}
            self.admit(scope, headers)
            if scope["type"] == "websocket":
                await self.app(scope, receive, send)
            elif scope["path"] == MANIFEST:
                await answer.reply(200, "{}", "application/manifest+json")
            elif scope.get("method") == "POST" and LOGIN.fullmatch(scope["path"]):
                await self.login(scope, self.body(headers, receive, answer, BODY), answer)
            elif scope.get("method") == "POST" and UPLOAD.fullmatch(scope["path"]):
                await self.upload(scope, headers, receive, answer)
            else:
                await self.app(scope, self.body(headers, receive, answer, BODY), answer.send)
        except Refusal as e:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await answer.reply(e.status, f"{e}\n", headers=e.headers)
        except Exception:  # of an app whose visitor was sent away by `body`
            if not answer.own:
                raise

    def admit(self, scope: Any, headers: Mapping[bytes, str]) -> None:
        """Refuse who may not enter."""
        path = scope["path"]
        if FETCHES.search(path) or FETCHES.search(unquote(path)):  # servers decode once, proxies may have encoded twice
            raise Refusal(403, "This server fetches nothing from other addresses.")
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if self.local and not is_loopback(_name(f"//{host}")):
            raise Refusal(403, "This server answers only on this machine: open the address that guda serve printed.")
        if origin is not None and not _same(origin, host):
            raise Refusal(
                403, "This request comes from a page of another server. A proxy in front must forward the Host header."
            )
        if self.token is None or path == MANIFEST:
            return
        if scope.get("method") == "GET" and (found := self.token.entrance(path, scope.get("query_string", b""))):
            raise Refusal(303, "Welcome.", found)  # also for who has the cookie: the token leaves the address bar
        if not self.token.carried(headers):
            raise Refusal(401, "Open the link that guda serve printed: it ends in ?token= and the token.")

    async def login(self, scope: Any, receive: Any, answer: Answer) -> None:
        """Gradio checks the password, as often as `Attempts` allows."""
        address = (scope.get("client") or ("", 0))[0]
        if not self.attempts.begin(address):
            wait = str(round(self.attempts.within)).encode()
            raise Refusal(429, "Too many wrong passwords; wait a minute.", [(b"retry-after", wait)])
        await self.app(scope, receive, answer.send)
        if answer.status == 200:
            self.attempts.succeeded(address)

    async def upload(self, scope: Any, headers: Mapping[bytes, str], receive: Any, answer: Answer) -> None:
        """At most so many at a time, and only if there is room on disk for all of it."""
        length = _length(headers)
        if length is None:
            raise Refusal(411, "An upload must have a Content-Length.")
        if self._receiving >= UPLOADS:
            raise Refusal(503, f"{UPLOADS} uploads are being received; try again.", [(b"retry-after", b"5")])
        who = object()
        if self.uploads is not None and not self.uploads.reserve(who, length):
            most = self.uploads.most / 2**20
            raise Refusal(413, f"There is no room for this upload: the limit for all of them is {most:.0f} MB.")
        self._receiving += 1
        try:
            await self.app(scope, self.body(headers, receive, answer, length), answer.send)
        finally:
            self._receiving -= 1
            if self.uploads is not None:
                self.uploads.release(who)

    def body(self, headers: Mapping[bytes, str], receive: Any, answer: Answer, most: int) -> Any:
        """`receive` with limits in bytes and seconds; beyond them the guard answers and the app sees one leave."""
        if (_length(headers) or 0) > most:
            raise Refusal(413, f"The request is too large; the limit is {most:,} bytes.")
        clock = asyncio.get_running_loop().time
        got, complete, deadline = 0, False, clock() + self.whole

        async def limited() -> Any:
            nonlocal got, complete
            if complete:  # from now on it only waits for the visitor to leave
                return await receive()
            try:
                async with asyncio.timeout(max(min(self.idle, deadline - clock()), 0)):
                    message = await receive()
            except TimeoutError:
                await answer.reply(408, "The request took too long to arrive.\n")
                complete = True
                return {"type": "http.disconnect"}
            got += len(message.get("body", b""))
            if got > most:
                await answer.reply(413, f"The request is too large; the limit is {most:,} bytes.\n")
                complete = True
                return {"type": "http.disconnect"}
            complete = not message.get("more_body", False)
            return message

        return limited


class Answer:
    """One answer to one request, with our headers; the first to speak is heard."""

    def __init__(self, send: Any) -> None:
        self._send, self.own, self.status = send, False, 0

    async def send(self, message: Any) -> None:
        """What the app says."""
        if self.own:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            extra = ((k.encode(), v.encode()) for k, v in HEADERS.items())
            message = message | {"headers": [*message.get("headers", []), *extra]}
        await self._send(message)

    async def reply(
        self, status: int, text: str, kind: str = "text/plain; charset=utf-8",
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:  # fmt: skip
        """What the guard says, unless the app has begun to answer."""
        if self.status:
            return
        body = text.encode()
        mine = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *(headers or [])]
        if status >= 400:
            mine.append((b"connection", b"close"))  # the rest of the body is not read
        await self.send({"type": "http.response.start", "status": status, "headers": mine})
        await self.send({"type": "http.response.body", "body": body})
        self.own = True


def _length(headers: Mapping[bytes, str]) -> int | None:
    text = headers.get(b"content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


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
