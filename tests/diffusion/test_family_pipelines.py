"""Text-to-image pipelines behind Denoiser, against diffusers' own pipelines loaded from the same folder."""

import json
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_pipelines
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.schedule import FlowSchedule
from guda.errors import GudaError

PROMPTS = ["a cat", "an artwork of towers, with thick paint", ""]  # the second is longer than the encoder
KINDS = tuple(tiny_pipelines.KINDS)


def pictures(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 16, 16), dtype=np.uint8)


@pytest.fixture(scope="module")
def denoisers(tiny_pipeline: Callable[[str], Path]) -> Callable[[str], Denoiser]:
    return lru_cache(lambda kind: Denoiser.from_pretrained(tiny_pipeline(kind)))


def theirs(pipe: Any, x_t: torch.Tensor, time: torch.Tensor, prompts: list[str]) -> torch.Tensor:
    """The network's output as the pipeline's own functions would ask for it."""
    name = type(pipe).__name__
    if name == "StableDiffusionPipeline":
        embeds, _ = pipe.encode_prompt(prompts, "cpu", 1, False)
        return pipe.unet(x_t, time, encoder_hidden_states=embeds).sample
    if name == "StableDiffusionXLPipeline":
        embeds, _, pooled, _ = pipe.encode_prompt(prompts, device="cpu", do_classifier_free_guidance=False)
        ids = pipe._get_add_time_ids((16, 16), (0, 0), (16, 16), torch.float32, pooled.shape[-1])
        added = {"text_embeds": pooled, "time_ids": ids.repeat(len(x_t), 1)}
        return pipe.unet(x_t, time, encoder_hidden_states=embeds, added_cond_kwargs=added).sample
    embeds, _, pooled, _ = pipe.encode_prompt(prompts, None, None, device="cpu", do_classifier_free_guidance=False)
    return pipe.transformer(
        hidden_states=x_t, timestep=time, encoder_hidden_states=embeds, pooled_projections=pooled
    ).sample


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_the_network_is_asked_as_the_pipeline_asks_it(
    kind: str, tiny_pipeline: Callable[[str], Path], denoisers: Callable[[str], Denoiser]
) -> None:
    pipe, denoiser = tiny_pipelines.read(tiny_pipeline(kind)), denoisers(kind)
    x_t = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    t = torch.tensor([1, 500, 998])
    told = pipe.scheduler.sigmas.flip(0)[t] * 1000 if "sd3" in kind else t
    expected = theirs(pipe, x_t, told, PROMPTS)
    raw = denoiser.raw(x_t, t, denoiser.condition(PROMPTS))
    torch.testing.assert_close(raw, expected, rtol=1e-4, atol=1e-5)
    assert (raw - denoiser.raw(x_t, t, denoiser.condition(PROMPTS[::-1]))).abs().max() > 1e-4  # it listens
    if kind == "sd":
        torch.testing.assert_close(denoiser.eps(x_t, t, denoiser.condition(PROMPTS)), expected, rtol=1e-4, atol=1e-5)
    if kind == "sd-v":
        abar = pipe.scheduler.alphas_cumprod[t].double().reshape(-1, 1, 1, 1)
        eps = abar.sqrt() * expected + (1 - abar).sqrt() * x_t
        torch.testing.assert_close(denoiser.eps(x_t, t, denoiser.condition(PROMPTS)), eps.float(), rtol=1e-4, atol=1e-5)
    if "sd3" in kind:
        assert isinstance(denoiser.schedule, FlowSchedule)
        s = (told / 1000).reshape(-1, 1, 1, 1)
        velocity = x_t + (1 - s) * expected
        torch.testing.assert_close(denoiser.eps(x_t, t, denoiser.condition(PROMPTS)), velocity, rtol=1e-4, atol=1e-5)


