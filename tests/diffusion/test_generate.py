"""Pictures for prompts: equal to those of diffusers' own pipelines, and to a closed form where there is one."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler

import tiny_pipelines
from guda.data.pixels import to_float, to_uint8
from guda.diffusion.cond import Cond
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Frozen
from guda.diffusion.loading import make_scheduler
from guda.diffusion.sampling import generate, sampler
from guda.errors import GudaError

PROMPTS = ["a cat", "a cat, thick paint", "a tower"]


@pytest.fixture(scope="module")
def denoisers(tiny_pipeline: Callable[[str], Path]) -> Callable[[str], Denoiser]:
    return lru_cache(lambda kind: Denoiser.from_pretrained(tiny_pipeline(kind)))


@pytest.mark.parametrize("kind", tuple(tiny_pipelines.KINDS))
@pytest.mark.parametrize("guidance", [7.5, 1.0])
def test_the_pipelines_own_pictures(
    kind: str, guidance: float, tiny_pipeline: Callable[[str], Path], denoisers: Callable[[str], Denoiser]
) -> None:
    pipe = tiny_pipelines.read(tiny_pipeline(kind))
    if "sd3" not in kind:
        pipe.scheduler = DPMSolverMultistepScheduler.from_config(pipe.scheduler.config)
    mine = generate(denoisers(kind), PROMPTS, seed=42, steps=4, guidance=guidance, block=4)
    for prompt, image in zip(PROMPTS, mine, strict=True):
        theirs = pipe(
            prompt, num_inference_steps=4, guidance_scale=guidance, generator=torch.Generator().manual_seed(42),
            output_type="np",
        ).images[0]  # fmt: skip
        assert np.abs(image.transpose(1, 2, 0) - theirs * 255).max() <= 0.6  # rounded to uint8: at most a half


def test_a_picture_depends_on_prompt_seed_and_block_size_alone(denoisers: Callable[[str], Denoiser]) -> None:
    denoiser = denoisers("sd")
    options: dict[str, Any] = {"steps": 3, "block": 2}
    whole = generate(denoiser, PROMPTS, **options)
    assert np.array_equal(generate(denoiser, PROMPTS[::-1], **options)[::-1], whole)
    assert np.array_equal(generate(denoiser, PROMPTS[1:2], **options)[0], whole[1])
    assert np.array_equal(generate(denoiser, ["a cat"] * 3, **options), whole[[0, 0, 0]])  # one seed for every picture
    assert not np.array_equal(generate(denoiser, PROMPTS, seed=43, **options), whole)


def test_progress_counts_every_step_of_every_block(denoisers: Callable[[str], Denoiser]) -> None:
    seen: list[tuple[int, int]] = []
    generate(denoisers("sd"), PROMPTS, steps=3, block=2, tick=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 6) for i in range(1, 7)]


# ---- pixel space, closed form -------------------------------------------------------------------------------------


class Grey(Frozen):
    """Prompts are numbers: all there is of prompt m is the flat picture m; the empty prompt is the picture 0."""

    image_shape = shape = (1, 2, 2)

    def encode(self, images: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(to_float(images))

    def decode(self, x0: torch.Tensor) -> np.ndarray:
        return to_uint8(x0.numpy())

    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        return {"mean": torch.tensor([float(p or 0) for p in prompts])}

    def call(self, module: torch.nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        return module(x_t, t, cond.tensors["mean"])  # type: ignore[no-any-return]

    def source(self) -> dict[str, Any]:
        return {}

    def digest(self) -> str:
        return "grey"


class Flat(torch.nn.Module):
    """The exact denoiser of a data set of one flat picture."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__()
        self.abar = scheduler.alphas_cumprod.double()

    def forward(self, x_t: torch.Tensor, t: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        abar, m = self.abar[t.long()][:, None, None, None], mean[:, None, None, None]
        return ((x_t - abar.sqrt() * m) / (1 - abar).sqrt()).float()


@pytest.mark.parametrize("kind", ["linear:1000", "squaredcos_cap_v2:1000", "squaredcos_cap_v2:100"])
def test_the_solver_ends_at_the_only_picture_there_is_and_guidance_goes_past_it(kind: str) -> None:
    scheduler = make_scheduler(kind)
    denoiser = Denoiser.from_module(Flat(scheduler), scheduler, (1, 2, 2), Grey())
    for guidance, factor in ((1.0, 1.0), (3.0, 3.0)):  # from the picture 0 towards m, and three times as far
        out = generate(denoiser, ["0.25", "-0.3", "0.1"], steps=20, guidance=guidance, block=2)
        expected = to_uint8(factor * np.array([0.25, -0.3, 0.1], np.float32))
        assert np.abs(out.astype(int) - expected[:, None, None, None].astype(int)).max() <= 2


def test_steps_are_at_most_those_of_the_schedule() -> None:
    scheduler = make_scheduler("linear:10")
    denoiser = Denoiser.from_module(Flat(scheduler), scheduler, (1, 2, 2), Grey())
    assert len(sampler(denoiser, 50).timesteps) <= 10


def test_models_that_are_not_told_prompts_are_refused(make_mlp: Callable[..., Denoiser]) -> None:
    with pytest.raises(GudaError, match="this one is unconditional"):
        generate(make_mlp(), ["a cat"])
    scheduler = make_scheduler("linear:10")
    with pytest.raises(GudaError, match="no prompts"):
        generate(Denoiser.from_module(Flat(scheduler), scheduler, (1, 2, 2), Grey()), [])
