"""pretrained: how much fine-tuning as a whole improved the model's explanation of a picture.

    score = ELBO(full) - ELBO(pretrained start), nats, positive = the fine-tuned model explains the picture better;
            under `estimand: path` the divergence of the two, never negative

One row per picture, not one per group, so it does not compete with the methods: it says how much there is to attribute.
A group's score may exceed it, since groups stand in for one another.
"""

from __future__ import annotations

from guda.config import Config
from guda.errors import GudaError
from guda.methods.base import method
from guda.methods.elbo import ElboMethod, Set
from guda.methods.terms import ModelRef
from guda.run.task import Task

ALL = "all fine-tuning data"


class PretrainedConfig(Config):
    """Nothing to set."""


@method("pretrained")
class Pretrained(ElboMethod):
    Config = PretrainedConfig
    summary = "what fine-tuning as a whole taught (a reference row, no group)"
    ranks_groups = False
    has_log_p = False

    @property
    def groups(self) -> tuple[str, ...]:
        return (ALL,)

    def sets(self) -> list[Set]:
        return [(ModelRef("base"), {ALL: ModelRef("start", against="base")})] if self.fitted() else []

    def fit(self) -> list[Task]:
        if not self.fitted():
            raise GudaError(
                "pretrained-start-missing",
                f"{self.run.root} has no pretrained start (model.start), so fine-tuning has no reference",
            )
        return []

    def fitted(self) -> bool:
        return self.run.recipe.model.start is not None

    def fit_evals(self) -> float:
        return 0.0
