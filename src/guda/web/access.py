"""Who may enter: a link with a random token, as Jupyter prints it, or a name and password with a limit on guesses.

One of the two always guards the page. The token comes in the link once, is kept in a cookie and leaves the address bar;
programs send it as `Authorization: Bearer TOKEN`. Who logs in gets the same cookie, with a token that no link has;
programs send name and password by HTTP Basic. `Attempts` counts what was wrong.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from guda.errors import GudaError

LOOPBACK = ("127.0.0.1", "localhost", "::1")

EVERYWHERE = ("0.0.0.0", "::", "")

TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")

GUESSES, MINUTE = 5, 60.0  # wrong passwords of one address within so many seconds

ADDRESSES = 10_000  # whose wrong passwords are remembered


def is_loopback(host: str | None) -> bool:
    """Whether only this machine can mean itself by that name."""
    if host is None or host in LOOPBACK:
        return host is not None
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_auth(text: str | None) -> tuple[str, str] | None:
    if not text:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise GudaError("auth-invalid", "--auth takes USER:PASSWORD, neither of them empty")
    return user, password


def check_exposure(host: str, auth: tuple[str, str] | None, without_password: bool) -> None:
    """Refuse to listen beyond this machine without a password, unless that is asked for by name."""
    if not is_loopback(host) and auth is None and not without_password:
        raise GudaError(
            "host-without-password",
            f"{host} can be reached from other machines; set GUDA_AUTH=USER:PASSWORD, or give --without-password to "
            "let in everyone who has the printed link",
        )


def make_token(given: str | None) -> str:
    """The token of the link: the given one, or a random one."""
    if not given:
        return secrets.token_urlsafe(24)
    if not TOKEN.fullmatch(given):
        raise GudaError("token-invalid", "--token takes 16 to 200 letters, digits, - or _; leave it for a random one")
    return given


def link(host: str, port: int, token: str | None) -> str:
    """The address to open."""
    name = socket.gethostname() if host in EVERYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}" + (f"/?token={token}" if token else "")


class Token:
    """Checks a request for the token. Cookies are shared by all ports of a host, so its name has the port."""

    def __init__(self, value: str, port: int) -> None:
        self.value, self.cookie = value, f"guda-token-{port}"

    def carried(self, headers: Mapping[bytes, str]) -> bool:
        """By the cookie, or by a program."""
        kind, _, value = headers.get(b"authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is(value.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get(b"cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return cookie is not None and self._is(cookie.value)

    def entrance(self, path: str, query: bytes) -> list[tuple[bytes, bytes]] | None:
        """For a link with the token: headers that set the cookie and open the same page without it. None: no token,
        or a wrong one."""
        parts = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        if not any(key == "token" and self._is(value) for key, value in parts):
            return None
        rest = urlencode([(key, value) for key, value in parts if key != "token"])
        place = "/" + quote(path.lstrip("/")) + (f"?{rest}" if rest else "")  # never //another.host
        return [(b"location", place.encode()), (b"set-cookie", self.header), (b"cache-control", b"no-store")]

    @property
    def header(self) -> bytes:
        """What sets the cookie."""
        return f"{self.cookie}={self.value}; Path=/; HttpOnly; SameSite=Lax".encode()

    def _is(self, value: str) -> bool:
        return secrets.compare_digest(value.encode("utf-8", "replace"), self.value.encode())


class Login:
    """A name and a password."""

    def __init__(self, user: str, password: str) -> None:
        self._known = f"{user}:{password}".encode()

    def accepts(self, user: str, password: str) -> bool:
        return secrets.compare_digest(f"{user}:{password}".encode("utf-8", "replace"), self._known)

    def basic(self, headers: Mapping[bytes, str]) -> bool | None:
        """Whether a program sent the right ones; None: it sent none."""
        kind, _, value = headers.get(b"authorization", "").partition(" ")
        if kind.lower() != "basic":
            return None
        try:
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (ValueError, UnicodeDecodeError):
            return False
        return self.accepts(user, password)


class Attempts:
    """Logins by address. One is counted when it begins, so that many at once do not pass together, and forgotten when
    the password was right. `clock`: seconds."""

    def __init__(
        self, most: int = GUESSES, within: float = MINUTE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most, self.within, self.clock = most, within, clock
        self._begun: dict[str, deque[float]] = {}

    def begin(self, address: str) -> bool:
        """Whether another guess is allowed now; it is counted."""
        now = self.clock()
        begun = self._begun.pop(address, None) or deque()
        while begun and now - begun[0] >= self.within:
            begun.popleft()
        allowed = len(begun) < self.most
        if allowed:
            begun.append(now)
        self._begun[address] = begun  # last, so that the first are those that were not heard of for longest
        while len(self._begun) > ADDRESSES:
            del self._begun[next(iter(self._begun))]
        return allowed

    def succeeded(self, address: str) -> None:
        self._begun.pop(address, None)
