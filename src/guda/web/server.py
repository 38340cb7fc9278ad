"""Serving the app: on loopback unless configured otherwise, without any request to other servers. A guard stands before
it (guard.py), and uploads go to a folder that is bounded and removed at the end (upload_folder.py)."""

from __future__ import annotations

import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guda.errors import GudaError
from guda.web.access import Login, Token, is_loopback, link, make_token
from guda.web.guard import Guard
from guda.web.service import Service
from guda.web.upload_folder import UploadFolder, upload_folder
from guda.web.uploads import MB


def need_web() -> None:
    """Refuse with one line if the extra is not installed."""
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise GudaError(
            "package-missing", 'guda serve needs FastAPI and uvicorn; install them with: pip install "guda[web]"'
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
    uploads: UploadFolder | None = None, language: str | None = None,
) -> Any:  # fmt: skip
    """The ASGI application. `auth` or `token` guards it; neither is for tests."""
    need_web()
    from guda.web.app import build

    uploads = uploads or UploadFolder(Path(tempfile.gettempdir()), int(service.limits.total_mb * MB))
    secret = make_token(None) if auth else token
    # a login is kept by a cookie, which a stranger's name pointed at this machine does not get
    return Guard(
        build(service, runs, uploads, auth is not None, language), local=is_loopback(host) and auth is None,
        token=None if secret is None else Token(secret, port), uploads=uploads, login=Login(*auth) if auth else None,
    )  # fmt: skip


def serve(
    service: Service, runs: Path, host: str, port: int, auth: tuple[str, str] | None, token: str | None,
    ready: Callable[[str], None], language: str | None = None,
) -> None:  # fmt: skip
    """Until Ctrl-C, SIGTERM, or the terminal closes; `ready(link)` is called once the page can be opened."""
    need_web()
    free(host, port)
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, *args: Any, **kwargs: Any) -> None:
            await super().startup(*args, **kwargs)
            if self.started:
                ready(link(host, port, token))

    try:
        with upload_folder(int(service.limits.total_mb * MB)) as uploads:
            tempfile.tempdir = str(uploads.path)  # where large bodies are kept while they arrive
            app = web_app(service, runs, host, port, auth, token, uploads, language)
            server = Server(uvicorn.Config(app, host, port, log_level="warning", timeout_graceful_shutdown=1))
            with _ended_by_signals(server):
                server.run()
    except KeyboardInterrupt:
        pass
    finally:
        tempfile.tempdir = None
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
