"""Text-to-image pipelines in the diffusers layout: which are known, and how their parts are read.

A pipeline is recognised by `_class_name` of model_index.json; its network, VAE, text encoders and tokenizers are read
one by one, because a part that lacks weights must be an error and not random numbers with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from guda.data.text import quiet_loading
from guda.diffusion.frozen_latent import LatentFrozen
from guda.diffusion.frozen_sd import StableDiffusion
from guda.diffusion.frozen_sd3 import T5_LENGTH, StableDiffusion3
from guda.diffusion.frozen_sdxl import StableDiffusionXL
from guda.diffusion.fusing import fuse
from guda.diffusion.text_encoder import TextEncoder
from guda.errors import GudaError
from guda.files import digest, digest_file, read_header, read_json

CLIP, T5 = ("CLIPTextModel", "CLIPTextModelWithProjection"), ("T5EncoderModel",)

TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast", "T5Tokenizer", "T5TokenizerFast")

STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Kind:
    frozen: type[LatentFrozen]
    network: str  # its folder
    net: str  # its class
    texts: tuple[str, ...]  # folders of text encoders; "text_encoder_2" has its tokenizer in "tokenizer_2"
    optional: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        return (self.network, "scheduler", "vae", *self.texts, *(tokenizer_of(t) for t in self.texts))


KINDS = {
    "StableDiffusionPipeline": Kind(StableDiffusion, "unet", "UNet2DConditionModel", ("text_encoder",)),
    "StableDiffusionXLPipeline": Kind(
        StableDiffusionXL, "unet", "UNet2DConditionModel", ("text_encoder", "text_encoder_2")
    ),
    "StableDiffusion3Pipeline": Kind(
        StableDiffusion3, "transformer", "SD3Transformer2DModel",
        ("text_encoder", "text_encoder_2", "text_encoder_3"), ("text_encoder_3",),
    ),
}  # fmt: skip


def tokenizer_of(text: str) -> str:
    return text.replace("text_encoder", "tokenizer")


def download_patterns(index: Mapping[str, Any]) -> list[str]:
    """Files of a Hub repository that are needed: not the other copies of the weights that lie beside them."""
    kind = KINDS[index["_class_name"]]
    return [f"{part}/{end}" for part in kind.folders for end in ("*.json", "*.safetensors", "*.txt", "*.model")]


def read_pipeline(folder: Path, path: str, load_net: Callable[[Any, Path], Any], lora: str | None) -> tuple[Any, Any]:
    """(network, frozen part) of a pipeline folder; `path`: how the user named it; `load_net(class, folder)` -> network.
    A LoRA is added to the weights for good."""
    import diffusers

    index = read_json(folder / "model_index.json")
    kind = KINDS[index["_class_name"]]
    _check_parts(folder, kind, index)
    module = load_net(getattr(diffusers, kind.net), folder / kind.network)
    _check_net(folder, module)
    parts = _read_parts(folder, kind, index)
    source = _source(path)
    if lora is not None and fuse(index["_class_name"], kind.network, {kind.network: module} | parts, lora):
        source["lora"] = lora
    return module, _frozen(folder, kind, index, module.config.sample_size, parts, source)


@lru_cache(maxsize=2)
def frozen_of(path: str, lora: str | None = None) -> Any:
    """The frozen part alone, for networks fine-tuned here; shared within a process."""
    from guda.diffusion.loading import find_folder, load

    if lora is not None:  # it moved the text encoders too, and is fused as a whole
        return load(path, None, lora)[2]
    folder = find_folder(path)
    index = read_json(folder / "model_index.json")
    kind = KINDS[index["_class_name"]]
    _check_parts(folder, kind, index)
    size = read_json(folder / kind.network / "config.json").get("sample_size")
    return _frozen(folder, kind, index, size, _read_parts(folder, kind, index), _source(path))


def _source(path: str) -> dict[str, Any]:
    local = Path(path).expanduser()
    return {"kind": "pipeline", "path": str(local.resolve()) if local.exists() else path}


def _read_parts(folder: Path, kind: Kind, index: Mapping[str, Any]) -> dict[str, Any]:
    parts = {"vae": _read_vae(folder / "vae")}
    for text in _present(kind, index):
        parts[text] = _read_text(folder / text, index[text][1])
        parts[tokenizer_of(text)] = _read_tokenizer(folder / tokenizer_of(text), index[tokenizer_of(text)][1])
    return parts


def _frozen(
    folder: Path, kind: Kind, index: dict[str, Any], size: Any, parts: dict[str, Any], source: dict[str, Any]
) -> LatentFrozen:
    present = _present(kind, index)
    texts = {
        t: TextEncoder(parts[tokenizer_of(t)], parts[t], T5_LENGTH if t == "text_encoder_3" else None) for t in present
    }
    files = sorted(f for t in present for f in (folder / tokenizer_of(t)).iterdir() if f.is_file())
    return kind.frozen(
        parts["vae"], texts, size, source=source,
        options={k: v for k, v in index.items() if not isinstance(v, list)},
        stored={name: _stored(folder / name) for name in ("vae", *present)},
        tokenizers=digest([[f.parent.name, f.name, digest_file(f)] for f in files], 64),
    )  # fmt: skip


def _present(kind: Kind, index: Mapping[str, Any]) -> list[str]:
    return [t for t in kind.texts if t not in kind.optional or _named(index, t)]


def _named(index: Mapping[str, Any], part: str) -> str | None:
    value = index.get(part)
    return value[1] if isinstance(value, list) and len(value) == 2 else None


def _check_parts(folder: Path, kind: Kind, index: Mapping[str, Any]) -> None:
    present = _present(kind, index)
    wanted: dict[str, tuple[str, ...]] = {kind.network: (kind.net,), "vae": ("AutoencoderKL",)}
    wanted |= {t: T5 if t == "text_encoder_3" else CLIP for t in present}
    wanted |= {tokenizer_of(t): TOKENIZERS for t in present}
    for part, classes in wanted.items():
        if (name := _named(index, part)) is None or not (folder / part).is_dir():
            raise GudaError(
                "pipeline-part-missing",
                f"{folder} is a {index['_class_name']} without its {part}; get the whole pipeline folder",
            )
        if name not in classes:
            raise GudaError(
                "pipeline-part-unsupported", f"{folder}: {part} is a {name}; guda reads {', '.join(classes)} there"
            )


def _check_net(folder: Path, module: Any) -> None:
    """Networks that want to be told more than a pipeline of this kind says."""
    for field in ("time_cond_proj_dim", "encoder_hid_dim_type"):
        if module.config.get(field) is not None:
            raise GudaError(
                "network-feature-unsupported",
                f"{folder}: the network has {field} (a distilled or adapted model); not supported",
            )
    if module.config.get("addition_embed_type") not in (None, "text_time"):
        raise GudaError(
            "network-feature-unsupported",
            f"{folder}: the network has addition_embed_type {module.config['addition_embed_type']!r}",
        )


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    with quiet_loading(str(folder), "get the whole pipeline folder again, with safetensors weights"):
        try:
            yield
        except Exception as e:  # safetensors, transformers and diffusers each raise their own for a damaged file
            raise ValueError(str(e)) from e


def _checked(folder: Path, model: Any, info: Mapping[str, Any]) -> Any:
    if missing := sorted(info["missing_keys"]):
        raise GudaError(
            "weights-missing", f"{folder}: its weights lack {missing[0]!r}; get the whole pipeline folder again"
        )
    if bad := [n for n, p in model.named_parameters() if not bool(torch.isfinite(p).all())]:
        raise GudaError(
            "weights-not-finite", f"{folder}: weight {bad[0]!r} holds NaN or infinity; the checkpoint is broken"
        )
    return model


def _weights(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise GudaError(
            "weights-not-safetensors",
            f"{folder} holds no .safetensors weights (pickled .bin files are not read); re-save it",
        )
    return found


def _stored(folder: Path) -> torch.dtype:
    _, dtypes = read_header(_weights(folder)[0])
    return next((STORED[d] for d in dtypes.values() if d in STORED), torch.float32)


def _read_vae(folder: Path) -> Any:
    _weights(folder)
    with _reading(folder):
        from diffusers import AutoencoderKL

        model, info = AutoencoderKL.from_pretrained(
            str(folder), use_safetensors=True, low_cpu_mem_usage=False, output_loading_info=True
        )
    return _checked(folder, model.float(), info)


def _read_text(folder: Path, name: str) -> Any:
    _weights(folder)
    with _reading(folder):
        import transformers

        cls = getattr(transformers, name)
        model, info = cls.from_pretrained(str(folder), use_safetensors=True, dtype="float32", output_loading_info=True)
    return _checked(folder, model, info)


def _read_tokenizer(folder: Path, name: str) -> Any:
    with _reading(folder):
        import transformers

        return getattr(transformers, name).from_pretrained(str(folder), local_files_only=True)
