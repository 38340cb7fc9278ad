"""GUDA: every unlearning operator as a method. The run's model with each group unlearned, one task per group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from guda.data.queries import Queries
from guda.errors import GudaError
from guda.files import digest, write_json
from guda.methods.base import METHODS, Method, make_method
from guda.methods.elbo import ElboMethod, Set
from guda.methods.reference import reference, reference_scores, reference_tasks
from guda.methods.regroup import regrouped, task_grouping
from guda.methods.terms import ModelRef, control_ref
from guda.run.data import load_data, prompt_files
from guda.run.models import (
    architecture,
    conditional_name,
    conditional_tasks,
    conditioning,
    load_model,
    model_files,
    need_training,
    run_classes,
    training_inputs,
)
from guda.run.run import Run
from guda.run.task import Task, tick
from guda.scoring.bands import Bands
from guda.scoring.reference import Drift, measure_drift
from guda.unlearning.bank import CONTROL_FILE
from guda.unlearning.unlearn import (
    CONTROL,
    OPERATORS,
    Operator,
    check_groups,
    check_kind,
    flips,
    unlearn_group,
    unlearn_together,
)


class Unlearned(ElboMethod):
    operator: ClassVar[type[Operator]]
    unlearns = True
    bankable = True

    @property
    def regroupable(self) -> bool:
        return self.operator.regroups(self.config)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Placebos have one: what random groups score must not depend on how often they are repeated."""
        once = self.grouping is not None and not self.grouping.repeated
        return (self.config.seed,) if once or not self.config.seeds else self.config.seeds

    @property
    def folder(self) -> str:
        # seeds are not part of the name: adding one keeps the others
        return self.artifact(**{k: v for k, v in self.config.model_dump(mode="json").items() if k != "seeds"})

    def file(self, group: str, seed: int | None = None) -> str:
        """Of the settings' own seed, the file is where it is without `seeds`."""
        return super().file(group, None if seed == self.config.seed else seed)

    @property
    def origin(self) -> str:
        """The model that is changed."""
        return "start" if self.operator.from_start else "base"

    @property
    def settings(self) -> Any:
        """Its settings, with what the recipe's training decides."""
        return self.operator.settle(self.config, self.run.recipe.training)

    def control(self, seed: int) -> str:
        """Of a coupled operator: the file of what its groups are compared with, whichever groups these are."""
        return f"{self.folder}/{CONTROL_FILE}" if seed == self.config.seed else f"{self.folder}/s{seed}/{CONTROL_FILE}"

    def sets(self) -> list[Set]:
        def one(seed: int) -> Set:
            if not self.operator.coupled:
                return ModelRef("base"), {g: ModelRef("base", self.file(g, seed)) for g in self.groups}
            file = self.control(seed)
            refs = {g: ModelRef(self.origin, self.file(g, seed), against=file) for g in self.groups}
            return control_ref(self.origin, file), refs

        return [one(seed) for seed in self.seeds]

    def seed_sets(self) -> dict[int, Set]:
        return dict(zip(self.seeds, self.sets(), strict=True)) if len(self.seeds) > 1 else {}

    def check(self) -> None:
        classes, groups = run_classes(self.run), load_data(self.run).groups
        for group in self.groups:  # some may be whole classes, and others not
            check_kind(
                self.id, architecture(self.run).kind, classes is not None and bool(classes.emptied(groups, group))
            )
        if classes is not None:
            self.operator.check_classes(self.config, classes)
        if self.operator.from_start and self.run.recipe.model.start is None:
            raise GudaError(
                "pretrained-start-missing",
                f"{self.method_id} retrains from the pretrained start, and the recipe of {self.run.root} names none "
                "(model.start); use continuation",
            )
        self.operator.settle(self.config, self.run.recipe.training)
        check_groups(self.id, load_data(self.run).groups, self.groups)

    def nodes(self) -> tuple[str, ...]:
        """The groups, and of a tree those above them, which a descent asks first; files are few and small."""
        known = load_data(self.run).groups
        if self.grouping is not None or not self.regroupable:
            return self.groups
        above = {j for g in self.groups for j in known.above(known.index(g))}
        return tuple(known.names[k] for k in sorted(above)) + self.groups

    def passes(self, group: str) -> float:
        """How many times the steps of a leaf: a group above others is as much larger, and an epoch of unlearning is one
        pass over the forget set. Leaves have the same number of steps whatever their sizes, and so have all groups
        that share a control."""
        if self.operator.coupled or self.operator.together:
            return 1.0
        if self.grouping is not None and self.grouping.passes is not None:
            return self.grouping.passes
        known = load_data(self.run).groups
        if group in known.leaf_names:
            return 1.0
        mean, whole = sum(known.sizes[k] for k in known.leaves) / len(known.leaves), self.regrouped(group)
        return max(1.0, whole.sizes[whole.index(group)] / mean)

    def fit(self) -> list[Task]:
        if self.trains and self.run.recipe.training is None:
            raise GudaError(
                "training-section-missing",
                f"{self.method_id} asks a group-conditional model that is trained here, and the recipe of "
                f"{self.run.root} has no `training` section; leave {self.method_id} out",
            )
        before = conditional_tasks(self.run) if self.operator.needs_conditional else []
        needs = model_files(self.run, self.origin) + tuple(path for task in before for path in task.makes)
        needs += prompt_files(self.run)
        config = self.config.model_copy(update={"seeds": ()}).model_dump(mode="json")

        def task(group: str, seed: int) -> Task:
            further = {} if seed == self.config.seed else {"seed": seed}
            said = "".join(f", seed {s}" for s in further.values())
            return Task(
                name=f"fit {self.id} without {group}{said}", stage=f"fit/{self.method_id}",
                fn="guda.methods.unlearned:fit_group",
                args={"method": self.id, "config": config, "group": group, "grouping": task_grouping(self)} | further,
                makes=(self.path(group, seed),), needs=needs, cost=evals * self.passes(group), store=self.config.store,
            )  # fmt: skip

        evals = float(self.operator.fit_evals(self.settings))
        if self.operator.together and self.grouping is None:  # else bits would depend on what else is asked
            return [self._together(seed, config, needs, evals) for seed in self.seeds]
        also = (CONTROL,) if self.operator.coupled else ()
        return before + [task(group, seed) for seed in self.seeds for group in also + self.nodes()]

    def _together(self, seed: int, config: dict[str, Any], needs: tuple[str, ...], evals: float) -> Task:
        """One pass for all groups, or for those that are still missing."""
        every = self.nodes()
        groups = [g for g in every if not self.run.has(self.path(g, seed))] or list(every)
        further = {} if seed == self.config.seed else {"seed": seed}
        said = "".join(f", seed {s}" for s in further.values())
        return Task(
            name=f"fit {self.id}, {len(groups)} groups ({digest(groups, 6)}){said}", stage=f"fit/{self.method_id}",
            fn="guda.methods.unlearned:fit_together",
            args={"method": self.id, "config": config, "groups": groups} | further,
            makes=tuple(self.path(g, seed) for g in groups), needs=needs, cost=evals, store=self.config.store,
            copies=len(groups),
        )  # fmt: skip

    def path(self, group: str, seed: int | None = None) -> str:
        """Its file, that of the control included."""
        return self.control(self.config.seed if seed is None else seed) if group == CONTROL else self.file(group, seed)

    def fitted(self) -> bool:
        also = (CONTROL,) if self.operator.coupled else ()
        return all(self.run.has(self.path(group, seed)) for seed in self.seeds for group in also + self.groups)

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        tasks = super().score(queries, planned)
        if self.run.recipe.scoring.drift == "subtract" and (self.grouping is None or self.grouping.drifts):
            tasks += reference_tasks(self, reference(self.run), planned)
        return tasks

    def drift(self, bands: Bands | None = None) -> Drift | None:
        if self.run.recipe.scoring.drift == "keep":
            return None
        images = reference(self.run)
        return measure_drift(reference_scores(self, images, bands), self.outside(images.index))

    def fit_evals(self) -> float:
        """Per group; that of a control, or of one pass for all, is shared among them."""
        evals = float(self.operator.fit_evals(self.settings))
        if self.operator.together and self.grouping is None:
            return evals / len(self.groups)
        return evals * (1 + 1 / len(self.groups)) if self.operator.coupled else evals


