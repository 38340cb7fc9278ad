"""The reference set: some training images of every group, scored like any query, to see what a counterfactual does
to pictures whose group is known.

Which ones: scoring/drift.py. It is a query set of the run like any other, under a name that
`Run.query_sets` skips: same terms, same shards, same resume.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.elbo import ElboMethod
from guda.methods.terms import load_queries, score_tasks
from guda.run.data import load_data, scored_groups, training_prompts
from guda.run.models import architecture
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.drift import SEED, draw_reference, reference_groups, reference_index, reference_name


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
