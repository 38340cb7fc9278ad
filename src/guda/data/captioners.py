"""Captioners: who says what a style looks like, for prompts of a text-to-image model.

A captioner is a function (data, config) -> Raw: for every style, the descriptors of each of some sampled images, as
said. What follows (spellings, ranking, vocabularies; descriptors.py) is the same whoever said it; a file may also hold
ready vocabularies. Which images are described is keyed by (seed, style), image by image.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from guda.config import PromptsConfig
from guda.data.descriptors import Ranked, Raw, check_styles, clean, key, rank, read_descriptors, ready_lists
from guda.data.images import ImageData
from guda.data.style_words import STATISTICS, WORDS, statistics
from guda.data.text import quiet_loading, unit_rows
from guda.errors import GudaError, choices, suggestion
from guda.files import ordered
from guda.model_files import PATTERNS, check_type, find_model
from guda.parsing import read_text

BLOCK = 16  # images per call of CLIP's vision half; short blocks are padded

MODEL = "Qwen/Qwen2.5-VL-7B-Instruct"  # the paper's

VLMS = (  # model types of transformers that are asked about a style
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "llava_next", "llava_onevision", "idefics2", "idefics3", "smolvlm",
    "paligemma", "gemma3", "internvl", "mllama", "mistral3",
)  # fmt: skip

QUESTION = (
    "List {n} short descriptors of the visual style of this image: line work, brushwork, texture, palette, shading, "
    "lighting, composition. Do not mention what is depicted, no objects, no places, no artists and no names of styles. "
    "Answer with the descriptors alone, one to three words each, separated by commas."
)

SMALLEST = 224  # pixels; smaller images are enlarged, a thumbnail says little to such a model

LONGEST = 4  # words in a descriptor; a whole sentence is none

Ask = Callable[[np.ndarray, str], str]  # (uint8 [C, H, W], question) -> answer


def vocabularies(data: ImageData, config: PromptsConfig) -> Ranked:
    """The descriptors of every style, as `config` says who finds them."""
    if config.lists is not None:
        check_styles(config.lists, data.groups.leaf_names, "prompts.lists")
        found = ready_lists(config.lists, data.groups.leaf_names, "prompts.lists")
        return Ranked(found, dict.fromkeys(found, ()), {})
    if config.source == "file":
        ready, raw = read_descriptors(config.path or "", data.groups.leaf_names)
        if ready is not None:
            return Ranked(ready, dict.fromkeys(ready, ()), {})
    elif config.source == "similarity":
        raw = by_similarity(data, config)
    else:
        raw = by_vlm(data, config)
    assert raw is not None
    return rank(raw, config.alpha, config.min_freq, config.max_support, config.vocabulary)


def sampled(data: ImageData, style: str, n: int, seed: int) -> list[int]:
    """Indices of at most `n` images of a style, in data order; drawn by (seed, style, image id)."""
    members = {data.ids[i]: int(i) for i in data.groups.members(data.groups.index(style))}
    return sorted(members[name] for name in ordered(list(members), seed, "described images", style)[:n])


# --- words from a list ----------------------------------------------------------------------------
def by_similarity(data: ImageData, config: PromptsConfig) -> Raw:
    """Words picked from a list, image by image: no captioner is needed.

        f(w, x)  how well word w fits image x: a statistic of its pixels, or CLIP's cosine of image and text
        z(w, x)  = (f(w, x) - mean of f(w, .)) / std of f(w, .)

    Some words fit every image a little, so an image gets the words whose z is largest, not those whose f is. Where
    every object was drawn in every style, the mean is that over the images of the same object: what an object looks
    like in all styles says nothing of a style.
    """
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
                    "word-unknown", f"no statistic for {word!r}{suggestion(word, WORDS)}; words: {choices(WORDS, 40)}"
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
        lines = read_text(Path(path).expanduser()).splitlines()
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
        for start in range(0, len(images), BLOCK):
            block = images[start : start + BLOCK]
            full = np.concatenate([block, np.repeat(block[-1:], BLOCK - len(block), axis=0)])
            rgb = [np.repeat(x, 3, axis=0) if len(x) == 1 else x for x in full]
            pixels = processor(images=[x.transpose(1, 2, 0) for x in rgb], return_tensors="pt")["pixel_values"]
            pooled = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
            parts.append(pooled[: len(block)].numpy())
    return (unit_rows(np.concatenate(parts)) @ unit_rows(texts.numpy()).T).astype(np.float64)


def _load_clip(name: str) -> tuple[Any, Any, Any]:
    hint = "give a folder with config.json, model.safetensors, tokenizer and preprocessor files, or encoder: statistics"
    with quiet_loading(f"prompts.encoder clip:{name}", hint):
        from transformers import AutoImageProcessor, CLIPModel, CLIPTokenizer

        check_type(folder := find_model(name), ("clip",), "prompts.encoder")
        source = str(folder)
        processor = AutoImageProcessor.from_pretrained(source, trust_remote_code=False)
        tokenizer = CLIPTokenizer.from_pretrained(source, trust_remote_code=False)
        whole: Any = CLIPModel
        model, report = whole.from_pretrained(source, use_safetensors=True, dtype="float32", output_loading_info=True)
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"its weights lack {missing[0]}")
    return processor, tokenizer, model.eval()


# --- a vision-language model ----------------------------------------------------------------------
def by_vlm(data: ImageData, config: PromptsConfig, load: Callable[[str], Ask] | None = None) -> Raw:
    """Answers of a vision-language model that is asked about the style of each image, not about its content.

    Any image-text-to-text model of transformers with a chat template will do. Answers are greedy, so that the same
    weights say the same thing again.
    """
    ask = (load or load_vlm)(config.model or MODEL)
    question = QUESTION.format(n=config.words_per_image)
    raw = {}
    for style in data.groups.leaf_names:
        members = sampled(data, style, config.images_per_style, config.seed)
        contents = [data.contents[i] if data.contents else "" for i in members]
        answers = [ask(data.images[i], question) for i in members]
        raw[style] = [
            read_answer(answer, config.words_per_image, f"{content} {style}")
            for answer, content in zip(answers, contents, strict=True)
        ]
        if not any(raw[style]):
            raise GudaError(
                "descriptors-not-found",
                f"{config.model or MODEL} named no descriptor of style {style!r}, e.g. {answers[0]!r:.80}",
            )
    return raw


def read_answer(answer: str, n: int, content: str = "") -> list[str]:
    """At most `n` descriptors of an answer in commas or lines, numbered or not; none with a word of `content`."""
    banned = set(key(content).split())
    found: dict[str, str] = {}
    for piece in re.split(r"[,;\n]", answer):
        word = clean(re.sub(r"^\s*(?:[-*•]|\d+[.)])\s*", "", piece))
        if word and len(word.split()) <= LONGEST and not banned & set(key(word).split()):
            found.setdefault(key(word), word)
    return list(found.values())[:n]


def load_vlm(name: str) -> Ask:
    hint = "give a folder or a Hub id that can be reached as prompts.model, or use prompts.source: file or similarity"
    with quiet_loading(f"vision-language model {name}", hint):
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        check_type(folder := find_model(name, (*PATTERNS, "*.jinja")), VLMS, "prompts.model")
        source = str(folder)
        processor = AutoProcessor.from_pretrained(source, trust_remote_code=False)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = AutoModelForImageTextToText.from_pretrained(
            source, use_safetensors=True, dtype="auto", trust_remote_code=False
        )
        model = model.to(device).eval()
    return lambda image, question: ask_vlm(processor, model, image, question)


def ask_vlm(processor: Any, model: Any, image: np.ndarray, question: str) -> str:
    """One turn of chat about one image, without sampling."""
    import torch
    from PIL import Image

    picture = Image.fromarray(
        np.repeat(image, 3, axis=0).transpose(1, 2, 0) if len(image) == 1 else image.transpose(1, 2, 0)
    )
    if (small := min(picture.size)) < SMALLEST:
        factor = -(-SMALLEST // small)
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    content = [{"type": "image", "image": picture}, {"type": "text", "text": question}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
    ).to(model.device)  # fmt: skip
    with torch.inference_mode():
        tokens = model.generate(**inputs, do_sample=False, max_new_tokens=96)
    return processor.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)[0]
