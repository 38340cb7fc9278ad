"""Text-to-image pipelines behind Denoiser, against diffusers' own pipelines loaded from the same folder."""

import inspect
import json
import shutil
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import tiny_pipelines
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import Cond
from guda.diffusion.schedule import FlowSchedule
from guda.errors import GudaError
from refusals import refused

PROMPTS = ["a cat", "an artwork of towers, with thick paint", ""]  # the second is longer than the encoder
KINDS = tuple(tiny_pipelines.KINDS)
FLOW = ("sd3", "sd3-t5", "flux", "sana", "lumina2")


def pictures(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 16, 16), dtype=np.uint8)


@pytest.fixture(scope="module")
def denoisers(tiny_pipeline: Callable[[str], Path]) -> Callable[[str], Denoiser]:
    return lru_cache(lambda k: Denoiser.from_pretrained(tiny_pipeline(k), **tiny_pipelines.OPTIONS.get(k, {})))


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
    if name == "FluxPipeline":
        embeds, pooled, text_ids = pipe.encode_prompt(prompts, device="cpu")
        packed, ids = pipe._pack_latents(x_t, 3, 4, 8, 8), pipe._prepare_latent_image_ids(3, 4, 4, "cpu", torch.float32)
        guidance = torch.ones(3)  # the plain conditional prediction
        output = pipe.transformer(
            packed, encoder_hidden_states=embeds, pooled_projections=pooled, timestep=time / 1000, img_ids=ids,
            txt_ids=text_ids, guidance=guidance,
        ).sample  # fmt: skip
        return pipe._unpack_latents(output, 16, 16, 2)
    if name.startswith("PixArt"):
        embeds, mask, _, _ = pipe.encode_prompt(prompts, False, device="cpu")
        added = {"resolution": None, "aspect_ratio": None}
        return pipe.transformer(
            x_t, encoder_hidden_states=embeds, encoder_attention_mask=mask, timestep=time, added_cond_kwargs=added
        ).sample.chunk(2, dim=1)[0]
    if name == "SanaPipeline":
        instruction = inspect.signature(pipe.__call__).parameters["complex_human_instruction"].default
        told = pipe.encode_prompt(prompts, False, device="cpu", complex_human_instruction=instruction)[:2]
        empty = pipe.encode_prompt(prompts, True, device="cpu")[2:]  # the negative prompt has none
        last = [torch.cat([a[:2], b[:1]]) for a, b in zip(told, empty, strict=True)]
        return pipe.transformer(
            x_t, encoder_hidden_states=last[0], encoder_attention_mask=last[1], timestep=time
        ).sample
    if name == "Lumina2Pipeline":
        found = pipe.encode_prompt(prompts, True, device="cpu")
        embeds, mask = (torch.cat([a[:2], b[:1]]) for a, b in zip(found[:2], found[2:], strict=True))
        return -pipe.transformer(
            x_t, timestep=1 - time / 1000, encoder_hidden_states=embeds, encoder_attention_mask=mask
        ).sample
    embeds, _, pooled, _ = pipe.encode_prompt(prompts, None, None, device="cpu", do_classifier_free_guidance=False)
    return pipe.transformer(
        hidden_states=x_t, timestep=time, encoder_hidden_states=embeds, pooled_projections=pooled
    ).sample


def levels(pipe: Any) -> torch.Tensor:
    """Noise levels s_t of all training timesteps, by the scheduler's own arithmetic for a picture of 16 tokens."""
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    u = torch.arange(1, 1001, dtype=torch.float64) / 1000
    config = pipe.scheduler.config
    if config.get("use_dynamic_shifting"):
        return pipe.scheduler.time_shift(calculate_shift(16), 1.0, u)
    shift = config.get("flow_shift") or config.get("shift")
    return shift * u / (1 + (shift - 1) * u)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_the_network_is_asked_as_the_pipeline_asks_it(
    kind: str, tiny_pipeline: Callable[[str], Path], denoisers: Callable[[str], Denoiser]
) -> None:
    pipe, denoiser = tiny_pipelines.read(tiny_pipeline(kind)), denoisers(kind)
    x_t = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    t = torch.tensor([1, 500, 998])
    told = (levels(pipe)[t] * 1000).float() if kind in FLOW else t
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
    if kind in FLOW:
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
    encoded = vae.encode(torch.from_numpy(images).float() / 127.5 - 1)
    mean = encoded.latent if kind == "sana" else encoded.latent_dist.mean
    shift = 0.05 if kind in ("sd3", "sd3-t5", "flux", "lumina2") else 0.0
    x0 = denoiser.encode(images)
    torch.testing.assert_close(x0, (mean - shift) * 0.7, rtol=1e-4, atol=1e-5)
    decoded = vae.decode(mean).sample
    expected = ((decoded / 2 + 0.5).clamp(0, 1) * 255).round().numpy()
    assert np.abs(denoiser.decode(x0).astype(int) - expected).max() <= 1  # a half may round either way


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3-t5", "flux", "pixart", "sana", "lumina2"])
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


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3", "flux", "pixart", "sana", "lumina2"])
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


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3", "flux", "pixart", "sana", "lumina2"])
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


# ---- what only some families have -----------------------------------------------------------------------------------


