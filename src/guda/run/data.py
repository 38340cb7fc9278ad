"""What a run's models are trained on: the images, the groups that are scored, and the prompts."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from guda.data.images import ImageData
from guda.data.prompts import Prompts
from guda.errors import GudaError, Mismatch
from guda.files import remembered
from guda.run.run import Run
from guda.run.sketch import Sketch

TEST = ("data", "test")  # in a run: images of the test split, where the source has one

PROMPTS = ("prompts", "prompts.json")  # in a run


def load_data(run: Run) -> ImageData:
    """All training images; loaded once per process."""
    if isinstance(run, Sketch):
        return run.data
    folder = run.path("data")
    index = folder / "index.json"
    data = remembered("data", index, lambda: ImageData.load(folder)) if index.is_file() else ImageData.load(folder)
    if (expected := run.info.get("data_digest")) != data.digest:
        what = f"{folder} holds other images than the run was made from"
        raise Mismatch("data-changed", what, data.digest, expected, "restore it")
    return data


def held_out_images(run: Run) -> np.ndarray | None:
    """uint8 [n, C, H, W] that training validates on; None where the source has no test split."""
    folder = run.path(*TEST)
    return ImageData.load(folder).images if (folder / "index.json").is_file() else None


def scored_groups(run: Run) -> tuple[str, ...]:
    """The groups that are ranked, in the data's order: all (of a tree, the leaves), or those the recipe names."""
    groups, chosen = load_data(run).groups, run.recipe.scoring.groups
    if chosen is None:
        return groups.leaf_names
    numbers = {groups.index(name) for name in chosen}
    groups.check_apart(sorted(numbers))
    return tuple(name for k, name in enumerate(groups.names) if k in numbers)


def scored_data(run: Run) -> ImageData:
    """The training images of those groups, under them alone."""
    data, groups = load_data(run), scored_groups(run)
    return data if groups == data.groups.names else _only(data, groups)


@lru_cache(maxsize=2)
def _only(data: ImageData, groups: tuple[str, ...]) -> ImageData:
    return data.only(groups)


def load_prompts(run: Run) -> Prompts:
    """The prompts of a run, built before."""
    path = run.path(*PROMPTS)
    if run.recipe.prompts is None:
        raise GudaError(
            "prompts-section-missing",
            f"the recipe of {run.root} has no prompts section; make a run from a recipe that has one",
        )
    if not path.is_file():
        raise GudaError("prompts-missing", f"{run.root} has no prompts yet; run: guda prompts build {run.root}")
    prompts = remembered("prompts", path, lambda: Prompts.load(path, run.info["data_digest"]))
    if (recorded := run.info.get("prompts_digest", prompts.digest)) != prompts.digest:
        what = f"{path} holds other prompts than this run was begun with"
        raise Mismatch("prompts-changed", what, prompts.digest, recorded, "restore it")
    return prompts


def prompt_files(run: Run) -> tuple[str, ...]:
    """Files that must exist before a text-to-image model is trained or evaluated on training images."""
    return () if run.recipe.prompts is None else ("/".join(PROMPTS),)
