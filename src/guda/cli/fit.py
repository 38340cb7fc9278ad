"""The verbs that work: train, fit, sample, score."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from guda.cli.options import ENGINE, Drift, Groups, Json, Method, QuerySet, RunFolder, say, works
from guda.errors import GudaError


@works
def train(run: RunFolder, engine: Any = ENGINE, as_json: Json = False) -> None:
    """Train the full model of a run that has none."""
    from guda import steps
    from guda.run.run import Run

    folder = steps.train(Run.open(run), engine)
    say({"model": folder}, f"Trained model: {folder}", as_json)


@works
def fit(
    run: RunFolder,
    method: Method = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method, e.g. --set steps=200; kept in the recipe."),
    ] = None,
    placebos: Annotated[
        int, typer.Option(help="Unlearn so many random groups too: what a score is where there is no group.", min=0)
    ] = 0,
    groups: Groups = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Make a method's counterfactual models (default: the recipe's methods)."""
    from guda import steps
    from guda.run.run import Run

    folder = Run.open(run)
    steps.change_groups(folder, groups)
    if settings:
        steps.change_settings(folder, method or [], settings)
    methods = method or [m for m in folder.recipe.methods if m != "logo"]
    if not methods:
        raise GudaError(
            "methods-none",
            f"the recipe of {run} names no method to fit (logo is fitted only when asked for); give --method",
        )
    done = steps.fit(folder, methods, engine, placebos)
    say({"methods": methods, "tasks_run": done}, f"Fitted {', '.join(methods)} ({done} tasks run).", as_json)


@works
def sample(
    run: RunFolder,
    n: Annotated[int | None, typer.Option("-n", help="How many; kept in the recipe.", min=1)] = None,
    objects: Annotated[
        int | None, typer.Option(help="Text-to-image: so many objects in every style; kept in the recipe.", min=1)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; kept in the recipe.", min=0)] = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Draw queries from the run's model."""
    from guda import steps
    from guda.run.run import Run

    folder = Run.open(run)
    steps.change_queries(folder, n, seed, objects)
    name = steps.sample(folder, engine)
    say({"queries": name}, f"Query set {name}", as_json)


@works
def score(
    run: RunFolder,
    queries: QuerySet = None,
    method: Method = None,
    name: Annotated[str | None, typer.Option(help="Name for a new query set; default: its folder's name.")] = None,
    top: Annotated[int, typer.Option(help="Groups to print per picture.", min=1)] = 3,
    stop: Annotated[
        str | None, typer.Option(help="Race to a stop rule: top1@0.95, top3@0.9, budget=N, or two with a comma.")
    ] = None,
    screen: Annotated[
        str | None,
        typer.Option(
            help="With --stop: only the first groups by a cheap method start the race (posterior:10), or a tree of "
            "groups is descended, the parts of the first two of each level racing next (tree:2)."
        ),
    ] = None,
    band: Annotated[
        str | None, typer.Option(help="Count some timesteps only, e.g. 100:1000; another estimand, named as such.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of draws; kept in the recipe.", min=1)] = None,
    drift: Drift = None,
    groups: Groups = None,
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Attribute pictures: nats per group, with 95 % intervals."""
    from guda import steps
    from guda.run.run import Run

    folder = Run.open(run)
    steps.change_groups(folder, groups)
    methods = method or steps.fitted_methods(folder)
    if not methods:
        raise GudaError("method-not-fitted", f"nothing is fitted in {run} yet; run: guda fit {run}")
    steps.check_fitted(folder, methods)  # before a folder of queries is taken in
    variant = steps.variant(folder, stop, band, drift, screen)
    steps.change_scoring(folder, rounds=rounds, drift=drift)
    chosen = steps.choose_or_add_queries(folder, queries, name)
    results = steps.score(folder, chosen, methods, engine, stop, band, screen)
    nulls = {m: steps.placebo_null(folder, chosen, m, variant) for m in results}
    lines = []
    for found in results.values():
        lines.append(f"{found.method} ({found.unit}; {found.sign}; {found.estimand})")
        above = steps.upper_levels(folder, chosen, found.method, variant)
        if stop is not None:
            evals = sum(steps.evals_per_picture(folder, s) for s in (*above, found))
            also = "" if screen is None or above else f", and those of the screen {screen}"
            lines.append(f"  {evals:,.0f} evaluations per picture on average{also}")
        shown = found.queries[:5]
        for query in shown:
            levels = ["   ".join(str(g) for g in s[query].top(top)) for s in (*above, found)]
            lines.append(f"  {query}: " + f"\n  {' ' * len(query)}  > ".join(levels))
        if len(found.queries) > len(shown):
            more = steps.scores_path(folder, chosen, found.method, variant)
            lines.append(f"  ... {len(found.queries) - len(shown)} more in {more}")
        if null := nulls[found.method]:
            clear = int(null.clears(found).sum())
            lines.append(f"  {null.sentence(found.unit)};")
            lines.append(f"  the first group is above that for {clear} of {len(found.queries)} pictures")
    value = {
        "queries": chosen,
        "scores": {
            m: {
                "path": str(steps.scores_path(folder, chosen, m, variant)),
                "unit": s.unit,
                "estimand": s.estimand,
                "placebo": null.to_json(s) if (null := nulls[m]) else None,
            }
            for m, s in results.items()
        },
    }
    say(value, "\n".join(lines), as_json)
