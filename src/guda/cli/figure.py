"""`guda figure`: one static figure of a run, for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from guda.cli.options import ENGINE, Json, say, works
from guda.errors import GudaError


@works
def figure(
    name: Annotated[str | None, typer.Argument(help="Which figure; --list says what there is.")] = None,
    run: Annotated[Path | None, typer.Argument(help="The run folder.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="File ending in .svg, .pdf or .png (pictures: .png); default: in RUN/figures.")
    ] = None,
    queries: Annotated[str | None, typer.Option("--queries", "-q", help="A query set's name.")] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="Method id, where the figure is of one.")] = None,
    query: Annotated[str | None, typer.Option(help="Id of one picture, for ranking.")] = None,
    names: Annotated[bool, typer.Option("--list", help="Say which figures there are.")] = False,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Draw one figure of a run for a paper: SVG, PDF or PNG, the same bytes every time."""
    from guda.report.catalogue import FIGURES, known_figure
    from guda.report.catalogue import figure as draw
    from guda.run.run import Run

    if names:
        lines = [f"  {known:<14}{found.about}" for known, found in FIGURES.items()]
        return say({known: found.about for known, found in FIGURES.items()}, "\n".join(lines), as_json)
    if name is not None:
        known_figure(name)  # before any folder is looked for
    if name is None or run is None:
        raise GudaError(
            "figure-arguments-missing",
            "name a figure and a run folder: guda figure NAME RUN; names: guda figure --list",
        )
    path = draw(Run.open(run), name, engine, out, queries, method, query)
    say({"figure": str(path)}, f"Figure: {path}", as_json)
