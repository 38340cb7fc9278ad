"""`guda likelihood`: the likelihood oracle, and how well the bound stands in for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from guda.cli.options import ENGINE, Json, Method, QuerySet, RunFolder, say, works

if TYPE_CHECKING:
    from pathlib import Path

    from guda.evaluation.likelihood import LikelihoodFile


@works
def likelihood(
    run: RunFolder,
    method: Method = None,
    queries: QuerySet = None,
    n: Annotated[int | None, typer.Option("-n", help="First queries by id; kept in the recipe.", min=2)] = None,
    solver: Annotated[
        str | None, typer.Option(help="heun, rk4 (fixed steps) or adaptive (dopri5); kept in the recipe.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of heun and rk4; kept in the recipe.", min=1)] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds of the probes; kept in the recipe.", min=1)] = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Score by log p (probability-flow ODE), hold the ELBO against it, evaluate every method under both."""
    from guda.run.run import Run
    from guda.steps import choose_queries, likelihood_path
    from guda.steps import likelihood as solve

    folder = Run.open(run)
    name = choose_queries(folder, queries)
    found = solve(folder, name, engine, method, n=n, solver=solver, steps=steps, seeds=seeds)
    path = likelihood_path(folder, name, "evaluation.json")
    if as_json:
        return say({"path": str(path)} | found.model_dump(mode="json"), "", True)
    _show(found, path)


def _show(found: LikelihoodFile, path: Path) -> None:
    from rich.console import Console

    from guda.evaluation.likelihood import ORACLES, correlation_table
    from guda.evaluation.tables import terminal

    console = Console()
    console.print(correlation_table(found).rewrite(lambda _, cell: cell.replace(" [", "\n[")).rich())
    for kind, entry in found.oracles.items():
        console.print(terminal(ORACLES[kind], entry, console.width))
    if not found.oracles:
        print("Not compared with LOGO: it is not scored, or its log p was not asked for.")
    print(f"Tables: {path}, {path.with_suffix('.md')}; scores beside them")
