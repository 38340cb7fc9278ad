"""A whole text-to-image experiment in seconds: a tiny random StableDiffusionPipeline on disk, three styles of four
objects at 16x16 pixels."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tinyrun import Inline, _folder

from guda import steps
from guda.run.recipe import Recipe
from guda.run.run import Run

sys.path.insert(0, str(Path(__file__).parents[1]))
import tiny_pipelines

STYLES = ("Bricks", "Crayon", "Dapple")
OBJECTS = ("Cats", "Dogs", "Sea", "Trees")
WORDS = {
    "Bricks": ["repeating", "red", "rough"],
    "Crayon": ["waxy", "red", "soft"],
    "Dapple": ["dotted", "soft", "blue"],
}
SET = "prompts-s42-o2-g7.5-t2"  # the query set the recipe below draws


def write_styles(root: Path) -> Path:
    """STYLE/OBJECT/n.png; a style is a colour, an object a place where it is bright."""
    rng = np.random.default_rng(0)
    for s, style in enumerate(STYLES):
        for o, thing in enumerate(OBJECTS):
            (root / style / thing).mkdir(parents=True)
            for i in range(2):
                image = rng.integers(0, 80, (16, 16, 3))
                image[4 * o : 4 * o + 4, :, s] += 150
                Image.fromarray(image.astype(np.uint8)).save(root / style / thing / f"{i}.png")
    return root


@functools.cache
def styles_folder() -> Path:
    return write_styles(_folder() / "styles")


@functools.cache
def sd_folder() -> Path:
    return tiny_pipelines.save("sd", _folder() / "sd")


def tiny_text(**sections: dict[str, Any] | None) -> Recipe:
    fit = {"steps": 3, "lr": 1e-3, "batch_forget": 2, "batch_retain": 2}
    value: dict[str, Any] = {
        "name": "tiny-text",
        "data": {"source": str(styles_folder()), "content_by": "level:2", "mode": "RGB"},
        "model": {"start": str(sd_folder())},
        "prompts": {"source": "file", "lists": WORDS},
        "training": {"steps": 6, "batch": 4, "lr": 1e-3, "warmup": 0, "schedule": "constant", "ema": 0.9, "flips": True,
                     "exposure_matched": False, "prompt_dropout": 0.1, "checkpoint_every": 2},
        "methods": {"logo": {"seeds": [1, 2]}, "anchors-uniform": fit, "anchors-removed": fit, "similarity-pixel": {}},
        "queries": {"seed": 42, "steps": 2, "objects": 2},
        "scoring": {"strata": 3, "rounds": 2, "block": 8, "shard": 4},
        "evaluation": {"resamples": 20},
    }  # fmt: skip
    for name, changes in sections.items():
        value[name] = None if changes is None else value[name] | changes
    return Recipe.model_validate(value)


def start(root: Path, recipe: Recipe | None = None) -> Run:
    run = steps.init(root, recipe or tiny_text())
    steps.prompts_build(run)
    return run


@functools.cache
def finished_text() -> Path:
    """A complete run; copy it before changing anything."""
    root = _folder() / "finished-text"
    steps.pipeline(start(root), Inline())
    return root


def copy_text(target: Path) -> Run:
    shutil.copytree(finished_text(), target)
    return Run.open(target)


def write_prompted(folder: Path, n: int = 3) -> Path:
    """A folder of pictures with prompts.jsonl."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    rows = []
    for i in range(n):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"q{i}.png")
        rows.append({"file_name": f"q{i}.png", "prompt": f"An artwork of Dogs, with red, soft, number {i}"})
    (folder / "prompts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder
