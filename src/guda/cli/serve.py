"""guda serve: the run behind a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guda.cli.options import RunFolder


def serve(
    run: RunFolder,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Method that is offered first; default: as in the report.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 7860,
    host: Annotated[str, typer.Option(help="Address to listen on; the default is this machine only.")] = "127.0.0.1",
    auth: Annotated[
        str | None,
        typer.Option(
            envvar="GUDA_AUTH", show_envvar=True, metavar="USER:PASSWORD",
            help="Ask visitors for a name and password; better given by the environment, where no list shows it.",
        ),
    ] = None,
    max_mb: Annotated[float, typer.Option(help="Largest upload, megabytes.", min=0.001)] = 10.0,
    max_megapixels: Annotated[float, typer.Option(help="Largest picture, megapixels.", min=0.001)] = 25.0,
    queue: Annotated[int, typer.Option(help="Pictures that may wait to be scored.", min=1)] = 32,
    max_uploads: Annotated[int, typer.Option(help="Uploads that the run keeps.", min=1)] = 10_000,
    runs: Annotated[
        Path | None, typer.Option(help="Folder whose runs the last tab lists; default: where this run is.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:  # fmt: skip
    """A page for the run: drop a picture, watch its groups settle; leaderboard, stored results, HTTP API."""
    from guda.run.run import Run
    from guda.web.guard import LOOPBACK
    from guda.web.server import free, need_gradio, parse_auth

    login = parse_auth(auth)
    folder = Run.open(run)
    need_gradio()
    free(host, port)  # before the model is loaded
    from guda.web.server import serve as serve_app
    from guda.web.service import Service
    from guda.web.uploads import Limits

    limits = Limits(max_mb=max_mb, max_megapixels=max_megapixels, queue=queue, uploads=max_uploads)
    service = Service(folder.root, method, limits)
    print(f"Loading the model of {folder.root} ...", flush=True)
    service.warm()
    if host not in LOOPBACK and login is None:
        print(f"Warning: {host} can be reached by others and no --auth was given; anyone may upload.", flush=True)

    def ready(address: str) -> None:
        print(f"Serving {folder.root} by {service.method} at {address}  (Ctrl-C ends it)", flush=True)
        if open_:
            import webbrowser

            webbrowser.open(address)

    serve_app(service, runs or folder.root.resolve().parent, host, port, login, ready)
    print("Stopped.", flush=True)
