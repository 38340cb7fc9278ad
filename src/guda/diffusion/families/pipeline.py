"""Latent text-to-image pipelines in the diffusers folder layout, and the components around their networks.

A pipeline is recognised by `_class_name` of model_index.json; its network, VAE, text encoders and tokenizers are read
one by one, because a part that lacks weights must be an error and not random numbers with a warning.

The VAE and the text encoders are never trained:

    x_0 = (posterior mean - shift) x scaling factor                (the shift is 0 except for newer VAEs)

The mean and not a draw, so that every method scores the same latent. Encoders run on blocks of BLOCK rows, short blocks
padded, because kernels give other last bits at other shapes: a latent is a function of its image alone, an embedding of
its prompt. float32 on the CPU; on a GPU each part computes in the precision it was stored in, a VAE marked
`force_upcast` in float32 (SDXL's overflows in half precision). The digest is of values, so it does not depend on the
device. Once latents and embeddings are kept on disk, `release` frees VAE and text encoders; they are read again from
their folders if something new has to be encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from guda.data.images import to_float, to_uint8
from guda.data.text import quiet_loading
from guda.diffusion.families.base import Family, Frozen
from guda.diffusion.loading import check_size, held_warnings, network_class, read_network
from guda.diffusion.lora import add_lora
from guda.errors import GudaError
from guda.files import digest, digest_arrays, digest_file, read_header
from guda.model_files import check_index, check_part, read_model_config, weight_files

BLOCK = 4  # rows per call of an encoder: what one prompt alone costs

CHUNK = 64 * BLOCK  # images that are floats at the same time

Read = Callable[[Any], tuple[torch.Tensor, ...]]


class Part:
    """A network that is never trained. `read` gets it from disk again after `release`; without it, it stays."""

    def __init__(self, model: Any, read: Callable[[], Any] | None = None) -> None:
        self._model, self._read = model.eval().requires_grad_(False), read
        self._place: tuple[torch.device | str, torch.dtype] | None = None

    @property
    def model(self) -> Any:
        if self._model is None:
            assert self._read is not None
            self._model = self._read().eval().requires_grad_(False)
            self._move()
        return self._model

    @property
    def in_memory(self) -> bool:
        return self._model is not None

    def release(self) -> None:
        if self._read is not None:
            self._model = None

    def to(self, device: torch.device | str, dtype: torch.dtype) -> None:
        self._place = (device, dtype)
        self._move()

    def _move(self) -> None:
        if self._place is not None and self._model is not None:
            # not diffusers' own `to`, which warns of every change of precision
            torch.nn.Module.to(self._model, *self._place)


class Vae(Part):
    """`AutoencoderKL`, or `AutoencoderDC`, whose latent is not a distribution."""

    def __init__(self, model: Any, read: Callable[[], Any] | None = None) -> None:
        super().__init__(model, read)
        config = model.config
        if getattr(config, "latents_mean", None) is not None or getattr(config, "latents_std", None) is not None:
            raise GudaError(
                "vae-unsupported", "the VAE normalises each latent channel (latents_mean, latents_std); not supported"
            )
        self.scale, self.shift = float(config.scaling_factor), float(getattr(config, "shift_factor", None) or 0)
        blocks = config.get("encoder_block_out_channels") or config.block_out_channels
        self.factor = 2 ** (len(blocks) - 1)  # pixels per latent, each way
        self.upcast = bool(getattr(config, "force_upcast", False))
        self.channels, self.latent_channels = int(config.in_channels), int(config.latent_channels)

    def _blocks(self, x: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """(rows that count, block) for each block."""
        like = next(self.model.parameters())
        for start in range(0, len(x), BLOCK):
            rows = torch.arange(start, start + BLOCK).clamp_(max=len(x) - 1)
            yield min(BLOCK, len(x) - start), x[rows].to(like)

    @torch.no_grad()
    def encode(self, images: np.ndarray) -> torch.Tensor:
        means = []
        for start in range(0, len(images), CHUNK):  # floats of 24,000 images of 512 x 512 would be 75 GB
            x = torch.from_numpy(to_float(np.ascontiguousarray(images[start : start + CHUNK])))
            means += [_mean(self.model.encode(b))[:n].float().cpu() for n, b in self._blocks(x)]
        return (torch.cat(means) - self.shift) * self.scale

    @torch.no_grad()
    def decode(self, x0: torch.Tensor) -> np.ndarray:
        z = x0.detach().float().cpu() / self.scale + self.shift
        return np.concatenate(
            [to_uint8(self.model.decode(b).sample[:n].float().cpu().numpy()) for n, b in self._blocks(z)]
        )


def _mean(encoded: Any) -> torch.Tensor:
    found: torch.Tensor = encoded.latent_dist.mode() if hasattr(encoded, "latent_dist") else encoded.latent
    return found


def last(output: Any) -> tuple[torch.Tensor, ...]:
    """The first output: last hidden states of an encoder without a projection."""
    return (output[0],)


def penultimate(output: Any) -> tuple[torch.Tensor, ...]:
    """Hidden states before the last layer, and the first output: pooled, where the encoder has a projection."""
    return output.hidden_states[-2], output[0]


def before_last(output: Any) -> tuple[torch.Tensor, ...]:
    """Hidden states before the last layer."""
    return (output.hidden_states[-2],)


def pooled(output: Any) -> tuple[torch.Tensor, ...]:
    """One vector per prompt."""
    return (output.pooler_output,)


class TextEncoder(Part):
    """Prompts are padded to the encoder's full length and cut there, as diffusers does. With `mask`, the encoder does
    not attend to the padding, and the mask is one more output, for the network."""

    def __init__(
        self,
        tokenizer: Any,
        model: Any,
        length: int | None = None,
        mask: bool = False,
        read: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(model, read)
        self.tokenizer, self.mask = tokenizer, mask
        self.tokenizer.padding_side = "right"  # Gemma's own is left, which its pipelines change as well
        self.length = int(length or tokenizer.model_max_length)

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], read: Read, length: int | None = None) -> tuple[torch.Tensor, ...]:
        """What `read` takes from the encoder's output, [n, ...] float32 on the CPU, and then the mask, bool."""
        parts: list[tuple[torch.Tensor, ...]] = []
        device = next(self.model.parameters()).device
        for start in range(0, len(prompts), BLOCK):
            block = list(prompts[start : start + BLOCK])
            n = len(block)
            tokens = self.tokenizer(
                block + [""] * (BLOCK - n), padding="max_length", max_length=length or self.length, truncation=True,
                return_tensors="pt",
            )  # fmt: skip
            # Stable Diffusion attends to the padding too, unless the encoder was made otherwise
            masked = self.mask or getattr(self.model.config, "use_attention_mask", False)
            mask = {"attention_mask": tokens.attention_mask.to(device)} if masked else {}
            hidden = read in (penultimate, before_last)
            output = self.model(tokens.input_ids.to(device), output_hidden_states=hidden, **mask)
            found = tuple(value[:n].float().cpu() for value in read(output))
            parts.append((*found, tokens.attention_mask[:n].bool()) if self.mask else found)
        return tuple(torch.cat(values) for values in zip(*parts, strict=True))


