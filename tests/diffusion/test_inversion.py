"""DDIM inversion against a closed form, and that a picture comes back; inner activations of both kinds of networks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from guda.diffusion.activations import activations, inner_layer
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.inversion import denoise, invert, levels, psnr
from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import Schedule

SHAPE = (1, 2, 2)
X0 = torch.tensor([0.9, -0.4, 0.3, 0.1]).reshape(1, *SHAPE)


class Gaussian(torch.nn.Module):
    """Predicts eps as is optimal for N(m, v)."""

    def __init__(self, schedule: Schedule, m: float, v: float) -> None:
        super().__init__()
        self.schedule, self.m, self.v = schedule, m, v

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        a, s = self.schedule.coefficients(t, x)
        return s * (x - a * self.m) / (a**2 * self.v + s**2)


def gaussian(m: float, v: float) -> Denoiser:
    schedule = Schedule.from_scheduler(make_scheduler("linear:1000"))
    return Denoiser(Gaussian(schedule, m, v), schedule, SHAPE)


def test_a_picture_comes_back_and_another_model_gives_the_closed_form() -> None:
    full, other = gaussian(0.2, 0.3), gaussian(-0.1, 0.5)
    assert torch.equal(invert(full, X0), invert(full, X0))
    np.testing.assert_allclose(denoise(full, invert(full, X0)), X0, atol=1e-3)
    noise = invert(full, X0, steps=400)
    # along the flow (x_t - a m) / sqrt(a^2 v + s^2) is constant
    t = full.schedule.t_max
    a, s = full.schedule.a[t], full.schedule.s[t]
    np.testing.assert_allclose((noise - a * 0.2) / np.sqrt(a**2 * 0.3 + s**2), (X0 - 0.2) / 0.3**0.5, atol=0.02)
    expected = -0.1 + 0.5**0.5 * (noise + a * 0.1) / np.sqrt(a**2 * 0.5 + s**2)
    np.testing.assert_allclose(denoise(other, noise, steps=400), expected, atol=0.02)


def test_levels_rise_from_the_picture_to_the_last_timestep() -> None:
    schedule = gaussian(0, 1).schedule
    times = levels(schedule, 50)
    assert (times[0], times[-1]) == (0, schedule.t_max)
    assert (np.diff(times) > 0).all()
    assert len(times) <= 51


def test_psnr() -> None:
    one = np.zeros((1, 4, 4), np.uint8)
    assert psnr(one, one) == float("inf")
    assert psnr(one, one + 255) == pytest.approx(0)


def test_activations_do_not_depend_on_other_images(
    make_mlp: Callable[..., Denoiser], make_unet: Callable[..., Any]
) -> None:
    unet = Denoiser.from_module(make_unet(), make_scheduler("linear:100"))
    for denoiser, said, width in (
        (make_mlp(), "input of the last layer", 32),
        (unet, "output of the middle block", 16),
    ):
        assert inner_layer(denoiser.module)[0] == said
        x0 = torch.randn(5, *denoiser.shape, generator=torch.Generator().manual_seed(0))
        found = activations(denoiser, x0, block=4)
        assert found.shape == (5, width)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
        np.testing.assert_array_equal(activations(denoiser, x0[3:4], block=4)[0], found[3])
        assert not denoiser.module._forward_hooks
