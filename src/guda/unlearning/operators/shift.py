"""Posterior shift: move the full model's own prediction by the change of the optimal denoiser without the group.

    target = eps_full(x_t) + (a/s) (m_full(x_t) - m_-k(x_t))          t in the window, else eps_full(x_t)

m_full and m_-k are exact posterior means over all images and over the retain set, from one distance matrix
(removal.py). Replacing the prediction by the retain posterior mean (ReTrack) throws away what the network generalises;
the shift keeps it. Forget and retain samples are treated alike (on most retain samples the shift is about 0), so
forgetting and preservation are one loss (ours, not in the paper).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.unlearning.rule import ImageDensity
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator, window_range


class ShiftConfig(FlipsConfig):
    window: tuple[float, float] = Field(
        (0.1, 1.0), description="Timesteps where the prediction is shifted, as fractions of T: [from, to)."
    )
    bandwidth: float = Field(0.0, ge=0, description="Width of the kernel around each image; 0: the images themselves.")
    cap: float | None = Field(None, gt=0, description="Bound on the norm of the shift in eps; null: none.")


@operator("shift")
class Shift(Operator):
    Config = ShiftConfig
    summary = "unlearn by moving the model's prediction as the optimal denoiser moves when the group leaves"

    def __init__(self, teacher: Denoiser, data: ImageData, group: str, config: Any) -> None:
        super().__init__(teacher, data, group, config)
        inside = torch.from_numpy(data.groups.membership[:, data.groups.index(group)].copy())
        labels = (~inside).long().repeat(2 if config.flips else 1)  # `encoded` puts mirror images after all others
        x0 = self.encoded(np.arange(data.n))
        self.density = ImageDensity(x0, labels.to(x0.device), teacher.schedule, config.bandwidth)
        self.times = window_range(config.window, teacher.schedule.T)

    def target(self, batch: Batch) -> torch.Tensor:
        """What the student should predict at x_t."""
        with torch.no_grad():
            eps = self.teacher.eps(batch.x_t, batch.t)
        a, s = self.teacher.schedule.coefficients(batch.t, batch.x_t)
        shift = -(a / s) * self.density.changes(batch.x_t, batch.t)[0]
        if self.config.cap is not None:
            norm = shift.flatten(1).norm(dim=1).clamp_min(1e-12)
            shift = shift * (self.config.cap / norm).clamp(max=1.0)[:, None, None, None]
        inside = (batch.t >= self.times[0]) & (batch.t < self.times[1])
        return eps + torch.where(inside[:, None, None, None], shift, torch.zeros_like(shift))

    @classmethod
    def step_evals(cls, config: Any, student: int = 3) -> int:
        """The teacher runs on both batches; posterior matmuls are counted in seconds."""
        return int((student + 1) * (config.batch_forget + config.batch_retain))

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        return torch.nn.functional.mse_loss(student.eps(forget.x_t, forget.t), self.target(forget))

    def preserve(self, student: Denoiser, retain: Batch) -> torch.Tensor:
        return torch.nn.functional.mse_loss(student.eps(retain.x_t, retain.t), self.target(retain))
