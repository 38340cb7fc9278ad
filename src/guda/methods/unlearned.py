"""GUDA: every unlearning operator as a method. The run's model with each group unlearned, one task per group."""

from __future__ import annotations

from typing import Any

import guda.unlearning.operators  # noqa: F401  registers the operators
from guda.config import parse_config
from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import write_json
from guda.methods.base import METHODS
from guda.methods.elbo import ElboMethod
from guda.methods.reference import reference, reference_scores, reference_tasks
from guda.methods.terms import ModelRef
from guda.run import progress
from guda.run.models import (
    architecture,
    conditional_name,
    conditional_tasks,
    load_data,
    load_model,
    load_prompts,
    model_files,
    need_training,
    prompt_files,
    training_inputs,
)
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.drift import Drift, measure
from guda.unlearning.bank import file_name
from guda.unlearning.unlearn import OPERATORS, Operator, check_groups, check_kind, flips, unlearn_group


class Unlearned(ElboMethod):
    @property
    def operator(self) -> type[Operator]:
        return OPERATORS[self.method_id]

    @property
    def folder(self) -> str:
        return self.artifact()

    def file(self, group: str) -> str:
        return f"{self.folder}/{file_name(self.number(group), group)}"

    def sets(self) -> list[tuple[ModelRef, dict[str, ModelRef]]]:
        return [(ModelRef("base"), {g: ModelRef("base", self.file(g)) for g in self.groups})]

    def check(self) -> None:
        check_kind(self.method_id, architecture(self.run).conditional)
        check_groups(self.method_id, load_data(self.run).groups, self.groups)

    def nodes(self) -> tuple[str, ...]:
        """The groups, and of a tree those above them, which a descent asks first; files are few and small."""
        known = load_data(self.run).groups
        if self.only is not None or not self.operator.regroupable:
            return self.groups
        above = {j for g in self.groups for j in known.above(known.index(g))}
        return tuple(known.names[k] for k in sorted(above)) + self.groups

    def passes(self, group: str) -> float:
        """How many times the steps of a leaf: a group above others is as much larger, and an epoch of unlearning is one
        pass over the forget set (SPEC section 4). Leaves have the same number of steps whatever their sizes."""
        known = load_data(self.run).groups
        if group in known.leaf_names:
            return 1.0
        mean = sum(known.sizes[k] for k in known.leaves) / len(known.leaves)
        return max(1.0, known.sizes[known.index(group)] / mean)

    def fit(self) -> list[Task]:
        if self.trains and self.run.recipe.training is None:
            raise GudaError(
                "training-section-missing",
                f"{self.method_id} asks a group-conditional model that is trained here, and the recipe of "
                f"{self.run.root} has no `training` section; leave {self.method_id} out",
            )
        before = conditional_tasks(self.run) if self.operator.needs_conditional else []
        needs = model_files(self.run, "base") + tuple(path for task in before for path in task.makes)
        needs += prompt_files(self.run)
        return before + [
            Task(
                name=f"fit {self.method_id} without {group}", stage=f"fit/{self.method_id}",
                fn="guda.methods.unlearned:fit_group",
                args={"method": self.method_id, "config": self.config.model_dump(mode="json"), "group": group},
                makes=(self.file(group),), needs=needs, cost=float(self.fit_evals() * self.passes(group)),
                store=self.config.store,
            )
            for group in self.nodes()
        ]  # fmt: skip

    def fitted(self) -> bool:
        return all(self.run.has(self.file(group)) for group in self.groups)

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        tasks = super().score(queries, planned)
        if self.run.recipe.scoring.drift == "subtract":
            tasks += reference_tasks(self, reference(self.run), planned)
        return tasks

    def drift(self, bands: Bands | None = None) -> Drift | None:
        if self.run.recipe.scoring.drift == "keep":
            return None
        images = reference(self.run)
        return measure(reference_scores(self, images, bands), self.outside(images.index))

    def fit_evals(self) -> float:
        return float(self.operator.fit_evals(self.config))


for _id, _operator in OPERATORS.items():
    METHODS[_id] = type(
        f"Unlearned_{_id}",
        (Unlearned,),
        {
            "id": _id,
            "Config": _operator.Config,
            "summary": _operator.summary,
            "trains": _operator.needs_conditional,
        },
    )


def fit_group(run: Run, method: str, config: dict[str, Any], group: str) -> None:
    """The settings come with the task, not from the recipe: tuning and ablations fit the same operator with several."""
    found = METHODS[method](run, method, parse_config(OPERATORS[method].Config, config, method))
    assert isinstance(found, Unlearned)
    fit_without(found, load_data(run), group, found.file(group), found.passes(group))


def fit_without(found: Unlearned, data: ImageData, group: str, file: str, passes: float = 1.0) -> None:
    """The run's model with `group` of `data` unlearned, kept in `file`; `data` may group the run's images otherwise.
    `passes`: so many times the steps of the method's settings."""
    run, conditional = found.run, None
    if found.operator.needs_conditional:
        conditional = load_model(run, conditional_name(need_training(run).seed))
    notes: dict[str, Any] = {}
    model, prompts = load_model(run, "base"), None if run.recipe.prompts is None else load_prompts(run)
    latents, _ = training_inputs(run, model, flips(found.config))
    config = found.config.model_copy(update={"steps": round(found.config.steps * passes)})
    made = unlearn_group(
        model, data, group, found.method_id, config, progress.tick, conditional, notes, prompts, latents
    )
    path = run.path(file)
    if notes:  # first: the counterfactual says that the task is done
        write_json(path.with_suffix(".json"), notes)
    made.save(path)
