"""The ceiling: the highest agreement with the LOGO oracle that its noise allows, and how close each method comes.

Two LOGO retrainings disagree, so a method is compared with what ONE retraining achieves. For seed s the gold
is the mean of the OTHER seeds, g_s = mean_{j != s} LOGOA^(j); LOGO seed s and every method face that gold:

    ceiling = mean_s A(LOGOA^(s), g_s)       method = mean_s A(scores, g_s)       A: a metric of `metrics.py`

A method may exceed the ceiling: it has no retraining noise of its own. How good the gold is, is another
question: its reliability, which Spearman and Brown extrapolate from the mean correlation r of two seeds,
R = S r / (1 + (S-1) r).

Intervals are paired bootstraps over queries; with S >= 3 also over seeds. The S golds share seeds, so the
rows A(., g_s) are far from independent: resampling them would show 1 / (S (S-1)) of a method's variance over
seeds. Resampled instead are jackknife pseudo-values, theta_q + e_j: theta_q is the mean of the rows,
e_j = sqrt(S (S-1)) (mean_i theta_-i - theta_-j) the effect of seed j, theta_-j the figure without it. Their
mean varies as the jackknife says, (S-1)/S sum_j (theta_-j - mean)^2, less what finitely many queries add.
With 3 seeds such an interval is an indication: 2 degrees of freedom. The tests simulate the coverage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, FiniteFloat

from guda.config import Config
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.evaluation.intervals import RESAMPLE_SEEDS_FROM, Figure, bootstrap_mean, percentile_interval, resampled_means
from guda.evaluation.metrics import LOWEST, METRICS, per_query, random_baseline, spearman

Array = NDArray[np.float64]

CEILING = "logo"  # the oracle's method id: its row IS the ceiling, so no method may be called so


class Reliability(Config):
    """Of group scores centred per query: r of one seed with another, and what that implies for their mean."""

    one_seed: FiniteFloat = Field(description="mean correlation of two seeds, scores centred per query")
    mean_of_seeds: FiniteFloat = Field(description="Spearman-Brown: S r / (1 + (S-1) r)")


@dataclass(frozen=True)
class Agreement:
    """One method (or one LOGO retraining) against the golds; all by metric name."""

    per_seed: dict[str, Array]  # [S, Q]: row s against the mean of the other seeds
    intervals: dict[str, Figure]
    ratio_to_ceiling: dict[str, Figure] = field(default_factory=dict)  # absent where the ceiling may be 0
    difference: dict[str, Figure] = field(default_factory=dict)  # minus the reference method


@dataclass(frozen=True)
class Comparison:
    n_seeds: int
    n_queries: int
    n_groups: int
    ceiling: Agreement | None  # None: one seed has nothing to be compared with
    methods: dict[str, Agreement]
    reference: str | None
    reliability: Reliability | None
    random: dict[str, float]
    note: str
    samples: dict[str, Array] | None = None  # by method id: the shared resamples of every metric, [n, metrics]


def reliability(oracle: ArrayLike) -> Reliability:
    """From LOGO scores [S, Q, N], S >= 2; pooled over queries, so queries with a wide spread weigh more."""
    scores = _checked_oracle(oracle)
    s = len(scores)
    if s < 2:
        raise GudaError("seeds-too-few", "reliability needs at least 2 LOGO seeds; fit another with `--seeds`")
    centred = (scores - scores.mean(axis=2, keepdims=True)).reshape(s, -1)
    norms = np.linalg.norm(centred, axis=1)
    pairs = [
        # A seed whose groups all score the same shares no signal with any other.
        float(centred[i] @ centred[j] / (norms[i] * norms[j])) if norms[i] * norms[j] > 0 else 0.0
        for i, j in combinations(range(s), 2)
    ]
    r = float(np.mean(pairs))
    # Below 0 there is no common signal, and the formula would turn noise into a negative variance share.
    return Reliability(one_seed=r, mean_of_seeds=s * r / (1 + (s - 1) * r) if r > 0 else 0.0)


def _checked_oracle(oracle: ArrayLike) -> Array:
    scores = np.asarray(oracle, dtype=np.float64)
    if scores.ndim != 3 or len(scores) < 1:
        raise GudaError(
            "oracle-shape-invalid", f"oracle scores must be [seeds, queries, groups], got shape {scores.shape}"
        )
    if not np.isfinite(scores).all():
        raise GudaError("oracle-not-finite", "oracle scores have NaN or infinity; score the LOGO models again")
    return scores


def _table(scores: Array, gold: Array) -> Array:
    """[metrics, Q]."""
    return np.stack(list(per_query(scores, gold).values()))


def _golds(oracle: Array) -> list[Array]:
    """For each seed the mean of the others, [Q, N]; a single seed is its own gold."""
    if len(oracle) == 1:
        return [oracle[0]]
    return [np.delete(oracle, s, axis=0).mean(axis=0) for s in range(len(oracle))]


def _one_against_others(oracle: Array) -> Array:
    """[S, metrics, Q]: each seed against the mean of the others."""
    return np.stack([_table(own, gold) for own, gold in zip(oracle, _golds(oracle), strict=True)])


def stripped(scores: Array) -> Array:
    """[Q, N]: what is left of scores when only each query's first group and the groups' means are known.

    A group's mean is over the queries where it is not the first."""
    is_first = np.eye(scores.shape[1], dtype=bool)[scores.argmax(axis=1)]
    seen = (~is_first).sum(axis=0)
    means = np.where(seen > 0, np.where(is_first, 0.0, scores).sum(axis=0) / np.maximum(seen, 1), scores.mean(axis=0))
    return np.where(is_first, means.max() + 1.0, means)


