"""Samples: image i is a function of (seed, i)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.sampling import sample, sample_id
from guda.errors import GudaError


class Zero(torch.nn.Module):
    """The optimal x_0 prediction of a set whose only image is grey 0: every sample must end there."""

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


def test_the_optimal_denoiser_of_one_image_samples_that_image() -> None:
    scheduler = DDPMScheduler(num_train_timesteps=50, prediction_type="sample")
    denoiser = Denoiser.from_module(Zero(), scheduler, shape=(1, 2, 2))
    images = sample(denoiser, range(3), seed=0, block=2)
    assert images.dtype == np.uint8
    assert abs(images.astype(int) - 127.5).max() <= 1


def test_the_same_indices_give_the_same_bits_and_the_seed_matters(make_mlp: Callable[..., Denoiser]) -> None:
    denoiser = make_mlp("linear:20")
    images = sample(denoiser, range(6), seed=0, block=4)
    torch.manual_seed(9)
    np.testing.assert_array_equal(sample(denoiser, range(6), seed=0, block=4), images)
    np.testing.assert_array_equal(sample(denoiser, range(4, 6), seed=0, block=4), images[4:])  # blocks are independent
    assert len({image.tobytes() for image in images}) == 6
    assert (sample(denoiser, range(6), seed=1, block=4) != images).any(axis=(1, 2, 3)).all()
    other = sample(denoiser, [5, 2], seed=0, block=3)  # another block size and neighbours: equal up to rounding
    assert abs(other.astype(int) - images[[5, 2]].astype(int)).max() <= 1


def test_networks_see_full_blocks_only_and_ticks_reach_the_end() -> None:
    sizes: list[int] = []

    class Watch(Zero):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return super().forward(x, t)

    ticks: list[tuple[int, int]] = []
    denoiser = Denoiser.from_module(Watch(), make_scheduler("linear:20"), shape=(1, 2, 2))
    sample(denoiser, range(5), seed=0, steps=10, block=4, tick=lambda done, total: ticks.append((done, total)))
    assert sizes == [4] * 20
    assert ticks == [(i, 20) for i in range(1, 21)]


def test_what_cannot_be_sampled_from_says_why(make_unet: Callable[..., Any]) -> None:
    with pytest.raises(GudaError, match="needs prompts"):
        sample(Denoiser.from_module(make_unet(num_class_embeds=2), make_scheduler("linear:9")), [0], seed=0)
    bare = Denoiser(Zero(), Denoiser.from_module(Zero(), make_scheduler("linear:9"), (1, 2, 2)).schedule, (1, 2, 2))
    with pytest.raises(GudaError, match="no diffusers scheduler"):
        sample(bare, [0], seed=0)


def test_ids_sort_like_indices() -> None:
    assert sample_id(3, 7) == "s3-00007"
    assert sorted(sample_id(0, i) for i in (10, 9, 100)) == [sample_id(0, i) for i in (9, 10, 100)]
