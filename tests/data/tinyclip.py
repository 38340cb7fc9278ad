"""A CLIP of a few thousand random weights with a real tokenizer and image processor, written by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_pipelines import clip_processor

SIZE = 16  # pixels a side


def write_clip(folder: Path, part: str = "whole") -> Path:
    """part: whole (CLIPModel), projected (text half with its projection) or plain (text half as Stable Diffusion)."""
    import torch
    from transformers import (
        CLIPConfig,
        CLIPModel,
        CLIPTextModel,
        CLIPTextModelWithProjection,
        CLIPTokenizer,
    )

    folder.mkdir(parents=True)
    write_tokenizer(folder)
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = small | {"vocab_size": 514, "max_position_embeddings": 20, "projection_dim": 8,
                    "bos_token_id": 512, "eos_token_id": 513, "pad_token_id": 513}  # fmt: skip
    vision = small | {"image_size": SIZE, "patch_size": 8, "projection_dim": 8}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = CLIPModel(config)
        for p in whole.parameters():
            torch.nn.init.normal_(p, std=0.3)
    if part == "whole":
        whole.save_pretrained(folder)
        crop = {"height": SIZE, "width": SIZE}
        clip_processor()(size={"shortest_edge": SIZE}, crop_size=crop).save_pretrained(folder)
    else:
        half = (CLIPTextModelWithProjection if part == "projected" else CLIPTextModel)(config.text_config)
        weights = whole.state_dict()
        weights |= {k.removeprefix("text_model."): v for k, v in weights.items()}  # CLIPTextModel drops the prefix
        half.load_state_dict({k: weights[k] for k in half.state_dict()})
        half.save_pretrained(folder)
    CLIPTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """CLIP's byte alphabet alone: every letter is a token, and once more at the end of a word."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in visible] + [chr(256 + i) for i in range(256 - len(visible))]
    tokens = [*letters, *(f"{c}</w>" for c in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
