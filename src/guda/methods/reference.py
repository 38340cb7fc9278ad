"""Pictures that scores are held against, each a query set of the run like any other, under a name that
`Run.query_sets` skips: same terms, same shards, same resume.

The reference set: some training images of every group, to see what a counterfactual does to pictures whose group is
known. The average picture: the recipe's own samples. The arithmetic of both: scoring/reference.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.terms import load_queries, score_tasks
from guda.run.data import load_data, scored_groups
from guda.run.models import architecture, training_prompts
from guda.run.run import Run
from guda.run.samples import average_name
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.reference import (
    SEED,
    Excess,
    average,
    draw_reference,
    reference_groups,
    reference_index,
    reference_name,
)

if TYPE_CHECKING:
    from guda.methods.elbo import ElboMethod


@dataclass(frozen=True, eq=False)
class Reference:
    queries: Queries
    index: np.ndarray  # int64 [Q]: position among the training images
    group: np.ndarray  # int64 [Q]: group number


def reference(run: Run, seed: int = SEED) -> Reference:
    """The run's reference set, of the size in its recipe; created if it does not exist."""
    data = load_data(run)
    groups = None if run.recipe.scoring.groups is None else [data.groups.index(g) for g in scored_groups(run)]
    name = reference_name(run.recipe.scoring.reference, seed, groups)
    if not run.has(f"queries/{name}/index.json"):
        prompts = training_prompts(run)
        if prompts is None and architecture(run).conditional:
            raise GudaError(
                "reference-prompts-missing",
                "health and drift are measured on training images, and those of a conditional model have no prompts "
                "here; use an unconditional model, and scoring.drift: keep",
            )
        images = draw_reference(data, run.recipe.scoring.reference, seed, prompts, groups)
        images.save(run.path("queries", name))
    queries = load_queries(run, name)
    return Reference(queries, reference_index(queries), reference_groups(queries))


def reference_tasks(method: ElboMethod, images: Reference, planned: set[str]) -> list[Task]:
    """What evaluates the method's models on the reference images; `planned` as of `Method.score`."""
    models = [m for m in method.models() if f"{images.queries.name}:{m.key}" not in planned]
    planned.update(f"{images.queries.name}:{m.key}" for m in models)
    return score_tasks(method.run, images.queries, models, method.method_id, "elbo")


def reference_scores(method: ElboMethod, images: Reference, bands: Bands | None = None) -> np.ndarray:
    """Nats [images, groups], drift and all, from finished terms."""
    d = method.contributions(method.sets(), method.reader(images.queries, bands, "elbo"))
    return np.asarray(d.mean(axis=0).sum(axis=-1))


def average_pictures(run: Run) -> Queries:
    """The run's own samples; they are drawn before anything is scored by them."""
    name = average_name(run)
    if not run.has(f"queries/{name}/index.json"):
        raise GudaError("average-missing", f"excess scores need samples of the model; run: guda sample {run.root}")
    return load_queries(run, name)


def make_excess(run: Run, queries: Queries, contributions: np.ndarray, pictures: Queries) -> Excess:
    """From the paired contributions [R, N, G, S] of the average's `pictures`."""
    log = run.recipe.scoring.estimand == "path"
    return average(contributions.mean(axis=0).sum(axis=-1), log, pictures.find(queries.images, queries.prompts))
