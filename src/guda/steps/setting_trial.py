"""A trial: one method with some settings, fitted, scored and compared with the LOGO oracle, beside the recipe's own.

Settings are part of the names of what they make, so any number of trials live in one run and the recipe stays as it
is. They share the terms of the oracle and of the full model; a finished trial does no work. With `groups`, only these
are fitted and compared, the oracle's scores being restricted to them as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from guda.errors import GudaError, choices
from guda.evaluation.ceiling import CEILING, Comparison, compare
from guda.evaluation.results import Cost, DatasetEntry, dataset_entry
from guda.files import digest
from guda.methods.base import METHODS, Method, get_method, make_method
from guda.methods.elbo import ElboMethod, has_counterfactuals, run_oracle
from guda.methods.regroup import Subset
from guda.methods.terms import load_queries, run_scorer, terms_folder
from guda.run.data import scored_groups
from guda.run.models import run_schedule
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.steps.evaluate import stage_seconds
from guda.steps.fit import Engine, base_tasks
from guda.steps.function import Fidelity, changes_function, fidelity, product_tasks, products_of
from guda.steps.score import prepared


def method_class(method: str) -> type[Method]:
    """The class of a method that can be tried, which the oracle itself cannot."""
    found = METHODS.find(method)
    if found.oracle:
        raise GudaError(
            "oracle-as-method", f"{method} is the oracle that settings are compared with; choose another method"
        )
    return found


def restricted(method: ElboMethod, groups: tuple[str, ...]) -> ElboMethod:
    """The method for these groups only; of all groups, with those above them in a tree."""
    return method if groups == method.groups else method.on(Subset(names=groups))


def fitted_oracle(run: Run, groups: tuple[str, ...]) -> ElboMethod:
    """What trials of these groups are compared with, refused where it is not there yet."""
    oracle = restricted(run_oracle(run), groups)
    if missing := [t for t in oracle.fit() if not t.done(run)]:
        raise GudaError(
            "logo-not-fitted",
            f"settings are compared with LOGO, which is not fitted for {choices(groups)} ({len(missing)} trainings "
            f"missing, first: {missing[0].name}); run: guda fit {run.root} --method logo",
        )
    return oracle


class Trials:
    """Trials of one run on one query set."""

    def __init__(self, run: Run, queries: str, groups: Sequence[str] | None = None) -> None:
        self.run, self.queries = run, load_queries(run, queries)
        names = scored_groups(run)
        self.groups = names if groups is None else tuple(g for g in names if g in groups)
        self.oracle = fitted_oracle(run, self.groups)

    def method(self, name: str, settings: Mapping[str, Any], where: str) -> Method:
        """The method with these settings; `where` begins the message when they are refused."""
        method_class(name)
        found = make_method(self.run, name, settings, where)
        return restricted(found, self.groups) if has_counterfactuals(found) else found

    def own(self, method: Method) -> bool:
        """Whether these are the recipe's own settings."""
        recipe = self.run.recipe
        return method.method_id in recipe.methods and method.config == get_method(self.run, method.method_id).config

    @staticmethod
    def label(method: Method) -> str:
        return f"{method.method_id}-{digest(method.config.model_dump(mode='json'), 8)}"

    # ---- work ---------------------------------------------------------------------------------------------

    def prepare(self, engine: Engine) -> None:
        """Score the oracle, which every trial is compared with."""
        self._score(self.oracle, engine)

    def carry_out(self, method: Method, engine: Engine) -> None:
        """Fit and score one trial; what is there already is not made again."""
        tasks = base_tasks(self.run) + self._booked(method, method.fit())
        engine(self.run, tasks, f"fit {self.label(method)}")
        if not all(t.done(self.run) for t in tasks):
            raise GudaError(
                "trial-settings-unsupported",
                f"the tasks that fit {method.method_id} do not carry its settings; only the recipe's own can be tried",
            )
        self._score(method, engine)

    def _score(self, method: Method, engine: Engine) -> None:
        name = self.label(method) if method is not self.oracle else method.method_id

        def work() -> None:
            tasks = self._booked(method, method.score(self.queries, set()))
            engine(self.run, tasks, f"score {name} on {self.queries.name}")

        prepared(self.run, [method], engine, work)

    def _stages(self, method: Method) -> tuple[list[str], list[str]]:
        """What its times are booked under: settings other than the recipe's must not overwrite the recipe's times."""
        terms = terms_folder(self.run).removeprefix("terms/")
        fit, score = method.fit_stages(), method.score_stages(self.queries.name, terms)
        if method.parts() == (method.method_id,) and method is not self.oracle and not self.own(method):
            fit, score = ([self._renamed(method, stage) for stage in stages] for stages in (fit, score))
        return fit, score

    def _renamed(self, method: Method, stage: str) -> str:
        """A stage of the method's own under the name of these settings; what it shares with others stays."""
        mine = f"score/{self.queries.name}/{method.method_id}"
        if stage == f"fit/{method.method_id}":
            return f"fit/{self.label(method)}"
        if stage == mine or stage.startswith(f"{mine}/"):
            return f"score/{self.queries.name}/{self.label(method)}{stage.removeprefix(mine)}"
        return stage

    def _booked(self, method: Method, tasks: list[Task]) -> list[Task]:
        if method is self.oracle or self.own(method):
            return tasks
        name = self.label(method)

        def booked(task: Task) -> Task:
            stage = self._renamed(method, task.stage)
            # other settings are other work: their heartbeats and times need names of their own
            return task if stage == task.stage else replace(task, stage=stage, name=f"{task.name} [{name}]")

        return [booked(t) for t in tasks]

    def fidelity(self, method: Method, engine: Engine) -> Fidelity:
        """How far a fitted trial changes the function as the oracle's retrainings do, on the same queries."""
        if not changes_function(method):
            raise GudaError(
                "function-method-unsupported",
                f"{method.method_id} has no counterfactual models that change a function; tune it by rank",
            )
        products, names = products_of(self.run, [method], self.oracle)
        engine(self.run, product_tasks(self.run, self.queries, products, 1), f"changes by {self.label(method)}")
        p, t = products.read(self.queries, 1)
        return fidelity(p, t, names, len(names) - 1, (0, run_schedule(self.run).T))[0]

    # ---- figures ------------------------------------------------------------------------------------------

    @cached_property
    def _whole(self) -> Bands:
        """Every timestep. Bare scores are all a comparison needs; errors and ranks of each trial would cost more."""
        return Bands(((0, run_schedule(self.run).T, 1.0),))

    @cached_property
    def _gold(self) -> np.ndarray:
        return self.oracle.seed_values(self.queries, [self._whole])[0]

    def compare(self, methods: Mapping[str, Method], reference: str | None = None) -> Comparison:
        """Finished trials by name, against the oracle and its ceiling on the same queries and groups."""
        config = self.run.recipe.evaluation
        columns = {k: self._columns(m) for k, m in methods.items()}
        return compare(self._gold, columns, reference, config.resamples, config.seed)

    def _columns(self, method: Method) -> np.ndarray:
        if method.counterfactuals:
            return method.values(self.queries, [self._whole])[0]
        found = method.scores(self.queries)
        return found.score[:, [found.groups.index(g) for g in self.groups]]

    def figures(self, method: Method, comparison: Comparison, name: str) -> dict[str, Any]:
        """The fields of a `Trial` (evaluation/sweep.py), without times."""
        found = comparison.methods[name]
        return self.cost(method) | {
            "metrics": found.intervals,
            "ratio_to_ceiling": found.ratio_to_ceiling or None,
            "difference": found.difference or None,
        }

    def cost(self, method: Method) -> dict[str, Any]:
        evals = method.fit_evals()
        return {
            "settings": method.config.model_dump(mode="json"),
            "fit_evals": evals,
            "score_evals": method.score_evals(),
            "evals_ratio_vs_logo": self.oracle.fit_evals() / evals if evals > 0 else None,
        }

    def seconds(self, method: Method) -> dict[str, Any]:
        fit, score = self._stages(method)
        return {"fit_seconds": stage_seconds(self.run, fit), "score_seconds": stage_seconds(self.run, score)}

    def oracle_entry(self, comparison: Comparison) -> DatasetEntry:
        """Ceiling, random rankings and LOGO's cost, without any method."""
        cost = Cost(
            fit_evals=self.oracle.fit_evals(), score_evals=self.oracle.score_evals(),
            **self.seconds(self.oracle),
        )  # fmt: skip
        estimand = run_scorer(self.run).estimand
        seeds = list(self.oracle.seed_sets())
        return dataset_entry(replace(comparison, methods={}, reference=None), seeds, estimand, {CEILING: cost})
