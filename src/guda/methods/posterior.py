"""posterior: no fine-tuning at all. Every group's counterfactual is a rule on top of the full model.

The only thing fitted is a density of the training images (seconds; unlearning/rule.py). Scoring evaluates the
full model once more per draw and moves its prediction by the density's change, for all groups together. Random groups
(placebos) have a file each: the density without their images (unlearning/rule.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from guda.methods.base import make_method, method
from guda.methods.elbo import ElboMethod, Set
from guda.methods.regroup import Placebos, regrouped, task_grouping
from guda.methods.terms import ModelRef
from guda.run.data import load_data
from guda.run.models import architecture, load_model, model_digest, model_files
from guda.run.run import Run
from guda.run.task import Task
from guda.unlearning.patches import refuse_classes
from guda.unlearning.rule import RULE, RuleConfig, fit_rule, refuse_conditional, save_rule


@method("posterior")
class PosteriorMethod(ElboMethod):
    Config = RuleConfig
    summary = "move the model's prediction as the data's optimal denoiser moves when the group leaves (no training)"
    regroupable = True

    @property
    def rule(self) -> str:
        """The file of all groups."""
        return f"{self.folder}/{RULE}"

    def file(self, group: str, seed: int | None = None) -> str:
        """The rule of a group that is not the data's own; those of a placebo drawn by another seed than that of the
        settings, as a hybrid's other half may ask, are kept apart."""
        assert self.grouping is not None
        name = self.grouping.file(load_data(self.run).groups, group).removesuffix(".safetensors")
        drawn = self.grouping.seed if isinstance(self.grouping, Placebos) else self.config.seed
        return f"{self.folder}/{name}/{RULE}" if drawn == self.config.seed else f"{self.folder}/s{drawn}/{name}/{RULE}"

    def sets(self) -> list[Set]:
        if task_grouping(self) is None:
            refs = {g: ModelRef("base", self.rule, self.number(g)) for g in self.groups}
        else:
            refs = {g: ModelRef("base", self.file(g), 0) for g in self.groups}
        return [(ModelRef("base"), refs)]

    def check(self) -> None:
        model = architecture(self.run)
        refuse_conditional(model, load_data(self.run))
        if model.n_classes is not None:
            refuse_classes(self.config.density)

    def fit(self) -> list[Task]:
        def task(file: str, said: str = "", **further: Any) -> Task:
            return Task(
                name=f"fit {self.id}{said}", stage=f"fit/{self.method_id}", fn="guda.methods.posterior:fit_file",
                args={"config": self.config.model_dump(mode="json"), "file": file} | further, makes=(file,),
                needs=model_files(self.run, "base"),
            )  # fmt: skip

        if (grouping := task_grouping(self)) is None:
            return [task(self.rule)]
        return [task(self.file(g), f" without {g}", group=g, grouping=grouping) for g in self.groups]


def fit_file(
    run: Run, config: dict[str, Any], file: str, group: str | None = None, grouping: dict[str, Any] | None = None
) -> None:
    """Of all groups of the data, or of one `group` of another grouping."""
    found = regrouped(make_method(run, "posterior", config), grouping)
    removed = None
    if group is not None:
        groups = found.regrouped(group)
        removed = np.flatnonzero(groups.membership[:, groups.index(group)])
    tensors = fit_rule(load_model(run, "base"), load_data(run), found.config, removed)
    save_rule(run.path(file), model_digest(run, "base"), found.config, tensors, group)
