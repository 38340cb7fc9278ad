"""The optimal denoiser over a finite set of images: the posterior mean of x_0 given x_t.

    m(x_t) = sum_r w_r x_r,   w = softmax_r( -||x_t - a x_r||^2 / (2 s^2) )          a = sqrt(abar_t), s^2 = 1 - abar_t

With d_r = x_r - c (c the mean image) the logits are, up to a constant in r,  (a (x_t - a c).d_r - a^2 |d_r|^2 / 2)/s^2:
one matmul. In float32 that expansion is 0.1-0.2 nats off at low noise, so the 64 largest logits are recomputed directly
in float64; and the weights come from a log-softmax, because at 3,072 dims exp() of the exponents underflows to zero for
every r (SPEC section 4).
"""

from __future__ import annotations

import torch

from guda.diffusion.schedule import Schedule

REFINED = 64  # logits recomputed in float64
CHUNK = 8192  # images per matmul


class Posterior:
    """Exact posterior over `images` [R, C, H, W] (floats, as the model sees them), or over the K nearest to x_t."""

    def __init__(self, images: torch.Tensor, schedule: Schedule, k_nearest: int | None = None) -> None:
        self.shape = tuple(images.shape[1:])
        self.x = images.flatten(1).float()
        self.centre = self.x.double().mean(0).float()
        self.squares = torch.cat([((c - self.centre).double() ** 2).sum(1) for c in self.x.split(CHUNK)])
        self.schedule, self.k = schedule, k_nearest

    def log_weights(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """log w, float64 [B, R]; -inf outside the K nearest."""
        logits = self._expanded(x_t, t)
        flat = x_t.flatten(1).double()
        a, s = self.schedule.coefficients(t, flat)
        n = logits.shape[1]
        top = logits.topk(min(REFINED + (self.k or 0), n), dim=1).indices
        # directly, relative to the same constant -||x_t - a c||^2/(2 s^2) that the expansion dropped
        near = self.x[top].double()
        exact = -(((flat[:, None] - a[:, :, None] * near) ** 2).sum(2))
        exact = (exact + ((flat - a * self.centre) ** 2).sum(1, keepdim=True)) / (2 * s**2)
        logits.scatter_(1, top, exact)
        if self.k is not None and self.k < n:
            nearest = logits.topk(self.k, dim=1)
            logits = torch.full_like(logits, -torch.inf).scatter_(1, nearest.indices, nearest.values)
        return logits.log_softmax(dim=1)

    def _expanded(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Logits of all images by the matmul, float64 [B, R], up to a constant per row."""
        flat = x_t.flatten(1).double()
        a, s = self.schedule.coefficients(t, flat)
        centred = (flat - a * self.centre).float()
        dots = torch.cat([centred @ (c - self.centre).T for c in self.x.split(CHUNK)], dim=1)
        return (a * dots.double() - a**2 * self.squares / 2) / s**2

    def mean(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Posterior mean of x_0, shaped like x_t."""
        w = self.log_weights(x_t, t).exp()
        # rounded to float32 only after the weights are normalised; sums of 10^6 such products stay within 1e-6
        parts = [p.float() @ x for p, x in zip(w.split(CHUNK, dim=1), self.x.split(CHUNK), strict=True)]
        return torch.stack(parts).sum(0).reshape(x_t.shape).to(x_t.dtype)

    def eps(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """The noise the optimal denoiser predicts: (x_t - a m(x_t)) / s."""
        a, s = self.schedule.coefficients(t, x_t)
        return (x_t - a * self.mean(x_t, t)) / s
