"""Where the pictures of a set come from, asked of the run's full model and of its training images.

Two questions (scoring/origin.py, scoring/copies.py), for every method alike: would this model make it, and does it
nearly repeat a training image? The first compares the full model's errors, what a picture looks like and how far its
nearest training image is with those of the run's own samples, by a plan of its own (stratified, few draws), so that the
answer is the same whatever a recipe scores by; where the recipe has that plan, these errors are there anyway. The
second needs no network but a latent model's encoder.

    RUN/terms/<plan>/<shard>/<full model>/r000.parquet      errors, as of any scoring
    RUN/artifacts/nearest-<images>/training.safetensors     how close training images are to each other
    RUN/artifacts/nearest-<images>/<shard>.safetensors      the nearest training image of every picture
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from guda.data.queries import Queries
from guda.diffusion.schedule import FlowSchedule
from guda.errors import GudaError
from guda.files import digest
from guda.methods.base import Method
from guda.methods.elbo import has_counterfactuals
from guda.methods.terms import BYTES_PER_TERM, ModelRef, load_queries, run_scorer
from guda.parts import FolderParts
from guda.run.data import load_data, scored_groups
from guda.run.models import cached_latents, has_model, load_model, run_schedule
from guda.run.parts import Sharded, query_shard, query_shards
from guda.run.plan import needs_pilot, run_plan
from guda.run.run import Run
from guda.run.samples import average_name, query_count
from guda.run.sketch import Sketch
from guda.run.task import Task, pending, tick
from guda.scoring.copies import Crowding, Nearest, crowding, find_copied, nearest
from guda.scoring.origin import LEAST, ROUNDS, Described, Origin, make_origins, typical_p
from guda.scoring.plan import Plan, typical_plan
from guda.scoring.scorer import Reader, shard_names

FULL = ModelRef("base")


def origins_asked(run: Run) -> bool:
    """Not where there is no model to ask: some methods look at images alone."""
    return run.recipe.scoring.foreign != "skip" and (isinstance(run, Sketch) or has_model(run))


def draws_samples(run: Run) -> bool:
    """Whether the run's own samples are drawn for this question if they are not there. Pictures of a text-to-image
    model are not: they cost more than scoring; `guda sample` draws them, and so do excess scores."""
    if run.recipe.prompts is not None or run.recipe.queries.n < LEAST:
        return False
    model = run.model if isinstance(run, Sketch) else load_model(run, "base")
    return not model.conditional and not isinstance(model.schedule, FlowSchedule)


def own_samples(run: Run) -> Queries | None:
    """The run's own samples, where there are enough of them to tell."""
    try:
        name = average_name(run)
    except GudaError:  # images without contents: there are no prompts to draw by
        return None
    if not run.has(f"queries/{name}/index.json"):
        return None
    found = load_queries(run, name)
    return found if found.n >= LEAST else None


def why_unknown(run: Run) -> str:
    """Why nobody can tell whether the model makes such pictures."""
    few = f"at least {LEAST} samples of the model are needed"
    try:
        return f"{few}, the recipe has {query_count(run, run.recipe.queries)} (queries); draw them with: guda sample"
    except GudaError:
        return few


def _plan(run: Run) -> Plan:
    return typical_plan(run_schedule(run), run.recipe.scoring.seed)


def comes_free(run: Run, methods: Sequence[Method]) -> bool:
    """Whether scoring by these methods leaves the errors of the full model that are asked for here."""
    if needs_pilot(run) or _plan(run).key != run_plan(run).key or run.recipe.scoring.rounds < ROUNDS:
        return False
    path = run.recipe.scoring.estimand == "path"  # rules need no full model there, and then nobody evaluates it
    return any(has_counterfactuals(m) and not (path and any(r.family for r in m.models())) for m in methods)


# ---- tasks ----------------------------------------------------------------------------------------------------------
def term_tasks(run: Run, queries: Queries) -> list[Task]:
    """The full model's errors on every picture."""
    scorer, size = run_scorer(run, estimand="elbo", plan=_plan(run)), run.recipe.scoring.shard
    tasks = []
    for number, shard in enumerate(shard_names(queries, size)):
        n = min(size, queries.n - number * size)
        tasks.append(
            Task(
                name=f"full model on {queries.name}/{number}", stage=f"origin/{queries.name}",
                fn="guda.methods.origin:evaluate_full", args={"queries": queries.name, "shard": number},
                makes=tuple(scorer.part_name(shard, FULL, r) for r in range(ROUNDS)), needs=FULL.needs(run),
                cost=float(n * scorer.plan.evals_per_round * ROUNDS),
                bytes=n * scorer.plan.n_strata * ROUNDS * BYTES_PER_TERM,
            )
        )  # fmt: skip
    return tasks


