"""Whether a model is trained enough: closed forms, random weights, and samples that are unlike the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.mlp import ResidualMLP
from guda.diffusion.loading import make_scheduler
from guda.scoring.plan import typical_plan
from guda.scoring.terms import make_draws, squared_errors
from guda.scoring.trained import PICTURES, how_trained, posterior_errors
from guda.unlearning.operators.retrack import Posterior

SIZE = 4


def mlp() -> Denoiser:
    torch.manual_seed(0)
    net = ResidualMLP(sample_size=SIZE, width=16, depth=1)
    torch.nn.init.normal_(net.out.weight, std=0.1)
    return Denoiser.from_module(net, make_scheduler("squaredcos_cap_v2:100"))


class Known(Denoiser):
    """Predicts the noise by the posterior mean of a density that is known: what training converges to."""

    def __init__(self, base: Denoiser, basis: torch.Tensor, share: float = 1.0) -> None:
        self.__dict__.update(base.__dict__)
        self.basis, self.share = basis, share

    def raw(self, x_t: torch.Tensor, t: torch.Tensor, cond: Any = None) -> torch.Tensor:
        a, s = self.schedule.coefficients(t, x_t.flatten(1))
        gain = a / (a**2 + s**2)  # of N(0, basis basis^T): unit variance along the basis, none elsewhere
        x0 = gain * (x_t.flatten(1) @ self.basis.T) @ self.basis
        return ((x_t.flatten(1) - a * self.share * x0) / s).reshape(x_t.shape)


def gaussian_data(n: int = 400, dims: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """(images, orthonormal basis [dims, D]) of a Gaussian of few dimensions."""
    g = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(SIZE * SIZE, dims, generator=g))[0].T
    return (torch.randn(n, dims, generator=g) @ basis).reshape(n, 1, SIZE, SIZE), basis


def test_the_posterior_without_the_image_itself_is_that_of_the_others() -> None:
    base, (x0, _) = mlp(), gaussian_data(20)
    draws = make_draws(base, x0[[3, 7]], ["a", "b"], typical_plan(base.schedule, 0), 0)
    found = posterior_errors(Posterior(x0, base.schedule), draws, np.array([3, 7]))
    for q, own in enumerate((3, 7)):
        others = Posterior(x0[[i for i in range(20) if i != own]], base.schedule)
        alone = draws.of(np.array([q]))
        t = torch.from_numpy(np.repeat(alone.t.reshape(-1), 2))
        eps = others.eps(alone.x_t.flatten(0, 2), t)
        expected = (eps - alone.eps.flatten(0, 2)).double().square().flatten(1).sum(1).reshape(-1, 2).mean(1)
        np.testing.assert_allclose(found[q], expected.numpy(), rtol=2e-3)


def test_a_model_that_knows_the_density_has_the_skill_of_its_images_or_more() -> None:
    x0, basis = gaussian_data()
    own, fresh = np.arange(PICTURES), gaussian_data(460)[0][400:]
    found = how_trained(Known(mlp(), basis), x0, own, fresh[:PICTURES], 32)
    assert found.skill is not None
    assert 0.95 < found.skill < 1.5
    assert found.problems == ()
    assert found.text is None
    assert found.unlike is not None
    assert found.unlike < 0.25
    high = found.bands[-3]
    assert high.network < high.mean_image


def test_random_weights_and_the_mean_image_alone_are_noticed() -> None:
    x0, basis = gaussian_data()
    own, g = np.arange(PICTURES), torch.Generator().manual_seed(2)
    noise = 3 * torch.randn(PICTURES, 1, SIZE, SIZE, generator=g)
    random = how_trained(mlp(), x0, own, noise, 32)
    assert random.problems == ("knows-little", "samples-unlike-data")
    assert random.text is not None
    # a model of zeros predicts the mean image, which is zero here: its skill is zero, by the definition
    nothing = how_trained(Known(mlp(), basis, share=0.0), x0, own, None, 32)
    assert nothing.skill is not None
    assert abs(nothing.skill) < 0.05
    assert nothing.problems == ("knows-little",)
    assert nothing.samples == 0


def test_low_noise_decides_nothing() -> None:
    """There a random network beats the posterior mean, which can only repeat the nearest other image."""
    x0, _ = gaussian_data(60, dims=12)
    found = how_trained(mlp(), x0, np.arange(PICTURES), None, 32)
    assert found.bands[0].network < found.bands[0].posterior
    assert found.problems == ("knows-little",)


def test_samples_that_repeat_images_are_not_unlike_them() -> None:
    x0, basis = gaussian_data()
    found = how_trained(Known(mlp(), basis), x0, np.arange(PICTURES), x0[100 : 100 + PICTURES].clone(), 32)
    assert "samples-unlike-data" not in found.problems


def test_images_that_do_not_tell_of_each_other_allow_no_claim() -> None:
    x0 = gaussian_data(1)[0].expand(60, -1, -1, -1).clone()  # all the same: their mean says it all
    found = how_trained(mlp(), x0, np.arange(PICTURES), None, 32)
    assert found.skill is None
    assert found.problems == ()


def test_errors_of_the_network_are_those_that_scoring_measures() -> None:
    base, (x0, _) = mlp(), gaussian_data(60)
    found = how_trained(base, x0, np.arange(PICTURES), None, 32)
    plan = typical_plan(base.schedule, 0)
    draws = make_draws(base, x0[:PICTURES], [f"trained-{i}" for i in range(PICTURES)], plan, 0)
    errors = squared_errors(base, draws, 32)
    inside = (draws.t >= found.bands[2].low) & (draws.t < found.bands[2].high)
    np.testing.assert_allclose(found.bands[2].network, errors[inside].mean() / SIZE**2, rtol=1e-9)
