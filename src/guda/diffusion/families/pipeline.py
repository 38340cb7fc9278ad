"""Latent text-to-image pipelines in the diffusers folder layout.

A pipeline is recognised by `_class_name` of model_index.json; its network, VAE, text encoders and tokenizers are read
one by one, because a part that lacks weights must be an error and not random numbers with a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from guda.data.text import quiet_loading
from guda.diffusion.families.base import Family
from guda.diffusion.families.latent import LatentFrozen, TextEncoder
from guda.diffusion.loading import network_class, read_network, weight_files
from guda.diffusion.lora import fuse
from guda.errors import GudaError
from guda.files import digest, digest_file, read_header, read_json

TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast", "T5Tokenizer", "T5TokenizerFast")

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Text:
    """A text encoder of a pipeline."""

    classes: tuple[str, ...]  # of transformers
    length: int | None = None  # tokens; default: the tokenizer's own
    optional: bool = False


CLIP = Text(("CLIPTextModel", "CLIPTextModelWithProjection"))


class PipelineFamily(Family):
    def __init__(
        self, pipeline: str, frozen: type[LatentFrozen], *, folder: str, network: str, texts: Mapping[str, Text]
    ) -> None:
        """folder, network: the network's folder and diffusers class; texts: text encoders by folder, "text_encoder_2"
        with its tokenizer in "tokenizer_2"."""
        self.pipeline, self.frozen_class, self.folder, self.network = pipeline, frozen, folder, network
        self.texts, self.networks = texts, (f"diffusers:{network}",)

    def download_patterns(self) -> list[str]:
        parts = (self.folder, "scheduler", "vae", *self.texts, *(_tokenizer(t) for t in self.texts))
        return [f"{part}/{end}" for part in parts for end in ("*.json", "*.safetensors", "*.txt", "*.model")]

    def read_pipeline(self, folder: Path, path: str, lora: str | None = None) -> tuple[Any, LatentFrozen]:
        """A LoRA is added to the weights for good."""
        index = self._read_index(folder)
        module = read_network(network_class(self.network), folder / self.folder)
        _check_network(folder, module)
        parts, source = self._read_parts(folder, index), _source(path)
        if lora is not None and fuse(self.pipeline or "", self.folder, {self.folder: module} | parts, lora):
            source["lora"] = lora
        return module, self._frozen(folder, index, module.config.sample_size, parts, source)

    def read_frozen(self, folder: Path, path: str) -> LatentFrozen:
        index = self._read_index(folder)
        size = read_json(folder / self.folder / "config.json").get("sample_size")
        return self._frozen(folder, index, size, self._read_parts(folder, index), _source(path))

    def _present(self, index: Mapping[str, Any]) -> dict[str, Text]:
        return {name: text for name, text in self.texts.items() if not text.optional or _class_of(index, name)}

    def _read_index(self, folder: Path) -> dict[str, Any]:
        """model_index.json, if every part is there and of a known class."""
        index: dict[str, Any] = read_json(folder / "model_index.json")
        classes: dict[str, tuple[str, ...]] = {self.folder: (self.network,), "vae": ("AutoencoderKL",)}
        classes |= {name: text.classes for name, text in self._present(index).items()}
        classes |= {_tokenizer(name): TOKENIZERS for name in self._present(index)}
        for part, known in classes.items():
            if (name := _class_of(index, part)) is None or not (folder / part).is_dir():
                raise GudaError(
                    "pipeline-part-missing",
                    f"{folder} is a {self.pipeline} without its {part}; get the whole pipeline folder",
                )
            if name not in known:
                raise GudaError(
                    "pipeline-part-unsupported", f"{folder}: {part} is a {name}; guda reads {', '.join(known)} there"
                )
        return index

    def _read_parts(self, folder: Path, index: Mapping[str, Any]) -> dict[str, Any]:
        parts = {"vae": _read_part("diffusers", "AutoencoderKL", folder / "vae", low_cpu_mem_usage=False)}
        for text in self._present(index):
            parts[text] = _read_part("transformers", index[text][1], folder / text, dtype="float32")
            tokenizer = _tokenizer(text)
            with _reading(folder / tokenizer):
                cls = getattr(import_module("transformers"), index[tokenizer][1])
                parts[tokenizer] = cls.from_pretrained(str(folder / tokenizer), local_files_only=True)
        return parts

    def _frozen(
        self, folder: Path, index: dict[str, Any], size: Any, parts: dict[str, Any], source: dict[str, Any]
    ) -> LatentFrozen:
        present = self._present(index)
        files = sorted(f for t in present for f in (folder / _tokenizer(t)).iterdir() if f.is_file())
        return self.frozen_class(
            parts["vae"],
            {name: TextEncoder(parts[_tokenizer(name)], parts[name], text.length) for name, text in present.items()},
            size,
            source=source,
            options={k: v for k, v in index.items() if not isinstance(v, list)},
            stored={name: _stored_dtype(folder / name) for name in ("vae", *present)},
            tokenizers=digest([[f.parent.name, f.name, digest_file(f)] for f in files], 64),
        )


def _tokenizer(text: str) -> str:
    return text.replace("text_encoder", "tokenizer")


def _class_of(index: Mapping[str, Any], part: str) -> str | None:
    value = index.get(part)
    return value[1] if isinstance(value, list) and len(value) == 2 else None


def _source(path: str) -> dict[str, Any]:
    local = Path(path).expanduser()
    return {"kind": "pipeline", "path": str(local.resolve()) if local.exists() else path}


def _check_network(folder: Path, module: Any) -> None:
    """Refuse networks with more inputs than a pipeline of this kind provides."""
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


def _read_part(library: str, name: str, folder: Path, **options: Any) -> Any:
    """A VAE or text encoder, float32."""
    weight_files(folder)
    with _reading(folder):
        cls = getattr(import_module(library), name)
        model, info = cls.from_pretrained(str(folder), use_safetensors=True, output_loading_info=True, **options)
    if missing := sorted(info["missing_keys"]):
        raise GudaError(
            "weights-missing", f"{folder}: its weights lack {missing[0]!r}; get the whole pipeline folder again"
        )
    if bad := [n for n, p in model.named_parameters() if not bool(torch.isfinite(p).all())]:
        raise GudaError(
            "weights-not-finite", f"{folder}: weight {bad[0]!r} holds NaN or infinity; the checkpoint is broken"
        )
    return model.float()


def _stored_dtype(folder: Path) -> torch.dtype:
    _, dtypes = read_header(weight_files(folder)[0])
    return next((DTYPES[d] for d in dtypes.values() if d in DTYPES), torch.float32)
