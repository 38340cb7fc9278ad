"""Verbs that look and change nothing: plan, status, methods."""

from __future__ import annotations

from typing import Annotated

import typer

from guda.cli.options import Json, Method, RunFolder, Workers, say


def plan(
    run: RunFolder,
    method: Method = None,
    n: Annotated[int | None, typer.Option("-n", help="Queries to plan for; default: the recipe's.", min=1)] = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """What it will cost, before it is spent: evaluations, time, disk, and precision against budget.

    Instead of a run folder the name of a shipped recipe may be given: then its evaluations and disk."""
    from guda import verbs
    from guda.cli.show import outline_text, plan_text
    from guda.runs.run import Run

    if not run.exists() and run.name == str(run):  # no folder: the name of a recipe
        from guda.runs.recipe import builtin_recipe

        found = verbs.outline(builtin_recipe(run.name), n)
        return say(found, outline_text(found), as_json)
    folder = Run.open(run)
    count = n or verbs.query_count(folder, folder.recipe.queries)
    value = verbs.plan(folder, method or list(folder.recipe.methods), count, workers)
    say(value, plan_text(value), as_json)


def status(run: RunFolder, as_json: Json = False) -> None:
    """What is done, what is left."""
    from guda import verbs
    from guda.runs.run import Run

    value = verbs.status(Run.open(run))
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
