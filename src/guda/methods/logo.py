"""LOGO: retrain without each group, for several seeds. The oracle every other method is judged by (SPEC section 3).

The scores of seed s are ELBO(full of seed s) - ELBO(retrained without k, seed s). Two retrainings disagree, so the
oracle is the mean over seeds, and the agreement of one with the mean of the others is the ceiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from guda.config import Config
from guda.data.groups import Groups
from guda.data.queries import Queries
from guda.diffusion import distributed
from guda.files import digest
from guda.methods.base import get_method, method
from guda.methods.elbo import ElboMethod
from guda.methods.terms import ModelRef
from guda.run.models import (
    drop_checkpoints,
    full_name,
    full_tasks,
    need_training,
    prompt_files,
    train_evals,
    train_model,
)
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores
from guda.unlearning.bank import Counterfactual, file_name


class LogoConfig(Config):
    seeds: tuple[int, ...] = Field((1, 2), min_length=1, description="One retraining per group for each seed.")

    @field_validator("seeds")
    @classmethod
    def _different(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds) or min(seeds) < 0:  # one twice would pass for perfect agreement
            raise ValueError("seeds must be different whole numbers, 0 or more")
        return seeds

    coupled: bool = Field(
        True,
        description="Runs of one seed share initial weights, batch order up to the left-out images, and noise.",
    )
    own_full: bool = Field(
        True,
        description="Compare each seed with a full model trained with that seed (else with the run's model).",
    )


@method("logo")
class Logo(ElboMethod):
    Config = LogoConfig
    summary = "retrain without each group (the oracle)"
    trains = True

    @property
    def folder(self) -> str:
        # seeds are not part of the name: adding one keeps the others
        return self.artifact(coupled=self.config.coupled, training=self.run.info["locked"]["training"])

    def file(self, seed: int, group: str) -> str:
        return f"{self.folder}/s{seed}/{file_name(self.number(group), group)}"

    def _full(self, seed: int) -> ModelRef:
        return ModelRef(full_name(seed) if self.config.own_full else "base")

    def seed_set(self, seed: int) -> tuple[ModelRef, dict[str, ModelRef]]:
        # a LOGO model is a set of weights of its own; "base" only lends the architecture, whatever `own_full` says
        return self._full(seed), {g: ModelRef("base", self.file(seed, g)) for g in self.groups}

    def sets(self) -> list[tuple[ModelRef, dict[str, ModelRef]]]:
        return [self.seed_set(seed) for seed in self.config.seeds]

    def fit(self) -> list[Task]:
        need_training(self.run)
        tasks: list[Task] = []
        for seed in self.config.seeds:
            if self.config.own_full:
                tasks += full_tasks(self.run, seed)
            tasks += [
                Task(
                    name=f"train logo-s{seed} without {group}", stage="fit/logo", fn="guda.methods.logo:train_logo",
                    args={"seed": seed, "group": group}, makes=(self.file(seed, group),),
                    needs=prompt_files(self.run), cost=float(train_evals(self.run)), trains=True,
                    store="fp32",
                )
                for group in self.groups
            ]  # fmt: skip
        return tasks

    def seed_scores(self, queries: Queries, seed: int) -> Scores:
        """LOGOA of one retraining."""
        return self.all_scores(queries)[f"logo-s{seed}"]

    def all_scores(self, queries: Queries, bands: Bands | None = None) -> dict[str, Scores]:
        """The mean over seeds (`logo`) and every seed by itself (`logo-s<seed>`), from one reading of the terms."""
        read = self.reader(queries, bands)
        found = {self.method_id: self.combine(queries, self.sets(), self.method_id, read, bands)}
        for seed in self.config.seeds:
            name = f"logo-s{seed}"
            found[name] = self.combine(queries, [self.seed_set(seed)], name, read, bands)
        return found

    def seed_values(self, queries: Queries, bands: Sequence[Bands]) -> list[np.ndarray]:
        """The bare scores of every seed by itself, [seeds, Q, G] for each of `bands`."""
        read = self.reader(queries)
        found = [self._values([self.seed_set(seed)], read, bands) for seed in self.config.seeds]
        return [np.stack(of_band) for of_band in zip(*found, strict=True)]

    def round_values(self, queries: Queries, bands: Bands | None = None) -> np.ndarray:
        """The oracle's scores, mean over seeds, by every round of draws alone: [rounds, Q, G]."""
        return np.asarray(self.contributions(self.sets(), self.reader(queries, bands)).sum(axis=-1))

    def fit_evals(self) -> float:
        """Of one seed: what one retraining per group costs."""
        return float(train_evals(self.run))


def train_logo(run: Run, seed: int, group: str) -> float:
    found: Any = get_method(run, "logo")
    return train_without(found, seed, group, found.file(seed, group))


def train_without(logo: Logo, seed: int, group: str, file: str, groups: Groups | None = None) -> float:
    """A retraining without `group`, kept in `file`; `groups`: the grouping it is one of, if not the run's own."""
    run = logo.run
    checkpoints = run.path("checkpoints", f"logo-{digest([logo.folder, seed, group])}")
    trained = train_model(run, seed, checkpoints, groups, leave_out=group, coupled=logo.config.coupled)
    if not distributed.is_main():
        return trained.earlier
    Counterfactual("weights", group, "", f"logo-s{seed}", trained.weights).save(run.path(file))
    return drop_checkpoints(checkpoints, trained.earlier)
