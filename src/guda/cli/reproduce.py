"""`guda reproduce`: an experiment of the paper as one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from guda.cli.options import ENGINE, Json, say, works


@works
def reproduce(
    name: Annotated[
        str, typer.Argument(help="digits, fashion-mnist, cifar10, unlearncanvas, or a file ending in .yaml.")
    ],
    run: Annotated[Path | None, typer.Option(help="Run folder; default: runs/reproduce-NAME[-SCALE].")] = None,
    scale: Annotated[str, typer.Option(help="full, or a smaller one that the experiment has, e.g. small.")] = "full",
    ablations: Annotated[bool, typer.Option("--ablations", help="Also carry out the paper's sweeps.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what it costs.")] = False,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """An experiment of the paper: trainings, methods, oracles, tables (Markdown, CSV, LaTeX). Resumes where it was."""
    from guda.cli.show import outline_text
    from guda.report.reproduce import read_reproduction, reproduce
    from guda.report.reproduce_plan import plan_reproduction

    wanted = read_reproduction(name)
    if plan:
        found = plan_reproduction(wanted, scale, ablations)
        return say(found, outline_text(found), as_json)
    stem = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    root = run or Path("runs") / (f"reproduce-{stem}" if scale == "full" else f"reproduce-{stem}-{scale}")

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    done = reproduce(name, root, engine, scale, ablations, tell)
    tables = done.run.path("tables", "tables.md")
    lines = [f"Tables:  {tables} (one file each beside it, also .csv and .tex)", f"Figures: {done.run.path('figures')}"]
    value = {"run": str(done.run.root), "tables": list(map(str, done.tables)), "figures": list(map(str, done.figures))}
    say(value, "\n".join(lines), as_json)