def test_an_embedded_guidance_is_recorded_and_changes_the_prediction(
    tiny_pipeline: Callable[[str], Path], denoisers: Callable[[str], Denoiser], tmp_path: Path
) -> None:
    plain, strong = denoisers("flux"), Denoiser.from_pretrained(tiny_pipeline("flux"), size=16, guidance=3.5)
    assert plain.frozen is not None
    assert strong.frozen is not None
    assert plain.frozen.digest() != strong.frozen.digest()
    x_t, t = torch.randn(1, 4, 8, 8), torch.tensor([500])
    with torch.no_grad():
        one, two = (d.raw(x_t, t, d.condition(["a cat"])) for d in (plain, strong))
        told = Cond(plain.condition(["a cat"]).tensors | {"guidance": torch.tensor([3.5])})  # type: ignore[union-attr]
        assert torch.equal(plain.raw(x_t, t, told), two)
    assert (one - two).abs().max() > 1e-4
    strong.save_pretrained(tmp_path)
    again = Denoiser.from_pretrained(tmp_path)
    assert again.frozen is not None
    assert again.frozen.digest() == strong.frozen.digest()


def test_the_size_of_a_picture_decides_latents_and_shift(tiny_pipeline: Callable[[str], Path]) -> None:
    small, large = (Denoiser.from_pretrained(tiny_pipeline("flux"), size=n) for n in (16, 32))
    assert (small.shape, large.shape) == ((4, 8, 8), (4, 16, 16))
    assert isinstance(small.schedule, FlowSchedule)
    assert isinstance(large.schedule, FlowSchedule)
    slope = (1.15 - 0.5) / (4096 - 256)
    assert small.schedule.shift == pytest.approx(np.exp(0.5 + slope * (16 - 256)), rel=1e-12)
    assert large.schedule.shift == pytest.approx(np.exp(0.5 + slope * (64 - 256)), rel=1e-12)
    with refused("model-size-invalid"):
        Denoiser.from_pretrained(tiny_pipeline("flux"), size=18)
    with refused("model-size-unsupported"):
        Denoiser.from_pretrained(tiny_pipeline("sd"), size=16)


@torch.no_grad()
def test_the_variance_half_of_a_head_decides_nothing(denoisers: Callable[[str], Denoiser]) -> None:
    denoiser = denoisers("pixart")
    other, x_t, t = denoiser.clone(), torch.randn(2, 4, 8, 8), torch.tensor([3, 900])
    head: Any = other.module.get_submodule("proj_out")  # patch 2x2, then the channels: the last four of eight
    for part in (head.weight, head.bias):
        part.view(4, 8, -1)[:, 4:].add_(1.0)
    assert torch.equal(*(d.raw(x_t, t, d.condition(PROMPTS[:2])) for d in (denoiser, other)))
    for part in (head.weight, head.bias):
        part.view(4, 8, -1)[:, :4].add_(1.0)
    assert not torch.equal(*(d.raw(x_t, t, d.condition(PROMPTS[:2])) for d in (denoiser, other)))


def test_a_learned_variance_that_a_sampler_uses_is_refused(
    tiny_pipeline: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(tiny_pipeline("pixart"), tmp_path / "pixart")
    config = tmp_path / "pixart" / "scheduler" / "scheduler_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"variance_type": "learned_range"}))
    with refused("scheduler-variance-learned"):
        Denoiser.from_pretrained(tmp_path / "pixart")


def test_models_distilled_to_a_few_steps_are_refused(tiny_pipeline: Callable[[str], Path], tmp_path: Path) -> None:
    schnell = tmp_path / "mine"
    tiny_pipelines.flux(guidance=False, dynamic=False).save_pretrained(schnell)
    with refused("model-distilled"):
        Denoiser.from_pretrained(schnell, size=16)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)  # somebody says that it is a plain flow model
    scheduler.save_pretrained(tmp_path / "scheduler")
    model = Denoiser.from_pretrained(schnell, str(tmp_path / "scheduler"), size=16)
    assert model.frozen is not None
    assert not model.frozen.embeds_guidance
    with refused("model-guidance-unsupported"):
        Denoiser.from_pretrained(schnell, str(tmp_path / "scheduler"), size=16, guidance=3.5)
    tiny_pipelines.sana(guidance_embeds=True).save_pretrained(tmp_path / "sprint")
    with refused("model-distilled"):
        Denoiser.from_pretrained(tmp_path / "sprint")
    shutil.copytree(tiny_pipeline("sdxl"), tmp_path / "sdxl-turbo")
    with refused("model-distilled"):
        Denoiser.from_pretrained(tmp_path / "sdxl-turbo")


def test_control_and_fill_variants_are_refused(tmp_path: Path) -> None:
    tiny_pipelines.flux(in_channels=32, out_channels=16).save_pretrained(tmp_path)
    with refused("network-channels-differ"):
        Denoiser.from_pretrained(tmp_path, size=16)


@pytest.mark.parametrize("kind", ["sd", "flux", "sana"])
def test_encoders_leave_memory_and_come_back_the_same(kind: str, tiny_pipeline: Callable[[str], Path]) -> None:
    denoiser = Denoiser.from_pretrained(tiny_pipeline(kind), **tiny_pipelines.OPTIONS.get(kind, {}))
    frozen: Any = denoiser.frozen
    x0, hidden, name = frozen.encode(pictures(2)), frozen.embed(["a cat"]), frozen.digest()
    gone = [weakref.ref(part) for part in frozen.parts().values()]
    frozen.release()
    assert [ref() for ref in gone] == [None] * len(gone)
    assert torch.equal(frozen.condition(["a cat"]).tensors["encoder_hidden_states"], hidden["encoder_hidden_states"])
    assert not frozen.vae.in_memory  # only what was asked for is read
    assert torch.equal(frozen.encode(pictures(2)), x0)
    assert frozen.digest() == name