def evaluate_full(run: Run, queries: str, shard: int) -> None:
    part = load_queries(run, queries).shards(run.recipe.scoring.shard)[shard]
    run_scorer(run, estimand="elbo", plan=_plan(run)).evaluate(part, [FULL], ROUNDS, tick)


def copy_tasks(run: Run, queries: Queries) -> list[Task]:
    """The nearest training image of every picture."""
    made = _nearest_parts(run, queries)
    about = Task(
        name="how close training images are to each other", stage="origin", fn="guda.methods.origin:measure_crowding",
        args={}, makes=(_training(run),), needs=FULL.needs(run),
    )  # fmt: skip
    each = made.tasks(
        "nearest training images of {}", f"origin/{queries.name}", "guda.methods.origin:find_nearest",
        {"queries": queries.name}, (_training(run), *FULL.needs(run)),
    )  # fmt: skip
    return [about, *each]


def origin_tasks(run: Run, queries: Queries | None) -> list[Task]:
    """What is left to compute before `origins` can answer; `queries` None: of the run's own samples alone."""
    if not origins_asked(run):
        return []
    samples = own_samples(run)
    sets = list({s.digest: s for s in (queries, samples) if s is not None}.values())
    tasks = [t for s in sets for t in (([] if samples is None else term_tasks(run, s)) + copy_tasks(run, s))]
    return pending(run, tasks)


def _folder(run: Run) -> str:
    frozen = load_model(run, "base").frozen
    space = "pixels" if frozen is None else frozen.digest()
    return f"artifacts/nearest-{digest([load_data(run).digest, space, _flips(run)])}"


def _flips(run: Run) -> bool:
    """Of a model that was given nobody knows."""
    return run.recipe.training is not None and run.recipe.model.path is None and run.recipe.training.flips


def _training(run: Run) -> str:
    return f"{_folder(run)}/training.safetensors"


def _nearest_parts(run: Run, queries: Queries) -> Sharded:
    return Sharded(run, f"{_folder(run)}/*.safetensors", query_shards(queries))


def _images(run: Run) -> tuple[np.ndarray, np.ndarray | None]:
    """The training images as the model sees them, [N, D], and their mirror images."""
    found = cached_latents(run, load_model(run, "base"), load_data(run), _flips(run))
    mirrored = found.x0.flip(-1) if found.mirrored is None else found.mirrored
    return _flat(found.x0), _flat(mirrored) if _flips(run) else None


def _flat(x0: torch.Tensor) -> np.ndarray:
    return x0.flatten(1).float().cpu().numpy()


def measure_crowding(run: Run) -> None:
    found = crowding(*_images(run))
    content = _tensors(found.among) | {"levels": torch.from_numpy(found.levels)}
    FolderParts(run.root).write(_training(run), content, {"twins": found.twins})


def find_nearest(run: Run, queries: str, shard: int) -> None:
    asked = load_queries(run, queries)
    pictures = _flat(load_model(run, "base").encode(query_shard(asked, shard).images))
    found = nearest(pictures, *_images(run), _crowding(run))
    _nearest_parts(run, asked).write(shard, _tensors(found))


def _tensors(found: Nearest) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(getattr(found, name)) for name in ("index", "distance", "mass")}


def _crowding(run: Run) -> Crowding:
    from guda.files import read_tensors

    content, header = read_tensors(run.path(_training(run)))
    return Crowding(float(header["twins"]), content["levels"].numpy(), _untensored(content))


def _untensored(content: dict[str, Any]) -> Nearest:
    return Nearest(content["index"].numpy(), content["distance"].numpy(), content["mass"].numpy())


# ---- answers --------------------------------------------------------------------------------------------------------
def origins(run: Run, queries: Queries) -> tuple[Origin, ...] | None:
    """Of every picture; None where the question was skipped, or never asked of this set."""
    if not origins_asked(run) or origin_tasks(run, queries):
        return None
    samples, data = own_samples(run), load_data(run)
    p = None if samples is None else _typical(run, queries, samples)
    near = None if samples is None else _read_nearest(run, samples)
    copied = find_copied(_read_nearest(run, queries), near, _crowding(run), data, scored_groups(run))
    return make_origins(None if p is None else p.tolist(), copied, run.recipe.scoring.foreign == "accept")


def _typical(run: Run, queries: Queries, samples: Queries) -> np.ndarray | None:
    places = samples.find(queries.images, queries.prompts)
    return typical_p(_described(run, samples), _described(run, queries), places)


def _described(run: Run, queries: Queries) -> Described:
    terms = Reader(run_scorer(run, estimand="elbo", plan=_plan(run)), queries, ROUNDS)(FULL)
    return Described.of_terms(terms, queries.images, _read_nearest(run, queries).distance)


def _read_nearest(run: Run, queries: Queries) -> Nearest:
    parts = [_untensored(content) for content in _nearest_parts(run, queries).read()]
    return Nearest(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("index", "distance", "mass")))
