"""The evidence for one picture and group: its map, the picture with and without the group, the nearest images."""

from __future__ import annotations

from dataclasses import dataclass

from guda.data.queries import Queries
from guda.errors import GudaError, choices, suggestion
from guda.methods.base import get_method
from guda.methods.elbo import ElboMethod
from guda.methods.maps import map_tasks, mapped_method, picture_map
from guda.methods.neighbours import neighbour_tasks, read_neighbours
from guda.methods.terms import load_queries
from guda.methods.with_without import WithWithout, with_without, with_without_tasks
from guda.run.run import Run
from guda.run.task import Task, pending
from guda.scoring.maps import PictureMap
from guda.scoring.neighbours import Neighbours
from guda.steps.fit import Engine, check_fitted
from guda.steps.score import prepared


@dataclass(frozen=True, eq=False)
class Evidence:
    method: ElboMethod
    queries: Queries  # the set that the picture is of
    picture: str
    group: str
    map: PictureMap
    signed: PictureMap | None  # of path divergences, which have no sign: that of the ELBO difference
    drawn: WithWithout
    near: list[Neighbours]  # in pixels, in features


def _method(run: Run, name: str, queries: Queries, picture: str, group: str) -> ElboMethod:
    """Refuses what cannot be shown, before anything is computed."""
    found = mapped_method(get_method(run, name))
    check_fitted(run, [name])
    queries.subset([picture])
    if group not in found.groups:
        raise GudaError(
            "group-unknown",
            f"{group!r} is not a scored group{suggestion(group, found.groups)}; they are {choices(found.groups)}",
        )
    return found


Maps = tuple[PictureMap, PictureMap | None]  # of the score; of a path divergence also that of the ELBO difference


def _estimands(run: Run) -> tuple[str | None, ...]:
    return (None, "elbo") if run.recipe.scoring.estimand == "path" else (None,)


def _map_tasks(method: ElboMethod, queries: Queries, picture: str, group: str) -> list[Task]:
    return [t for e in _estimands(method.run) for t in map_tasks(method, queries, picture, [group], e)]


def _read_maps(method: ElboMethod, queries: Queries, picture: str, group: str) -> Maps:
    found = [picture_map(method, queries, picture, group, e) for e in _estimands(method.run)]
    return found[0], found[1] if len(found) > 1 else None


def map_picture(run: Run, queries: str, picture: str, method: str, group: str, engine: Engine) -> Maps:
    """Where in the picture the score of a group comes from; computed once and kept."""
    asked = load_queries(run, queries)
    found = _method(run, method, asked, picture, group)

    def make() -> Maps:
        engine(run, pending(run, _map_tasks(found, asked, picture, group)), f"map {picture}")
        return _read_maps(found, asked, picture, group)

    return prepared(run, [found], engine, make)


def _tasks(method: ElboMethod, queries: Queries, picture: str, group: str) -> list[Task]:
    tasks = _map_tasks(method, queries, picture, group) + with_without_tasks(method, queries, picture, group)
    return tasks + neighbour_tasks(method.run, queries, picture, group)


def _read(method: ElboMethod, queries: Queries, picture: str, group: str) -> Evidence:
    maps, drawn = _read_maps(method, queries, picture, group), with_without(method, queries, picture, group)
    return Evidence(method, queries, picture, group, *maps, drawn, read_neighbours(method.run, queries, picture, group))


def gather_evidence(run: Run, queries: str, picture: str, method: str, group: str, engine: Engine) -> Evidence:
    """All of it; what is there already is read back."""
    asked = load_queries(run, queries)
    found = _method(run, method, asked, picture, group)

    def make() -> Evidence:
        engine(run, pending(run, _tasks(found, asked, picture, group)), f"evidence for {picture}")
        return _read(found, asked, picture, group)

    return prepared(run, [found], engine, make)


def read_evidence(run: Run, queries: str, picture: str, method: str, group: str) -> Evidence | None:
    """What was gathered before; None where some of it is missing."""
    if not run.has("maps"):
        return None
    asked = load_queries(run, queries)
    found = _method(run, method, asked, picture, group)
    return None if pending(run, _tasks(found, asked, picture, group)) else _read(found, asked, picture, group)
