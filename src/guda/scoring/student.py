"""A student of scores: a small network from features of a picture to what a method would score, with intervals.

    (mu, sigma) = student(features),     score in  mu +- q_g sigma       q_g: split conformal, group by group

The teacher has scored pictures that the model makes by itself, so there are as many as one likes. They are divided in
three by a key: on the first part the student is trained (Gaussian likelihood, so that sigma is large where it errs), on
the second q_g is chosen such that 95 % of the teacher's scores are inside, on the third both are checked. The interval
is about what the teacher would say, its noise of scoring included; what retraining would say is another question.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from guda.diffusion.noise import generator, torch_seed

LEVEL = 0.95

SHARES = (0.7, 0.15)  # of the pictures: trained on, calibrated on; the rest is for checking

LEAST = 1e-3  # of sigma, in standard deviations of the teacher's scores


@dataclass(frozen=True)
class Split:
    train: np.ndarray
    calibrate: np.ndarray
    check: np.ndarray


def split(n: int, seed: int) -> Split:
    """Numbers of pictures, by a keyed permutation."""
    order = generator(seed, "student", "split").permutation(n)
    first, second = (round(n * share) for share in (SHARES[0], sum(SHARES)))
    return Split(*(np.sort(part) for part in (order[:first], order[first:second], order[second:])))


class Student(nn.Module):
    """features [n, D] -> (mu, sigma) [n, G], in the teacher's unit."""

    feature_mean: torch.Tensor
    feature_scale: torch.Tensor
    mean: torch.Tensor
    scale: torch.Tensor
    reach: torch.Tensor

    def __init__(self, features: int, groups: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * groups)
        )
        for name, size in (("feature_", features), ("", groups)):
            self.register_buffer(f"{name}mean", torch.zeros(size))
            self.register_buffer(f"{name}scale", torch.ones(size))
        self.register_buffer("reach", torch.ones(groups))  # q_g

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mu, log_sigma = self.layers((x - self.feature_mean) / self.feature_scale).chunk(2, dim=1)
        return mu * self.scale + self.mean, (nn.functional.softplus(log_sigma) + LEAST) * self.scale

    @torch.no_grad()
    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(score, half width of its interval), float64 [n, G]."""
        mu, sigma = self(torch.from_numpy(features).float())
        return mu.double().numpy(), (self.reach * sigma).double().numpy()


def train_student(
    features: np.ndarray, scores: np.ndarray, parts: Split, *, width: int, steps: int, lr: float, seed: int
) -> Student:
    """float32 [n, D], float64 [n, G] -> a trained and calibrated student."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "student", "init"))
        student = Student(features.shape[1], scores.shape[1], width)
    x, y = torch.from_numpy(features).float(), torch.from_numpy(scores).float()
    for name, value in (("feature_", x[parts.train]), ("", y[parts.train])):
        student.get_buffer(f"{name}mean").copy_(value.mean(dim=0))
        student.get_buffer(f"{name}scale").copy_(value.std(dim=0).clamp_min(1e-6))
    optimizer = torch.optim.AdamW(student.layers.parameters(), lr, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    size = min(256, len(parts.train))
    for step in range(steps):
        rows = parts.train[generator(seed, "student", "batch", step).integers(0, len(parts.train), size)]
        mu, sigma = student(x[rows])
        # weighted by sigma, or pictures that fit already would take all the gradient (Seitzer et al. 2022)
        loss = (nn.functional.gaussian_nll_loss(mu, y[rows], sigma**2, reduction="none") * sigma.detach()).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    student.eval()
    student.get_buffer("reach").copy_(torch.from_numpy(_reach(student, features, scores, parts.calibrate)))
    return student


def _reach(student: Student, features: np.ndarray, scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The conformal quantile of |score - mu| / sigma, by group; with too few pictures the largest."""
    mu, sigma = student.predict(features[rows])  # `reach` is one until now
    apart = np.sort(np.abs(scores[rows] - mu) / sigma, axis=0)
    place = min(int(np.ceil((len(rows) + 1) * LEVEL)), len(rows)) - 1
    return np.asarray(apart[place])


@dataclass(frozen=True)
class Check:
    """What the student is worth on pictures that it has not seen; shares of the third part."""

    n: int
    same_first: float  # the teacher's first group is the student's
    inside: float  # the teacher's score is in the interval, over pictures and groups


def check_student(student: Student, features: np.ndarray, scores: np.ndarray, rows: np.ndarray) -> Check:
    mu, half = student.predict(features[rows])
    same = mu.argmax(axis=1) == scores[rows].argmax(axis=1)
    return Check(len(rows), float(same.mean()), float((np.abs(scores[rows] - mu) <= half).mean()))
