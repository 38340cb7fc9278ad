"""posterior: no fine-tuning at all. Every group's counterfactual is a rule on top of the full model.

The only thing fitted is a density of the training images (seconds; unlearning/rule.py). Scoring evaluates the
full model once more per draw and moves its prediction by the density's change, for all groups together.
"""

from __future__ import annotations

from typing import Any

from guda.config import parse_config
from guda.methods.base import method
from guda.methods.elbo import ElboMethod, Set
from guda.methods.terms import ModelRef
from guda.run.data import load_data
from guda.run.models import architecture, load_model, model_digest, model_files
from guda.run.run import Run
from guda.run.task import Task
from guda.unlearning.rule import RuleConfig, fit_rule, refuse_conditional, save_rule

RULE = "rule.safetensors"  # the file of all groups


@method("posterior")
class PosteriorMethod(ElboMethod):
    Config = RuleConfig
    summary = "move the model's prediction as the data's optimal denoiser moves when the group leaves (no training)"

    @property
    def rule(self) -> str:
        """The file of all groups."""
        return f"{self.folder}/{RULE}"

    def sets(self) -> list[Set]:
        return [(ModelRef("base"), {g: ModelRef("base", self.rule, self.number(g)) for g in self.groups})]

    def check(self) -> None:
        refuse_conditional(architecture(self.run))

    def fit(self) -> list[Task]:
        return [
            Task(
                name=f"fit {self.method_id}", stage=f"fit/{self.method_id}", fn="guda.methods.posterior:fit_file",
                args={"config": self.config.model_dump(mode="json"), "file": self.rule}, makes=(self.rule,),
                needs=model_files(self.run, "base"),
            )
        ]  # fmt: skip


def fit_file(run: Run, config: dict[str, Any], file: str) -> None:
    found: RuleConfig = parse_config(RuleConfig, config, "posterior")
    tensors = fit_rule(load_model(run, "base"), load_data(run), found)
    save_rule(run.path(file), model_digest(run, "base"), found, tensors)