def test_a_long_prompt_is_cut_as_the_pipeline_cuts_it(denoisers: Callable[[str], Denoiser]) -> None:
    cut = denoisers("sd").condition([PROMPTS[1], PROMPTS[1] + " and oil", PROMPTS[1][:20]])
    assert cut is not None
    hidden = cut.tensors["encoder_hidden_states"]
    assert torch.equal(hidden[0], hidden[1])
    assert not torch.equal(hidden[0], hidden[2])


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_latents_are_shifted_and_scaled_posterior_means_and_decode_inverts(
    kind: str, tiny_pipeline: Callable[[str], Path], denoisers: Callable[[str], Denoiser]
) -> None:
    vae, denoiser, images = tiny_pipelines.read(tiny_pipeline(kind)).vae, denoisers(kind), pictures(3)
    assert (denoiser.image_shape, denoiser.shape) == ((3, 16, 16), (4, 8, 8))
    posterior = vae.encode(torch.from_numpy(images).float() / 127.5 - 1).latent_dist
    shift = 0.05 if "sd3" in kind else 0.0
    x0 = denoiser.encode(images)
    torch.testing.assert_close(x0, (posterior.mean - shift) * 0.7, rtol=1e-4, atol=1e-5)
    decoded = vae.decode(posterior.mean).sample
    expected = ((decoded / 2 + 0.5).clamp(0, 1) * 255).round().numpy()
    assert np.abs(denoiser.decode(x0).astype(int) - expected).max() <= 1  # a half may round either way


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3-t5"])
def test_latents_and_embeddings_do_not_depend_on_what_else_is_encoded(
    kind: str, denoisers: Callable[[str], Denoiser]
) -> None:
    frozen, images = denoisers(kind).frozen, pictures(7)
    assert frozen is not None
    whole = frozen.encode(images)
    assert torch.equal(frozen.encode(images[::-1].copy()).flip(0), whole)
    assert torch.equal(torch.cat([frozen.encode(images[i : i + 1]) for i in range(7)]), whole)
    assert np.array_equal(frozen.decode(whole)[6:], frozen.decode(whole[6:]))
    prompts = [f"a cat, style {i}" for i in range(7)]
    together = frozen.embed(prompts)
    for i in (0, 3, 6):
        for name, value in frozen.embed(prompts[i : i + 1]).items():
            assert torch.equal(value[0], together[name][i])


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3"])
def test_embeddings_can_be_trained_through(kind: str, denoisers: Callable[[str], Denoiser]) -> None:
    denoiser = denoisers(kind).clone()
    x_t, t = torch.randn(2, 4, 8, 8), torch.tensor([3, 900])
    denoiser.raw(x_t, t, denoiser.condition(PROMPTS[:2])).square().mean().backward()
    assert all(p.grad is not None for p in list(denoiser.module.parameters())[:4])
    assert denoiser.frozen is not None
    assert not any(p.requires_grad for part in denoiser.frozen.parts().values() for p in part.parameters())


@pytest.mark.parametrize(
    ("shape", "fix"), [((1, 16, 16), "data.mode: RGB"), ((3, 32, 32), "--size 16"), ((3, 16, 8), "--size 16")]
)
def test_pictures_of_another_kind_are_refused_with_the_fix(
    shape: tuple[int, ...], fix: str, denoisers: Callable[[str], Denoiser]
) -> None:
    with pytest.raises(GudaError, match=rf"3x16x16.*{fix}"):
        denoisers("sd").encode(np.zeros((1, *shape), np.uint8))


def test_digest_names_weights_tokens_and_size_but_not_the_place(
    tiny_pipeline: Callable[[str], Path], denoisers: Callable[[str], Denoiser], tmp_path: Path
) -> None:
    frozen = denoisers("sd").frozen
    assert frozen is not None
    copy = tmp_path / "copy"
    shutil.copytree(tiny_pipeline("sd"), copy)
    again = Denoiser.from_pretrained(copy).frozen
    assert again is not None
    assert again.digest() == frozen.digest()
    again.to("cpu")
    assert again.digest() == frozen.digest()
    found = {frozen.digest()}
    for part, field, value in (("vae", "scaling_factor", 0.5), ("unet", "sample_size", 16)):
        config = copy / part / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {field: value}))
        found.add(Denoiser.from_pretrained(copy).frozen.digest())  # type: ignore[union-attr]
    vocabulary = copy / "tokenizer" / "tokenizer_config.json"
    vocabulary.write_text(vocabulary.read_text() + "\n")
    found.add(Denoiser.from_pretrained(copy).frozen.digest())  # type: ignore[union-attr]
    assert len(found) == 4


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3"])
def test_a_network_trained_here_finds_its_frozen_part_again(
    kind: str, denoisers: Callable[[str], Denoiser], tmp_path: Path
) -> None:
    denoiser = denoisers(kind)
    denoiser.save_pretrained(tmp_path)
    assert not (tmp_path / "vae").exists()  # gigabytes are not copied
    again = Denoiser.from_pretrained(tmp_path)
    assert again.digest() == denoiser.digest()
    assert again.schedule.digest == denoiser.schedule.digest
    x_t, t = torch.randn(1, 4, 8, 8), torch.tensor([5])
    assert denoiser.frozen is not None
    assert again.frozen is not None
    assert again.frozen.digest() == denoiser.frozen.digest()
    with torch.no_grad():
        mine, other = (d.eps(x_t, t, d.condition(["a cat"])) for d in (denoiser, again))
    assert torch.equal(mine, other)
