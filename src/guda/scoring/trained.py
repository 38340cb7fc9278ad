"""Is a model trained enough to be asked? Its predictions and its samples against the optimal denoiser of the data.

    m(x_t)    posterior mean of x_0 over the training images, without the image itself (leave one out): what the other
              images say about a noised one
    mean      the mean training image, for every x_t: what a model knows that has learned nothing else

Both and the network predict the noise of the same noised training images, E = ||eps - eps_hat||^2 summed over draws at
high noise (SNR < 1). At low noise the optimal denoiser of finitely many images can only repeat the nearest one, which
every network beats, a random one too; so low noise is shown but decides nothing.

    skill = (E_mean - E_network) / (E_mean - E_posterior)      1: as good as the other images together; 0: as the mean

A trained network is near 1 or above, because it generalises. Below 1/2, by two standard errors over images, it is
nearer to the mean image than to what the data say: `knows-little`. That the images were trained on can only raise the
skill, and so can fewer images in the posterior: no warning is not a proof.

Samples are compared with training images by the test that finds foreign pictures (origin.py), but with the errors of
the posterior in place of the network's: a bad network knows its own samples best. A sample is unlike the data if
p < 0.05 and its errors are above the median of the images (below it, it repeats them). Where most samples are, the
model does not make pictures like its data: `samples-unlike-data`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field, FiniteFloat

from guda.config import Config
from guda.diffusion.denoiser import Denoiser
from guda.scoring.origin import FOREIGN, Described, typical_p
from guda.scoring.plan import Plan, typical_plan
from guda.scoring.terms import Draws, kl, make_draws, rows_of, squared_errors
from guda.unlearning.operators.retrack import Posterior

PICTURES = 48  # training images, and at most as many samples

IMAGES = 10_000  # in the posterior; fewer make it a worse denoiser, and the network look better

HALF = 0.5  # of the skill, and of the samples

BLOCK = 64  # rows of the posterior at a time

Problem = Literal["knows-little", "samples-unlike-data"]


class Band(Config):
    """Mean squared errors of the noise per number of a picture, in one band of timesteps."""

    low: int
    high: int = Field(description="timesteps low <= t < high")
    network: FiniteFloat
    posterior: FiniteFloat
    mean_image: FiniteFloat


class Trained(Config):
    pictures: int = Field(description="training images whose noise was predicted")
    skill: FiniteFloat | None = Field(description="null: other images say no more than the mean image")
    skill_stderr: FiniteFloat | None
    bands: list[Band] = Field(description="from low to high noise")
    samples: int = Field(description="of the model, compared with the images; 0: not enough of them")
    unlike: FiniteFloat | None = Field(description="share of the samples that are unlike the data")

    @property
    def problems(self) -> tuple[Problem, ...]:
        problems: list[Problem] = []
        if self.skill is not None and self.skill + 2 * (self.skill_stderr or 0.0) < HALF:
            problems.append("knows-little")
        if self.unlike is not None and self.unlike > HALF:
            problems.append("samples-unlike-data")
        return tuple(problems)

    @property
    def text(self) -> str | None:
        """One line; None where there is no reason to warn."""
        skill, unlike = self.skill or 0.0, self.unlike or 0.0
        reasons: dict[Problem, str] = {
            "knows-little": "on noised training images it is nearer to their mean than to what the other images show "
            f"(skill {skill:.2g}; trained models have about 1)",
            "samples-unlike-data": f"{100 * unlike:.0f} % of its samples are unlike the training images",
        }
        if not self.problems:
            return None
        why = "; ".join(reasons[p] for p in self.problems)
        return f"the model does not seem to be trained: {why}; train it before you believe its scores"


@dataclass(frozen=True)
class _Rows:
    """Squared errors [Q, S] at the same draws, and their timesteps."""

    t: np.ndarray
    network: np.ndarray
    posterior: np.ndarray
    mean_image: np.ndarray


def how_trained(
    denoiser: Denoiser, x0: torch.Tensor, own: np.ndarray, samples: torch.Tensor | None, block: int, seed: int = 0
) -> Trained:
    """`x0` [N, C, H, W]: training images as the model sees them; `own`: numbers of those whose noise is predicted;
    `samples`: of the model, in the same space. `block`: of the network's evaluations."""
    plan = typical_plan(denoiser.schedule, seed)
    posterior, centre = Posterior(x0, denoiser.schedule), x0.mean(dim=0, keepdim=True)
    draws = make_draws(denoiser, x0[own], [f"trained-{i}" for i in own], plan, 0)
    rows = _Rows(
        draws.t, squared_errors(denoiser, draws, block), posterior_errors(posterior, draws, own),
        _errors(draws, lambda x_t, t, _: centre.to(x_t).expand_as(x_t), denoiser),
    )  # fmt: skip
    skill, stderr = _skill(rows, denoiser)
    unlike = None if samples is None else _unlike(denoiser, posterior, rows, samples, plan)
    return Trained(
        pictures=len(own), skill=skill, skill_stderr=stderr, bands=_bands(rows, plan, denoiser),
        samples=0 if samples is None or unlike is None else len(samples), unlike=unlike,
    )  # fmt: skip


