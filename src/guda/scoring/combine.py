"""The arithmetic of scores: from the terms of models to nats with errors and ranks.

A score is the difference of two models at the same draws, so its error is that of the paired difference. Where several
trainings are known, the spread between them is the randomness of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from guda.scoring.bands import Bands
from guda.scoring.estimate import Training, difference, rank_columns
from guda.scoring.reference import Drift
from guda.scoring.scorer import M, Reader, Scorer, Set, Shares
from guda.scoring.scores import Scores
from guda.scoring.training_noise import TrainingNoise, own_sampling, training_noise


def networks(scorer: Scorer[M], sets: Sequence[Set[M]]) -> tuple[int, int]:
    """(shared, each): one draw of n groups costs shared + each n network evaluations."""

    def count(groups: int) -> int:
        used = dict.fromkeys(m for full, others in sets for m in (full, *list(others.values())[:groups]))
        return scorer.networks(scorer.evaluated(used))

    each = count(2) - count(1)
    return count(1) - each, each


def equal_shares(t: np.ndarray, n_sets: int) -> Sequence[np.ndarray | float]:
    return [1 / n_sets] * n_sets


def contributions(
    sets: Sequence[Set[M]],
    groups: Sequence[str],
    read: Reader[M],
    shares: Shares = equal_shares,
    kind: str | None = None,
) -> np.ndarray:
    """Paired nats [R, Q, G, S]: counterfactual less full model, the weighted mean over sets, draw by draw, so that the
    error bar of a mean over sets is that of the mean. `kind` as of `Reader.paired`."""
    counted = shares(read.times(sets), len(sets))
    return np.stack(
        [
            np.sum([w * read.paired(f, c[g], kind).kl for w, (f, c) in zip(counted, sets, strict=True)], axis=0)
            for g in groups
        ],
        axis=2,
    )


def directions(
    sets: Sequence[Set[M]], groups: Sequence[str], read: Reader[M], shares: Shares = equal_shares
) -> dict[str, Any]:
    """elbo and elbo_stderr [Q, G] of path divergences: the ELBO difference by the same draws has the sign that they
    lack. Nothing where errors are not kept for all models (rules, races, parts of a shard)."""
    models = dict.fromkeys(m for full, others in sets for m in (full, *(others[g] for g in groups)))
    if not read.scorer.path or not all(read.has(m, "error") for m in models):
        return {}
    found = difference(contributions(sets, groups, read, shares, "error"), grid=bool(read.scorer.plan.grid))
    return {"elbo": found.score, "elbo_stderr": found.stderr}


def seed_noise(
    sets: Sequence[Set[M]], groups: Sequence[str], read: Reader[M], less: Sequence[Drift | None]
) -> TrainingNoise:  # fmt: skip
    """The randomness of training from sets of several trainings; `less`: what is taken off the scores of each."""

    def of_one(one: Set[M], off: Drift | None) -> np.ndarray:
        d = contributions([one], groups, read)
        return d if off is None else off.spread(d)

    d = np.stack([of_one(one, off) for one, off in zip(sets, less, strict=True)])  # [M, R, Q, G, S]
    return training_noise(d.mean(axis=1).sum(axis=-1), own_sampling(d))


def _training(noise: TrainingNoise, less: Drift | None, d: np.ndarray) -> Callable[[int], Training]:
    """Its covariance on the scale on which groups are compared."""
    sizes = None if less is None else less.sizes(d)

    def of(q: int) -> Training:
        cov, df = noise.covariance(q)
        return cov if sizes is None else cov * sizes[q][:, None] * sizes[q], df

    return of


def combine(
    d: np.ndarray, scorer: Scorer[M], networks: int, bands: Bands | None = None, less: Drift | None = None,
    noise: TrainingNoise | None = None, **names: Any,
) -> Scores:  # fmt: skip
    """Scores with errors and ranks from paired contributions [R, Q, G, S].

    `networks`: evaluations behind one draw of one score; `less` is taken off (drift, or what the average
    picture scores); `noise`: the randomness of training, if known; `names`: method, unit, queries, groups, and
    `directions`.
    """
    plan = scorer.plan
    compared, extra = (d, 0.0) if less is None else less.ranked(d)
    ranks = rank_columns(compared, extra, None if noise is None else _training(noise, less, d))
    if noise is not None:
        names["stderr_training"] = noise.stderr
        names["predicted_lo"], names["predicted_hi"] = noise.predicted()
    if less is not None:
        d = less.spread(d)
        names["unit"] = less.unit or names["unit"]
    columns = vars(difference(d, grid=bool(plan.grid)))
    estimand = scorer.estimand + (f", bands {bands.name} only" if bands else "") + (less.suffix if less else "")
    return Scores(
        estimand=estimand, n_evals=networks * plan.evals_per_round * len(d),
        sign=(less.sign if less else None) or scorer.sign,
        **names, **(less.widen(columns) if less else columns), **ranks,
    )  # fmt: skip
