"""A model family is one file: registered, it is built from a recipe, trained, saved, and read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import nn

from guda.config import ModelConfig, TrainingConfig
from guda.data.images import ImageData, to_float, to_uint8
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.base import FAMILIES, Cond, Family, Frozen
from guda.diffusion.loading import build_denoiser, known_networks, load, network_class, read_network
from guda.diffusion.training import train
from guda.errors import GudaError
from guda.files import digest
from refusals import refused

# ---- what another package would have in one file ---------------------------------------------------------------------


class LabelNet(ModelMixin, ConfigMixin):
    """One convolution and a bias for each of some labels."""

    @register_to_config
    def __init__(self, sample_size: int = 4, in_channels: int = 1, out_channels: int = 1, labels: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.bias = nn.Embedding(labels, out_channels)

    def forward(self, x: torch.Tensor, t: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return self.conv(x) + self.bias(label)[:, :, None, None]


class Labels(Frozen):
    """Prompts are labels; the empty one is label 0. Images are seen at half contrast."""

    def __init__(self, image_shape: Sequence[int]) -> None:
        super().__init__()
        c, h, w = image_shape
        self.image_shape = self.shape = (c, h, w)

    def encode(self, images: np.ndarray) -> torch.Tensor:
        self.check_images(images)
        return torch.from_numpy(to_float(images)) / 2

    def decode(self, x0: torch.Tensor) -> np.ndarray:
        return to_uint8(2 * x0.detach().cpu().numpy())

    def embed(self, prompts: Sequence[str]) -> dict[str, torch.Tensor]:
        return {"label": torch.tensor([int(p or 0) for p in prompts])}

    def call(self, module: nn.Module, x_t: torch.Tensor, t: torch.Tensor, cond: Cond) -> torch.Tensor:
        return module(x_t, t, cond.tensors["label"])  # type: ignore[no-any-return]

    def source(self) -> dict[str, Any]:
        return {"kind": "labels", "image_shape": list(self.image_shape)}

    def digest(self) -> str:
        return digest(self.source(), 64)


class LabelFamily(Family):
    networks = (f"{__name__}:LabelNet",)
    pipeline = "LabelPipeline"

    def build(self, config: ModelConfig, shape: tuple[int, int, int]) -> tuple[nn.Module, Frozen]:
        c, size, _ = shape
        return LabelNet(sample_size=size, in_channels=c, out_channels=c, **config.options), Labels(shape)

    def frozen(self, source: Mapping[str, Any]) -> Frozen:
        return Labels(source["image_shape"])

    def download_patterns(self) -> list[str]:
        return ["net/*"]

    def read_pipeline(self, folder: Path, path: str, lora: str | None = None) -> tuple[nn.Module, Frozen]:
        module = read_network(network_class("LabelNet"), folder / "net")
        return module, self.read_frozen(folder, path)

    def read_frozen(self, folder: Path, path: str) -> Frozen:
        return Labels((1, 4, 4))


# ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[None]:
    FAMILIES.register("labels")(LabelFamily())
    yield
    del FAMILIES._items["labels"]


def built(**options: Any) -> Denoiser:
    torch.manual_seed(0)
    config = ModelConfig(net="labels", scheduler="linear:20", options=options)  # type: ignore[call-arg]
    return build_denoiser(config, (1, 4, 4))


@pytest.mark.usefixtures("registered")
def test_a_registered_family_is_built_trained_saved_and_read(
    make_images: Callable[..., ImageData], tmp_path: Path
) -> None:
    model, data = built(labels=5), make_images({"a": 6, "b": 6})
    config = TrainingConfig(steps=20, batch=4, warmup=0, lr=0.1)  # type: ignore[call-arg]
    prompts = [str(k) for k in data.groups.labels]
    trained = model.with_weights(train(model, data.images, data.groups, config, seed=0, prompts=prompts).weights)
    assert trained.digest() != model.digest()
    trained.save_pretrained(tmp_path / "model")
    again = Denoiser.from_pretrained(tmp_path / "model")
    assert again.digest() == trained.digest()
    assert isinstance(again.frozen, Labels)
    x, t = torch.randn(2, 1, 4, 4), torch.tensor([3, 7])
    with torch.no_grad():
        assert torch.equal(
            again.eps(x, t, again.condition(["0", "4"])), trained.eps(x, t, trained.condition(["", "4"]))
        )
    assert np.abs(again.decode(again.encode(data.images)).astype(int) - data.images).max() <= 1


@pytest.mark.usefixtures("registered")
def test_a_registered_family_reads_its_pipeline_folders(tmp_path: Path) -> None:
    model = built()
    model.module.save_pretrained(str(tmp_path / "net"))  # type: ignore[operator]
    model.scheduler.save_pretrained(str(tmp_path / "scheduler"))
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "LabelPipeline"}))
    again = Denoiser.from_pretrained(tmp_path)
    assert again.digest() == model.digest()
    assert isinstance(again.frozen, Labels)
    for file in (tmp_path / "net").glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    with pytest.raises(GudaError) as caught:
        load(str(tmp_path))
    assert caught.value.code == "weights-not-safetensors"


def test_what_is_not_registered_is_refused_by_name(tmp_path: Path) -> None:
    assert "LabelNet" not in known_networks()
    with refused(
        "family-unknown", match=r"unknown family 'labels'; known: flux, lumina2, mlp, .*sd, sd3, sdxl, unet2d"
    ):
        built()
    LabelNet().save_pretrained(str(tmp_path))
    with pytest.raises(GudaError) as caught:
        load(str(tmp_path), "linear:20")
    assert caught.value.code == "network-unsupported"


def test_pipelines_are_not_built_from_scratch() -> None:
    with pytest.raises(GudaError) as caught:
        build_denoiser(ModelConfig(net="sdxl", scheduler="linear:20"), (3, 16, 16))  # type: ignore[call-arg]
    assert caught.value.code == "family-not-trainable"


@pytest.mark.parametrize(
    "ask",
    [
        lambda family: family.frozen({}),
        lambda family: family.download_patterns(),
        lambda family: family.read_pipeline(Path("x"), "x"),
        lambda family: family.read_frozen(Path("x"), "x"),
    ],
)
def test_a_family_without_pipelines_says_so(ask: Callable[[Family], object]) -> None:
    with refused("pipeline-unsupported", match="Family has no"):
        ask(Family())
