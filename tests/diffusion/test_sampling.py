"""Images drawn from models: ancestral samples, DDIM from given noise, and images for prompts.

Against closed forms where there is one, and against diffusers' own pipelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler, DPMSolverMultistepScheduler

import tiny_pipelines
from guda.data.images import to_float, to_uint8
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond, Frozen
from guda.diffusion.loading import make_scheduler
from guda.diffusion.sampling import ddim, generate, initial_noise, prompt_solver, sample, sample_id
from refusals import refused

PROMPTS = ["a cat", "a cat, thick paint", "a tower"]

# ---- ancestral samples -----------------------------------------------------------------------------------------------


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
    with refused("sampling-needs-prompts"):
        sample(Denoiser.from_module(make_unet(num_class_embeds=2), make_scheduler("linear:9")), [0], seed=0)
    bare = Denoiser(Zero(), Denoiser.from_module(Zero(), make_scheduler("linear:9"), (1, 2, 2)).schedule, (1, 2, 2))
    with refused("denoiser-without-scheduler"):
        sample(bare, [0], seed=0)


def test_ids_sort_like_indices() -> None:
    assert sample_id(3, 7) == "s3-00007"
    assert sorted(sample_id(0, i) for i in (10, 9, 100)) == [sample_id(0, i) for i in (9, 10, 100)]


# ---- DDIM from given noise -------------------------------------------------------------------------------------------


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


def test_ddim_mistakes(make_mlp: Callable[..., Denoiser]) -> None:
    model = make_mlp()
    with refused("prompts-count-mismatch", match="1 prompts for 2 pictures"):
        ddim(model, initial_noise(model.shape, 0, [0, 1]), prompts=["x"])
    bare = Denoiser(model.module, model.schedule, model.shape)
    with refused("denoiser-without-scheduler"):
        ddim(bare, initial_noise(model.shape, 0, [0]))


# ---- images for prompts ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def denoisers(tiny_pipeline: Callable[[str], Path]) -> Callable[[str], Denoiser]:
    return lru_cache(lambda k: Denoiser.from_pretrained(tiny_pipeline(k), **tiny_pipelines.OPTIONS.get(k, {})))


SQUARE = {"height": 16, "width": 16}

CALLS: dict[str, dict[str, Any]] = {  # what a pipeline does by default that is not a matter of the model
    "flux": SQUARE,
    "pixart": SQUARE | {"use_resolution_binning": False},
    "pixart-sigma": SQUARE | {"use_resolution_binning": False},
    # these two do not ask their VAE how many pixels a latent is: noise of the right shape, a size they accept
    "sana": {"height": 32, "width": 32, "use_resolution_binning": False},
    "lumina2": {"height": 64, "width": 64, "cfg_normalization": False},
}


@pytest.mark.parametrize("kind", tuple(tiny_pipelines.KINDS))
@pytest.mark.parametrize("guidance", [7.5, 1.0])
def test_the_pipelines_own_pictures(
    kind: str, guidance: float, tiny_pipeline: Callable[[str], Path], denoisers: Callable[[str], Denoiser]
) -> None:
    pipe = tiny_pipelines.read(tiny_pipeline(kind))
    if kind in ("sd", "sd-v", "sdxl"):
        pipe.scheduler = DPMSolverMultistepScheduler.from_config(pipe.scheduler.config)
    mine = generate(denoisers(kind), PROMPTS, seed=42, steps=4, guidance=guidance, block=4)
    for prompt, image in zip(PROMPTS, mine, strict=True):
        noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(42))
        theirs = pipe(
            prompt, num_inference_steps=4, guidance_scale=guidance, generator=torch.Generator().manual_seed(42),
            output_type="np", **({"latents": noise} if kind == "sana" else {}), **CALLS.get(kind, {}),
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


# ---- pixel space, closed form ------------------------------------------------------------------------------------


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
    assert len(prompt_solver(denoiser, 50)().timesteps) <= 10


def test_models_that_are_not_told_prompts_are_refused(make_mlp: Callable[..., Denoiser]) -> None:
    with refused("text-model-required"):
        generate(make_mlp(), ["a cat"])
    scheduler = make_scheduler("linear:10")
    with refused("prompts-empty"):
        generate(Denoiser.from_module(Flat(scheduler), scheduler, (1, 2, 2), Grey()), [])
