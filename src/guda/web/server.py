"""Serving the app: on loopback unless configured otherwise, without any request to other servers.

Gradio is told to send no analytics before it is imported, its uploads go to a folder that is bounded and removed at the
end (upload_folder.py), and a guard stands before it (guard.py).
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guda.errors import GudaError
from guda.web.access import Token, is_loopback, link
from guda.web.guard import Guard
from guda.web.service import Service
from guda.web.upload_folder import UploadFolder, upload_folder
from guda.web.uploads import MB

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


def web_app(
    service: Service, runs: Path, host: str, port: int, auth: tuple[str, str] | None = None, token: str | None = None,
    uploads: UploadFolder | None = None,
) -> Any:  # fmt: skip
    """The ASGI application. `auth` or `token` guards it; neither is for tests."""
    need_gradio()
    import gradio as gr
    from fastapi import FastAPI

    from guda.web.app import build, sheet, theme

    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # a login is kept by a cookie, which a stranger's name pointed at this machine does not get
    outer.add_middleware(
        Guard, local=is_loopback(host) and auth is None, token=None if token is None else Token(token, port),
        uploads=uploads,
    )  # fmt: skip
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
    service: Service, runs: Path, host: str, port: int, auth: tuple[str, str] | None, token: str | None,
    ready: Callable[[str], None],
) -> None:  # fmt: skip
    """Until Ctrl-C, SIGTERM, or the terminal closes; `ready(link)` is called once the page can be opened."""
    need_gradio()
    free(host, port)
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, *args: Any, **kwargs: Any) -> None:
            await super().startup(*args, **kwargs)
            if self.started:
                ready(link(host, port, token))

    try:
        with upload_folder(int(service.limits.total_mb * MB)) as uploads:
            os.environ["GRADIO_TEMP_DIR"] = str(uploads.path)
            app = web_app(service, runs, host, port, auth, token, uploads)
            server = Server(uvicorn.Config(app, host, port, log_level="warning", timeout_graceful_shutdown=1))
            with _ended_by_signals(server):
                server.run()
    except KeyboardInterrupt:
        pass
    finally:
        service.close()  # after the folder is gone: it waits for a round, which a supervisor may not


@contextmanager
def _ended_by_signals(server: Any) -> Iterator[None]:
    """uvicorn raises the signals again that it was stopped by; SIGTERM would then end the process on the spot."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def leave(*_: object) -> None:
        server.should_exit = True

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # Windows; nohup
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
