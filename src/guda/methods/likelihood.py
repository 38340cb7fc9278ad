"""The likelihood as a scoring rule: the same counterfactuals as delta ELBO, compared by log p instead of its bound.

    score_k = log p_full(x) - log p_without_k(x), nats, positive = the group mattered
    delta log p = delta ELBO + the change of the KL gap                                      (SPEC section 9)

Averaged over the sets of a method (LOGO's seeds) and over probe seeds, whose spread is the error. Both models meet the
same probes, so that what they share cancels.
"""

from __future__ import annotations

import numpy as np

from guda.data.queries import Queries
from guda.diffusion.likelihood import evals
from guda.engine.tasks import Task, pending
from guda.errors import GudaError
from guda.methods.base import Method
from guda.methods.elbo import ElboMethod, Set
from guda.methods.logo import Logo
from guda.runs.run import Run
from guda.scoring.estimate import difference, stack_estimates
from guda.scoring.likelihood import LogP, estimand, likelihood_tasks, read_log_p
from guda.scoring.ranks import rank_columns
from guda.scoring.scores import Scores
from guda.scoring.terms import ModelRef

FORWARD_AND_PRODUCT = 3  # evaluation units of a network call with one product (SPEC 8)


def has_log_p(found: Method) -> bool:
    """Whether its counterfactuals are models, each with a density of its own."""
    return isinstance(found, ElboMethod) and found.ranks_groups and type(found).shares is ElboMethod.shares


def check_likelihood(found: Method) -> ElboMethod:
    if not isinstance(found, ElboMethod):
        raise GudaError(
            "method-without-models",
            f"{found.method_id} makes no counterfactual models, so it has no log p; "
            "its own scores are evaluated anyway",
        )
    if not has_log_p(found):
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
    return has_log_p(found) and not pending(found.run, method_tasks(found, queries, set()))  # type: ignore[arg-type]


def likelihood_evals(found: ElboMethod) -> float:
    """Evaluation units per query; an adaptive solver's are what is expected."""
    return float(len(found.models()) * evals(found.run.recipe.likelihood))


def likelihood_scores(found: ElboMethod, queries: Queries) -> dict[str, Scores]:
    """By method id; for LOGO also every retraining by itself, as `logo-s<seed>`."""
    cache: dict[ModelRef, LogP] = {}

    def read(model: ModelRef) -> LogP:
        if model not in cache:
            cache[model] = read_log_p(found.run, queries, model)
        return cache[model]

    scores = {found.method_id: _combine(found, queries, found.sets(), found.method_id, read)}
    if isinstance(found, Logo):
        for seed in found.config.seeds:
            scores[f"logo-s{seed}"] = _combine(found, queries, [found.seed_set(seed)], f"logo-s{seed}", read)
    return scores


def seed_values(found: ElboMethod, queries: Queries) -> np.ndarray:
    """Scores by every probe seed alone, mean over the method's sets: [probe seeds, Q, G]. The models are the same."""
    log_p = {model: read_log_p(found.run, queries, model).values for model in found.models()}
    columns = [np.mean([log_p[full] - log_p[c[g]] for full, c in found.sets()], axis=0) for g in found.groups]
    return np.stack(columns, axis=2)


def _combine(found: ElboMethod, queries: Queries, sets: list[Set], name: str, read) -> Scores:  # type: ignore[no-untyped-def]
    run: Run = found.run
    d = np.stack(
        [np.mean([read(full).values - read(c[g]).values for full, c in sets], axis=0) for g in found.groups], axis=2
    )[..., None]  # [seeds, Q, G, 1]: every seed is a round
    if run.recipe.likelihood.solver == "adaptive":
        calls = [[read(full).calls.sum(0) + read(c[g]).calls.sum(0) for g in found.groups] for full, c in sets]
        n_evals = FORWARD_AND_PRODUCT * np.sum(calls, axis=0).T
    else:
        n_evals = np.full(d.shape[1:3], 2 * len(sets) * evals(run.recipe.likelihood))
    return Scores(
        method=name, unit="nats", estimand=estimand(run), queries=queries.ids, groups=found.groups, n_evals=n_evals,
        **stack_estimates([difference(d[:, :, g]) for g in range(len(found.groups))]), **rank_columns(d),
    )  # fmt: skip
