"""ReTrack: redirect the denoising of a forget image to what the retain set would explain it by.

    L_forget = E_{x_f, t, eps} || eps_theta(x_t, t) - eps_bar(x_t) ||^2,   eps_bar = (x_t - a m_-k(x_t)) / s

m_-k is the posterior mean over the retain set (paper section "GUDA-U", SPEC section 4): exact by default, or over
the K retain images nearest to x_t itself (not to the clean image: those are not neighbours of x_t).
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from guda.counterfactuals.posterior import Posterior
from guda.counterfactuals.unlearn import Half, Operator, UnlearnConfig, operator
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser


class RetrackConfig(UnlearnConfig):
    k_nearest: int | None = Field(
        None, gt=0, description="Posterior over the K retain images nearest to x_t; null: all."
    )


@operator("retrack")
class Retrack(Operator):
    Config = RetrackConfig
    summary = "unlearn by redirecting forget images to the retain set's posterior mean (GUDA)"

    def __init__(self, teacher: Denoiser, data: ImageData, group: str, config: Any) -> None:
        super().__init__(teacher, data, group, config)
        retain = data.images[data.groups.without(data.groups.index(group))]
        self.posterior = Posterior(teacher.encode(retain).to(teacher.device), teacher.schedule, config.k_nearest)

    def forget(self, student: Denoiser, forget: Half) -> torch.Tensor:
        target = self.posterior.eps(forget.x_t, forget.t)
        return torch.nn.functional.mse_loss(student.eps(forget.x_t, forget.t), target)
