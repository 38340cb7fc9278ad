"""Serving the app: on loopback unless configured otherwise, without any request to other servers.

Gradio is told to send no analytics before it is imported, its uploads go to a folder that is removed at the end, and a
guard stands before it: some requests are refused before they reach Gradio, and headers keep the browser on this server.
Gradio fetches an address that it finds behind `file=` or `proxy=`, and answers pages of other origins. This server asks
nothing of the network, and what a visitor's browser may do here is for pages from here alone.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from guda.errors import GudaError
from guda.web.service import Service
from guda.web.uploads import MB

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


QUIET = {  # before gradio is imported
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_RUN_HISTORY": "False",
    "GRADIO_SSR_MODE": "False",
    "GRADIO_MCP_SERVER": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def need_gradio() -> None:
    """Refuse with one line if the extra is not installed."""
    os.environ.update(QUIET)
    try:
        import gradio  # noqa: F401
    except ImportError:
        raise GudaError(
            "package-missing", 'guda serve needs gradio; install it with: pip install "guda[web]"'
        ) from None


def parse_auth(text: str | None) -> tuple[str, str] | None:
    if not text:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise GudaError("auth-invalid", "--auth takes USER:PASSWORD, neither of them empty")
    return user, password


def free(host: str, port: int) -> None:
    """Refuse a port that is in use, or an address that does not belong to this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as e:
            raise GudaError(
                "port-unavailable", f"cannot listen on {host}:{port} ({e}); give another --port or --host"
            ) from None


def web_app(service: Service, runs: Path, host: str, port: int, auth: tuple[str, str] | None = None) -> Any:
    """The ASGI application."""
    need_gradio()
    import gradio as gr
    from fastapi import FastAPI

    from guda.web.app import build, sheet, theme

    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # a login is kept by a cookie, which a stranger's name pointed at this machine does not get
    outer.add_middleware(Guard, local=host in LOOPBACK and auth is None)
    blocks = build(service, runs)
    blocks.has_launched = True  # only then does Gradio check that a file it is told of was uploaded to it
    return gr.mount_gradio_app(
        outer, blocks, path="/", server_name=host, server_port=port, auth=auth, ssr_mode=False, mcp_server=False,
        run_history=False, enable_monitoring=False, pwa=False, footer_links=[], show_error=True,
        max_file_size=int(service.limits.max_mb * MB), theme=theme(), head=f"<style>{sheet()}</style>",
        app_kwargs={"openapi_url": None},  # it would be served without a login; /gradio_api/info requires one
        auth_message="Log in with the user name and password that the server was started with.",
    )  # fmt: skip


def serve(
    service: Service, runs: Path, host: str, port: int, auth: tuple[str, str] | None, ready: Callable[[str], None]
) -> None:
    """Until Ctrl-C; `ready(address)` is called once the page can be opened."""
    need_gradio()
    free(host, port)
    import uvicorn

    with tempfile.TemporaryDirectory(prefix="guda-web-") as uploads:
        os.environ["GRADIO_TEMP_DIR"] = uploads
        config = uvicorn.Config(web_app(service, runs, host, port, auth), host, port, log_level="warning",
                                timeout_graceful_shutdown=1)  # fmt: skip

        class Server(uvicorn.Server):
            async def startup(self, *args: Any, **kwargs: Any) -> None:
                await super().startup(*args, **kwargs)
                if self.started:
                    shown = f"[{host}]" if ":" in host else host
                    ready(f"http://{shown}:{port}")

        try:
            Server(config).run()
        except KeyboardInterrupt:
            pass
        finally:
            service.close()
