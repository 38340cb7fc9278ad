"""Three tiny runs made by the command line: an unconditional model, a text-to-image model, and races.

The inputs are made here, from libraries only, so the outputs depend on nothing but the code under test. Each kind of
stored part is written at least once: terms, likelihoods, features, residuals, nda, synthesized, similarity, samples.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: results are bitwise per thread count
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import yaml
from PIL import Image

ROOT = Path(__file__).parents[2]
for _helpers in (ROOT / "tools", ROOT / "tests"):
    if str(_helpers) not in sys.path:
        sys.path.insert(0, str(_helpers))

from inline_cli import guda  # noqa: E402

OPERATOR = {"steps": 3, "batch_forget": 8, "batch_retain": 8, "window": [0.1, 1.0]}
SKETCHED = {"dim": 64, "timesteps": 2}
PLAIN: dict[str, Any] = {
    "model": {"net": "mlp", "options": {"width": 32, "depth": 1}, "scheduler": "squaredcos_cap_v2:100"},
    "training": {"steps": 30, "batch": 32, "warmup": 5, "checkpoint_every": 15},
    "queries": {"n": 7, "steps": 4},
    "scoring": {
        "plan": "importance",
        "strata": 5,
        "rounds": 2,
        "block": 16,
        "shard": 5,
        "reference": 3,
        "foreign": "skip",
    },
    "likelihood": {"steps": 4, "n": 5, "block": 3},
    "evaluation": {"resamples": 30},
}
METHODS: dict[str, Any] = {
    "logo": {"seeds": [1, 2]},
    "retrack": OPERATOR,
    "shift": OPERATOR,
    "posterior": {},
    "hybrid": {},
    "esd": OPERATOR,
    "dtrak": SKETCHED,
    "das": SKETCHED | {"residual_timesteps": 4},
    "nda": {"patch": 3, "positions": 8},
    "similarity-pixel": {},
    "synthesized": {"steps": 2, "checkpoints": [1], "per_group": 2, "fisher_passes": 1, "levels": 3},
}
WORDS = {
    "Bricks": ["repeating", "red", "rough"],
    "Crayon": ["waxy", "red", "soft"],
    "Dapple": ["dotted", "soft", "blue"],
}
ANCHORED = {"steps": 2, "lr": 1e-3, "batch_forget": 2, "batch_retain": 2}
TEXT: dict[str, Any] = {
    "prompts": {"source": "file", "lists": WORDS},
    "training": {"steps": 4, "batch": 4, "lr": 1e-3, "warmup": 0, "schedule": "constant", "ema": 0.9, "flips": True,
                 "exposure_matched": False, "prompt_dropout": 0.1, "checkpoint_every": 2},
    "methods": {"logo": {"seeds": [1]}, "anchors-weighted": ANCHORED, "anchors-removed": ANCHORED,
                "similarity-pixel": {}},
    "queries": {"seed": 42, "steps": 2, "objects": 1},
    "scoring": {"strata": 3, "rounds": 2, "block": 8, "shard": 4, "foreign": "skip"},
    "evaluation": {"resamples": 20},
}  # fmt: skip


def write_digits(root: Path, groups: str, each: int = 12) -> Path:
    """PNGs of 8x8 pixels, one sub-folder per digit."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    for group in groups:
        (root / group).mkdir(parents=True)
        for i in np.flatnonzero(bunch.target == int(group))[:each]:
            image = np.rint(bunch.images[i] * 255 / 16).astype(np.uint8)
            Image.fromarray(image).save(root / group / f"digit-{i:04d}.png")
    return root


def write_styles(root: Path) -> Path:
    """STYLE/OBJECT/n.png of 16x16 pixels; a style is a colour, an object a place where it is bright."""
    rng = np.random.default_rng(0)
    for s, style in enumerate(WORDS):
        for o, thing in enumerate(("Cats", "Dogs", "Sea", "Trees")):
            (root / style / thing).mkdir(parents=True)
            for i in range(2):
                image = rng.integers(0, 80, (16, 16, 3))
                image[4 * o : 4 * o + 4, :, s] += 150
                Image.fromarray(image.astype(np.uint8)).save(root / style / thing / f"{i}.png")
    return root


def start(root: Path, recipe: dict[str, Any]) -> Path:
    """`guda init` in a new run folder from a recipe."""
    file = root.parent / f"{root.name}.recipe.yaml"
    file.write_text(yaml.safe_dump(recipe | {"name": root.name}))
    guda("init", root, "--recipe", file)
    return root


def plain(root: Path) -> Path:
    """Every family of methods, placebos, the likelihood, health, bands, and the evaluation."""
    data = {"source": str(write_digits(root.parent / "digits", "012"))}
    start(root, PLAIN | {"data": data, "methods": METHODS})
    guda("train", root)
    guda("fit", root, "--method", "logo")
    guda("fit", root)
    guda("fit", root, "-m", "retrack", "-m", "shift", "--placebos", 2)
    guda("sample", root)
    guda("score", root)
    guda("score", root, "--method", "shift", "--band", "10:60")
    guda("likelihood", root, "--method", "logo", "--method", "retrack")
    guda("health", root, "--method", "shift")
    guda("evaluate", root)
    return root


def text(root: Path) -> Path:
    """A fine-tuned StableDiffusionPipeline with random weights, three styles, prompts."""
    import tiny_pipelines

    model = tiny_pipelines.save("sd", root.parent / "sd")
    data = {"source": str(write_styles(root.parent / "styles")), "content_by": "level:2", "mode": "RGB"}
    start(root, TEXT | {"data": data, "model": {"start": str(model)}})
    guda("prompts", "build", root)
    guda("train", root)
    guda("fit", root, "--method", "logo")
    guda("fit", root)
    guda("sample", root)
    guda("score", root)
    guda("evaluate", root)
    return root


def raced(root: Path) -> Path:
    """A race to a stop rule among all groups, one among those that a cheap method puts first, one down a tree."""
    digits = root.parent / "tree"
    for above, below in {"round": "035", "straight": "12"}.items():
        write_digits(digits / above, below)
    methods = {"retrack": OPERATOR, "posterior": {}}
    data = {"source": str(digits), "group_by": "level:1/level:2"}
    start(root, PLAIN | {"data": data, "methods": methods})
    guda("train", root)
    guda("fit", root)
    guda("sample", root)
    guda("score", root, "--method", "retrack", "--stop", "top1@0.95,budget=400")
    guda("score", root, "--method", "retrack", "--stop", "top1@0.95,budget=400", "--screen", "posterior:3")
    guda("score", root, "--method", "retrack", "--stop", "top1@0.9,budget=900", "--screen", "tree:2")
    return root


RUNS = {"plain": plain, "text": text, "raced": raced}
