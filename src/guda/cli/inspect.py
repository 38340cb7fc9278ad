"""Verbs that look and change nothing: plan, status, methods."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from guda.cli.options import Json, Method, RunFolder, Workers, say
from guda.errors import GudaError


def plan(
    run: RunFolder,
    method: Method = None,
    n: Annotated[int | None, typer.Option("-n", help="Queries to plan for; default: the recipe's.", min=1)] = None,
    workers: Workers = None,
    cluster: Annotated[
        str | None, typer.Option(help="Simulate the run from nothing on so many workers, e.g. 10,100,1000.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Of the cluster, e.g. --set groups=1000 --set price=2.5; docs/planning.md."),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the simulated schedules (.svg, .png).")] = None,
    as_json: Json = False,
) -> None:
    """What it will cost, before it is spent: evaluations, time, disk, and precision against budget.

    Instead of a run folder the name of a shipped recipe may be given: then its evaluations and disk.
    With --cluster: worker-hours, storage, price and the schedule on machines you do not have yet."""
    from guda import steps
    from guda.cli.show import cluster_text, outline_text, plan_text
    from guda.config import parse_config
    from guda.run.run import Run

    if cluster is None and (settings or figure):
        raise GudaError(
            "cluster-option-missing",
            "--set and --figure are of a cluster: give --cluster too, e.g. --cluster 10,100,1000",
        )

    if not run.exists() and run.name == str(run):  # no folder: the name of a recipe
        from guda.run.recipe import builtin_recipe

        found = steps.outline(builtin_recipe(run.name), n)
        return say(found, outline_text(found), as_json)
    folder = Run.open(run)
    count = n or steps.query_count(folder, folder.recipe.queries)
    if cluster is not None:
        given = steps.parse_settings([f"workers=[{cluster}]", *(settings or [])])
        config = parse_config(steps.ClusterConfig, given, "--cluster")
        draw = None
        if figure is not None:
            from guda.report.figures import cluster_schedules

            draw = partial(cluster_schedules, path=figure)
        value = steps.plan_cluster(folder, method or list(folder.recipe.methods), config, count, draw)
        return say(value, cluster_text(value), as_json)
    value = steps.plan(folder, method or list(folder.recipe.methods), count, workers)
    say(value, plan_text(value), as_json)


def status(run: RunFolder, as_json: Json = False) -> None:
    """What is done, what is left."""
    from guda import steps
    from guda.run.run import Run

    value = steps.status(Run.open(run))
    lines = [
        f"{value['run']} (recipe {value['recipe']}): {value['images']} images, {len(value['groups'])} groups",
        f"  model    {value['model']['name']}: {'ready' if value['model']['ready'] else 'not trained'}",
        *(f"  method   {m}: {v['fitted']}/{v['of']} fitted" for m, v in value["methods"].items()),
        *(
            f"  queries  {q}: {v['n']}, scored by {', '.join(v['scored']) or 'nothing'}"
            for q, v in value["queries"].items()
        ),
        *(f"  running  {r}" for r in value["running"]),
        *(f"  report   {r}" for r in value["reports"] or ["none"]),
    ]
    say(value, "\n".join(lines), as_json)


def methods(as_json: Json = False) -> None:
    """Every method by its id: what it does, what its scores mean and in which unit."""
    from guda.methods.base import known_methods

    known = {name: cls for name, cls in sorted(known_methods().items()) if cls.summary}
    value = {name: {"unit": cls.unit, "summary": cls.summary} for name, cls in known.items()}
    width = max(map(len, value))
    unit = max(len(v["unit"]) for v in value.values())
    lines = [f"  {name:<{width}}  {v['unit']:<{unit}}  {v['summary']}" for name, v in value.items()]
    say(
        value,
        "\n".join(
            ["Settings of each: `guda fit RUN --method ID --set ...`; docs/operators.md, docs/baselines.md", *lines]
        ),
        as_json,
    )
