"""What stands before the app: requests are refused before they reach it, and headers keep the browser on this server.

What a visitor's browser may do here is for pages from here alone, and a body has a limit in bytes and in time. Who may
enter is decided here as well (access.py): by the cookie or the token of the link, or by a name and a password.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from guda.web.access import Attempts, Login, Token, is_loopback
from guda.web.upload_folder import UploadFolder

HEADERS = {
    # bars are drawn by style attributes; scripts come from here and nothing else runs
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}

UPLOAD = re.compile(r"/(ask|batch|api/attribute)/?")

LOGIN = re.compile(r"/login/?")

PORTS = {"http": 80, "https": 443}

BODY, FORM = 2**20, 4096  # bytes of any request but an upload; of a login

UPLOADS = 8  # that are received at the same time

IDLE, WHOLE = 30.0, 300.0  # seconds without a byte, and of a whole body


class Refusal(Exception):
    """An answer of the guard's own."""

    def __init__(self, status: int, why: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        super().__init__(why)
        self.status, self.headers = status, headers or []


class Guard:
    """ASGI middleware. `local`: only loopback names are answered, so that no stranger's name can be pointed here.
    `token`: what a link or, once there was a `login`, a cookie must carry; None: everyone may enter, for tests. `idle`,
    `whole`: seconds that a body may take."""

    def __init__(
        self, app: Any, local: bool = False, token: Token | None = None, uploads: UploadFolder | None = None,
        login: Login | None = None, idle: float = IDLE, whole: float = WHOLE,
    ) -> None:  # fmt: skip
        self.app, self.local, self.token, self.uploads, self.login = app, local, token, uploads, login
        self.idle, self.whole = idle, whole
        self.attempts = Attempts()
        self._receiving = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # there are none
                await send({"type": "websocket.close", "code": 1008})
            else:
                await self.app(scope, receive, send)
            return
        answer = Answer(send)
        try:
            headers = {key.lower(): value.decode("latin-1") for key, value in scope["headers"]}
            self.admit(scope, headers)
            if self.login is not None and scope.get("method") == "POST" and LOGIN.fullmatch(scope["path"]):
                await self.enter(scope, self.body(headers, receive, answer, FORM))
            elif scope.get("method") == "POST" and UPLOAD.fullmatch(scope["path"]):
                await self.upload(scope, headers, receive, answer)
            else:
                await self.app(scope, self.body(headers, receive, answer, BODY), answer.send)
        except Refusal as e:
            await answer.reply(e.status, f"{e}\n", headers=e.headers)
        except Exception:  # of an app whose visitor left or was sent away: see `body`
            if not answer.own:
                raise

    def admit(self, scope: Any, headers: Mapping[bytes, str]) -> None:
        """Refuse who may not enter."""
        path, getting = scope["path"], scope.get("method") in ("GET", "HEAD")
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if self.local and not is_loopback(_name(f"//{host}")):
            raise Refusal(403, "This server answers only on this machine: open the address that guda serve printed.")
        if origin is not None and not _same(origin, host):
            raise Refusal(
                403, "This request comes from a page of another server. A proxy in front must forward the Host header."
            )
        if self.token is None or (self.login is not None and LOGIN.fullmatch(path)):
            return
        if self.login is None and getting and (entrance := self.token.entrance(path, scope.get("query_string", b""))):
            raise Refusal(303, "Welcome.", entrance)  # also for who has the cookie: the token leaves the address bar
        if self.token.carried(headers):
            return
        if self.login is None:
            raise Refusal(401, "Open the link that guda serve printed: it ends in ?token= and the token.")
        if self.login.basic(headers) is not None:
            self.attempt(scope, bool(self.login.basic(headers)))
        elif getting and "text/html" in headers.get(b"accept", ""):
            raise Refusal(303, "Log in first.", [(b"location", b"/login")])
        else:
            raise Refusal(401, "Send a name and password (HTTP Basic), or log in at /login.")

    def attempt(self, scope: Any, right: bool) -> None:
        """Refuse a wrong password, and any once there were too many wrong ones from that address."""
        address = (scope.get("client") or ("", 0))[0]
        if not self.attempts.begin(address):
            wait = str(round(self.attempts.within)).encode()
            raise Refusal(429, "Too many wrong passwords; wait a minute.", [(b"retry-after", wait)])
        if not right:
            raise Refusal(401, "Wrong name or password.")
        self.attempts.succeeded(address)

    async def enter(self, scope: Any, receive: Any) -> None:
        """The login form: the right password gets the cookie."""
        assert self.login is not None
        assert self.token is not None
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        fields = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        self.attempt(scope, self.login.accepts(fields.get("username", ""), fields.get("password", "")))
        raise Refusal(303, "Welcome.", [(b"location", b"/"), (b"set-cookie", self.token.header)])

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
            if message["type"] == "http.disconnect":  # half-way through: nobody hears an answer, and it is no error
                answer.own = True
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
        theirs = urlsplit(origin)
        ours = urlsplit(f"//{host}")
        usual = PORTS.get(theirs.scheme)
        return (
            usual is not None
            and theirs.hostname is not None
            and (theirs.hostname, theirs.port or usual) == (ours.hostname, ours.port or usual)
        )
    except ValueError:
        return False
