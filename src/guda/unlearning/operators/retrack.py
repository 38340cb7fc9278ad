"""ReTrack: teach the model to denoise forget images toward the posterior mean of the retain set.

    L_forget = E_{x_f, t, eps} || eps_theta(x_t, t) - eps_bar(x_t) ||^2,   eps_bar = (x_t - a m_-k(x_t)) / s

m_-k is the posterior mean over the retain set (Shi et al. 2025; paper: "ReTrack: Theoretical Foundation for GUDA-U").
It is exact by default, or taken over the K retain images nearest to x_t itself. (The neighbours of the clean image are
not neighbours of x_t.)

`kl_cap`: with x_t = a x_f + s eps the target is eps_bar = eps + sum_r w_r d_r, d_r = (a/s)(x_f - x_r). Moving a unit
Gaussian's mean by d costs |d|^2/2 nats, so each d_r is shortened to a norm of at most sqrt(2 kl_cap) before weighting.

`density_ratio`: each forget sample is weighted by p_ret(x_t)/p_for(x_t), densities of the two noised sets. Then
E_for[ratio ||eps_theta - eps_bar||^2] = E_ret ||eps_theta - eps||^2 - const: the retain-only objective, estimated at
forget points. Unbiased but, where the sets are far apart, of few effective samples; clipping lowers the objective.

retrack-zero: what the public release of ReTrack does in effect.

    L_forget = mean( eps_theta(x_t, t)^2 )

Its softmax exponentiates exponents near -D/2 in float32; every weight underflows to 0 and with them the target, so the
forget images are sent to the prediction 0. Kept to reproduce figures made with it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field, model_validator

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.unlearning.posterior import effective_size, log_density, posterior_over, ratio_weights, support
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator


class RetrackConfig(FlipsConfig):
    k_nearest: int | None = Field(
        None, gt=0, description="Posterior over the K retain images nearest to x_t; null: all."
    )
    kl_cap: float | None = Field(
        None, gt=0, description="Bound in nats on each retain image's pull away from eps; null: none (the paper: 1.0)."
    )
    density_ratio: bool = Field(False, description="Weight forget samples by p_ret/p_for: the unbiased objective.")
    ratio_clip: float | None = Field(None, gt=0, description="Largest weight of the density ratio; null: no bound.")
    self_normalise: bool = Field(False, description="Divide the density ratio's weights by their mean over the batch.")

    @model_validator(mode="after")
    def _of_the_ratio(self) -> RetrackConfig:
        if not self.density_ratio and (self.ratio_clip is not None or self.self_normalise):
            raise ValueError("ratio_clip and self_normalise are options of density_ratio, which is off")
        return self


@operator("retrack")
class Retrack(Operator):
    Config = RetrackConfig
    summary = "unlearn by redirecting forget images to the retain set's posterior mean (GUDA)"

    def __init__(self, teacher: Denoiser, data: ImageData, group: str, config: Any) -> None:
        super().__init__(teacher, data, group, config)
        schedule = teacher.schedule
        self.posterior = posterior_over(self.encoded(self.members("retain")), schedule, config.k_nearest)
        if config.density_ratio:
            self.own = posterior_over(self.encoded(self.members("forget")), schedule)
        self.effective: list[float] = []  # effective sample size of every step, as a share of the batch

    def target(self, forget: Batch) -> torch.Tensor:
        """What the student should predict at x_t."""
        if self.config.kl_cap is None:
            return self.posterior.eps(forget.x_t, forget.t)
        log_w, images = support(self.posterior, forget.x_t, forget.t)
        x_f = forget.x0.flatten(1)
        a, s = self.teacher.schedule.coefficients(forget.t, x_f)
        apart = torch.cdist(x_f, images) if images.ndim == 2 else (images - x_f[:, None]).norm(dim=2)
        # a distance of 0 needs no shortening
        shorter = (math.sqrt(2 * self.config.kl_cap) * s / (a * apart).clamp_min(1e-12)).clamp(max=1.0)
        w = log_w.exp().float() * shorter
        pulled = w @ images if images.ndim == 2 else (w[:, None] @ images)[:, 0]
        correction = (a / s) * (w.sum(1, keepdim=True) * x_f - pulled)
        return forget.eps + correction.reshape(forget.eps.shape)

    def weights(self, forget: Batch) -> torch.Tensor:
        """Importance weights p_ret(x_t)/p_for(x_t) of the samples [B], clipped or normalised as asked."""
        x_t, t = forget.x_t, forget.t
        log_ratio = log_density(self.posterior, x_t, t) - log_density(self.own, x_t, t)
        return ratio_weights(log_ratio, self.config.ratio_clip, self.config.self_normalise)

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        target, found = self.target(forget), student.eps(forget.x_t, forget.t)
        if not self.config.density_ratio:
            return torch.nn.functional.mse_loss(found, target)
        weights = self.weights(forget)
        if torch.is_grad_enabled():  # a step, not a check
            self.effective.append(effective_size(weights) / len(weights))
        return (weights.to(found.dtype) * (found - target).square().flatten(1).mean(1)).mean()

    def notes(self) -> dict[str, Any]:
        if not self.effective:
            return {}
        share = sum(self.effective) / len(self.effective)
        return {"effective_samples": share * self.config.batch_forget, "effective_share": share}


@operator("retrack-zero")
class RetrackZero(Operator):
    Config = FlipsConfig
    summary = "unlearn by sending forget images to the prediction 0 (the public release's effective loss)"

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        return student.eps(forget.x_t, forget.t).square().mean()
