"""What all ELBO-difference methods share: a counterfactual model per group, scored against a full model.

    score_k = ELBO(full) - ELBO(without k), nats, positive = the group mattered

With several sets of counterfactuals (LOGO seeds) the score is the mean over sets, taken draw by draw so that its
error bar is that of the mean.
"""

from __future__ import annotations

from abc import abstractmethod

from guda.data.queries import Queries
from guda.diffusion.models import load_data, run_schedule
from guda.engine.tasks import Task
from guda.methods.base import Method
from guda.scoring.estimate import difference, stack_estimates
from guda.scoring.plan import make_plan
from guda.scoring.scores import Scores, mean_of
from guda.scoring.terms import ModelRef, read_kl, score_tasks


class ElboMethod(Method):
    @abstractmethod
    def sets(self) -> list[tuple[ModelRef, dict[str, ModelRef]]]:
        """(full model, counterfactual per group), one pair per set."""

    @property
    def groups(self) -> tuple[str, ...]:
        return load_data(self.run).groups.names

    def models(self) -> list[ModelRef]:
        """Every model a scoring needs, each once."""
        return list(dict.fromkeys(m for full, others in self.sets() for m in (full, *others.values())))

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        models = [m for m in self.models() if m.key not in planned]
        planned.update(m.key for m in models)
        return score_tasks(self.run, queries, models, self.method_id)

    def scores(self, queries: Queries) -> Scores:
        return self._combine(queries, self.sets(), self.method_id)

    def _combine(self, queries: Queries, sets: list[tuple[ModelRef, dict[str, ModelRef]]], name: str) -> Scores:
        plan = make_plan(run_schedule(self.run), self.run.recipe.scoring)
        full = mean_of([read_kl(self.run, queries, f) for f, _ in sets])
        found = [
            difference(mean_of([read_kl(self.run, queries, c[g]) for _, c in sets]), full, grid=bool(plan.grid))
            for g in self.groups
        ]

        return Scores(
            method=name, unit=self.unit, estimand=plan.estimand, queries=queries.ids, groups=self.groups,
            n_evals=2 * len(sets) * plan.n_strata * self.run.recipe.scoring.rounds, **stack_estimates(found),
        )  # fmt: skip

    def score_evals(self, queries: Queries) -> float:
        plan = make_plan(run_schedule(self.run), self.run.recipe.scoring)
        return float(len(self.models()) * plan.n_strata * self.run.recipe.scoring.rounds)
