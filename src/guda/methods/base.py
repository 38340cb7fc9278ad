"""A method: fit once, then score any picture.

    fit()            -> tasks whose files are the method's artifact
    score(queries)   -> tasks whose files its scores need
    scores(queries)  -> Scores, arithmetic on finished files

LOGO, every unlearning operator and every baseline share this, so a comparison is a loop and a plug-in is one file: a
class decorated with `@method("my-id")`, in a module named in METHODS or under the entry-point group `guda.methods`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from guda.config import Config, parse_config
from guda.data.queries import Queries
from guda.files import digest
from guda.registry import Registry
from guda.run.data import scored_groups
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores


class Method(ABC):
    id: ClassVar[str]
    Config: ClassVar[type[Config]]
    unit: ClassVar[str] = "nats"
    summary: ClassVar[str] = ""  # one line: what it does

    # what it can do; everything that asks goes by these, never by the class
    ranks_groups: ClassVar[bool] = True  # False: a reference row, which no ranking is compared with
    trains: ClassVar[bool] = False  # fitting it trains whole models, so the recipe needs a `training` section
    counterfactuals: ClassVar[bool] = False  # it is an ElboMethod: one model without each group (methods/elbo.py)
    oracle: ClassVar[bool] = False  # retrained for several seeds: other methods are judged by it, it is not raced
    by_terms: ClassVar[bool] = False  # its scores are made of terms of models, which need a plan of timesteps
    scored: ClassVar[bool] = True  # False: it makes models that others score by, and has no scores itself
    unlearns: ClassVar[bool] = False  # by an operator, one group at a time
    has_log_p: ClassVar[bool] = False  # each of its models has a density, so scores can be had by likelihood as well

    @property
    def regroupable(self) -> bool:
        """Whether it takes out any set of images, not only the data's own groups (methods/regroup.py)."""
        return False

    def __init__(self, run: Run, method_id: str, config: Any) -> None:
        self.run, self.method_id, self.config = run, method_id, config

    @abstractmethod
    def fit(self) -> list[Task]: ...

    @abstractmethod
    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        """`planned`: keys of models that another method's tasks evaluate already; this one adds its own."""

    @abstractmethod
    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        """`bands`: count these timesteps only; a method without timesteps answers the same for all of them."""

    def values(self, queries: Queries, bands: Sequence[Bands]) -> list[np.ndarray]:
        """The bare scores [Q, G] counting each of `bands` only, without errors and ranks, which cost more."""
        return [self.scores(queries, b).score for b in bands]

    def replicates(self) -> tuple[int, ...]:
        """Numbers of its independent repetitions, if there are several: their scores by themselves are `<id>-s<n>`."""
        return ()

    def independent_seeds(self) -> tuple[int, ...]:
        """Those of `replicates` that count as trainings of their own."""
        return self.replicates()

    def seed_values(self, queries: Queries, bands: Sequence[Bands]) -> list[np.ndarray]:
        """The bare scores of every repetition by itself, [repetitions, Q, G] for each of `bands`; of oracles."""
        raise NotImplementedError(self.method_id)

    def round_values(self, queries: Queries, bands: Bands | None = None) -> np.ndarray:
        """Scores by every round of draws alone, [rounds, Q, G]; of oracles."""
        raise NotImplementedError(self.method_id)

    def average_tasks(self, planned: set[str], queries: Queries | None = None) -> list[Task]:
        """What evaluates its models on the average's pictures, unless these are the queries; see `score`."""
        return []

    def all_scores(self, queries: Queries, bands: Bands | None = None) -> dict[str, Scores]:
        """Its scores, and those of every repetition by itself, from one reading of the files."""
        return {self.method_id: self.scores(queries, bands)}

    def fit_evals(self) -> float:
        """Evaluation units per group, without theta_full: by default of all tasks that train no model."""
        return sum(task.cost for task in self.fit() if not task.trains) / len(scored_groups(self.run))

    def score_evals(self) -> float:
        """Evaluation units per query; by default no network is evaluated."""
        return 0.0

    def artifact(self, **identity: Any) -> str:
        """Folder of what `fit` makes, named after the settings that made it."""
        value = identity or self.config.model_dump(mode="json")
        return f"artifacts/{self.id}-{digest(value, 8)}"

    def parts(self) -> tuple[str, ...]:
        """Methods whose work this one's scores are made of, for adding up time; itself, unless it combines others."""
        return (self.method_id,)

    def further_inputs(self) -> list[str]:
        """Digests of what its scores depend on beside settings and models, such as weights chosen by retraining."""
        return []

    def fit_stages(self) -> list[str]:
        """What the time of fitting it is booked under."""
        return [f"fit/{part}" for part in self.parts()]

    def score_stages(self, queries: str, terms: str) -> list[str]:
        """The same of scoring a set; `terms`: the folder of terms, which names plan and precision."""
        return [f"score/{queries}/{part}{end}" for part in self.parts() for end in (f"/{terms}", "")]

    def check(self) -> None:
        """Refuse a run that the method is not defined for, before anything is trained for it."""
        for name in self.parts():
            if name != self.method_id:
                get_method(self.run, name).check()

    @classmethod
    def check_weights(cls, config: Any) -> None:
        """Refuse, before anything is trained, where weights that it needs beside the run's model cannot be loaded."""
        return

    def fitted(self) -> bool:
        return all(task.done(self.run) for task in self.fit())

    @property
    def free(self) -> bool:
        """Whether fitting it evaluates no network of the run's: then scoring fits it by itself."""
        return not self.oracle and not any(task.cost or task.trains for task in self.fit())


METHODS = Registry[type[Method]](
    "method",
    "guda.methods",
    [
        f"guda.methods.{name}"
        for name in (
            "blend", "datamodel", "distilled", "gradient", "hybrid", "logo", "nda", "posterior", "pretrained", "prompt",
            "similarity", "stack", "subsets", "synthesized", "unlearned",
        )
    ],
)  # fmt: skip
method = METHODS.register  # decorator: a method under its id


def make_method(run: Run, name: str, settings: Mapping[str, Any], where: str = "") -> Method:
    """The method `name` with these settings; `where` begins the message when they are refused."""
    cls = METHODS.find(name)
    return cls(run, name, parse_config(cls.Config, dict(settings), where or name))


def get_method(run: Run, name: str) -> Method:
    """The method `name` with the run's settings for it."""
    return make_method(run, name, run.recipe.settings(name), f"methods.{name}")