class LatentFrozen(Frozen):
    cache_latents: ClassVar[bool] = True
    pixels: ClassVar[int | None] = None  # default size of a picture, for networks that take any (`model.size`)
    patch: ClassVar[int] = 1  # latents per token of such a network, each way

    def __init__(
        self,
        vae: Vae,
        texts: Mapping[str, TextEncoder],
        network: Mapping[str, Any],
        *,
        source: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        stored: Mapping[str, torch.dtype] | None = None,
        tokenizers: str = "",
    ) -> None:
        """network: its config; source: see `Frozen.source`, with the recipe's `size` and `guidance` where given;
        options: of the pipeline (model_index.json); stored: precision of each part on disk; tokenizers: digest of their
        files."""
        super().__init__()
        self.vae, self.network = vae, dict(network)
        sample_size = self._latent_size(source.get("size"))
        if sample_size is None:
            raise GudaError(
                "sample-size-missing", "the network's config.json has no sample_size; write its latent size there"
            )
        self.texts, self.options = dict(texts), dict(options or {})
        self._source, self._stored, self._tokenizers = dict(source), dict(stored or {}), tokenizers
        h, w = (sample_size, sample_size) if isinstance(sample_size, int) else (int(n) for n in sample_size)
        self.shape = (self.vae.latent_channels, h, w)
        self.image_shape = (self.vae.channels, h * self.vae.factor, w * self.vae.factor)

    def _latent_size(self, size: int | None) -> int | Sequence[int] | None:
        """The network's own, or that of pictures of `size` pixels."""
        if self.pixels is None:
            if size is not None:
                raise GudaError(
                    "model-size-unsupported",
                    "model.size is for networks that take pictures of any size; this one has its own, remove it",
                )
            return self.network.get("sample_size")
        size, step = size or self.pixels, self.vae.factor * self.patch
        if size % step:
            raise GudaError("model-size-invalid", f"model.size {size} is not a multiple of {step}; choose another")
        return size // self.vae.factor

    def encode(self, images: np.ndarray) -> torch.Tensor:
        self.check_images(images)
        return self.vae.encode(images)

    def decode(self, x0: torch.Tensor) -> np.ndarray:
        return self.vae.decode(x0)

    def source(self) -> dict[str, Any]:
        return dict(self._source)

    def parts(self) -> dict[str, Any]:
        return {"vae": self.vae.model} | {name: text.model for name, text in self.texts.items()}

    def release(self) -> None:
        """Free the VAE and the text encoders; the next picture or prompt that is new reads them again."""
        for part in (self.vae, *self.texts.values()):
            part.release()

    def identity(self) -> list[Any]:
        """What else decides embeddings or outputs: an instruction before every prompt, an embedded guidance."""
        return []

    def digest(self) -> str:
        return self._digest

    @cached_property
    def _digest(self) -> str:
        """Values without their names, which transformers renames from version to version."""
        weights = {
            name: sorted(digest_arrays(p.detach().float().cpu().numpy()) for p in part.parameters())
            for name, part in self.parts().items()
        }
        lengths = {name: text.length for name, text in self.texts.items()}
        kind = [type(self).__name__, list(self.image_shape), self.vae.scale, self.vae.shift]
        return digest([*kind, *self.identity(), weights, lengths, self._tokenizers], 64)

    def to(self, device: torch.device | str) -> None:
        on_cpu = torch.device(device).type == "cpu"
        parts: dict[str, Part] = {"vae": self.vae, **self.texts}
        for name, part in parts.items():
            whole = on_cpu or (name == "vae" and self.vae.upcast)
            part.to(device, torch.float32 if whole else self._stored.get(name, torch.float32))


