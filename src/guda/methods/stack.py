"""stack: the scores of several methods of any kind added up, weighted as they resemble retraining on tuning pictures.

    score_qk = sum_m w_m f_m,qk,    w >= 0 by least squares to retraining's scores on pictures of a seed of their own

f_m is the score of a member with counterfactuals, by the run's estimand. Any other score (D-TRAK, a similarity,
`prompt`) has a scale of its own that changes from picture to picture: it is centred and divided by its spread over the
picture's groups, so a weight says how much of the oracle's unit one standard deviation is worth. Only differences
between the groups of one picture count, and pictures count alike; the level of a sum means nothing.

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
from guda.run.models import load_model
from guda.run.plan import halve_block, needs_pilot, pilot_tasks, probe
from guda.run.run import Run
from guda.run.samples import average_name, collect_samples, sample_tasks
from guda.run.sketch import Sketch
from guda.run.task import Task, execute, pending, tick
from guda.scoring.bands import Bands
from guda.scoring.plan import OutOfMemory
from guda.scoring.reading import LOG_UNIT, NATS
from guda.scoring.scores import Scores

SEED = 4000  # of tuning pictures, beyond that of the reported ones and not that of a blend, which may be a member

UNITS = (NATS, LOG_UNIT)  # of counterfactuals, by either estimand


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
    unit = "weighted score"
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
        return tuning_pictures(self.run, self.method_id, self.config, SEED)

    @property
    def weights_file(self) -> str:
        """Named after what decides it: the members' settings and those of their parts, the question, the pictures."""
        run = self.run
        scoring, against = run.recipe.scoring, run.recipe.evaluation.against
        excess = run.excess if isinstance(run, Sketch) else scoring.excess
        told = {
            "config": self.config.model_dump(mode="json"), "groups": list(scored_groups(run)),
            "members": {name: run.recipe.settings(name) for name in sorted({*self.config.methods, *self.parts()})},
            "scoring": [scoring.estimand, excess, scoring.drift], "oracle": [against, run.recipe.settings(against)],
            "pictures": self.tuning.model_dump(mode="json"),
            "average": run.recipe.queries.model_dump(mode="json") if excess else None,
        }  # fmt: skip
        return f"{self.artifact(**told)}/weights.json"

    def weights(self) -> dict[str, float]:
        if self.config.weights is not None:
            return dict(self.config.weights)
        found: dict[str, float] = read_weights(self.run, self.method_id, self.weights_file)
        return found

    def parts(self) -> tuple[str, ...]:
        """Down to methods that combine no others, whose work and time it is."""
        return tuple(dict.fromkeys(part for member in self.members for part in member.parts()))

    def further_inputs(self) -> list[str]:
        return [digest(self.weights())]

    def fit_stages(self) -> list[str]:
        return [*super().fit_stages(), f"fit/{self.method_id}"]

    def check(self) -> None:
        for member in self.members:
            member.check()
        if self.config.weights is not None:
            return
        oracle = run_oracle(self.run)
        planned = oracle.method_id in self.run.recipe.methods and self.run.recipe.training is not None
        if not planned and not oracle.fitted():
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
        return isinstance(self.run, Sketch) or not needs_pilot(self.run)

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
        weights, found = self.weights(), [member.scores(queries, bands) for member in self.members]
        score = sum(weights[m] * f for m, f in zip(self.config.methods, features(found), strict=True))
        scoring = self.run.recipe.scoring
        asked = f"{scoring.estimand} excess" if scoring.excess else scoring.estimand
        members = ", ".join(self.config.methods)
        return Scores(
            method=self.method_id, unit=self.unit, queries=queries.ids, groups=scored_groups(self.run),
            estimand=f"sum of scores ({members}), weighted as they resemble retraining by {asked}",
            score=np.asarray(score, np.float64), n_evals=sum(f.n_evals for f in found),
            sign="larger = the group mattered more",
        )  # fmt: skip

    def weigh(self) -> dict[str, Any]:
        """What the file of weights holds."""
        run, oracle = self.run, run_oracle(self.run)
        queries = load_queries(run, collect_samples(run, self.tuning))
        if run.recipe.scoring.excess:
            collect_samples(run, run.recipe.queries, average_name(run))
        if any(member.by_terms for member in [oracle, *self.members]):
            probe(run, load_model(run, "base"))
        while True:
            try:
                self._score_tuning(queries)
                break
            except OutOfMemory:
                halve_block(run)
        columns = [oracle.groups.index(g) for g in scored_groups(run)]
        gold = oracle.scores(queries).score[:, columns]
        scores = [member.scores(queries) for member in self.members]
        weights = score_weights(gold, np.stack(features(scores)))
        found: dict[str, Any] = {
            "weights": dict(zip(self.config.methods, weights.tolist(), strict=True)),
            "queries": queries.name, "pictures": queries.digest, "n": queries.n, "seeds": list(oracle.seed_sets()),
            "config": self.config.model_dump(mode="json"), "scoring": run.recipe.scoring.model_dump(mode="json"),
        }  # fmt: skip
        return found | {"digest": digest(found)}

    def _score_tuning(self, queries: Queries) -> None:
        """What the tuning pictures are not scored by yet, task by task in this process."""
        run = self.run
        for task in pending(run, pilot_tasks(run)):
            execute(str(run.root), task, alone=False)
        planned: set[str] = set()
        every = [task for found in [run_oracle(run), *self.members] for task in found.score(queries, planned)]
        left = pending(run, every)
        for number, task in enumerate(left):
            execute(str(run.root), task, alone=False)
            tick(number + 1, len(left))


def features(scores: Sequence[Scores]) -> list[np.ndarray]:
    """Each member's [Q, G]: scores of counterfactuals as they are; others less their mean over the picture's groups,
    and over their spread among these."""
    found = []
    for one in scores:
        if one.unit in UNITS:
            found.append(one.score)
            continue
        centred = one.score - one.score.mean(axis=1, keepdims=True)
        spread = centred.std(axis=1, keepdims=True)
        found.append(centred / np.where(spread > 0, spread, 1.0))
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
