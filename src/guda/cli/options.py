"""Options and manners that the verbs of the command line share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from guda.engine import team

RunFolder = Annotated[Path, typer.Argument(help="The run folder.", show_default=False)]
Workers = Annotated[int | None, typer.Option(help="Worker processes; default: one per core.", min=1)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Method = Annotated[list[str] | None, typer.Option("--method", "-m", help="Method id; repeat for several.")]
Groups = Annotated[
    str | None,
    typer.Option(
        "--groups", help="Fit and score these groups only, e.g. Cubism,Dapple; kept in the recipe. `all` undoes it."
    ),
]
QuerySet = Annotated[str | None, typer.Option("--queries", "-q", help="A folder of pictures, or a query set's name.")]


def make_engine(workers: int | None, quiet: bool):  # type: ignore[no-untyped-def]
    """Tasks in processes here, with a display of how far they are."""
    from guda.cli.show import Display
    from guda.verbs import local_engine

    display = Display(quiet or not team.leads())
    engine = local_engine(workers, display.watch)

    def run(*args):  # type: ignore[no-untyped-def]
        with display:
            return engine(*args)

    return run


def say(value: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(value, ensure_ascii=False) if as_json else text)
