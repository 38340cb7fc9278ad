"""Posterior shift: move the full model's own prediction by the change of the optimal denoiser without the group.

    target = eps_full(x_t) + (a/s) (m_full(x_t) - m_-k(x_t))          t in the window, else eps_full(x_t)

m_full and m_-k are posterior means of a density of all images and of the retain set (density.py, patches.py). By
default of the images themselves, exact and from one distance matrix; a few Gaussians per group, or patches, may come
nearer to what a network does that generalises. Replacing the prediction by the retain posterior mean (ReTrack) throws
that away; the shift keeps it. Forget and retain samples are treated alike (on most retain samples the shift is about
0), so forgetting and preservation are one loss (ours, not in the paper).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from guda.data.classes import Classes
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.unlearning.density import GaussianDensity, GaussianRemoval, ImageDensity, Removal, fit_gaussians
from guda.unlearning.patches import IMAGES, LEVELS, PatchDensity, fit_windows, halves_at, refuse_classes
from guda.unlearning.unlearn import Batch, FlipsConfig, Operator, operator, window_range


class ShiftConfig(FlipsConfig):
    omitted = FlipsConfig.omitted | {"density": ("images",), "components": (2,), "shrink": (0.3,), "floor": (1e-3,)}

    density: Literal["images", "gaussians", "patches"] = Field(
        "images", description="What the data are taken for: the images themselves, a few Gaussians per group, patches."
    )
    components: int = Field(2, gt=0, description="Gaussians per group (density: gaussians).")
    shrink: float = Field(0.3, ge=0, le=1, description="Share of the pooled covariance in each Gaussian's own.")
    floor: float = Field(1e-3, gt=0, description="Added to every variance of a Gaussian; images are in [-1, 1].")
    window: tuple[float, float] = Field(
        (0.1, 1.0), description="Timesteps where the prediction is shifted, as fractions of T: [from, to)."
    )
    bandwidth: float = Field(
        0.0, ge=0, description="Width of the kernel around each image or patch; 0: the images themselves."
    )
    cap: float | None = Field(None, gt=0, description="Bound on the norm of the shift in eps; null: none.")


@operator("shift")
class Shift(Operator):
    Config = ShiftConfig
    summary = "unlearn by moving the model's prediction as the optimal denoiser moves when the group leaves"

    within_class = True

    def __init__(
        self, teacher: Denoiser, data: ImageData, group: str, config: Any, classes: Classes | None = None
    ) -> None:
        super().__init__(teacher, data, group, config)
        self.times = window_range(config.window, teacher.schedule.T)
        self.by_class: dict[str, Removal] = {}  # of a class-conditional model: of the classes the group is part of
        if classes is not None:
            for c in classes.of_group(data.groups, group):
                self.by_class[c] = self._density(np.flatnonzero(classes.numbers == int(c)))
            return
        self.density = self._density(np.arange(data.n))

    @classmethod
    def check_classes(cls, config: Any, classes: Classes) -> None:
        refuse_classes(config.density)

    @classmethod
    def regroups(cls, config: Any) -> bool:
        """Gaussians are those of the data's own groups; of random ones they would be another density."""
        return bool(config.density != "gaussians")

    @classmethod
    def fit_evals(cls, config: Any) -> int:
        """Windows of patches are fitted to the teacher's predictions."""
        return super().fit_evals(config) + (LEVELS * IMAGES if config.density == "patches" else 0)

    def _density(self, images: np.ndarray) -> Removal:
        """How the density of these images changes without the group's."""
        groups, config = self.data.groups, self.config
        times = 2 if config.flips else 1  # `encoded` puts mirror images after all others
        inside = np.tile(groups.membership[images, groups.index(self.group)], times)
        x0, schedule = self.encoded(images), self.teacher.schedule
        if config.density == "gaussians":
            atoms, homes = (np.tile(found[images], times) for found in (groups.atoms[0], groups.homes))
            atoms = np.unique(atoms, return_inverse=True)[1]
            settings = (atoms, config.components, config.shrink, config.floor, config.seed, homes)
            every, left = (
                GaussianDensity(fit_gaussians(x0.cpu().numpy(), *settings, removed), schedule, x0.device)
                for removed in (None, np.flatnonzero(inside))
            )
            return GaussianRemoval(every, left)
        labels = torch.from_numpy(~inside).long().to(x0.device)  # two atoms: the group's images and the others
        if config.density == "images":
            return ImageDensity(x0, labels, schedule, config.bandwidth)
        if self.teacher.n_classes is not None:
            refuse_classes(config.density)
        windows = fit_windows(self.teacher, x0, config.seed, config.bandwidth)
        halves = halves_at(schedule, windows["log_snr"].numpy(), windows["half"].numpy())
        return PatchDensity(x0, labels, schedule, halves, config.bandwidth)

    def _changes(self, batch: Batch) -> torch.Tensor:
        """By how much the posterior mean moves without the group, within each sample's class where there are any."""
        if not self.by_class:
            return self.density.changes(batch.x_t, batch.t)[0]
        found = torch.zeros_like(batch.x_t)
        for c, density in self.by_class.items():
            rows = torch.tensor([p == c for p in batch.prompts], device=found.device)
            if bool(rows.any()):
                found[rows] = density.changes(batch.x_t[rows], batch.t[rows])[0]
        return found

    def target(self, batch: Batch) -> torch.Tensor:
        """What the student should predict at x_t."""
        with torch.no_grad():
            eps = self.teacher.eps(batch.x_t, batch.t, batch.cond)
        a, s = self.teacher.schedule.coefficients(batch.t, batch.x_t)
        shift = -(a / s) * self._changes(batch)
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
        return torch.nn.functional.mse_loss(student.eps(forget.x_t, forget.t, forget.cond), self.target(forget))

    def preserve(self, student: Denoiser, retain: Batch) -> torch.Tensor:
        return torch.nn.functional.mse_loss(student.eps(retain.x_t, retain.t, retain.cond), self.target(retain))