def stripped_null(oracle: ArrayLike, n: int = 2000, seed: int = 0) -> Figure | None:
    """Spearman of one retraining, stripped, with the mean of the others; None with one seed.

    Groups that have nothing to do with a picture may rank by their means, in the same order for every picture and
    retraining. Only what a rank correlation has above this null is information about the other groups of a picture."""
    logo = _checked_oracle(oracle)
    if len(logo) == 1:
        return None
    golds = _golds(logo)
    rows = [spearman(stripped(own), gold) for own, gold in zip(logo, golds, strict=True)]
    return bootstrap_mean(np.stack(rows), n, seed)


def _pseudo_values(rows: Array, without: Array) -> Array:
    """Figures per seed and without each seed, [S, metrics, Q] -> values whose rows may be resampled."""
    s, _, q = rows.shape
    if s < RESAMPLE_SEEDS_FROM:
        return rows
    deviations = np.sqrt(s * (s - 1)) * (without.mean(axis=0) - without)
    effects = deviations.mean(axis=2)
    # Queries make the effects noisy, and the bootstrap over queries has that noise already: out it goes.
    noise = (deviations.var(axis=2, ddof=1) / q).sum(axis=0)
    total = (effects**2).sum(axis=0)
    kept = np.sqrt(np.clip(1 - noise / np.where(total > 0, total, 1.0), 0.0, None))
    return rows.mean(axis=0) + (kept * effects)[:, :, None]


