"""Class-conditional models from the command line: `init` offers what can be fitted, and writes a recipe of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import Guda
from tinyrun import GROUPS, digits_folder

from guda import steps
from guda.run.run import Run
from refusals import refused


def class_model(folder: Path, make_unet: Callable[..., Any], labels: int) -> Path:
    from diffusers import DDPMPipeline, DDPMScheduler

    net = make_unet(num_class_embeds=labels)
    DDPMPipeline(net, DDPMScheduler(num_train_timesteps=100)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("labels", [3, 4])
def test_what_init_names_next_can_be_fitted(
    guda: Guda, tmp_path: Path, make_unet: Callable[..., Any], labels: int
) -> None:
    """Three classes that are the groups: no posterior is left, and without a fourth label there is no null label."""
    model = class_model(tmp_path / "model", make_unet, labels)
    made = guda("init", tmp_path / "run", "--model", model, "--data", digits_folder(), "--json")
    assert made.code == 0, made.err
    told = json.loads(made.out)["methods"]
    assert ("anchors-removed" in told) == (labels == 4)
    recipe = Run.open(tmp_path / "run").recipe
    assert set(recipe.methods) == {"anchors-weighted", "similarity-pixel"}
    assert set(recipe.methods) <= set(told)
    if labels == 3:
        run = steps.override(Run.open(tmp_path / "run"), methods=["anchors-removed"], settings=["steps=2"])
        with refused("null-label-missing"):
            steps.fit(run, ["anchors-removed"], never)


def never(run: Run, tasks: list[Any], title: str) -> int:
    raise AssertionError(f"{title}: refused too late")


def test_of_groups_only_some_of_which_are_classes_only_what_knows_both_is_offered(
    guda: Guda, tmp_path: Path, make_unet: Callable[..., Any]
) -> None:
    """One writer has all of class 2; two others share the rest: neither labels nor posteriors remove every group."""
    for digit in GROUPS:
        for i, path in enumerate(sorted((digits_folder() / digit).iterdir())[:8]):
            writer = "c" if digit == "2" else "ab"[i % 2]
            (tmp_path / "images" / writer / digit).mkdir(parents=True, exist_ok=True)
            (tmp_path / "images" / writer / digit / path.name).write_bytes(path.read_bytes())
    model = class_model(tmp_path / "model", make_unet, 4)
    made = guda(
        "init", tmp_path / "run", "--model", model, "--data", tmp_path / "images", "--content-by", "level:2", "--json"
    )
    assert made.code == 0, made.err
    told = set(json.loads(made.out)["methods"])
    assert "continuation" in told
    assert not {"anchors-weighted", "retrack", "shift", "posterior"} & told
    run = Run.open(tmp_path / "run")
    assert set(run.recipe.methods) == {"continuation", "similarity-pixel"}
    with refused("operator-model-unsupported"):
        steps.fit(run, ["anchors-uniform"], never)
