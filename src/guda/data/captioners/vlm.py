"""Descriptors from a vision-language model: it is shown an image and asked what its style looks like, not its content.

The default is the paper's, Qwen2.5-VL; any image-text-to-text model of transformers with a chat template will do.
Answers are greedy, so that the same weights say the same thing again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from guda.config import PromptsConfig
from guda.data.captioners import Raw, sampled
from guda.data.descriptors import clean, key
from guda.data.images import ImageData
from guda.data.text import quiet_loading
from guda.errors import GudaError

MODEL = "Qwen/Qwen2.5-VL-7B-Instruct"

QUESTION = (
    "List {n} short descriptors of the visual style of this image: line work, brushwork, texture, palette, shading, "
    "lighting, composition. Do not mention what is depicted, no objects, no places, no artists and no names of styles. "
    "Answer with the descriptors alone, one to three words each, separated by commas."
)

SMALLEST = 224  # pixels; smaller images are enlarged, a thumbnail says little to such a model

LONGEST = 4  # words in a descriptor; a whole sentence is none

Ask = Callable[[np.ndarray, str], str]  # (uint8 [C, H, W], question) -> answer


def describe(data: ImageData, config: PromptsConfig, load: Callable[[str], Ask] | None = None) -> Raw:
    ask = (load or load_vlm)(config.model or MODEL)
    question = QUESTION.format(n=config.words_per_image)
    raw = {}
    for style in data.groups.leaf_names:
        members = sampled(data, style, config.images_per_style, config.seed)
        contents = [data.contents[i] if data.contents else "" for i in members]
        answers = [ask(data.images[i], question) for i in members]
        raw[style] = [
            descriptors(answer, config.words_per_image, f"{content} {style}")
            for answer, content in zip(answers, contents, strict=True)
        ]
        if not any(raw[style]):
            raise GudaError(
                "descriptors-not-found",
                f"{config.model or MODEL} named no descriptor of style {style!r}, e.g. {answers[0]!r:.80}",
            )
    return raw


def descriptors(answer: str, n: int, content: str = "") -> list[str]:
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

        folder = Path(name).expanduser()
        source = str(folder) if folder.is_dir() else name
        processor = AutoProcessor.from_pretrained(source)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = AutoModelForImageTextToText.from_pretrained(source, use_safetensors=True, dtype="auto")
        model = model.to(device).eval()
    return lambda image, question: answer(processor, model, image, question)


def answer(processor: Any, model: Any, image: np.ndarray, question: str) -> str:
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