def unlearned_method(name: str, operator: type[Operator]) -> type[Method]:
    """The method that scores by models which `operator` has changed."""
    body = {
        "id": name, "operator": operator, "Config": operator.Config, "summary": operator.summary,
        "trains": operator.needs_conditional, "bankable": not operator.from_start,
    }  # fmt: skip
    return type(f"Unlearned_{name}", (Unlearned,), body)


METHODS.derive(OPERATORS, unlearned_method)


def fit_group(
    run: Run, method: str, config: dict[str, Any], group: str, grouping: dict[str, Any] | None = None,
    seed: int | None = None,
) -> None:  # fmt: skip
    """The settings come with the task, not from the recipe: tuning and ablations fit the same operator with several.

    `seed`: another than that of the settings."""
    found, conditional = regrouped(make_method(run, method, config), grouping), None
    if OPERATORS[method].needs_conditional:
        conditional = load_model(run, conditional_name(need_training(run).seed))
    notes: dict[str, Any] = {}
    assert isinstance(found, Unlearned)
    model, prompts = load_model(run, found.origin), conditioning(run)
    settled = found.settings
    latents, _ = training_inputs(run, model, flips(settled))
    settings = settled.model_copy(
        update={"steps": round(settled.steps * found.passes(group))} | ({} if seed is None else {"seed": seed})
    )
    data = load_data(run) if group == CONTROL else replace(load_data(run), groups=found.regrouped(group))
    made = unlearn_group(model, data, group, method, settings, tick, conditional, notes, prompts, latents)
    path = run.path(found.path(group, seed))
    if notes:  # first: the counterfactual says that the task is done
        write_json(path.with_suffix(".json"), notes)
    made.save(path)


def fit_together(
    run: Run, method: str, config: dict[str, Any], groups: list[str], seed: int | None = None
) -> None:  # fmt: skip
    """As `fit_group`, by an operator that makes all groups in one pass."""
    found = make_method(run, method, config)
    assert isinstance(found, Unlearned)
    model, prompts, data = load_model(run, found.origin), conditioning(run), load_data(run)
    settings = found.settings.model_copy(update={} if seed is None else {"seed": seed})
    latents, _ = training_inputs(run, model, flips(settings))
    made = unlearn_together(model, data, groups, method, settings, tick, prompts, latents)
    for group, counterfactual in made.items():
        counterfactual.save(run.path(found.path(group, seed)))
