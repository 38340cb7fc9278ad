"""datamodel: what a group adds to a model of random halves of the others, by regression on the subset models.

    elbo           v(S) = ELBO of the picture by the model of S                                       nats
    path           v(S) = minus the path divergence of the full model from the model of S             nats
    path, excess   v(S) = minus the logarithm of that divergence                                      log units
    score_k        = b_k of v(S) = b_0 + sum_k b_k 1[k in S]          average marginal contribution at half (Banzhaf)

The arithmetic is in scoring/datamodel.py, the models are those of methods/subsets.py, all evaluated at the same keyed
draws. With `excess` the coefficients of the model's average picture are taken off. The error of a score adds up two
things: the spread between pairs of trainings about the fit, and that of the draws.

As an oracle (`guda evaluate --against datamodel`) its independent repetitions are the even and the odd pairs, each
regressed by itself, under the numbers 0 and 1. Both are fits to half of the trainings, so their agreement is that of
half the design.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.data.queries import Queries
from guda.methods.base import Method, method
from guda.methods.reference import average_pictures
from guda.methods.subsets import Subsets, find_subsets
from guda.methods.terms import ModelRef, run_scorer, score_tasks
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring import datamodel
from guda.scoring.bands import Bands
from guda.scoring.datamodel import Datamodel
from guda.scoring.estimate import LEVEL, Estimate, Training, difference, rank_columns, t_quantile
from guda.scoring.reading import CLOSER_EXCESS_SIGN, CLOSER_SIGN, HALF_EXCESS_SIGN, HALF_SIGN
from guda.scoring.reference import Excess, average
from guda.scoring.scorer import Reader, Scorer
from guda.scoring.scores import Scores

ESTIMAND = "average marginal contribution at half (Banzhaf)"

HALVES = (0, 1)  # even and odd pairs


class DatamodelConfig(Config):
    ridge: float | None = Field(
        None, ge=0, le=1e6,
        description="Ridge penalty over the number of pairs; 0: least squares. Default: least squares with two pairs "
        "per group or more, otherwise chosen for each picture by leaving out pairs.",
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class SubsetValues:
    """What the subset models say about pictures, draw by draw."""

    inside: np.ndarray  # bool [M, G]
    draws: np.ndarray  # [M, R, Q, S]: what each draw adds to v
    t: np.ndarray  # [R, Q, S]

    @property
    def values(self) -> np.ndarray:
        """v, [M, Q]."""
        return np.asarray(self.draws.mean(axis=1).sum(axis=-1))

    @property
    def pairs(self) -> int:
        return len(self.inside) // 2

    def fit(self, ridge: float | None, pairs: np.ndarray | None = None) -> Datamodel:
        """The regression on some pairs (numbers); default: on all."""
        chosen = np.arange(self.pairs) if pairs is None else pairs
        v = self.values
        return datamodel.fit(self.inside[2 * chosen], v[2 * chosen], v[2 * chosen + 1], ridge)


def read_values(
    subsets: Subsets, queries: Queries, bands: Bands | None = None, estimand: str | None = None, log: bool = False
) -> SubsetValues:
    """From finished terms. `estimand`: elbo or path, default the recipe's; `log`: minus the logarithm of path."""
    run = subsets.run
    scorer: Scorer[ModelRef] = run_scorer(run, estimand=estimand)
    read = Reader(scorer, queries, run.recipe.scoring.rounds, bands)
    terms = [read(m, scorer.kind) for m in subsets.models()]
    kl = np.stack([t.kl for t in terms])
    if log:  # log p is linear in p up to its relative error
        size = np.maximum(kl.mean(axis=1).sum(axis=-1), 1e-290)[:, None, :, None]
        kl = kl / size + (np.log(size) - 1) / kl.shape[-1]
    return SubsetValues(subsets.design(), -kl, terms[0].t)


