"""Every family of pipelines through a run: prompts, unlearning with anchors, scoring, pictures of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from textrun import STYLES, start, tiny_text
from tinyrun import Inline, _folder

import tiny_pipelines
from guda import steps
from guda.diffusion.families import gemma
from guda.diffusion.families.base import FAMILIES
from guda.errors import GudaError
from guda.run.models import load_model

FIT = {"steps": 2, "lr": 1e-3, "batch_forget": 2, "batch_retain": 2}


@pytest.mark.parametrize("kind", ["flux", "pixart", "sana", "lumina2"])
def test_a_pipeline_is_unlearned_scored_and_drawn_from(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what is compared with diffusers elsewhere is shortened here: attention to hundreds of padded tokens takes minutes
    family: Any = FAMILIES[kind]
    short = {name: replace(text, length=text.length and 64) for name, text in family.texts.items()}
    monkeypatch.setattr(family, "texts", short)
    monkeypatch.setattr(gemma, "_sana_instruction", lambda: "draw: ")
    monkeypatch.setattr(gemma, "_lumina_instruction", lambda: "draw: ")
    folder = _folder() / kind
    if not folder.exists():
        tiny_pipelines.save(kind, folder)
    model = {"path": str(folder), "start": None} | tiny_pipelines.OPTIONS.get(kind, {})
    methods = {"anchors-uniform": FIT | {"store": "lora:2"}, "anchors-removed": FIT}
    recipe = tiny_text(model=model, training=None, scoring={"foreign": "skip"})
    run = start(tmp_path / "run", recipe.model_copy(update={"methods": methods}))
    steps.fit(run, list(methods), Inline())
    frozen: Any = load_model(run, "base").frozen
    assert not frozen.vae.in_memory  # latents are kept on disk
    steps.sample(run, Inline())
    scores = steps.score(run, run.query_sets()[0], list(methods), Inline())
    for found in scores.values():
        assert found.groups == STYLES
        assert np.isfinite(found.score).all()
        assert (found.score != 0).any()


def test_flux_takes_the_size_of_the_images_or_says_which(tmp_path: Path) -> None:
    folder = _folder() / "flux"
    if not folder.exists():
        tiny_pipelines.save("flux", folder)
    recipe = tiny_text(model={"path": str(folder), "start": None, "size": 32}, training=None)
    with pytest.raises(GudaError) as caught:
        steps.init(tmp_path / "run", recipe)
    assert caught.value.code == "image-shape-mismatch"
    recipe = tiny_text(model={"path": str(folder), "start": None}, training=None, data={"size": 16})
    assert steps.init(tmp_path / "run", recipe).recipe.model.size == 16
    assert steps.init(tmp_path / "run", recipe).recipe.model.size == 16  # again: the same run
