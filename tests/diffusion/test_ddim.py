"""DDIM from given noise: the formula, a closed form, and pictures that do not depend on their neighbours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from guda.data.pixels import to_uint8
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.sampling import ddim, initial_noise
from guda.errors import GudaError


class Point(torch.nn.Module):
    """The optimal network of a data set of one picture: eps = (x_t - a x*) / s."""

    def __init__(self, x: torch.Tensor, a: np.ndarray, s: np.ndarray) -> None:
        super().__init__()
        self.x, self.a, self.s = x, torch.from_numpy(a).float(), torch.from_numpy(s).float()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        shape = (-1, 1, 1, 1)
        return (x_t - self.a[t].reshape(shape) * self.x) / self.s[t].reshape(shape)


def test_a_model_of_one_picture_draws_it_from_any_noise() -> None:
    scheduler = make_scheduler("linear:100")
    image = torch.from_numpy(np.random.default_rng(0).uniform(-0.9, 0.9, (1, 4, 4)).astype(np.float32))
    first = Denoiser.from_module(Point(image, np.ones(1), np.ones(1)), scheduler, (1, 4, 4))
    model = Denoiser.from_module(Point(image, first.schedule.a, first.schedule.s), scheduler, (1, 4, 4))
    drawn = ddim(model, initial_noise((1, 4, 4), 0, range(5)), steps=20, block=2)
    assert drawn.shape == (5, 1, 4, 4)
    assert (np.abs(drawn.astype(int) - to_uint8(image.numpy()).astype(int)) <= 1).all()


def test_steps_follow_the_formula(make_mlp: Callable[..., Denoiser]) -> None:
    model = make_mlp("squaredcos_cap_v2:50")
    noise = initial_noise(model.shape, 3, range(4))
    drawn = ddim(model, noise, steps=10, block=4)
    clip = bool(model.scheduler.config.clip_sample)
    a, s = model.schedule.a, model.schedule.s
    x = noise.double()
    for t in range(45, -1, -5):
        with torch.no_grad():
            eps = model.eps(x.float(), torch.full((4,), t)).double()
        x0 = (x - s[t] * eps) / a[t]
        x0 = x0.clamp(-1, 1) if clip else x0
        a_prev, s_prev = (a[t - 5], s[t - 5]) if t >= 5 else (1.0, 0.0)
        x = a_prev * x0 + s_prev * eps
    assert (np.abs(drawn.astype(int) - to_uint8(x.numpy()).astype(int)) <= 1).all()


def test_noise_and_pictures_are_named_not_numbered(make_mlp: Callable[..., Denoiser]) -> None:
    model = make_mlp()
    noise = initial_noise(model.shape, 0, [5, 1, 7])
    assert torch.equal(noise[1], initial_noise(model.shape, 0, [1])[0])
    assert not torch.equal(noise[0], initial_noise(model.shape, 1, [5])[0])
    assert abs(float(initial_noise((3, 32, 32), 0, range(4)).std()) - 1) < 0.02
    together, alone = ddim(model, noise, steps=5, block=2), ddim(model, noise[1:2], steps=5, block=2)
    assert np.array_equal(together[1:2], alone)


def test_prompts_and_guidance_change_pictures_of_the_same_noise(tiny_pipeline: Callable[[str], Path]) -> None:
    for kind in ("sd", "sd3"):
        model = Denoiser.from_pretrained(tiny_pipeline(kind))
        noise = initial_noise(model.shape, 0, [0]).repeat(2, 1, 1, 1)

        def drawn(*prompts: str, noise: torch.Tensor = noise, model: Any = model, **options: Any) -> np.ndarray:
            return ddim(model, noise, steps=3, prompts=prompts, block=2, **options)

        same, other = drawn("a red cat", "a red cat"), drawn("a red cat", "blue trees", guidance=5.0)
        assert np.array_equal(same[0], same[1])
        assert not np.array_equal(other[0], other[1])
        assert not np.array_equal(same[0], other[0])  # guided or not


def test_mistakes(make_mlp: Callable[..., Denoiser]) -> None:
    model = make_mlp()
    with pytest.raises(GudaError, match="1 prompts for 2 pictures"):
        ddim(model, initial_noise(model.shape, 0, [0, 1]), prompts=["x"])
    bare = Denoiser(model.module, model.schedule, model.shape)
    with pytest.raises(GudaError, match="no diffusers scheduler"):
        ddim(bare, initial_noise(model.shape, 0, [0]))
