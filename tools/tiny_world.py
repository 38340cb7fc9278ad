"""The small world that the campaigns (tools/fuzz.py, tools/kill.py) disturb: pictures, models and finished runs.

    art/        grouped pictures, 8x8 grey          pictures/   pictures to ask about
    styled/     STYLE/OBJECT pictures with metadata  model/      a diffusers pipeline of a few thousand weights
    recipe.yaml the tiny recipe                      fresh/      a run that nothing was trained in
    run/        a finished run                       model.safetensors, a counterfactual of `run`

Everything is keyed and made by the command line itself, in seconds.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

GROUPS = ("circles", "crosses", "stripes")
RECIPE: dict[str, Any] = {
    "name": "tiny",
    "data": {"source": "art", "limit_per_group": 8},
    "model": {"net": "mlp", "options": {"width": 16, "depth": 1}, "scheduler": "squaredcos_cap_v2:100"},
    "training": {"steps": 20, "batch": 16, "warmup": 2, "checkpoint_every": 5},
    "methods": {
        "logo": {"seeds": [1, 2]},
        "retrack": {"steps": 3, "batch_forget": 4, "batch_retain": 4, "window": [0.1, 1.0]},
        "similarity-pixel": {},
        "posterior": {"components": 1},
        "subsets": {"models": 8},
    },
    "queries": {"n": 6, "steps": 3},
    "scoring": {"strata": 4, "rounds": 2, "block": 8, "shard": 3, "reference": 2},
    "evaluation": {"resamples": 20},
}


def picture(group: int, number: int, size: int = 8) -> Any:
    """uint8 [size, size]; a group is a shape, a number its place and brightness."""
    import numpy as np

    rng = np.random.default_rng([group, number])
    y, x = np.mgrid[:size, :size] - rng.uniform(2, size - 3, (2, 1, 1))
    shape = (abs(np.hypot(x, y) - 2) < 0.8, np.minimum(abs(x), abs(y)) < 0.7, (x.astype(int) % 2) == 0)[group % 3]
    return (rng.integers(0, 40, (size, size)) + rng.integers(120, 210) * shape).astype(np.uint8)


def write_pictures(root: Path) -> None:
    """art, styled, pictures."""
    from PIL import Image

    for g, group in enumerate(GROUPS):
        for i in range(8):
            target = root / "art" / group / f"{i:02d}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(g, i)).save(target)
    rows = []
    for g, group in enumerate(GROUPS):
        for o, thing in enumerate(("cats", "dogs")):
            target = root / "styled" / group / thing / "0.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture(g, 50 + o)).save(target)
            rows.append({"file_name": f"{group}/{thing}/0.png", "style": group, "year": 1900 + o, "tags": [group, "x"]})
    (root / "styled" / "metadata.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (root / "pictures").mkdir()
    for i in range(2):
        Image.fromarray(picture(i, 90 + i)).save(root / "pictures" / f"q{i}.png")


def write_model(folder: Path) -> None:
    """A UNet2DModel with its scheduler, as diffusers saves it."""
    import torch
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(4, 4),
        norm_num_groups=2, attention_head_dim=2,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=50)).save_pretrained(folder)


def write_inputs(root: Path) -> None:
    """Everything that is not a run."""
    import yaml

    root.mkdir(parents=True, exist_ok=True)
    write_pictures(root)
    write_model(root / "model")
    (root / "recipe.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))


# what makes a finished run of an initialised one, in order; every command the kills disturb is here
VERBS: dict[str, list[str]] = {
    "train": ["train"],
    "fit": ["fit", "-m", "retrack", "-m", "similarity-pixel", "-m", "logo", "-m", "posterior", "-m", "subsets"],
    "sample": ["sample"],
    "score": ["score"],
    "race": ["score", "--stop", "budget=200", "-m", "retrack"],
    "calibrate": ["calibrate", "-m", "retrack", "-n", "4"],
    "evaluate": ["evaluate"],
    "shares": ["shares", "--no-pool"],
    "halves": ["shares", "--by", "subsets", "--no-pool"],
    "without": ["without", "--groups", "circles", "--draw", "1"],
    "report": ["report"],
}


def command(verb: str, run: str | Path, *more: str) -> list[str]:
    """The arguments of a verb for a run folder."""
    name, *options = VERBS[verb]
    return [name, str(run), *options, *more]


def write_world(root: Path) -> Path:
    """The whole world below `root`, with tasks run in this process. Returns `root`."""
    import os

    from inline_cli import guda

    write_inputs(root)
    before = os.getcwd()
    os.chdir(root)
    try:
        guda("init", "fresh", "--recipe", "recipe.yaml")
        shutil.copytree("fresh", "run")
        for verb in VERBS:
            guda(*command(verb, "run"))
    finally:
        os.chdir(before)
    stored = sorted((root / "run" / "artifacts").glob("retrack-*/*.safetensors"))[0]
    shutil.copy(stored, root / "model.safetensors")
    return root
