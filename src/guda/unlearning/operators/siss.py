"""SISS: Subtracted Importance Sampled Scores (Alberti et al. 2025). The retain-only loss as all minus forgotten.

With n images X in all, k of them forgotten A, x ~ X, a ~ A and one noisy point m of the pair,
m ~ q_l = (1-l) q(.|x) + l q(.|a),  q(m|x) = N(m; a_t x, s_t^2 I):

    L = lambda_preserve n/(n-k) q(m|x)/q_l(m) || eps_theta(m) - (m - a_t x)/s_t ||^2
      - lambda_forget   k/(n-k) q(m|a)/q_l(m) || eps_theta(m) - (m - a_t a)/s_t ||^2

Both terms share one network evaluation. With both lambdas 1 its expectation is the denoising loss over X without A;
lambda_forget = 1 + s is the paper's superfactor. The first (1-l) B pairs of a batch are noised at x, the others at a:
pairs are exchangeable, so fixing how many of each leaves the mixture and its weights exact.
The "retain" batch is drawn from all images, and a pair shares the forget image's timestep, so `window` holds for
both terms.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator

from guda.diffusion.denoiser import Denoiser
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator


class SissConfig(FlipsConfig):
    mixture: float = Field(0.5, ge=0, le=1, description="Share of the pairs that are noised at the forget image.")

    @model_validator(mode="after")
    def _pairs(self) -> SissConfig:
        if self.batch_forget != self.batch_retain:
            raise ValueError(
                f"siss pairs images, so batch_forget = {self.batch_forget} and batch_retain = {self.batch_retain} "
                "must be equal"
            )
        return self


@operator("siss")
class Siss(Operator):
    Config = SissConfig
    summary = "unlearn by subtracting the group's share of the denoising loss (SISS)"

    def members(self, side: str) -> np.ndarray:
        return np.arange(self.data.n) if side == "retain" else super().members(side)

    def loss(self, student: Denoiser, forget: Batch, retain: Batch) -> torch.Tensor:
        n, k = self.data.n, len(self.members("forget"))
        pairs, schedule = len(forget.t), self.teacher.schedule
        at_forget = round(self.config.mixture * pairs)
        share = at_forget / pairs
        at_a = (torch.arange(pairs, device=forget.t.device) >= pairs - at_forget)[:, None, None, None]
        m = schedule.add_noise(torch.where(at_a, forget.x0, retain.x0), forget.eps, forget.t)
        a, s = schedule.coefficients(forget.t, m)
        noise_x, noise_a = (m - a * retain.x0) / s, (m - a * forget.x0) / s  # the noise that would have made m
        # log q(m|x) - log q(m|a), in float64 because both are near -D/2
        nearer = (noise_a.double().square() - noise_x.double().square()).flatten(1).sum(1) / 2
        log_x, log_a = _log(1 - share), _log(share)
        mixed = torch.logaddexp(log_x + nearer, torch.full_like(nearer, log_a))  # log of q_l(m) / q(m|a)
        w_x, w_a = (nearer - mixed).exp().to(m.dtype), (-mixed).exp().to(m.dtype)
        found = student.eps(m, forget.t)
        error_x, error_a = ((found - e).square().flatten(1).mean(1) for e in (noise_x, noise_a))
        kept = self.config.lambda_preserve * n / (n - k) * w_x * error_x
        return (kept - self.config.lambda_forget * k / (n - k) * w_a * error_a).mean()

    @classmethod
    def step_evals(cls, config: Any, student: int = 3) -> int:
        """One network evaluation per pair, no teacher."""
        return int(student * config.batch_forget)


def _log(share: float) -> float:
    return math.log(share) if share > 0 else -math.inf
