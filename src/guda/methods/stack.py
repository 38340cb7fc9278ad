"""stack: the scores of several methods of any kind added up, weighted as they resemble retraining on tuning pictures.

    score_qk = sum_m w_m f_m,qk,    w >= 0 by least squares to retraining's scores on pictures of a seed of their own

f_m is the member's score where it has the oracle's unit (a counterfactual by the same estimand). Any other score
(D-TRAK, a similarity, `prompt`) has a scale of its own that changes from picture to picture: it is divided by its
spread over the picture's groups, so a weight says how much of the oracle's unit one standard deviation is worth. Only
differences between the groups of one picture count, and pictures count alike.

blend weighs what methods change in the model and takes counterfactuals only; this takes everything that ranks groups,
by its scores. Weights belong to one estimand. They are kept with the digest of the pictures they were chosen on, which
are refused as queries; they need retrainings, or are taken from another run (`weights`). There is no error model: `guda
calibrate` says how far to trust the ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from guda.config import Config, QueriesConfig
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest, write_json
from guda.methods.base import Method, get_method, make_method, method
from guda.methods.combination import read_weights, refuse_tuned, tuning_pictures
from guda.methods.elbo import run_oracle
from guda.methods.terms import load_queries
from guda.run.data import scored_groups
from guda.run.plan import pilot_tasks
from guda.run.run import Run
from guda.run.samples import average_name, collect_samples, sample_tasks
from guda.run.task import Task, execute, pending, tick
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores


class StackConfig(Config):
    methods: tuple[str, ...] = Field(
        ("anchors-weighted", "dtrak"), min_length=2, description="Methods that rank groups, of any kind."
    )
    weights: dict[str, float] | None = Field(
        None, description="Of every method, in units of the oracle; null: chosen against retraining."
    )
    pictures: int = Field(64, ge=2, description="Tuning pictures that the weights are chosen on, about this many.")
    seed: int | None = Field(
        None, ge=0, description="Seed of these pictures; null: far from that of the reported ones."
    )

    @model_validator(mode="after")
    def _complete(self) -> StackConfig:
        if len(set(self.methods)) < len(self.methods):
            raise ValueError("methods are named twice")
        if self.weights is not None and (set(self.weights) != set(self.methods) or min(self.weights.values()) < 0):
            raise ValueError(f"weights: give one of 0 or more for each of {', '.join(self.methods)}")
        return self


@method("stack")
class Stack(Method):
    Config = StackConfig
    unit = "as the oracle"
    summary = "several methods' scores, of any kind, weighted as they resemble retraining on tuning pictures"
    by_terms = True

    def __init__(self, run: Run, method_id: str, config: Any) -> None:
        super().__init__(run, method_id, config)
        self.members: list[Method] = []
        for name in self.config.methods:
            found = get_method(run, name) if name != method_id else None
            if found is None or found.oracle or not found.ranks_groups or not found.scored:
                raise GudaError(
                    "member-unsupported", f"methods.{method_id}: {name!r} is not another method that ranks groups"
                )
            self.members.append(found)

    @property
    def tuning(self) -> QueriesConfig:
        """The pictures that weights are chosen on."""
        return tuning_pictures(self.run, self.method_id, self.config)

    @property
    def weights_file(self) -> str:
        """Named after what decides it: the members' settings, and the question that is asked of them."""
        scoring = self.run.recipe.scoring.model_dump(mode="json", exclude={"shard", "foreign"})
        told = {
            "config": self.config.model_dump(mode="json"), "scoring": scoring, "groups": list(scored_groups(self.run)),
            "members": {m.method_id: m.config.model_dump(mode="json") for m in self.members},
            "oracle": run_oracle(self.run).config.model_dump(mode="json"),
        }  # fmt: skip
        return f"{self.artifact(**told)}/weights.json"

    def weights(self) -> dict[str, float]:
        if self.config.weights is not None:
            return dict(self.config.weights)
        found: dict[str, float] = read_weights(self.run, self.method_id, self.weights_file)
        return found

    def parts(self) -> tuple[str, ...]:
        return tuple(self.config.methods)

    def check(self) -> None:
        for member in self.members:
            member.check()
        oracle = run_oracle(self.run)
        planned = oracle.method_id in self.run.recipe.methods and self.run.recipe.training is not None
        if self.config.weights is None and not planned and not oracle.fitted():
            raise GudaError(
                "stack-oracle-missing",
                f"{self.method_id} chooses its weights by retrainings, and {self.run.root} has none; run: guda fit "
                f"{self.run.root} --method {oracle.method_id}, or give methods.{self.method_id}.weights",
            )

    def fit(self) -> list[Task]:
        tasks = [task for member in self.members for task in member.fit()]
        if self.config.weights is not None:
            return tasks
        oracle = run_oracle(self.run)
        drawn = sample_tasks(self.run, self.tuning)
        if self.run.recipe.scoring.excess:
            drawn += sample_tasks(self.run, self.run.recipe.queries)
        made = {path for task in [*tasks, *drawn, *oracle.fit()] for path in task.makes}
        evals = oracle.score_evals() + self.score_evals() if self._planned() else 0.0
        weigh = Task(
            name=f"weigh {self.method_id}", stage=f"fit/{self.method_id}", fn="guda.methods.stack:weigh",
            args={"config": self.config.model_dump(mode="json")}, makes=(self.weights_file,),
            needs=tuple(sorted(made)), cost=float(evals * self.config.pictures),
        )  # fmt: skip
        return [*tasks, *drawn, weigh]

    def _planned(self) -> bool:
        """Whether the timesteps of scoring are known, which a cost in evaluations asks for."""
        return not pilot_tasks(self.run)

    def fitted(self) -> bool:
        known = self.config.weights is not None or self.run.has(self.weights_file)
        return known and all(member.fitted() for member in self.members)

    @property
    def free(self) -> bool:
        return False

    def fit_evals(self) -> float:
        return sum(member.fit_evals() for member in self.members)

    def score_evals(self) -> float:
        return sum(member.score_evals() for member in self.members)

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        if self.config.weights is None:
            refuse_tuned(self.run, self.method_id, self.weights_file, queries)
        return [task for member in self.members for task in member.score(queries, planned)]

    def average_tasks(self, planned: set[str], queries: Queries | None = None) -> list[Task]:
        return [task for member in self.members for task in member.average_tasks(planned, queries)]

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        weights, members = self.weights(), self.members
        found = [member.scores(queries, bands) for member in members]
        own = next((f for f, m in zip(found, members, strict=True) if m.counterfactuals), None)
        estimand = "sum of scores, weighted as they resemble retraining"
        score = sum(weights[m.method_id] * f for m, f in zip(members, features(members, found), strict=True))
        return Scores(
            method=self.method_id, unit=self.unit if own is None else own.unit,
            estimand=estimand if own is None else f"{estimand}: {own.estimand}",
            queries=queries.ids, groups=scored_groups(self.run), score=np.asarray(score, np.float64),
            n_evals=sum(f.n_evals for f in found), sign="larger = the group mattered more",
        )  # fmt: skip

    def weigh(self) -> dict[str, Any]:
        """What the file of weights holds. What the tuning pictures are not scored by yet is done here, task by task."""
        run, oracle, members = self.run, run_oracle(self.run), self.members
        queries = load_queries(run, collect_samples(run, self.tuning))
        if run.recipe.scoring.excess:
            collect_samples(run, run.recipe.queries, average_name(run))
        for task in pending(run, pilot_tasks(run)):
            execute(str(run.root), task, alone=False)
        planned: set[str] = set()
        left = pending(run, [task for found in [oracle, *members] for task in found.score(queries, planned)])
        for number, task in enumerate(left):
            execute(str(run.root), task, alone=False)
            tick(number + 1, len(left))
        columns = [oracle.groups.index(g) for g in scored_groups(run)]
        gold = oracle.scores(queries).score[:, columns]
        scores = [member.scores(queries) for member in members]
        weights = score_weights(gold, np.stack(features(members, scores)))
        found: dict[str, Any] = {
            "weights": dict(zip((m.method_id for m in members), weights.tolist(), strict=True)),
            "queries": queries.name, "pictures": queries.digest, "n": queries.n, "seeds": list(oracle.seed_sets()),
            "config": self.config.model_dump(mode="json"),
        }  # fmt: skip
        return found | {"digest": digest(found)}


