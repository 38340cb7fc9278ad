"""The posterior over the K images nearest to x_t when the set is large: faiss finds them, float64 weighs them.

    argmin_r || x_t/a - x_r ||  =  argmax_r (x_t - a c).d_r - a |d_r|^2/2,     d_r = x_r - c, c the mean image

(the neighbours of x_t, not of the clean image). The right-hand side is one inner product with (d_r, -|d_r|^2/2), so the
index is an IndexFlatIP: dividing x_t by a = 1e-5, as an IndexFlatL2 would need at the last steps of a cosine schedule,
leaves float32 nothing to tell images apart by (measured, 20,000 images of 3,072 dims: a true neighbour at place 415).
A flat index is exact up to float32, so it is asked for a few more than K, whose distances are then computed directly:
the result is that of the brute force without its [batch, images] matrix of logits.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from guda.counterfactuals.posterior import CHUNK, REFINED, Posterior
from guda.diffusion.schedule import Schedule

LARGE = 20_000  # images from which on the index is worth its copy of them


class NearestPosterior(Posterior):
    """As `Posterior(images, schedule, k_nearest)`, through an index of the images."""

    def __init__(self, images: torch.Tensor, schedule: Schedule, k_nearest: int) -> None:
        import faiss

        super().__init__(images, schedule, k_nearest)
        self.k: int = min(k_nearest, len(self.x))
        self.index = faiss.IndexFlatIP(self.x.shape[1] + 1)
        for x, square in zip(self.x.split(CHUNK), self.squares.split(CHUNK), strict=True):
            self.index.add(torch.cat([x - self.centre, -square[:, None].float() / 2], dim=1).cpu().numpy())

    def nearest(self, x_t: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(log w, float64 [B, K]; which images, [B, K]), nearest first."""
        flat = x_t.flatten(1).double()
        a, s = self.schedule.coefficients(t, flat)
        query = torch.cat([flat - a * self.centre, a], dim=1)
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