@method("datamodel")
class DatamodelMethod(Method):
    Config = DatamodelConfig
    summary = "regress the subset models' values on the groups they have seen (average contribution at half)"
    trains = True
    oracle = True
    by_terms = True

    def __init__(self, run: Run, method_id: str, config: Any) -> None:
        super().__init__(run, method_id, config)
        self.subsets = find_subsets(run)

    @property
    def groups(self) -> tuple[str, ...]:
        return self.subsets.groups

    def parts(self) -> tuple[str, ...]:
        return (self.subsets.method_id,)

    def replicates(self) -> tuple[int, ...]:
        return HALVES

    def fit(self) -> list[Task]:
        return self.subsets.fit()

    def fit_evals(self) -> float:
        return self.subsets.fit_evals()

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        tasks = self.subsets.score(queries, planned)
        return tasks + (self.average_tasks(planned, queries) if self.run.recipe.scoring.excess else [])

    def average_tasks(self, planned: set[str], queries: Queries | None = None) -> list[Task]:
        pictures = average_pictures(self.run)
        if queries is not None and pictures.digest == queries.digest:
            return []
        models = [m for m in self.subsets.models() if f"{pictures.name}:{m.key}" not in planned]
        planned.update(f"{pictures.name}:{m.key}" for m in models)
        return score_tasks(self.run, pictures, models, self.subsets.method_id)

    def score_evals(self) -> float:
        from guda.run.plan import run_plan

        scorer = run_scorer(self.run)
        draws = run_plan(self.run).evals_per_round * self.run.recipe.scoring.rounds
        return float(scorer.networks(scorer.evaluated(self.subsets.models())) * draws)

    @property
    def _log(self) -> bool:
        scoring = self.run.recipe.scoring
        return scoring.estimand == "path" and scoring.excess

    def read(self, queries: Queries, bands: Bands | None = None) -> SubsetValues:
        return read_values(self.subsets, queries, bands, log=self._log)

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        return self.all_scores(queries, bands)[self.method_id]

    def all_scores(self, queries: Queries, bands: Bands | None = None) -> dict[str, Scores]:
        """Of all pairs, and of the even and the odd ones by themselves (`datamodel-s0`, `datamodel-s1`)."""
        values = self.read(queries, bands)
        excess = self.run.recipe.scoring.excess
        usual = self.read(average_pictures(self.run), bands) if excess else None
        every = np.arange(values.pairs)
        chosen = {self.method_id: every} | {f"{self.method_id}-s{h}": every[h::2] for h in HALVES}
        return {name: self._scores(name, queries, values, usual, pairs, bands) for name, pairs in chosen.items()}

    def _scores(
        self, name: str, queries: Queries, values: SubsetValues, usual: SubsetValues | None, pairs: np.ndarray,
        bands: Bands | None,
    ) -> Scores:  # fmt: skip
        found = values.fit(self.config.ridge, pairs)
        apart = values.draws[2 * pairs] - values.draws[2 * pairs + 1]
        d = np.einsum("qgp,prqs->rqgs", found.weights, apart)
        scorer, less = run_scorer(self.run), None
        if usual is not None:
            less = self._average(queries, usual.fit(self.config.ridge, pairs))
            d = less.spread(d)
        df = np.broadcast_to(found.df[:, None], found.coefficients.shape)

        def training(q: int) -> Training:
            return found.covariance[q], np.full(found.covariance[q].shape, found.df[q])

        ranks = rank_columns(d, 0.0 if less is None else less.cov, training)
        reach = t_quantile(0.5 + LEVEL / 2, df) * found.stderr
        columns = _widened(difference(d, grid=bool(scorer.plan.grid)), found.stderr, reach)
        if less is not None:
            columns = less.widen(columns)
        signs = (CLOSER_SIGN, CLOSER_EXCESS_SIGN) if scorer.path else (HALF_SIGN, HALF_EXCESS_SIGN)
        told = f", bands {bands.name} only" if bands else ""
        return Scores(
            method=name, unit="log units" if self._log else self.unit,
            estimand=f"{ESTIMAND} of {len(pairs)} pairs; {scorer.estimand}{told}{less.suffix if less else ''}",
            queries=queries.ids, groups=self.groups, n_evals=int(self.score_evals()),
            sign=signs[less is not None], stderr_training=found.stderr, **columns, **ranks,
        )  # fmt: skip

    def _average(self, queries: Queries, fitted: Datamodel) -> Excess:
        pictures = average_pictures(self.run)
        return average(fitted.coefficients, False, pictures.find(queries.images, queries.prompts))

    def seed_values(self, queries: Queries, bands: Sequence[Bands]) -> list[np.ndarray]:
        """The bare scores of the two halves, [2, Q, G] for each of `bands`."""
        found = []
        for band in bands:
            scores = self.all_scores(queries, band)
            found.append(np.stack([scores[f"{self.method_id}-s{h}"].score for h in HALVES]))
        return found

    def round_values(self, queries: Queries, bands: Bands | None = None) -> np.ndarray:
        """Scores by every round of draws alone: [rounds, Q, G]."""
        values = self.read(queries, bands)
        found = values.fit(self.config.ridge)
        apart = (values.draws[0::2] - values.draws[1::2]).sum(axis=-1)  # [P, R, Q]
        scores = np.einsum("qgp,prq->rqg", found.weights, apart)
        if not self.run.recipe.scoring.excess:
            return scores
        usual = self.read(average_pictures(self.run), bands)
        return self._average(queries, usual.fit(self.config.ridge)).of(scores)


def _widened(own: Estimate, stderr: np.ndarray, reach: np.ndarray) -> dict[str, Any]:
    """With the error of training: in quadrature, standard errors and half-widths alike."""
    score = own.score
    if own.stderr is not None and own.hi is not None:
        stderr, reach = np.hypot(own.stderr, stderr), np.hypot(own.hi - score, reach)
    return {"score": score, "stderr": stderr, "lo": score - reach, "hi": score + reach}
