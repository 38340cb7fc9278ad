"""What all methods with a counterfactual model per group share: it is scored against the full model it came from.

    elbo    score_k = ELBO(full) - ELBO(without k), nats, positive = the group mattered
    path    score_k = sum_t w_t E ||eps_full - eps_-k||^2, nats, larger = the model changes more without the group

With several sets of counterfactuals (LOGO seeds; the halves of a hybrid) the score is their mean, weighted by t where
the method says so, taken draw by draw so that its error bar is that of the mean.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from guda.data.groups import Groups
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.base import Method, get_method
from guda.methods.reference import average_pictures, make_excess
from guda.methods.terms import ModelRef, run_scorer, score_tasks
from guda.run.data import load_data, scored_groups
from guda.run.models import run_schedule
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring import combine, scorer
from guda.scoring.bands import Bands
from guda.scoring.reference import Drift, Excess
from guda.scoring.scores import Scores
from guda.scoring.training_noise import TrainingNoise
from guda.unlearning.bank import file_name

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from guda.methods.regroup import Grouping


Set = tuple[ModelRef, dict[str, ModelRef]]  # a full model, and its counterfactual per group

Reader = scorer.Reader[ModelRef]


class ElboMethod(Method):
    counterfactuals = True
    by_terms = True
    has_log_p = True
    bankable: ClassVar[bool] = False  # one file per group (`file`), which `guda bank` can add and export
    grouping: Grouping | None = None  # None: the groups that the recipe asks about

    @abstractmethod
    def sets(self) -> list[Set]:
        """One set per retraining; unlearned methods have one."""

    def seed_sets(self) -> dict[int, Set]:
        """Of retrainings and of unlearnings by several seeds, each set by its seed; else nothing."""
        return {}

    def replicates(self) -> tuple[int, ...]:
        return tuple(self.seed_sets())

    def on(self, grouping: Grouping) -> Self:
        """The same method with the same settings, for other groups."""
        grouping.check(self)
        found = copy(self)
        found.grouping, found.method_id = grouping, self.id + grouping.suffix
        return found

    @property
    def groups(self) -> tuple[str, ...]:
        return scored_groups(self.run) if self.grouping is None else self.grouping.groups

    def nodes(self) -> tuple[str, ...]:
        """The fitted groups, which may be more than the scored ones."""
        return self.groups

    def passes(self, group: str) -> float:
        """How many times the work of a leaf it takes to fit `group`."""
        return 1.0

    @property
    def placebo_seed(self) -> int:
        """What random groups are drawn by."""
        return int(self.config.seed)

    def number(self, group: str) -> int:
        """Its number among the data's groups."""
        return load_data(self.run).groups.index(group)

    @property
    def folder(self) -> str:
        return self.artifact()

    def file(self, group: str, seed: int | None = None) -> str:
        """Where the model without `group` is kept (`bankable` methods only)."""
        known = load_data(self.run).groups
        name = file_name(known.index(group), group) if self.grouping is None else self.grouping.file(known, group)
        return f"{self.folder}/{name}" if seed is None else f"{self.folder}/s{seed}/{name}"

    def regrouped(self, group: str) -> Groups:
        """The training images with `group` as one of their groups."""
        known = load_data(self.run).groups
        return known if self.grouping is None else self.grouping.regroup(known, group)

    def outside(self, index: np.ndarray) -> np.ndarray:
        """bool [images, groups]: which training images are no part of the group."""
        columns = [(groups := self.regrouped(g)).membership[index, groups.index(g)] for g in self.groups]
        return np.asarray(~np.stack(columns, axis=1))

    def models(self) -> list[ModelRef]:
        """Every model a scoring needs, each once."""
        return list(dict.fromkeys(m for full, others in self.sets() for m in (full, *others.values())))

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        models = [m for m in self.models() if m.key not in planned]
        planned.update(m.key for m in models)
        tasks = score_tasks(self.run, queries, models, self.method_id)
        return tasks + (self.average_tasks(planned, queries) if self.run.recipe.scoring.excess else [])

    def average_tasks(self, planned: set[str], queries: Queries | None = None) -> list[Task]:
        """What evaluates its models on the average's pictures, unless these are the queries."""
        pictures = average_pictures(self.run)
        if queries is not None and pictures.digest == queries.digest:
            return []
        models = [m for m in self.models() if f"{pictures.name}:{m.key}" not in planned]
        planned.update(f"{pictures.name}:{m.key}" for m in models)
        return score_tasks(self.run, pictures, models, self.method_id)

    def reader(self, queries: Queries, bands: Bands | None = None, estimand: str | None = None) -> Reader:
        """Reads each model's terms once, however many scores are made of them."""
        return Reader(run_scorer(self.run, estimand=estimand), queries, self.run.recipe.scoring.rounds, bands)

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        return self.combine(queries, self.sets(), self.method_id, self.reader(queries, bands), bands)

    def all_scores(self, queries: Queries, bands: Bands | None = None) -> dict[str, Scores]:
        """Its scores, and those of every seed by itself (`<id>-s<seed>`), from one reading of the terms."""
        read = self.reader(queries, bands)
        named = {f"{self.method_id}-s{seed}": [one] for seed, one in self.seed_sets().items()}
        every = {self.method_id: self.sets()} | named
        return {name: self.combine(queries, sets, name, read, bands) for name, sets in every.items()}

    def shares(self, t: np.ndarray, n_sets: int) -> Sequence[np.ndarray | float]:
        """How much each set counts at t; they sum to one."""
        return combine.equal_shares(t, n_sets)

    def drift(self, bands: Bands | None = None) -> Drift | None:
        """What is subtracted from every score of a group; only unlearned models have it, and only when asked."""
        return None

    def excess(self, queries: Queries, sets: list[Set], bands: Bands | None = None) -> Excess:
        """What the average picture scores by these sets."""
        pictures = average_pictures(self.run)
        d = self.contributions(sets, self.reader(pictures, bands))
        return make_excess(self.run, queries, d, pictures)

    def contributions(self, sets: list[Set], read: Reader) -> np.ndarray:
        """Paired nats [R, Q, G, S], the mean over sets."""
        return combine.contributions(sets, self.groups, read, self.shares)

    def _less(self, queries: Queries, sets: list[Set], bands: Bands | None) -> Drift | None:
        """What is taken off the scores."""
        return self.excess(queries, sets, bands) if self.run.recipe.scoring.excess else self.drift(bands)

    def noise(self, queries: Queries, sets: list[Set], read: Reader, bands: Bands | None) -> TrainingNoise | None:
        """The randomness of training, where these are the sets of several seeds."""
        if len(sets) < 2 or sets != list(self.seed_sets().values()):
            return None
        less = [self._less(queries, [one], bands) for one in sets]
        return combine.seed_noise(sets, self.groups, read, less)

    def combine(self, queries: Queries, sets: list[Set], name: str, read: Reader, bands: Bands | None) -> Scores:
        return combine.combine(
            self.contributions(sets, read), read.scorer, sum(combine.networks(read.scorer, sets)), bands,
            self._less(queries, sets, bands), self.noise(queries, sets, read, bands),
            method=name, unit=self.unit, queries=queries.ids, groups=self.groups,
            **combine.directions(sets, self.groups, read, self.shares),
        )  # fmt: skip

    def values(self, queries: Queries, bands: Sequence[Bands]) -> list[np.ndarray]:
        return self._values(self.sets(), self.reader(queries), bands)

    def _values(self, sets: list[Set], read: Reader, bands: Sequence[Bands]) -> list[np.ndarray]:
        """The terms are read once for all bands."""
        d, t = self.contributions(sets, read), read.times(sets)
        T = run_schedule(self.run).T
        found = [(d * b.factors(T)[t][:, :, None]).mean(axis=0).sum(axis=-1) for b in bands]
        if self.run.recipe.scoring.excess:
            return [self.excess(read.queries, sets, b).of(f) for f, b in zip(found, bands, strict=True)]
        drifts = [self.drift(b) for b in bands]
        return [f if drift is None else f - drift.mean for f, drift in zip(found, drifts, strict=True)]

    def seed_values(self, queries: Queries, bands: Sequence[Bands]) -> list[np.ndarray]:
        """The bare scores of every seed by itself, [seeds, Q, G] for each of `bands`."""
        read = self.reader(queries)
        found = [self._values([one], read, bands) for one in self.seed_sets().values()]
        return [np.stack(of_band) for of_band in zip(*found, strict=True)]

    def round_values(self, queries: Queries, bands: Bands | None = None) -> np.ndarray:
        """Scores, mean over sets, by every round of draws alone: [rounds, Q, G]."""
        found = np.asarray(self.contributions(self.sets(), self.reader(queries, bands)).sum(axis=-1))
        return self.excess(queries, self.sets(), bands).of(found) if self.run.recipe.scoring.excess else found

    def networks(self) -> tuple[int, int]:
        """(shared, each): one draw of n groups costs shared + each n network evaluations."""
        return combine.networks(run_scorer(self.run), self.sets())

    def score_evals(self) -> float:
        shared, each = self.networks()
        draws = run_plan(self.run).evals_per_round * self.run.recipe.scoring.rounds
        return float((shared + each * len(self.groups)) * draws)


def has_counterfactuals(method: Method) -> TypeIs[ElboMethod]:
    """Whether the method has counterfactual models; narrows its type."""
    return method.counterfactuals


def run_oracle(run: Run) -> ElboMethod:
    """What methods of this run are held against."""
    against = run.recipe.evaluation.against
    oracle = get_method(run, against)
    if not has_counterfactuals(oracle) or not oracle.oracle:
        raise GudaError(
            "evaluation-oracle-unsupported",
            f"evaluation.against = {against!r}: only logo is an oracle with a retraining for every group",
        )
    return oracle