def compare(
    oracle: ArrayLike,
    methods: Mapping[str, ArrayLike],
    reference: str | None = None,
    n: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Score methods {id: [Q, N]} against LOGO scores [S, Q, N], positive = the group mattered in both.

    `reference` names the method that is subtracted from each other one, paired.
    """
    logo = _checked_oracle(oracle)
    n_seeds, n_queries, n_groups = logo.shape
    if CEILING in methods:
        raise GudaError(
            "oracle-as-method", "`logo` is the oracle itself and its row is the ceiling; leave it out of the methods"
        )
    if reference is not None and reference not in methods:
        raise GudaError(
            "reference-not-scored",
            f"reference method {reference!r} was not scored; choose one of {', '.join(sorted(methods))}",
        )

    several = n_seeds > 1
    golds = _golds(logo)
    rows: dict[str, Array] = {}  # [S, metrics, Q]
    pseudo: dict[str, Array] = {}
    if several:
        rows[CEILING] = _one_against_others(logo)
        without = rows[CEILING]
        if n_seeds >= RESAMPLE_SEEDS_FROM:
            without = np.stack([_one_against_others(np.delete(logo, j, axis=0)).mean(axis=0) for j in range(n_seeds)])
        pseudo[CEILING] = _pseudo_values(rows[CEILING], without)
    for name, scores in methods.items():
        try:
            rows[name] = np.stack([_table(np.asarray(scores, dtype=np.float64), gold) for gold in golds])
        except GudaError as e:
            raise GudaError(e.code, f"{name}: {e}") from None
        pseudo[name] = _pseudo_values(rows[name], rows[name])  # row s is the figure without seed s
    agreements, samples = _agreements(rows, pseudo, reference, n, seed)
    return Comparison(
        n_seeds=n_seeds,
        n_queries=n_queries,
        n_groups=n_groups,
        ceiling=agreements.pop(CEILING, None),
        methods=agreements,
        reference=reference,
        reliability=reliability(logo) if several else None,
        random=random_baseline(n_groups),
        note=_note(n_seeds),
        samples=samples,
    )


def _agreements(
    rows: dict[str, Array], pseudo: dict[str, Array], reference: str | None, n: int, seed: int
) -> tuple[dict[str, Agreement], dict[str, Array]]:
    if not rows:
        return {}, {}
    names = list(rows)
    values = np.stack([pseudo[name].swapaxes(0, 1) for name in names])  # [methods, metrics, S, Q]
    samples = resampled_means(values, n, seed)  # one set of resamples for all: everything below is paired
    lowest = np.array([LOWEST[metric] for metric in METRICS])
    samples = np.clip(samples, lowest, 1.0)  # pseudo-values extrapolate, and may leave a metric's range
    means = {name: rows[name].mean(axis=(0, 2)) for name in names}
    result = {}
    for i, name in enumerate(names):
        found = Agreement({metric: rows[name][:, m] for m, metric in enumerate(METRICS)}, {})
        for m, metric in enumerate(METRICS):
            own, mean = samples[:, i, m], means[name][m]
            found.intervals[metric] = percentile_interval(mean, own)
            if CEILING in rows and name != CEILING:
                ceiling = samples[:, names.index(CEILING), m]
                if percentile_interval(0.0, ceiling).lo > 0:
                    ratio = own / np.maximum(ceiling, 1e-9)  # the few at or below 0 belong to the far tail
                    found.ratio_to_ceiling[metric] = percentile_interval(mean / means[CEILING][m], ratio)
            if reference is not None and name not in (reference, CEILING):
                other = samples[:, names.index(reference), m]
                found.difference[metric] = percentile_interval(mean - means[reference][m], own - other)
        result[name] = found
    return result, {name: samples[:, i] for i, name in enumerate(names)}


def _note(n_seeds: int) -> str:
    if n_seeds == 1:
        return (
            "One LOGO seed: no ceiling can be measured; methods are scored against that single retraining, "
            "noise included. Intervals are over queries only."
        )
    gold = "gold = the other seed" if n_seeds == 2 else f"gold = mean of the other {n_seeds - 1} seeds"
    over = "queries and seeds"
    if n_seeds < RESAMPLE_SEEDS_FROM:
        over = "queries, given these models: two seeds are too few to show how other retrainings would come out"
    return f"Ceiling: one LOGO retraining; {gold}, averaged over {n_seeds} seeds. Intervals are over {over}."


# ---- the query-noise floor: how far the oracle agrees with itself when only the scoring noise is fresh ------------
MOST = 64  # splits that are averaged; up to 8 rounds that is all of them


class Floor(Config):
    """How far the oracle agrees with itself under fresh scoring noise, the models being the same."""

    rounds: int = Field(ge=2, description="rounds of draws behind the scores")
    half: int = Field(ge=1, description="rounds that are scored against the other rounds, averaged over splits")
    metrics: dict[str, Figure]
    one_round: FiniteFloat = Field(description="mean correlation of two rounds, scores centred per query")
    mean_of_rounds: FiniteFloat = Field(description="Spearman-Brown, of all rounds")


def splits(rounds: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Rounds of the scored half: every choice of floor(R / 2), or so many keyed ones."""
    half = rounds // 2
    found = list(combinations(range(rounds), half)) if rounds <= 8 else []
    while len(found) < MOST and rounds > 8:
        drawn = generator(seed, "query-noise floor", rounds, len(found)).permutation(rounds)[:half]
        found.append(tuple(sorted(int(r) for r in drawn)))
    return found


def query_noise_floor(rounds: ArrayLike, n: int = 2000, seed: int = 0) -> Floor:
    """From the oracle's scores by every round alone, [R, Q, N]; needs at least two rounds.

    Every round of draws (t, eps) is an unbiased estimate of the same scores by itself, so halves of the rounds share
    the models and nothing else:

        floor = mean over splits of A(mean of h rounds, mean of the other R - h),   h = floor(R / 2)

    A ceiling cannot be told from 1 by more than what is missing to 1 here. Halves hold fewer rounds than the published
    scores, so the floor errs to the low side; the reliability of all R rounds is extrapolated beside it."""
    scores: NDArray[np.float64] = np.asarray(rounds, dtype=np.float64)
    if scores.ndim != 3 or len(scores) < 2:
        raise GudaError(
            "rounds-too-few", f"a query-noise floor needs scores of at least 2 rounds, got shape {scores.shape}"
        )
    totals: dict[str, NDArray[np.float64]] = {}
    chosen = splits(len(scores), seed)
    for half in chosen:
        inside = np.isin(np.arange(len(scores)), half)
        for metric, values in per_query(scores[inside].mean(axis=0), scores[~inside].mean(axis=0)).items():
            totals[metric] = totals.get(metric, 0.0) + values / len(chosen)
    of_rounds = reliability(scores)
    return Floor(
        rounds=len(scores),
        half=len(scores) // 2,
        metrics={metric: bootstrap_mean(values, n, seed) for metric, values in totals.items()},
        one_round=of_rounds.one_seed,
        mean_of_rounds=of_rounds.mean_of_seeds,
    )
