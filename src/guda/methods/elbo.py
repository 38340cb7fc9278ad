"""What all ELBO-difference methods share: a counterfactual model per group, scored against a full model.

    score_k = ELBO(full) - ELBO(without k), nats, positive = the group mattered

With several sets of counterfactuals (LOGO seeds; the halves of a hybrid) the score is their mean, weighted by t where
the method says so, taken draw by draw so that its error bar is that of the mean.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from guda.data.queries import Queries
from guda.methods.base import Method
from guda.methods.terms import ModelRef, run_scorer, score_tasks
from guda.run.models import asked_groups, load_data, run_schedule
from guda.run.plan import run_plan
from guda.run.task import Task
from guda.scoring import scorer
from guda.scoring.bands import Bands
from guda.scoring.drift import Drift
from guda.scoring.scores import Scores

Set = tuple[ModelRef, dict[str, ModelRef]]  # a full model, and its counterfactual per group

Reader = scorer.Reader[ModelRef]


class ElboMethod(Method):
    only: tuple[str, ...] | None = None  # the groups to fit and to compare; None: all (tuning makes do with a few)

    @abstractmethod
    def sets(self) -> list[Set]:
        """One set per retraining; unlearned methods have one."""

    @property
    def groups(self) -> tuple[str, ...]:
        return self.only or asked_groups(self.run)

    def number(self, group: str) -> int:
        """Its number among all groups, which names its files, whatever `only` says."""
        return load_data(self.run).groups.index(group)

    def outside(self, index: np.ndarray) -> np.ndarray:
        """bool [images, groups]: which training images are no part of the group."""
        inside = load_data(self.run).groups.membership[index]
        return np.asarray(~inside[:, [self.number(g) for g in self.groups]])

    def models(self) -> list[ModelRef]:
        """Every model a scoring needs, each once."""
        return list(dict.fromkeys(m for full, others in self.sets() for m in (full, *others.values())))

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        models = [m for m in self.models() if m.key not in planned]
        planned.update(m.key for m in models)
        return score_tasks(self.run, queries, models, self.method_id)

    def reader(self, queries: Queries, bands: Bands | None = None) -> Reader:
        """Reads each model's terms once, however many scores are made of them."""
        return run_scorer(self.run).reader(queries, self.run.recipe.scoring.rounds, bands)

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        return self.combine(queries, self.sets(), self.method_id, self.reader(queries, bands), bands)

    def shares(self, t: np.ndarray, n_sets: int) -> Sequence[np.ndarray | float]:
        """How much each set counts at t; they sum to one."""
        return scorer.equal_shares(t, n_sets)

    def drift(self, bands: Bands | None = None) -> Drift | None:
        """What is subtracted from every score of a group; only unlearned models have it, and only when asked."""
        return None

    def contributions(self, sets: list[Set], read: Reader) -> np.ndarray:
        """Paired nats [R, Q, G, S], the mean over sets."""
        return scorer.contributions(sets, self.groups, read, self.shares)

    def combine(self, queries: Queries, sets: list[Set], name: str, read: Reader, bands: Bands | None) -> Scores:
        return scorer.combine(
            self.contributions(sets, read), run_plan(self.run), sum(scorer.networks(sets)), bands, self.drift(bands),
            method=name, unit=self.unit, queries=queries.ids, groups=self.groups,
        )  # fmt: skip

    def values(self, queries: Queries, bands: Sequence[Bands]) -> list[np.ndarray]:
        return self._values(self.sets(), self.reader(queries), bands)

    def _values(self, sets: list[Set], read: Reader, bands: Sequence[Bands]) -> list[np.ndarray]:
        """The terms are read once, whatever the number of bands."""
        d, t = self.contributions(sets, read), read(sets[0][0]).t
        T = run_schedule(self.run).T
        found = [(d * b.factors(T)[t][:, :, None]).mean(axis=0).sum(axis=-1) for b in bands]
        drifts = [self.drift(b) for b in bands]
        return [f if drift is None else f - drift.mean for f, drift in zip(found, drifts, strict=True)]

    def networks(self) -> tuple[int, int]:
        """(shared, each): one draw of n groups costs shared + each n network evaluations."""
        return scorer.networks(self.sets())

    def score_evals(self) -> float:
        shared, each = self.networks()
        draws = run_plan(self.run).evals_per_round * self.run.recipe.scoring.rounds
        return float((shared + each * len(self.groups)) * draws)
