"""retain: continue training without the group, as a baseline for forgetting.

    L = lambda_preserve E_retain || target - network(x_t, t) ||^2           the ordinary denoising loss, as in training

The plainest baseline: nothing is said about the group itself, so what concerns it alone moves little. `batch_forget`,
`lambda_forget` and `window` have no part in it, and no forget image is shown to a network.
"""

from __future__ import annotations

from typing import Any

import torch

from guda.diffusion.denoiser import Denoiser
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator


def denoising_loss(model: Denoiser, batch: Batch) -> torch.Tensor:
    """The loss the full model was trained by, in the network's own parametrisation."""
    target = model.target(batch.x0, batch.eps, batch.t)
    return torch.nn.functional.mse_loss(model.raw(batch.x_t, batch.t, batch.cond), target)


@operator("retain")
class Retain(Operator):
    Config = FlipsConfig
    summary = "fine-tune on the other groups only"
    conditional = None

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        return torch.zeros((), device=forget.x_t.device)

    def preserve(self, student: Denoiser, retain: Batch) -> torch.Tensor:
        return denoising_loss(student, retain)

    @classmethod
    def step_evals(cls, config: Any, student: int = 3) -> int:
        return int(student * config.batch_retain)
