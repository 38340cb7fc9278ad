"""The same noise through the full model and its counterfactuals: rows are those models' own pictures, drawn once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))
from tinyrun import GROUPS, Inline, copy_run

from guda.diffusion.sampling import ddim, initial_noise
from guda.errors import Mismatch
from guda.files import read_tensors, write_tensors
from guda.methods.terms import load_counterfactual
from guda.report.same_noise import SameNoise, columns, models, read, same_noise, same_noise_tasks
from guda.run.models import load_model
from refusals import refused

CONFIG = SameNoise(n=3, steps=5)


def test_rows_are_the_models_own_pictures_and_are_drawn_once(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    engine = Inline(stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        engine(run, same_noise_tasks(run, "retrack", CONFIG), "draw")
    again = Inline()
    again(run, same_noise_tasks(run, "retrack", CONFIG), "draw")
    assert len(engine.ran) == 2
    assert len(again.ran) == 1 + len(GROUPS) - 2
    noise = initial_noise((1, 8, 8), 0, range(3))
    found = models(run, "retrack", CONFIG)
    assert [name for name, _ in found] == ["full model", "without 0", "without 1", "without 2"]
    for _, ref in found:
        direct = ddim(load_counterfactual(run, ref), noise, steps=5, block=3)
        assert np.array_equal(read(run, ref, CONFIG), direct)
    full, first = (read(run, ref, CONFIG) for _, ref in found[:2])
    assert not np.array_equal(full, first)
    path = same_noise(run, "retrack", CONFIG)
    assert path == run.path("figures", "same-noise-retrack.png")
    bytes_ = path.read_bytes()
    assert same_noise(run, "retrack", CONFIG).read_bytes() == bytes_
    assert np.asarray(Image.open(path)).shape[0] > 4 * 72
    assert columns(run, CONFIG) == [("noise 0", None), ("noise 1", None), ("noise 2", None)]
    # fewer groups: the same files; another method: the same full model
    assert all(t.done(run) for t in same_noise_tasks(run, "retrack", CONFIG.model_copy(update={"groups": ("1",)})))
    logo = same_noise_tasks(run, "logo", CONFIG)
    assert not logo[0].done(run)  # LOGO has a full model of its own seed
    assert len(logo) == 1 + len(GROUPS)


def test_pictures_of_another_model_are_refused(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    small = SameNoise(n=2, steps=2, groups=("0",))
    tasks = same_noise_tasks(run, "retrack", small)
    Inline()(run, tasks, "draw")
    file = run.path(tasks[1].makes[0])
    tensors, _ = read_tensors(file)
    write_tensors(file, tensors, {"model": "somebody else"})
    with refused("drawing-stale", kind=Mismatch):
        same_noise(run, "retrack", small)
    with refused("method-draws-nothing"):
        same_noise_tasks(run, "similarity-pixel")
    with refused("method-draws-nothing"):
        same_noise_tasks(run, "hybrid")
    with refused("group-unknown", match="unknown group 'x'"):
        same_noise_tasks(run, "retrack", SameNoise(groups=("x",)))


def test_a_rule_draws_too(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    from guda import steps

    steps.fit(run, ["posterior"], Inline())
    small = SameNoise(n=2, steps=4, groups=("1",))
    Inline()(run, same_noise_tasks(run, "posterior", small), "draw")
    full, ruled = (read(run, ref, small) for _, ref in models(run, "posterior", small))
    assert not np.array_equal(full, ruled)


def test_text_to_image_models_get_the_same_prompt_in_every_row(tmp_path: Path) -> None:
    from textrun import STYLES, copy_text

    run = copy_text(tmp_path / "run")
    config = SameNoise(n=4, steps=2, groups=("Crayon",))
    told = columns(run, config)
    assert [name.split(": ")[0] for name, _ in told] == [*STYLES, STYLES[0]]
    assert all(prompt is not None and name.split(": ")[1] in prompt for name, prompt in told)
    Inline()(run, same_noise_tasks(run, "anchors-uniform", config), "draw")
    rows = models(run, "anchors-uniform", config)
    full, changed = (read(run, ref, config) for _, ref in rows)
    assert not np.array_equal(full, changed)
    guidance = run.recipe.queries.guidance
    prompts = [str(prompt) for _, prompt in told]
    model = load_model(run, "base")
    direct = ddim(model, initial_noise(model.shape, 0, range(4)), steps=2, prompts=prompts, guidance=guidance, block=4)
    assert np.array_equal(full, direct)
    assert same_noise(run, "anchors-uniform", config).is_file()