def posterior_errors(posterior: Posterior, draws: Draws, own: np.ndarray | None = None) -> np.ndarray:
    """||eps - eps_hat||^2 [Q, S] of the optimal denoiser over its images; `own` [Q]: the image that a picture is, which
    is left out of them."""
    which = None if own is None else torch.from_numpy(np.asarray(own, np.int64))

    def mean(x_t: torch.Tensor, t: torch.Tensor, picture: torch.Tensor) -> torch.Tensor:
        log_w = posterior.log_weights(x_t, t)
        if which is not None:
            log_w[torch.arange(len(t)), which[picture]] = -torch.inf
        return (log_w.softmax(dim=1).float() @ posterior.x).reshape(x_t.shape)

    return _errors(draws, mean, posterior)


Predictor = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _errors(draws: Draws, x0_hat: Predictor, of: Denoiser | Posterior) -> np.ndarray:
    """[Q, S] of a denoiser (x_t, t, picture) -> x_0, the mean over the halves of a draw."""
    eps, x_t, t, picture = rows_of(draws)
    errors = []
    for rows in torch.arange(len(t)).split(BLOCK):
        a, sigma = of.schedule.coefficients(t[rows], x_t[rows])
        predicted = (x_t[rows] - a * x0_hat(x_t[rows], t[rows], picture[rows])) / sigma
        errors.append((predicted - eps[rows]).double().square().flatten(1).sum(1))
    return np.asarray(torch.cat(errors).numpy().reshape(draws.eps.shape[:3]).mean(axis=2))


def _skill(rows: _Rows, denoiser: Denoiser) -> tuple[float | None, float | None]:
    """With its standard error over pictures (of a ratio of means)."""
    high = (denoiser.schedule.a[rows.t] ** 2 < 0.5) & ~denoiser.schedule.zero_snr[rows.t]
    network, posterior = ((rows.mean_image - e) * high for e in (rows.network, rows.posterior))
    of, best = network.sum(axis=1), posterior.sum(axis=1)
    if best.sum() <= 2 * np.sqrt(len(best)) * best.std():  # the images do not tell of each other
        return None, None
    skill = float(of.sum() / best.sum())
    return skill, float(np.sqrt(np.square(of - skill * best).sum()) / best.sum())


def _bands(rows: _Rows, plan: Plan, denoiser: Denoiser) -> list[Band]:
    size, bands = int(np.prod(denoiser.shape)), []
    for low, high in zip(plan.edges[:-1], plan.edges[1:], strict=True):
        inside = (rows.t >= low) & (rows.t < high) & ~denoiser.schedule.zero_snr[rows.t]
        if inside.any():
            network, posterior, mean = (
                float(e[inside].mean()) / size for e in (rows.network, rows.posterior, rows.mean_image)
            )
            bands.append(Band(low=low, high=high, network=network, posterior=posterior, mean_image=mean))
    return bands


def _unlike(denoiser: Denoiser, posterior: Posterior, rows: _Rows, samples: torch.Tensor, plan: Plan) -> float | None:
    """Share of the samples; None: too few images to compare them with."""
    draws = make_draws(denoiser, samples, [f"sample-{i}" for i in range(len(samples))], plan, 0)

    def described(t: np.ndarray, errors: np.ndarray) -> Described:
        return Described(kl(plan, denoiser.schedule.weights, t, errors)[:, None], t[:, None])

    images = described(rows.t, rows.posterior)
    pictures = described(draws.t, posterior_errors(posterior, draws))
    p = typical_p(images, pictures, np.full(len(samples), -1))
    if p is None:
        return None
    level = [np.log(np.maximum(d.kl, 1e-300)).mean(axis=(1, 2)) for d in (images, pictures)]
    return float(((p < FOREIGN) & (level[1] > np.median(level[0]))).mean())
