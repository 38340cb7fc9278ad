"""hybrid: combines two kinds of counterfactual, each at the noise levels where it works best.

    d(t) = share d_tuned(t) + (1 - share) d_rule(t)     t < edge T
    d(t) = d_rule(t)                                    above

d: the paired difference of KL terms, nats. A fine-tuned model (shift) knows what the network's own features lose at low
noise, but its drift drowns the effect at high noise; the training-free rule (posterior) has no drift. Both are read
from their own terms: scoring a hybrid after its halves costs nothing.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.data.queries import Queries
from guda.errors import GudaError
from guda.methods.base import get_method, method
from guda.methods.elbo import ElboMethod, Set, has_counterfactuals
from guda.methods.regroup import Grouping
from guda.run.models import run_schedule
from guda.run.run import Run
from guda.run.task import Task


class HybridConfig(Config):
    tuned: str = Field("shift", description="Method whose fine-tuned counterfactuals count below the edge.")
    rule: str = Field("posterior", description="Method that counts everywhere, above the edge alone.")
    edge: float = Field(0.3, ge=0, le=1, description="Where the tuned models stop counting, as a fraction of T.")
    share: float = Field(0.2, ge=0, le=1, description="What the tuned models count for below the edge.")


def _one_model(found: ElboMethod) -> bool:
    """Whether it has one counterfactual per group, or one for each of several seeds, of which the first counts."""
    return len(found.sets()) == 1 or (found.unlearns and bool(found.seed_sets()))


@method("hybrid")
class Hybrid(ElboMethod):
    Config = HybridConfig
    summary = "fine-tuned counterfactuals (shift) at low noise together with the training-free rule (posterior)"
    has_log_p = False  # its models count differently at every timestep

    def __init__(self, run: Run, method_id: str, config: Any) -> None:
        super().__init__(run, method_id, config)
        self.halves: list[ElboMethod] = []
        for name in (config.tuned, config.rule):
            found = get_method(run, name) if name != method_id else None
            if found is None or not has_counterfactuals(found) or not _one_model(found):
                raise GudaError(
                    "hybrid-method-unsupported",
                    f"methods.{method_id}: {name!r} is not a method with one counterfactual per group",
                )
            self.halves.append(found)

    @property
    def regroupable(self) -> bool:
        return all(half.regroupable and not half.oracle for half in self.halves)

    @property
    def placebo_seed(self) -> int:
        """Both halves take out the same images: those of the tuned half's own placebos."""
        return self.halves[0].placebo_seed

    def passes(self, group: str) -> float:
        return self.halves[0].passes(group)

    def on(self, grouping: Grouping) -> Self:
        found = super().on(grouping)
        found.halves = [half.on(grouping) for half in self.halves]
        return found

    def sets(self) -> list[Set]:
        return [half.sets()[0] for half in self.halves]

    def shares(self, t: np.ndarray, n_sets: int) -> list[np.ndarray | float]:
        tuned = np.where(t < round(self.config.edge * run_schedule(self.run).T), self.config.share, 0.0)
        return [tuned, 1 - tuned]

    def fit(self) -> list[Task]:
        return [task for half in self.halves for task in half.fit()]

    def fitted(self) -> bool:
        return all(half.fitted() for half in self.halves)

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        """The tasks of its two parts; their cost is counted for the parts."""
        return [task for half in self.halves for task in half.score(queries, planned)]

    def parts(self) -> tuple[str, ...]:
        return tuple(half.method_id for half in self.halves)

    def fit_evals(self) -> float:
        return sum(half.fit_evals() for half in self.halves)
