"""ReTrack: teach the model to denoise forget images toward the posterior mean of the retain set.

    L_forget = E_{x_f, t, eps} || eps_theta(x_t, t) - eps_bar(x_t) ||^2,   eps_bar = (x_t - a m_-k(x_t)) / s

m_-k is the posterior mean over the retain set (Shi et al. 2025; paper: "ReTrack: Theoretical Foundation for GUDA-U").
It is exact by default, or taken over the K retain images nearest to x_t itself. (The neighbours of the clean image are
not neighbours of x_t.) Of a class-conditional model, it is taken over the retain images of the sample's own class.

`kl_cap`: with x_t = a x_f + s eps the target is eps_bar = eps + sum_r w_r d_r, d_r = (a/s)(x_f - x_r). Moving a unit
Gaussian's mean by d costs |d|^2/2 nats, so each d_r is shortened to a norm of at most sqrt(2 kl_cap) before weighting.

`density_ratio`: each forget sample is weighted by p_ret(x_t)/p_for(x_t), densities of the two noised sets. Then
E_for[ratio ||eps_theta - eps_bar||^2] = E_ret ||eps_theta - eps||^2 - const: the retain-only objective, estimated at
forget points. Unbiased but, where the sets are far apart, of few effective samples; clipping lowers the objective.

retrack-zero: what the public release of ReTrack does in effect.

    L_forget = mean( eps_theta(x_t, t)^2 )

Its softmax exponentiates exponents near -D/2 in float32; every weight underflows to 0 and with them the target, so the
forget images are sent to the prediction 0. Kept to reproduce figures made with it.

The optimal denoiser over a finite set of images: the posterior mean of x_0 given x_t.

    m(x_t) = sum_r w_r x_r,   w = softmax_r( -||x_t - a x_r||^2 / (2 s^2) )          a = sqrt(abar_t), s^2 = 1 - abar_t

With d_r = x_r - c (c the mean image) the logits are, up to a constant in r,  (a (x_t - a c).d_r - a^2 |d_r|^2 / 2)/s^2:
one matmul. In float32 that expansion is 0.1-0.2 nats off at low noise, so the 64 largest logits are recomputed directly
in float64; and the weights come from a log-softmax, because at 3,072 dims exp() of the exponents underflows to zero for
every r (paper: "ReTrack: Theoretical Foundation for GUDA-U").
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import torch
from pydantic import Field, model_validator

from guda.data.classes import Classes
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator

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


# ---- The posterior over the K images nearest to x_t when the set is large: faiss finds them, float64 weighs them.
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


# ---- How likely a noisy point is under a finite set of images, and the ratio of two such densities.
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

    within_class = True

    def __init__(
        self, teacher: Denoiser, data: ImageData, group: str, config: Any, classes: Classes | None = None
    ) -> None:
        super().__init__(teacher, data, group, config)
        schedule = teacher.schedule
        self.effective: list[float] = []  # effective sample size of every step, as a share of the batch
        self.by_class: dict[str, Posterior] = {}  # of a class-conditional model: over the retain images of each class
        if classes is not None:
            if config.kl_cap is not None or config.density_ratio:
                raise GudaError(
                    "retrack-class-option",
                    "kl_cap and density_ratio are for unconditional models; leave them out for class-conditional ones",
                )
            retain = self.members("retain")
            for c in classes.of_group(data.groups, group):
                mine = retain[classes.numbers[retain] == int(c)]
                self.by_class[c] = posterior_over(self.encoded(mine), schedule, config.k_nearest)
            return
        self.posterior = posterior_over(self.encoded(self.members("retain")), schedule, config.k_nearest)
        if config.density_ratio:
            self.own = posterior_over(self.encoded(self.members("forget")), schedule)

    def target(self, forget: Batch) -> torch.Tensor:
        """What the student should predict at x_t."""
        if self.by_class:
            return self._within(forget)
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

    def _within(self, forget: Batch) -> torch.Tensor:
        """The posterior over the retain images of each sample's own class."""
        target = torch.empty_like(forget.x_t)
        for c, posterior in self.by_class.items():
            rows = torch.tensor([p == c for p in forget.prompts], device=target.device)
            if bool(rows.any()):
                target[rows] = posterior.eps(forget.x_t[rows], forget.t[rows])
        return target

    def weights(self, forget: Batch) -> torch.Tensor:
        """Importance weights p_ret(x_t)/p_for(x_t) of the samples [B], clipped or normalised as asked."""
        x_t, t = forget.x_t, forget.t
        log_ratio = log_density(self.posterior, x_t, t) - log_density(self.own, x_t, t)
        return ratio_weights(log_ratio, self.config.ratio_clip, self.config.self_normalise)

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        target, found = self.target(forget), student.eps(forget.x_t, forget.t, forget.cond)
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
