"""LOGO: retrain without each group, for several seeds. The oracle that every other method is compared with.

The scores of seed s are ELBO(full of seed s) - ELBO(retrained without k, seed s). Two retrainings disagree, so the
oracle is the mean over seeds, and the agreement of one with the mean of the others is the ceiling.

The seed of the model under study is not one of them: its full model IS that model, which also drew the pictures, so it
would pass for an independent retraining that it is not. It is refused before anything is trained; where a run has such
models from before, an evaluation leaves them out and says so.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from guda.config import Config
from guda.diffusion import distributed
from guda.diffusion.lora import adapted
from guda.errors import GudaError
from guda.files import digest
from guda.methods.base import get_method, method
from guda.methods.elbo import ElboMethod, Set
from guda.methods.regroup import regrouped, task_grouping
from guda.methods.terms import ModelRef
from guda.run.data import prompt_files
from guda.run.models import (
    architecture,
    drop_checkpoints,
    full_name,
    full_tasks,
    model_digest,
    need_training,
    train_evals,
    train_model,
)
from guda.run.run import Run
from guda.run.task import Task
from guda.unlearning.bank import Counterfactual


class LogoConfig(Config):
    omitted: ClassVar = {"aligned": (False,)}

    seeds: tuple[int, ...] = Field(
        (1, 2), min_length=1, description="One retraining per group for each seed; a number N means seeds 1 to N."
    )

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: Any) -> Any:
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            if not 1 <= seeds <= 1000:
                raise ValueError("a number of seeds is between 1 and 1000; or list them, e.g. [1, 2]")
            return tuple(range(1, seeds + 1))
        return seeds

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
    aligned: bool = Field(
        False,
        description="Coupled runs keep the full model's batches and put other images in the places of those left out, "
        "so that all see the same images with the same noise at the same steps; otherwise later images move up.",
    )
    own_full: bool = Field(
        True,
        description="Compare each seed with a full model trained with that seed (else with the run's model).",
    )

    @model_validator(mode="after")
    def _together(self) -> LogoConfig:
        if self.aligned and not (self.coupled and self.own_full):
            raise ValueError("aligned needs coupled and own_full: it keeps the batches of the full model of that seed")
        return self


def check_seeds(config: LogoConfig, own: int | None) -> None:
    """`own`: the seed that the model under study is trained with."""
    if own in config.seeds:
        raise GudaError(
            "logo-seed-is-training",
            f"methods.logo.seeds contains {own}, the training.seed of the model under study: that is not an "
            "independent retraining; choose other seeds, e.g. [1, 2]",
        )


@method("logo")
class Logo(ElboMethod):
    Config = LogoConfig
    summary = "retrain without each group (the oracle)"
    trains = True
    oracle = True
    bankable = True
    regroupable = True

    @property
    def folder(self) -> str:
        # seeds are not part of the name: adding one keeps the others
        aligned = {"aligned": True} if self.config.aligned else {}
        return self.artifact(coupled=self.config.coupled, training=self.run.info["locked"]["training"], **aligned)

    def seed_sets(self) -> dict[int, Set]:
        # a LOGO model is a set of weights of its own; "base" only lends the architecture, whatever `own_full` says
        return {
            seed: (
                ModelRef(self._full(seed)),
                {g: ModelRef("base", self.file(g, seed), against=self._full(seed)) for g in self.groups},
            )
            for seed in self.config.seeds
        }

    @property
    def own_seed(self) -> int | None:
        """The seed of the model under study; None where that was trained elsewhere."""
        training = self.run.recipe.training
        return None if training is None or self.run.recipe.model.path else training.seed

    def check(self) -> None:
        check_seeds(self.config, self.own_seed)

    def independent_seeds(self) -> tuple[int, ...]:
        return tuple(s for s in self.config.seeds if s != self.own_seed)

    def _full(self, seed: int) -> str:
        return full_name(seed) if self.config.own_full else "base"

    def sets(self) -> list[Set]:
        return list(self.seed_sets().values())

    def fit(self) -> list[Task]:
        need_training(self.run)
        tasks: list[Task] = []
        for seed in self.config.seeds:
            if self.config.own_full and task_grouping(self) is None:  # pairs come after their singles, which have it
                tasks += full_tasks(self.run, seed)
            tasks += [
                Task(
                    name=f"train logo-s{seed} without {group}", stage=f"fit/{self.method_id}",
                    fn="guda.methods.logo:train_logo",
                    args={"seed": seed, "group": group, "grouping": task_grouping(self)},
                    makes=(self.file(group, seed),), needs=prompt_files(self.run), cost=float(train_evals(self.run)),
                    trains=True, store="fp32",
                )
                for group in self.groups
            ]  # fmt: skip
        return tasks

    def fit_evals(self) -> float:
        """Of one seed: what one retraining per group costs."""
        return float(train_evals(self.run))


def train_logo(run: Run, seed: int, group: str, grouping: dict[str, Any] | None = None) -> float:
    logo = regrouped(get_method(run, "logo"), grouping)
    checkpoints = run.path("checkpoints", f"logo-{digest([logo.folder, seed, group])}")
    groups = None if grouping is None else logo.regrouped(group)
    trained = train_model(
        run, seed, checkpoints, groups, leave_out=group, coupled=logo.config.coupled, aligned=logo.config.aligned
    )
    if not distributed.is_main():
        return trained.earlier
    # of a base with a LoRA only the LoRA was retrained, and means something on that base alone
    base = model_digest(run, "base") if adapted(architecture(run).module) else ""
    Counterfactual("weights", group, base, f"logo-s{seed}", trained.weights).save(run.path(logo.file(group, seed)))
    return drop_checkpoints(checkpoints, trained.earlier)
