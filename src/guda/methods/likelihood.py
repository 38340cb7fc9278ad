"""The likelihood as a scoring rule: the same counterfactuals as delta ELBO, compared by log p instead of its bound.

    score_k = log p_full(x) - log p_without_k(x), nats, positive = the group mattered
    delta log p = delta ELBO + the change of the KL gap

Averaged over the sets of a method (LOGO's seeds) and over probe seeds, whose spread is the error. Both models meet the
same probes, so that what they share cancels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from guda.config import LikelihoodConfig
from guda.data.queries import Queries
from guda.diffusion.denoiser import default_device
from guda.diffusion.likelihood import evals, log_likelihoods
from guda.errors import GudaError
from guda.files import digest
from guda.methods.base import Method
from guda.methods.elbo import ElboMethod, Set, has_counterfactuals
from guda.methods.terms import Bench, ModelRef, load_queries
from guda.run.models import load_model, run_schedule
from guda.run.parts import Shard, Sharded, query_shard, query_shards
from guda.run.run import Run
from guda.run.task import Task, pending
from guda.scoring.estimate import difference, rank_columns
from guda.scoring.scores import Scores

FORWARD_AND_PRODUCT = 3  # evaluation units of a network call with one product


def check_likelihood(found: Method) -> ElboMethod:
    if not has_counterfactuals(found):
        raise GudaError(
            "method-without-models",
            f"{found.method_id} makes no counterfactual models, so it has no log p; "
            "its own scores are evaluated anyway",
        )
    if not found.has_log_p:
        why = "weighs models by timestep" if found.ranks_groups else "is a reference row"
        raise GudaError(
            "likelihood-method-unsupported",
            f"{found.method_id} {why}, and log p has neither timesteps nor ranks; leave it out",
        )
    return found


def method_tasks(found: ElboMethod, queries: Queries, planned: set[str]) -> list[Task]:
    """`planned`: keys of models that another method's tasks have already."""
    models = [m for m in found.models() if m.key not in planned]
    planned.update(m.key for m in models)
    return likelihood_tasks(found.run, queries, models, found.method_id)


def solved(found: Method, queries: Queries) -> bool:
    """Whether log p of all its models is there, by the present settings."""
    if not has_counterfactuals(found) or not found.has_log_p:
        return False
    return not pending(found.run, method_tasks(found, queries, set()))


def likelihood_evals(found: ElboMethod) -> float:
    """Evaluation units per query; an adaptive solver's are what is expected."""
    return float(len(found.models()) * evals(found.run.recipe.likelihood))


def likelihood_scores(found: ElboMethod, queries: Queries) -> dict[str, Scores]:
    """By method id; for LOGO also every retraining by itself, as `logo-s<seed>`."""
    log_p = {model: read_log_p(found.run, queries, model) for model in found.models()}
    sets = {found.method_id: found.sets()}
    sets |= {f"{found.method_id}-s{seed}": [one] for seed, one in found.seed_sets().items()}
    return {name: _combine(found, queries, some, name, log_p) for name, some in sets.items()}


def seed_values(found: ElboMethod, queries: Queries) -> np.ndarray:
    """Scores by every probe seed alone, mean over the method's sets: [probe seeds, Q, G]. The models are the same."""
    return _differences(found, found.sets(), {m: read_log_p(found.run, queries, m) for m in found.models()})


def _differences(found: ElboMethod, sets: list[Set], log_p: dict[ModelRef, LogP]) -> np.ndarray:
    """[probe seeds, Q, G], the mean over sets."""
    columns = [np.mean([log_p[f].values - log_p[c[g]].values for f, c in sets], axis=0) for g in found.groups]
    return np.stack(columns, axis=2)


def _combine(
    found: ElboMethod, queries: Queries, sets: list[Set], name: str, log_p: dict[ModelRef, LogP]
) -> Scores:  # fmt: skip
    run: Run = found.run
    d = _differences(found, sets, log_p)[..., None]  # [seeds, Q, G, 1]: every seed is a round
    if run.recipe.likelihood.solver == "adaptive":
        calls = [[log_p[full].calls.sum(0) + log_p[c[g]].calls.sum(0) for g in found.groups] for full, c in sets]
        n_evals = FORWARD_AND_PRODUCT * np.sum(calls, axis=0).T
    else:
        n_evals = np.full(d.shape[1:3], 2 * len(sets) * evals(run.recipe.likelihood))
    return Scores(
        method=name, unit="nats", estimand=estimand(run), queries=queries.ids, groups=found.groups, n_evals=n_evals,
        **vars(difference(d)), **rank_columns(d),
    )  # fmt: skip


