"""A whole experiment in two seconds: three digits of 8x8 pixels, a network of a few thousand weights."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from guda import steps
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.run.task import Task, execute, pending

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

GROUPS = ("0", "1", "2")
SET = "samples-s0-n12-t4"  # the query set the recipe below draws
# what must not depend on how the work was scheduled; timings are kept elsewhere
EXACT = ("terms", "artifacts", "models", "scores", "queries", "data")


def write_digits(root: Path, groups: tuple[str, ...] = GROUPS, each: int = 20) -> Path:
    """PNGs in one sub-folder per digit."""
    from guda.data.digits import load_digits_data

    data = load_digits_data()
    for group in groups:
        (root / group).mkdir(parents=True, exist_ok=True)
        for i in data.groups.members(data.groups.index(group))[:each]:
            Image.fromarray(data.images[i, 0]).save(root / group / f"{data.ids[i]}.png")
    return root


def tiny(source: str | Path, **sections: dict[str, Any] | None) -> Recipe:
    """The tiny recipe; `sections` are merged into its own."""
    value: dict[str, Any] = {
        "name": "tiny",
        "data": {"source": str(source), "limit_per_group": 16},
        "model": {"net": "mlp", "options": {"width": 32, "depth": 1}, "scheduler": "squaredcos_cap_v2:100"},
        "training": {"steps": 40, "batch": 32, "warmup": 5, "checkpoint_every": 10},
        "methods": {
            "logo": {"seeds": [1, 2]},
            "retrack": {"steps": 5, "batch_forget": 8, "batch_retain": 8, "window": [0.1, 1.0]},
            "similarity-pixel": {},
        },
        "queries": {"n": 12, "steps": 4},
        "scoring": {"strata": 6, "rounds": 2, "block": 16, "shard": 5},
        "evaluation": {"resamples": 50},
    }
    for name, changes in sections.items():
        value[name] = None if changes is None else value[name] | changes
    return Recipe.model_validate(value)


class Inline:
    """An engine that runs tasks one after the other in this process; can be told to stop after some."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.ran: list[str] = []
        self.stop_after = stop_after

    def __call__(self, run: Run, tasks: list[Task], title: str) -> int:
        left = pending(run, tasks)
        for task in left:
            if len(self.ran) == self.stop_after:
                raise KeyboardInterrupt
            assert task.ready(run), f"{task.name} comes before what it needs"
            execute(run.address, task)
            self.ran.append(task.name)
        return len(left)


def interrupted(root: Path) -> list[str]:
    """The whole pipeline, stopped after a few tasks again and again; returns what ran, in order."""
    rng, ran = random.Random(0), []
    for _ in range(100):
        engine = Inline(stop_after=rng.randint(1, 5))
        try:
            steps.pipeline(Run.open(root), engine)
            break
        except KeyboardInterrupt:
            pass
        finally:
            ran += engine.ran
    return ran


@functools.cache
def _folder() -> Path:
    """Lives as long as the process; not a tmp_path because four test folders share it."""
    holder = tempfile.TemporaryDirectory(prefix="guda-tiny-")
    _folder.holder = holder  # type: ignore[attr-defined]
    return Path(holder.name)


@functools.cache
def digits_folder() -> Path:
    return write_digits(_folder() / "digits")


@functools.cache
def finished_root() -> Path:
    """A complete run; copy it before changing anything."""
    root = _folder() / "finished"
    steps.pipeline(steps.init(root, tiny(digits_folder())), Inline())
    return root


@functools.cache
def unet_folder() -> Path:
    """A tiny UNet2DModel with its scheduler, written by diffusers itself."""
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8),
        norm_num_groups=4, down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    folder = _folder() / "ddpm"
    DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=50)).save_pretrained(folder)
    return folder


def copy_run(target: Path, source: Path | None = None) -> Run:
    """A private copy of the complete run, or of another one."""
    shutil.copytree(source or finished_root(), target)
    return Run.open(target)


def write_queries(folder: Path, n: int = 6, size: int = 8, order: int = 1) -> Path:
    folder.mkdir(parents=True)
    images = np.random.default_rng(5).integers(0, 256, (n, size, size), dtype=np.uint8)
    for i in list(range(n))[::order]:
        Image.fromarray(images[i]).save(folder / f"q{i:02d}.png")
    return folder


def exact(root: Path) -> dict[str, str]:
    """Every file that must be byte-identical, by digest."""
    files = {}
    if (root / "pilot.json").is_file():
        files["pilot.json"] = hashlib.sha256((root / "pilot.json").read_bytes()).hexdigest()
    for part in EXACT:
        for path in sorted((root / part).rglob("*")):
            if path.is_file() and path.name != "evaluation.json":
                files[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return files


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder, to see that nothing was written."""
    return {
        str(p.relative_to(root)): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"")
        for p in sorted(root.rglob("*"))
    }
