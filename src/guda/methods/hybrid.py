"""hybrid: combines two kinds of counterfactual, each at the noise levels where it works best.

    d(t) = share d_tuned(t) + (1 - share) d_rule(t)     t < edge T
    d(t) = d_rule(t)                                    above

d: the paired difference of KL terms, nats. A fine-tuned model (shift) knows what the network's own features lose at low
noise, but its drift drowns the effect at high noise; the training-free rule (posterior) has no drift. Both are read
from their own terms: scoring a hybrid after its halves costs nothing.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from guda.config import Config
from guda.methods.base import method
from guda.methods.combination import Combination
from guda.methods.elbo import ElboMethod
from guda.run.models import run_schedule


class HybridConfig(Config):
    tuned: str = Field("shift", description="Method whose fine-tuned counterfactuals count below the edge.")
    rule: str = Field("posterior", description="Method that counts everywhere, above the edge alone.")
    edge: float = Field(0.3, ge=0, le=1, description="Where the tuned models stop counting, as a fraction of T.")
    share: float = Field(0.2, ge=0, le=1, description="What the tuned models count for below the edge.")


@method("hybrid")
class Hybrid(Combination):
    Config = HybridConfig
    summary = "fine-tuned counterfactuals (shift) at low noise together with the training-free rule (posterior)"

    def named(self) -> tuple[str, str]:
        return self.config.tuned, self.config.rule

    def takes(self, member: ElboMethod) -> bool:
        """One counterfactual per group, or one for each of several seeds, of which the first counts."""
        return len(member.sets()) == 1 or (member.unlearns and bool(member.seed_sets()))

    @property
    def regroupable(self) -> bool:
        return all(member.regroupable and not member.oracle for member in self.members)

    @property
    def placebo_seed(self) -> int:
        """Both halves take out the same images: those of the tuned half's own placebos."""
        return self.members[0].placebo_seed

    def passes(self, group: str) -> float:
        return self.members[0].passes(group)

    def shares(self, t: np.ndarray, n_sets: int) -> list[np.ndarray | float]:
        tuned = np.where(t < round(self.config.edge * run_schedule(self.run).T), self.config.share, 0.0)
        return [tuned, 1 - tuned]
