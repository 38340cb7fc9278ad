"""The posterior over the K images nearest to x_t when the set is large: faiss finds them, float64 weighs them.

    argmin_r || x_t/a - x_r ||          (IndexFlatL2 over the images; the neighbours of x_t, not of the clean image)

A flat index is exact up to float32, so it is asked for a few more than K, whose distances are then computed directly:
the result is that of the brute force without its [batch, images] matrix of logits.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from guda.counterfactuals.posterior import REFINED, Posterior
from guda.diffusion.schedule import Schedule

LARGE = 20_000  # images from which on the index is worth its copy of them


class NearestPosterior(Posterior):
    """As `Posterior(images, schedule, k_nearest)`, through an index of the images."""

    def __init__(self, images: torch.Tensor, schedule: Schedule, k_nearest: int) -> None:
        import faiss

        super().__init__(images, schedule, k_nearest)
        self.k: int = min(k_nearest, len(self.x))
        self.index = faiss.IndexFlatL2(self.x.shape[1])
        self.index.add((self.x - self.centre).cpu().numpy())

    def nearest(self, x_t: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(log w, float64 [B, K]; which images, [B, K]), nearest first."""
        flat = x_t.flatten(1).double()
        a, s = self.schedule.coefficients(t, flat)
        query = flat / a.clamp_min(1e-6) - self.centre  # without signal all images are equally near
        found = self.index.search(query.float().cpu().numpy(), min(self.k + REFINED, len(self.x)))[1]
        candidates = torch.from_numpy(found).to(x_t.device)
        distance = ((flat[:, None] - a[:, :, None] * self.x[candidates].double()) ** 2).sum(2)
        kept = (-distance / (2 * s**2)).topk(self.k, dim=1)
        return kept.values.log_softmax(dim=1), candidates.gather(1, kept.indices)

    def log_weights(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        log_w, which = self.nearest(x_t, t)
        return log_w.new_full((len(x_t), len(self.x)), -torch.inf).scatter_(1, which, log_w)

    def mean(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        log_w, which = self.nearest(x_t, t)
        return (log_w.exp().float()[:, None] @ self.x[which])[:, 0].reshape(x_t.shape).to(x_t.dtype)


def posterior_over(images: torch.Tensor, schedule: Schedule, k_nearest: int | None = None) -> Posterior:
    """The posterior over `images`, by index where K are asked of many and faiss is installed; the same either way."""
    if k_nearest is not None and k_nearest < len(images) > LARGE and find_spec("faiss") is not None:
        return NearestPosterior(images, schedule, k_nearest)
    return Posterior(images, schedule, k_nearest)


def support(posterior: Posterior, x_t: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(log w [B, M], images): the M images that may carry weight, one row for all [M, D] or K each [B, K, D]."""
    if isinstance(posterior, NearestPosterior):
        log_w, which = posterior.nearest(x_t, t)
        return log_w, posterior.x[which]
    return posterior.log_weights(x_t, t), posterior.x