# ---- log p on disk: immutable parts keyed (solver, shard of queries, model, seed), one task per model and shard.
def describe(config: LikelihoodConfig) -> str:
    """The solver in words."""
    if config.solver == "adaptive":
        return f"dopri5 at tolerance {config.tolerance:g}"
    return f"{config.solver} in {config.steps} steps" + ("" if config.probes == "fresh" else " with one probe per path")


def estimand(run: Run) -> str:
    config = run.recipe.likelihood
    seeds = "1 probe seed" if config.seeds == 1 else f"{config.seeds} probe seeds"
    last = run_schedule(run).t_max
    return f"log p by the probability-flow ODE, t = 0 to {last}, then N(0, I); {describe(config)}, {seeds}"


def likelihood_folder(run: Run) -> str:
    """Everything that affects the result, except seeds and queries, which have separate files."""
    config, schedule, device = run.recipe.likelihood, run_schedule(run).digest, default_device()
    if config.solver == "adaptive":
        how: list[Any] = [config.tolerance]
    else:
        how = [config.steps, config.probes, config.block]
    return f"likelihood/{config.solver}-{digest([config.solver, *how, schedule, device])}"


def asked_queries(run: Run, queries: Queries) -> Queries:
    """The first by id, as many as the recipe says."""
    return queries.subset(queries.ids[: run.recipe.likelihood.n])


def _parts(run: Run, shards: Sequence[Shard], model: ModelRef, seed: int) -> Sharded:
    """A table of each shard: query, seed, log_p, calls."""
    return Sharded(run, f"{likelihood_folder(run)}/*/{model.key}/s{seed:03d}.parquet", shards)


def likelihood_tasks(run: Run, queries: Queries, models: Iterable[ModelRef], stage: str) -> list[Task]:
    """One task per model and shard that lacks a seed, for these queries."""
    config, folder = run.recipe.likelihood, likelihood_folder(run)
    shards = query_shards(queries, config.block)
    tasks = []
    for model in models:
        files = [_parts(run, shards, model, seed).files for seed in range(config.seeds)]
        for shard, wanted in zip(shards, zip(*files, strict=True), strict=True):
            missing = {seed: file for seed, file in enumerate(wanted) if not run.has(file)}
            if missing:
                evals_each = evals(config.model_copy(update={"seeds": len(missing)}))
                tasks.append(
                    Task(
                        name=f"log p of {shard.label} of {queries.n} by {model.key}",
                        stage=f"likelihood/{queries.name}/{stage}/{folder.removeprefix('likelihood/')}",
                        fn="guda.methods.likelihood:solve_shard",
                        args={"queries": queries.name, "shard": shard.number, "model": model.as_json(),
                              "seeds": list(missing)},
                        makes=tuple(missing.values()), needs=model.needs(run), cost=float(shard.n * evals_each),
                    )
                )  # fmt: skip
    return tasks


def solve_shard(run: Run, queries: str, shard: int, model: list[Any], seeds: list[int]) -> None:
    import pyarrow as pa
    import torch

    config, ref, asked = run.recipe.likelihood, ModelRef(*model), asked_queries(run, load_queries(run, queries))
    part, first = query_shard(asked, shard, config.block), load_model(run, ref.base)
    part.check_shape(first.image_shape)
    x0, cond = first.encode(part.images), first.condition(part.prompts)
    try:
        found, calls = log_likelihoods(Bench(run).several([ref]), x0, part.ids, config, seeds, cond)
    except torch.OutOfMemoryError:
        raise GudaError(
            "block-out-of-memory",
            f"{config.block} pictures with their gradients do not fit into memory; set likelihood.block lower",
        ) from None
    header = {"model": ref.identity(run), "settings": likelihood_folder(run), "unit": "nats"}
    shards = query_shards(asked, config.block)
    for seed, values, counts in zip(seeds, found, calls, strict=True):
        columns = [pa.array(part.ids), pa.array(np.full(part.n, seed, np.int32)), pa.array(values), pa.array(counts)]
        table = pa.table(columns, names=["query", "seed", "log_p", "calls"])
        _parts(run, shards, ref, seed).write(shard, table, header)


@dataclass(frozen=True)
class LogP:
    """Of one model: nats, and network calls; both [seeds, Q]."""

    values: np.ndarray
    calls: np.ndarray


def read_log_p(run: Run, queries: Queries, model: ModelRef) -> LogP:
    """All seeds of a model that is done; refused if it was computed with other weights."""
    import pyarrow as pa

    config, header = run.recipe.likelihood, {"model": model.identity(run)}
    shards = query_shards(queries, config.block)
    parts = [_parts(run, shards, model, seed).read(header, "likelihoods-stale") for seed in range(config.seeds)]
    tables = [pa.concat_tables(tables) for tables in parts]
    return LogP(*(np.stack([table[column].to_numpy() for table in tables]) for column in ("log_p", "calls")))
