"""EraseDiff: train the model to predict uninformative noise for the group's images (Wu et al. 2024).

    L_forget   = E_{x_f, t, eps} || eps_theta(x_t, t) - u ||^2,     u ~ U[0, 1)^D, drawn anew and independent of eps
    L_preserve = E_retain || target - network(x_t, t) ||^2          the ordinary denoising loss

The paper poses two levels, the retain loss subject to the forget loss being minimal, and solves them with inner steps
and a step-wise multiplier. Implemented here is the penalty form, one level with fixed weights: the same two losses,
lambda_forget L_forget + lambda_preserve L_preserve, and one backward pass per step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.noise import generator
from guda.unlearning.operators.retain import denoising_loss
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator


@operator("erasediff")
class EraseDiff(Operator):
    Config = FlipsConfig
    summary = "unlearn by teaching forget images uniform noise (EraseDiff, penalty form)"
    conditional = None

    def target(self, forget: Batch) -> torch.Tensor:
        u = generator(*forget.key, "uniform").random(tuple(forget.eps.shape), dtype=np.float32)
        return torch.from_numpy(u).to(forget.eps)

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        return torch.nn.functional.mse_loss(student.eps(forget.x_t, forget.t, forget.cond), self.target(forget))

    def preserve(self, student: Denoiser, retain: Batch) -> torch.Tensor:
        return denoising_loss(student, retain)

    @classmethod
    def step_evals(cls, config: Any, student: int = 3) -> int:
        """No teacher."""
        return int(student * (config.batch_forget + config.batch_retain))
