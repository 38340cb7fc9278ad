"""Latents and embeddings kept in the run: the same numbers as computed, computed once, refused when foreign."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError
from guda.files import read_tensors, write_tensors
from guda.run.models import _load, cached_conditions, cached_latents, load_model
from guda.run.recipe import Recipe
from guda.run.run import Run

PROMPTS = ["a cat", "a dog", "a cat", "", "a tower"]


@pytest.fixture(scope="module")
def denoisers(tiny_pipeline: Callable[[str], Path]) -> Callable[[str], Denoiser]:
    return lru_cache(lambda kind: Denoiser.from_pretrained(tiny_pipeline(kind)))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", {})


@pytest.fixture
def fresh(tiny_pipeline: Callable[[str], Path]) -> Denoiser:
    return Denoiser.from_pretrained(tiny_pipeline("sd"))


def pictures(n: int = 6, seed: int = 0) -> ImageData:
    rng = np.random.default_rng(seed)
    return ImageData.from_arrays(rng.integers(0, 256, (n, 3, 16, 16), dtype=np.uint8), ["a", "b"] * (n // 2))


def refuse(*_: Any) -> Any:
    raise AssertionError("computed again")


def names(run: Run) -> list[str]:
    return sorted(p.name for p in (run.root / "cache").iterdir())


def test_latents_of_pictures_and_of_mirror_images_are_computed_once(
    run: Run, fresh: Denoiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pictures()
    plain = cached_latents(run, fresh, data)
    assert torch.equal(plain.x0, fresh.encode(data.images))
    assert plain.mirrored is None
    assert len(names(run)) == 1
    both = cached_latents(run, fresh, data, flips=True)
    mirrored = fresh.encode(data.images[..., ::-1].copy())
    assert both.mirrored is not None
    assert torch.equal(both.mirrored, mirrored)
    assert (mirrored - both.x0.flip(-1)).abs().max() > 1e-3  # which is why they are kept
    flip = np.array([True, False])
    assert torch.equal(both.take(np.array([4, 2]), flip), torch.stack([mirrored[4], plain.x0[2]]))
    monkeypatch.setattr(Denoiser, "encode", refuse)
    again = cached_latents(run, fresh, data, flips=True)
    assert torch.equal(again.x0, both.x0)
    with pytest.raises(AssertionError, match="computed again"):
        cached_latents(run, fresh, pictures(seed=1))


def test_embeddings_are_computed_once_per_text_and_read_from_the_file(
    run: Run, fresh: Denoiser, tiny_pipeline: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fresh.condition(PROMPTS)
    cached_conditions(run, fresh, PROMPTS)
    tensors, _ = read_tensors(next((run.root / "cache").iterdir()))
    assert {len(v) for v in tensors.values()} == {4}
    other = Denoiser.from_pretrained(tiny_pipeline("sd"))
    assert other.frozen is not None
    monkeypatch.setattr(type(other.frozen), "embed", refuse)
    cached_conditions(run, other, PROMPTS[::-1])  # the same set of texts
    found = other.condition(PROMPTS)
    assert expected is not None
    assert found is not None
    for name, value in expected.tensors.items():
        assert torch.equal(found.tensors[name], value)
    cached_conditions(run, other, PROMPTS[:2])  # known already: no second file
    assert len(names(run)) == 1


def test_other_frozen_parts_have_other_files(run: Run, denoisers: Callable[[str], Denoiser]) -> None:
    data = pictures(2)
    for kind in ("sd", "sd-v", "sd3"):
        cached_latents(run, denoisers(kind), data)
        cached_conditions(run, denoisers(kind), PROMPTS)
    assert len(names(run)) == 6


def test_models_without_a_vae_keep_nothing(run: Run, make_mlp: Callable[..., Denoiser], make_images: Any) -> None:
    data = make_images({"a": 2, "b": 2})
    assert torch.equal(cached_latents(run, make_mlp(), data, flips=True).x0, make_mlp().encode(data.images))
    cached_conditions(run, make_mlp(), None)
    assert not (run.root / "cache").exists()


def test_a_foreign_or_damaged_file_is_refused(run: Run, fresh: Denoiser) -> None:
    cached_latents(run, fresh, pictures())
    file = next((run.root / "cache").iterdir())
    tensors, header = read_tensors(file)
    write_tensors(file, tensors, header | {"frozen": "another"})
    with pytest.raises(GudaError, match="delete it") as e:
        cached_latents(run, fresh, pictures())
    assert e.value.code == "cache-stale"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(GudaError, match="damaged"):
        cached_latents(run, fresh, pictures())


def test_an_interrupted_writer_leaves_nothing_that_is_taken_for_whole(
    run: Run, fresh: Denoiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Denoiser, "encode", refuse)
        with pytest.raises(AssertionError):
            cached_latents(run, fresh, pictures())
    assert names(run) == []
    assert torch.equal(cached_latents(run, fresh, pictures()).x0, fresh.encode(pictures().images))


def test_one_computes_while_the_others_wait(run: Run, fresh: Denoiser, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    encode = Denoiser.encode

    def counted(self: Denoiser, images: np.ndarray) -> torch.Tensor:
        calls.append(len(images))
        return encode(self, images)

    monkeypatch.setattr(Denoiser, "encode", counted)
    with ThreadPoolExecutor(4) as pool:  # locks are per opened file, so threads stand for processes here
        found = list(pool.map(lambda _: cached_latents(run, fresh, pictures()).x0, range(4)))
    assert calls == [6]
    assert all(torch.equal(x, found[0]) for x in found)


def test_what_is_kept_in_memory_is_bounded_and_never_wrong(fresh: Denoiser, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fresh.frozen is not None
    expected = {p: fresh.frozen.embed([p])["encoder_hidden_states"][0] for p in set(PROMPTS)}
    row = expected["a cat"].nbytes
    monkeypatch.setattr("guda.diffusion.families.base.EMBEDDING_BYTES", 2 * row)
    for batch in (PROMPTS[:2], PROMPTS, PROMPTS[3:], PROMPTS[:1]):
        cond = fresh.condition(batch)
        assert cond is not None
        for prompt, value in zip(batch, cond.tensors["encoder_hidden_states"], strict=True):
            assert torch.equal(value, expected[prompt])
        assert fresh.frozen._bytes <= 2 * row
        assert sum(v.nbytes for r in fresh.frozen._computed.values() for v in r.values()) == fresh.frozen._bytes


def test_a_run_notices_that_its_pipelines_vae_was_replaced(
    tiny_pipeline: Callable[[str], Path], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_pipeline("sd"), model)
    denoiser = Denoiser.from_pretrained(model)
    assert denoiser.frozen is not None
    (tmp_path / "run").mkdir()
    recipe = {"name": "t", "data": {"source": "digits"}, "model": {"path": str(model)}}
    lock = {"model": denoiser.digest(), "frozen": denoiser.frozen.digest()}
    run = Run.create(tmp_path / "run", Recipe.from_dict(recipe, "here"), lock)
    assert load_model(run, "base").digest() == denoiser.digest()
    weights = next((model / "vae").glob("*.safetensors"))
    state = load_file(weights)
    save_file({k: v + 1e-3 for k, v in state.items()}, weights, metadata={"format": "pt"})
    _load.cache_clear()
    with pytest.raises(GudaError, match=r"VAE and text encoders.*changed since"):
        load_model(run, "base")