TOKENIZERS = (
    "CLIPTokenizer", "CLIPTokenizerFast", "T5Tokenizer", "T5TokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast",
)  # fmt: skip

# published pipelines that draw in a few steps and whose folders do not show it otherwise, by the end of their names
DISTILLED = (
    "sd-turbo", "sdxl-turbo", "stable-diffusion-3.5-large-turbo", "flux.1-schnell", "pixart-lcm-xl-2-1024-ms",
    "sdxl-lightning",
)  # fmt: skip

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Text:
    """A text encoder of a pipeline."""

    classes: tuple[str, ...]  # of transformers
    length: int | None = None  # tokens; default: the tokenizer's own
    optional: bool = False
    mask: bool = False  # whether the network is told which tokens are padding


CLIP = Text(("CLIPTextModel", "CLIPTextModelWithProjection"))


class PipelineFamily(Family):
    def __init__(
        self,
        pipeline: str,
        frozen: type[LatentFrozen],
        *,
        folder: str,
        network: str,
        texts: Mapping[str, Text],
        vae: str = "AutoencoderKL",
    ) -> None:
        """folder, network: the network's folder and diffusers class; texts: text encoders by folder, "text_encoder_2"
        with its tokenizer in "tokenizer_2"; vae: its diffusers class."""
        self.pipeline, self.frozen_class, self.folder, self.network = pipeline, frozen, folder, network
        self.texts, self.networks, self.vae = texts, (f"diffusers:{network}",), vae
        self.any_size = frozen.pixels is not None

    def download_patterns(self) -> list[str]:
        parts = (self.folder, "scheduler", "vae", *self.texts, *(_tokenizer(t) for t in self.texts))
        return [f"{part}/{end}" for part in parts for end in ("*.json", "*.safetensors", "*.txt", "*.model")]

    def read_pipeline(
        self, folder: Path, path: str, lora: str | None = None, fused: bool = True, **options: Any
    ) -> tuple[Any, LatentFrozen]:
        """A LoRA is added to the weights for good, or with `fused = False` kept beside those of the network."""
        index = self._read_index(folder)
        _check_distilled(folder, path, index)
        module = read_network(network_class(self.network), folder / self.folder)
        _check_network(folder, module)
        parts, source = self._read_parts(folder, index), _source(path, options)
        changed = False
        if lora is not None:
            changed = add_lora(self.pipeline or "", self.folder, {self.folder: module} | parts, lora, fused)
        if changed:
            source["lora"] = lora
        return module, self._frozen(folder, index, module.config, parts, source)

    def read_frozen(self, folder: Path, path: str, **options: Any) -> LatentFrozen:
        index = self._read_index(folder)
        config = read_model_config(folder / self.folder / "config.json")
        return self._frozen(folder, index, config, self._read_parts(folder, index), _source(path, options))

    def _present(self, index: Mapping[str, Any]) -> dict[str, Text]:
        return {name: text for name, text in self.texts.items() if not text.optional or _class_of(index, name)}

    def _read_index(self, folder: Path) -> dict[str, Any]:
        """model_index.json, if every part is there and of a known class."""
        index = read_model_config(folder / "model_index.json")
        check_index(folder, index)
        classes: dict[str, tuple[str, ...]] = {self.folder: (self.network,), "vae": (self.vae,)}
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
                    "model-class-not-allowed", f"{folder}: {part} is a {name}; guda reads {', '.join(known)} there"
                )
            check_part(folder / part)  # all of them before the first is loaded
        return index

    def _read_parts(self, folder: Path, index: Mapping[str, Any]) -> dict[str, Any]:
        parts = {"vae": self._read_part(folder, index, "vae")}
        for text in self._present(index):
            parts[text] = self._read_part(folder, index, text)
            tokenizer = _tokenizer(text)
            with _reading(folder / tokenizer):
                cls = getattr(import_module("transformers"), index[tokenizer][1])
                parts[tokenizer] = cls.from_pretrained(
                    str(folder / tokenizer), local_files_only=True, trust_remote_code=False
                )
        return parts

    def _read_part(self, folder: Path, index: Mapping[str, Any], name: str) -> Any:
        """The VAE or a text encoder; checked again each time, because the folder may have changed."""
        check_part(folder / name)
        if name == "vae":
            return _read_part("diffusers", self.vae, folder / name, low_cpu_mem_usage=False)
        return _read_part("transformers", index[name][1], folder / name, dtype="float32")

    def _frozen(
        self, folder: Path, index: dict[str, Any], network: Any, parts: dict[str, Any], source: dict[str, Any]
    ) -> LatentFrozen:
        present = self._present(index)
        files = sorted(f for t in present for f in (folder / _tokenizer(t)).iterdir() if f.is_file())

        def again(name: str) -> Callable[[], Any] | None:
            """Not of a text encoder that a LoRA changed: its folder has it as it was before."""
            return None if "lora" in source and name != "vae" else lambda: self._read_part(folder, index, name)

        return self.frozen_class(
            Vae(parts["vae"], again("vae")),
            {
                name: TextEncoder(parts[_tokenizer(name)], parts[name], text.length, text.mask, again(name))
                for name, text in present.items()
            },
            network,
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


def _source(path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    local = Path(path).expanduser()
    given = {name: value for name, value in options.items() if value is not None}
    return {"kind": "pipeline", "path": str(local.resolve()) if local.exists() else path} | given


def _check_distilled(folder: Path, path: str, index: Mapping[str, Any]) -> None:
    """Refuse published few-step models, which jump: what they predict at x_t is no posterior mean, so no bound."""
    for name in (path, str(index.get("_name_or_path") or "")):
        if name.rstrip("/").rpartition("/")[2].lower() in DISTILLED:
            raise GudaError(
                "model-distilled",
                f"{name} is distilled to a few steps, so its predictions have no bound to score; use the model it was "
                "distilled from",
            )


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
    cls = getattr(import_module(library), name)
    if library == "diffusers":
        check_size(cls, read_model_config(folder / "config.json"), str(folder))
    with held_warnings():
        with _reading(folder):
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
