"""Tiny networks and data shared by the tests: small enough that a test trains one in a second."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: results are bitwise per thread count
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest

from programs import Programs

if TYPE_CHECKING:
    from guda.data.images import ImageData
    from guda.diffusion.denoiser import Denoiser


@pytest.fixture
def launch() -> Iterator[Programs]:
    """launch(command, **options of Popen): a program that ends with the test, with all that it started."""
    programs = Programs()
    yield programs
    programs.end()


@pytest.fixture(scope="session")
def make_mlp() -> Callable[..., Denoiser]:
    """make_mlp(scheduler="linear:100", seed=0, **options): a ResidualMLP for 1x4x4 images with random weights."""

    def build(scheduler: str = "linear:100", seed: int = 0, **options: Any) -> Denoiser:
        import torch

        from guda.diffusion.denoiser import Denoiser
        from guda.diffusion.families.mlp import ResidualMLP
        from guda.diffusion.loading import make_scheduler

        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = ResidualMLP(**({"sample_size": 4, "width": 32, "depth": 2} | options))
            torch.nn.init.normal_(net.out.weight, std=0.1)  # zero by default: a network that says nothing
        return Denoiser.from_module(net, make_scheduler(scheduler))

    return build


@pytest.fixture(scope="session")
def make_unet() -> Callable[..., Any]:
    """make_unet(seed=0, **options): a diffusers UNet2DModel of a few thousand weights for 1x8x8 images."""

    def build(seed: int = 0, **options: Any) -> Any:
        import torch
        from diffusers import UNet2DModel

        small = {
            "sample_size": 8, "in_channels": 1, "out_channels": 1, "layers_per_block": 1, "norm_num_groups": 4,
            "block_out_channels": (8, 16), "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 4,
        }  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return UNet2DModel(**(small | options)).eval()

    return build


@pytest.fixture(scope="session")
def make_images() -> Callable[..., ImageData]:
    """make_images(counts={"a": 5, ...}, size=4, seed=0): random grey images, so many of each group, shuffled."""

    def build(counts: dict[str, int], size: int = 4, seed: int = 0) -> ImageData:
        from guda.data.images import ImageData

        rng = np.random.default_rng(seed)
        labels = [name for name, n in counts.items() for _ in range(n)]
        rng.shuffle(labels)
        return ImageData.from_arrays(
            rng.integers(0, 256, (len(labels), 1, size, size), dtype=np.uint8), labels, layout="NCHW"
        )

    return build


@pytest.fixture(scope="session")
def tiny_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny_pipeline("sd" | "sd-v" | "sdxl" | "sd3" | "sd3-t5"): a saved pipeline's folder, built once."""
    made: dict[str, Path] = {}

    def build(kind: str) -> Path:
        import tiny_pipelines

        if kind not in made:
            made[kind] = tiny_pipelines.save(kind, tmp_path_factory.mktemp("pipelines") / kind)
        return made[kind]

    return build
