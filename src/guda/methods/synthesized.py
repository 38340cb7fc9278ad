"""synthesized: unlearn the query, see which training images are forgotten with it (baselines/synthesized.py).

    artifacts/synthesized-<weights, images, seed>/fisher-<pass>.safetensors     the diagonal Fisher information
    artifacts/synthesized-<images, levels, seed>/losses.safetensors             training losses of the untouched model
    artifacts/synthesized-<all that decides>/<shard of queries>.safetensors     loss changes at every checkpoint

Which checkpoint counts and how images become groups is decided when scores are read, so both can be changed for free.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from guda.baselines.aggregate import PATTERN, by_group
from guda.baselines.gradients import regular_expression
from guda.baselines.similarity import exemplars
from guda.config import Config
from guda.data.queries import Queries
from guda.errors import GudaError, NotFinite
from guda.methods.base import Method, method
from guda.methods.terms import shard_names
from guda.run.data import load_data, prompt_files, scored_groups
from guda.run.models import architecture, count_weights, model_files
from guda.run.settings import run_settings
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores

SHARD = 16  # queries of one task: what a kill loses at most

WORK = "guda.methods.synthesized_work"


class SynthesizedConfig(Config):
    weights: str = Field(
        "auto",
        description="Which weights move: all, those whose name a regular expression finds, or auto: the keys and "
        "values of cross-attention in text-to-image models, all in others.",
    )
    lr: float = Field(0.01, ge=0, description="Size of the steps, see scale; 0.1 with scale: n is the paper's.")
    scale: Literal["length", "n", "none"] = Field(
        "length",
        description="length: steps along g/(F + damping) of one length, all together as long as lr times the weights; "
        "n: lr/N g/(F + damping) for N training images, which diverges where a network fits well; none: without 1/N.",
    )
    steps: int = Field(100, gt=0, description="Steps of unlearning a query.")
    checkpoints: tuple[int, ...] = Field(
        (10, 25, 50, 100), description="Steps after which losses are taken, up to `steps`, which always is one."
    )
    at: int | None = Field(None, gt=0, description="The checkpoint that scores are read at; null: the last.")
    levels: int = Field(10, gt=0, description="Timesteps of one step, and of a training image's loss.")
    per_group: int | None = Field(20, gt=0, description="Images that stand for a group, drawn by its name; null: all.")
    flips: bool = Field(
        False, description="Also follow mirrored training images; the larger change of each pair counts."
    )
    fisher_passes: int = Field(5, gt=0, description="Times that the Fisher information sees each of its images.")
    fisher_images: int | None = Field(1000, gt=0, description="Training images that it is taken over; null: all.")
    damping: float = Field(1e-3, gt=0, description="Added to the Fisher information, in units of its mean.")
    cap: float = Field(1.0, gt=0, description="The ascent has diverged once the weights moved by this of their length.")
    order: Literal["steps", "first"] = Field(
        "steps", description="steps: ascend and evaluate; first: to first order in lr, products of gradients only."
    )
    aggregate: str = Field(
        "sum", pattern=PATTERN, description="From a group's images to its score: sum, mean, max, median or top<m>."
    )
    per_sample: Literal["vmap", "loop"] = Field(
        "vmap", description="How gradients of single samples are taken; loop where a network cannot be batched."
    )
    seed: int = Field(0, ge=0, description="Seed of timesteps, noise and the images of the Fisher information.")

    @field_validator("weights")
    @classmethod
    def _expression(cls, value: str) -> str:
        return regular_expression(value)

    @model_validator(mode="after")
    def _together(self) -> SynthesizedConfig:
        if any(c < 1 for c in self.checkpoints) or list(self.checkpoints) != sorted(set(self.checkpoints)):
            raise ValueError(f"checkpoints {list(self.checkpoints)} must be numbers of steps, increasing")
        if self.at is not None and self.at not in self.reached:
            raise ValueError(f"at = {self.at} is no checkpoint; losses are taken after {list(self.reached)} steps")
        return self

    @property
    def reached(self) -> tuple[int, ...]:
        return (*(c for c in self.checkpoints if c < self.steps), self.steps)

    @property
    def place(self) -> int:
        """Where among the checkpoints scores are read."""
        return self.reached.index(self.at or self.steps)


@method("synthesized")
class Synthesized(Method):
    Config = SynthesizedConfig
    unit = "loss"
    summary = "unlearn the picture; the loss that each group's images gain with it, positive = helps (a baseline)"

    # ---- names ----------------------------------------------------------------------------------------------

    def _named(self, *fields: str) -> dict[str, Any]:
        """Those settings, and what else decides the last bits."""
        value = self.config.model_dump(mode="json", include=set(fields))
        return value | {"block": run_settings(self.run).block}

    def fisher_file(self, number: int) -> str:
        folder = self.artifact(part="fisher", **self._named("weights", "fisher_images", "per_sample", "seed"))
        return f"{folder}/fisher-{number}.safetensors"

    @property
    def _images(self) -> dict[str, Any]:
        groups = self.run.recipe.scoring.groups
        return self._named("per_group", "flips", "levels", "seed") | {"groups": groups and list(groups)}

    @property
    def losses_file(self) -> str:
        return f"{self.artifact(part='losses', **self._images)}/losses.safetensors"

    @property
    def folder(self) -> str:
        decide = ["weights", "lr", "scale", "damping", "fisher_passes", "fisher_images", "order", "per_sample"]
        decide += [] if self.config.order == "first" else ["cap"]
        return self.artifact(part="changes", at=list(self.config.reached), **(self._images | self._named(*decide)))

    def file(self, shard: str) -> str:
        return f"{self.folder}/{shard}.safetensors"

    # ---- work -----------------------------------------------------------------------------------------------

    @cached_property
    def chosen(self) -> list[np.ndarray]:
        """The images that stand for each asked group (positions)."""
        data = load_data(self.run)
        return [exemplars(data, data.groups.index(name), self.config.per_group) for name in scored_groups(self.run)]

    @property
    def _losses_evals(self) -> int:
        """One evaluation of every training sample."""
        copies = 2 if self.config.flips else 1
        return sum(map(len, self.chosen)) * copies * self.config.levels

    @cached_property
    def _weights(self) -> int:
        """Numbers that a pass of the Fisher information is kept for."""
        from guda.methods.synthesized_work import pattern

        return count_weights(self.run, pattern(architecture(self.run), self.config))

    @property
    def _pass_evals(self) -> int:
        n = load_data(self.run).n
        return 3 * min(self.config.fisher_images or n, n)

    def check(self) -> None:
        from guda.baselines.features import grid
        from guda.baselines.gradients import chosen_weights
        from guda.methods.synthesized_work import pattern

        model = architecture(self.run)
        if model.conditional and self.run.recipe.prompts is None:
            raise GudaError(
                "training-prompts-missing",
                f"{self.method_id} is not defined for conditional models without prompts of the training images",
            )
        grid(model.schedule.T, self.config.levels)
        chosen_weights(model, pattern(model, self.config))

    def fit(self) -> list[Task]:
        needs = model_files(self.run, "base") + prompt_files(self.run)
        args = {"config": self.config.model_dump(mode="json")}
        stage = f"fit/{self.method_id}"
        passes = [
            Task(
                name=f"fit {self.method_id}: Fisher information, pass {i}", stage=stage, fn=f"{WORK}:fit_fisher",
                args=args | {"number": i}, makes=(self.fisher_file(i),), needs=needs, cost=float(self._pass_evals),
                bytes=8 * self._weights,
            )
            for i in range(self.config.fisher_passes)
        ]  # fmt: skip
        losses = Task(
            name=f"fit {self.method_id}: losses", stage=stage, fn=f"{WORK}:fit_losses", args=args,
            makes=(self.losses_file,), needs=needs, cost=float(self._losses_evals),
        )  # fmt: skip
        return [*passes, losses]

    def fitted(self) -> bool:
        passes = [self.fisher_file(i) for i in range(self.config.fisher_passes)]
        return all(map(self.run.has, [*passes, self.losses_file]))

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        shards = shard_names(queries, SHARD)
        needs = tuple(path for task in self.fit() for path in (*task.makes, *task.needs))
        return [
            Task(
                name=f"score {queries.name}/{number} by {self.method_id}",
                stage=f"score/{queries.name}/{self.method_id}",
                fn=f"{WORK}:score_shard",
                args={"config": self.config.model_dump(mode="json"), "queries": queries.name, "shard": number},
                makes=(self.file(shard),), needs=tuple(dict.fromkeys(needs)),
                cost=self.score_evals() * min(SHARD, queries.n - number * SHARD),
            )
            for number, shard in enumerate(shards)
        ]  # fmt: skip

    # ---- scores ---------------------------------------------------------------------------------------------

    def changes(self, queries: Queries) -> np.ndarray:
        """float64 [queries, images]: tau at the checkpoint of the settings; of flip pairs the larger."""
        from guda.methods.synthesized_work import read

        place, step = self.config.place, self.config.reached[self.config.place]
        parts = [read(self.run, self.file(shard))["change"].numpy() for shard in shard_names(queries, SHARD)]
        copies = 2 if self.config.flips else 1
        found = np.concatenate(parts)[:, place].reshape(queries.n, copies, -1).max(axis=1)
        if (lost := np.flatnonzero(~np.isfinite(found).all(axis=1))).size:
            raise NotFinite(
                "unlearning-diverged",
                f"{self.method_id}: unlearning {queries.ids[lost[0]]!r} ({len(lost)} of {queries.n} queries) diverged "
                f"before step {step}; set lr lower, scale to length, or at to fewer steps",
            )
        return found

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        tau = self.changes(queries)
        ends = np.cumsum([len(members) for members in self.chosen])
        places = [np.arange(end - len(members), end) for end, members in zip(ends, self.chosen, strict=True)]
        config = self.config
        how = "to first order" if config.order == "first" else f"after {config.reached[config.place]} steps"
        return Scores(
            method=self.method_id, unit=self.unit,
            estimand=f"{config.aggregate} of training losses gained by unlearning the query, {how}",
            queries=queries.ids, groups=scored_groups(self.run),
            score=by_group(lambda images: tau[:, images], places, config.aggregate),
            n_evals=round(self._ascent_evals + self._after_evals / len(self.chosen)),  # the ascent serves all groups,
            sign="positive = the images help",
        )  # fmt: skip

    def fit_evals(self) -> float:
        return (self._pass_evals * self.config.fisher_passes + self._losses_evals) / len(scored_groups(self.run))

    def score_evals(self) -> float:
        return self._ascent_evals + self._after_evals

    @property
    def _ascent_evals(self) -> float:
        return 3.0 * self.config.steps * self.config.levels

    @property
    def _after_evals(self) -> float:
        """Training losses at each checkpoint; to first order their gradients, once for the queries of a task."""
        if self.config.order == "first":
            return 3 * self._losses_evals / SHARD
        return float(len(self.config.reached) * self._losses_evals)
