"""How likely a noisy point is under a finite set of images, and the ratio of two such densities.

    p_t(x_t) = (1/R) sum_r N(x_t; a x_r, s^2 I)
    log p_t(x_t) = -||x_t - a x_r||^2 / (2 s^2) - log w_r(x_t) - log R + const(t)        for ANY r, by Bayes' rule

so the posterior's weights give it for one more distance (to the heaviest image). const(t) is the same for every set and
cancels in ratios. Everything stays in log space: at 3,072 dims the densities themselves underflow.
"""

from __future__ import annotations

import math

import torch

from guda.counterfactuals.nearest import support
from guda.counterfactuals.posterior import Posterior


def log_density(posterior: Posterior, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """log p_t(x_t) up to const(t), float64 [B]. With K nearest: of those K terms only, a lower bound."""
    log_w, images = support(posterior, x_t, t)
    heaviest = log_w.max(dim=1)
    r = heaviest.indices
    x_r = images[r] if images.ndim == 2 else images[torch.arange(len(r), device=r.device), r]
    flat = x_t.flatten(1).double()
    a, s = posterior.schedule.coefficients(t, flat)
    distance = ((flat - a * x_r.double()) ** 2).sum(1)
    return -distance / (2 * s[:, 0] ** 2) - heaviest.values - math.log(len(posterior.x))


def ratio_weights(log_ratio: torch.Tensor, clip: float | None, self_normalise: bool) -> torch.Tensor:
    """Importance weights [B] from log ratios: exp, at most `clip`; or divided by their mean over the batch."""
    if clip is not None:
        log_ratio = log_ratio.clamp(max=math.log(clip))
    if self_normalise:
        return log_ratio.softmax(dim=0) * len(log_ratio)
    return log_ratio.exp()


def effective_size(weights: torch.Tensor) -> float:
    """(sum w)^2 / sum w^2: of how many equally weighted samples the weighted mean is worth; 0 if all weights are 0."""
    w = weights.double() / weights.double().max().clamp_min(1e-300)
    return float(w.sum() ** 2 / w.square().sum()) if bool(w.any()) else 0.0
