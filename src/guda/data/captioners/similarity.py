"""Descriptors picked from a word list, image by image: no captioner is needed.

    f(w, x)  how well word w fits image x: a statistic of its pixels, or CLIP's cosine of image and text
    z(w, x)  = (f(w, x) - mean of f(w, .)) / std of f(w, .)

Some words fit every image a little, so an image gets the words whose z is largest, not those whose f is. Where every
object was drawn in every style, the mean is that over the images of the same object: what an object looks like in all
styles says nothing of a style.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from guda.blocks import blocks
from guda.config import PromptsConfig
from guda.data.captioners import Raw, sampled
from guda.data.captioners.statistics import STATISTICS, WORDS, statistics
from guda.data.descriptors import clean
from guda.data.images import ImageData
from guda.data.text import quiet_loading, unit_rows
from guda.errors import GudaError, choices, suggestion

BLOCK = 16  # images per call of CLIP's vision half; short blocks are padded


def describe(data: ImageData, config: PromptsConfig) -> Raw:
    encoder = config.encoder or "statistics"
    words = WORDS if config.path is None else read_words(config.path)
    if len(words) < config.words_per_image:
        raise GudaError(
            "words-too-few", f"prompts: {len(words)} words to pick {config.words_per_image} from; give more words"
        )
    chosen = {s: sampled(data, s, config.images_per_style, config.seed) for s in data.groups.leaf_names}
    if encoder == "statistics":
        for word in words:
            if word not in STATISTICS:
                raise GudaError(
                    "word-unknown", f"no statistic for {word!r}; words: {choices(WORDS, 40)}{suggestion(word, WORDS)}"
                )
        rows = np.arange(data.n)
        fits = statistics(data.images, words)
    elif encoder.startswith("clip:"):
        rows = np.array(sorted(i for members in chosen.values() for i in members))
        fits = clip_fits(encoder.removeprefix("clip:"), data.images[rows], words)
    else:
        raise GudaError(
            "prompts-encoder-unknown", f"unknown prompts.encoder {encoder!r}; give statistics, or clip:NAME_OR_PATH"
        )
    place = {int(i): r for r, i in enumerate(rows)}
    said = pick(fits, words, config.words_per_image, _shared_contents(data, rows))
    return {style: [said[place[i]] for i in members] for style, members in chosen.items()}


def pick(fits: np.ndarray, words: Sequence[str], k: int, contents: Sequence[str] | None = None) -> list[list[str]]:
    """The `k` words of largest z for every row of `fits` [n, words]; equal ones in the order of the list."""
    centre = np.broadcast_to(fits.mean(axis=0), fits.shape)
    if contents is not None:
        column = np.unique(contents, return_inverse=True)[1]
        sums = np.zeros((column.max() + 1, fits.shape[1]))
        np.add.at(sums, column, fits)
        centre = (sums / np.bincount(column)[:, None])[column]
    off = fits - centre
    spread = off.std(axis=0)
    z = np.where(spread > 1e-9, off / np.maximum(spread, 1e-9), -np.inf)  # a word that fits all alike fits none
    order = np.argsort(-z, axis=1, kind="stable")[:, :k]
    return [[words[j] for j in row if np.isfinite(zs[j])] for row, zs in zip(order, z, strict=True)]


def _shared_contents(data: ImageData, rows: np.ndarray) -> list[str] | None:
    """The objects of these images if every object is there in every style, else None."""
    if data.contents is None:
        return None
    contents = [data.contents[i] for i in rows]
    pairs = set(zip(contents, data.groups.labels[rows].tolist(), strict=True))
    return contents if len(pairs) == len(set(contents)) * len(data.groups.leaves) else None


def read_words(path: str | Path) -> tuple[str, ...]:
    """One word or phrase a line; empty lines and those that begin with # do not count."""
    try:
        lines = Path(path).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise GudaError(
            "words-file-unreadable", f"word list {path} cannot be read ({e}); see prompts.path in the recipe"
        ) from None
    return tuple(dict.fromkeys(w for line in lines if not line.startswith("#") and (w := clean(line))))


def clip_fits(name: str, images: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """Cosines [n, words] of uint8 images [n, C, H, W] and "WORD style" texts."""
    import torch

    processor, tokenizer, model = _load_clip(name)
    with torch.inference_mode():
        tokens = tokenizer([f"{w} style" for w in words], padding="max_length", truncation=True, return_tensors="pt",
                           max_length=model.config.text_config.max_position_embeddings)  # fmt: skip
        texts = model.text_projection(model.text_model(**tokens).pooler_output)
        parts = []
        for block in blocks(len(images), BLOCK):
            rgb = [np.repeat(x, 3, axis=0) if len(x) == 1 else x for x in block.take(images)]
            pixels = processor(images=[x.transpose(1, 2, 0) for x in rgb], return_tensors="pt")["pixel_values"]
            pooled = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
            parts.append(pooled[: block.n].numpy())
    return (unit_rows(np.concatenate(parts)) @ unit_rows(texts.numpy()).T).astype(np.float64)


def _load_clip(name: str) -> tuple[Any, Any, Any]:
    hint = "give a folder with config.json, model.safetensors, tokenizer and preprocessor files, or encoder: statistics"
    with quiet_loading(f"prompts.encoder clip:{name}", hint):
        from transformers import AutoImageProcessor, CLIPModel, CLIPTokenizer

        folder = Path(name).expanduser()
        source = str(folder) if folder.is_dir() else name
        processor = AutoImageProcessor.from_pretrained(source)
        tokenizer = CLIPTokenizer.from_pretrained(source)
        whole: Any = CLIPModel
        model, report = whole.from_pretrained(source, use_safetensors=True, dtype="float32", output_loading_info=True)
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"its weights lack {missing[0]}")
    return processor, tokenizer, model.eval()
