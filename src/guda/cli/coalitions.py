"""Commands about several groups at once: shares, without."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from guda.cli.options import ENGINE, Changes, Json, RunFolder, StoredSet, command, fields, finite, say
from guda.config import ScoringConfig

By = Annotated[
    Literal["posterior", "subsets", "unlearned"],
    typer.Option(
        help="How coalitions are valued: posterior (no training), subsets (models trained on halves of the groups), "
        "unlearned (models from which groups were unlearned together)."
    ),
]

Valued = Annotated[
    Literal["elbo", "path"] | None,
    typer.Option(help="elbo: ELBO of the picture; path: minus the path divergence from the full model. Default: the "
                 "recipe's estimand."),
]  # fmt: skip

Operator = Annotated[
    str | None, typer.Option("--method", "-m", help="With --by unlearned: the operator; default: the recipe's first.")
]


@command
def shares(
    run: RunFolder,
    queries: StoredSet = None,
    picture: Annotated[str | None, typer.Option(help="Show one picture instead of the collection, by its id.")] = None,
    by: By = "posterior",
    value: Valued = None,
    method: Operator = None,
    parcel: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --by posterior: images in a parcel. Players are parcels, so that a group registered as "
            "several shells gains nothing. Default: every group is one parcel."
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            min=1e-4, max=1, callback=finite,
            help="With more than 4,096 coalitions: draw orders until the standard error of every share is at most this "
            "part of the whole."
        ),
    ] = 0.02,
    orders: Annotated[int, typer.Option(min=2, max=100_000, help="Draw at most this many pairs of orders.")] = 256,
    no_pool: Annotated[bool, typer.Option("--no-pool", help="List groups that are below noise one by one.")] = False,
    changes: Changes = fields(ScoringConfig, "rounds", "strata"),
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Divide what the training images add to pictures among the groups: Shapley values that add up, with intervals."""
    from guda import steps
    from guda.errors import GudaError, suggestion
    from guda.evaluation.shares import shares_table
    from guda.methods.terms import load_queries
    from guda.run.run import Run

    folder = steps.override(Run.open(run), scoring=changes)
    chosen = steps.choose_queries(folder, queries)
    known = load_queries(folder, chosen).ids
    if picture is not None and picture not in known:
        raise GudaError("query-unknown", f"no picture {picture!r} in {chosen}{suggestion(picture, known)}")
    asked = steps.ShareOptions(by, value, method, parcel, tolerance, orders, not no_pool)
    found = steps.shares(folder, chosen, asked, engine)
    path = steps.shares_file(folder, found)
    if as_json:
        return say(found.model_dump(mode="json") | {"path": str(path)}, "", True)
    from rich.console import Console

    from guda.report.shares import draw_shares

    Console().print(shares_table(found, picture).rich())
    drawn = draw_shares(found, path.with_suffix(".svg"))
    print(f"All pictures: {path.with_suffix('.csv')}, {path}; figure: {drawn}")


@command
def without(
    run: RunFolder,
    groups: Annotated[str, typer.Option(help="Groups that would leave, separated by commas.")],
    queries: StoredSet = None,
    by: By = "posterior",
    method: Operator = None,
    top: Annotated[int, typer.Option(min=1, help="Pictures to list that would lose most.")] = 5,
    draw: Annotated[
        int,
        typer.Option(
            min=0, max=24, help="Pictures to draw from the same noise with and without the groups; not by subsets."
        ),
    ] = 4,
    changes: Changes = fields(ScoringConfig, "rounds", "strata"),
    engine: Any = ENGINE,
    as_json: Json = False,
) -> None:
    """Predict what pictures and remaining groups would lose if some groups left the training data."""
    from guda import steps
    from guda.evaluation.without import without_tables
    from guda.report.shares import draw_opt_out
    from guda.run.data import load_data
    from guda.run.run import Run

    folder = steps.override(Run.open(run), scoring=changes)
    chosen = steps.choose_queries(folder, queries)
    leaving = [name for name in load_data(folder).groups.listed(groups) if name]
    found = steps.without(folder, chosen, leaving, by, method, engine)
    path = steps.without_file(folder, found)
    drawn = steps.draw_without(folder, found, method, draw, engine)
    figure = draw_opt_out(found, drawn, path.with_suffix(".png")) if drawn else None
    if as_json:
        told = {"path": str(path), "figure": None if figure is None else str(figure)}
        return say(found.model_dump(mode="json") | told, "", True)
    from rich.console import Console

    console = Console()
    for table in without_tables(found, top):
        console.print(table.rich())
    print(f"All pictures: {path.with_suffix('.csv')}, {path}" + ("" if figure is None else f"; drawn: {figure}"))