def features(members: Sequence[Method], scores: Sequence[Scores]) -> list[np.ndarray]:
    """Each member's [Q, G]: its scores in the oracle's unit, or over their spread among the picture's groups."""
    found = []
    for member, one in zip(members, scores, strict=True):
        spread = one.score.std(axis=1, keepdims=True)
        found.append(one.score if member.counterfactuals else one.score / np.where(spread > 0, spread, 1.0))
    return found


def score_weights(gold: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Non-negative least squares of `gold` [Q, G] on `found` [M, Q, G], of differences within pictures, which count
    alike whatever the size of theirs."""
    from scipy.optimize import nnls

    gold = gold - gold.mean(axis=1, keepdims=True)
    found = found - found.mean(axis=2, keepdims=True)
    size = np.sqrt((gold**2).mean(axis=1, keepdims=True))
    keep = size[:, 0] > 0
    target = (gold[keep] / size[keep]).ravel()
    columns = (found[:, keep] / size[keep]).reshape(len(found), -1)
    scale = np.sqrt((columns**2).mean(axis=1))  # methods of very different size
    if not keep.any() or not scale.any():
        raise GudaError("stack-weights-zero", "no method tells the groups of the tuning pictures apart")
    weights, _ = nnls((columns / np.where(scale > 0, scale, 1.0)[:, None]).T, target)
    if not weights.any():
        raise GudaError("stack-weights-zero", "no method ranks groups as retraining does; there is nothing to stack")
    return np.asarray(weights / np.where(scale > 0, scale, 1.0))


def weigh(run: Run, config: dict[str, Any]) -> None:
    found = make_method(run, "stack", config)
    assert isinstance(found, Stack)
    write_json(run.path(found.weights_file), found.weigh())
