"""What a run is locked to stays readable: settings that came later have defaults, open ones what they stand for."""

import json
from pathlib import Path

import pytest
from tinyrun import digits_folder, tiny, unet_folder

from guda import steps
from guda.errors import Mismatch
from guda.run.data import load_data
from guda.run.models import need_training
from guda.run.run import Run
from refusals import refused

LATER = ("accumulate", "precision", "lora", "prompt_dropout", "schedule")


def test_exposure_left_open_is_locked_as_what_it_stands_for() -> None:
    scratch, tuned = tiny("x"), tiny("x", model={"start": "y"})
    assert scratch.training is not None
    assert scratch.training.exposure_matched is None
    assert scratch.locked()["training"]["exposure_matched"] is True
    assert tuned.locked()["training"]["exposure_matched"] is False
    for said in (True, False):
        for model in ({}, {"start": "y"}):
            found = tiny("x", model=model, training={"exposure_matched": said}).locked()
            assert found["training"]["exposure_matched"] is said


def test_a_run_made_before_a_setting_existed_still_opens(tmp_path: Path) -> None:
    recipe = tiny(digits_folder())
    run = steps.init(tmp_path / "run", recipe)
    lock = run.path("run.json")
    info = json.loads(lock.read_text())
    info["locked"]["training"] = {k: v for k, v in info["locked"]["training"].items() if k not in LATER}
    lock.write_text(json.dumps(info))
    assert Run.open(run.root).info["locked"]["training"].keys().isdisjoint(LATER)  # names made from it stay the same
    steps.init(run.root, recipe)
    said = tiny(digits_folder(), training={"exposure_matched": True})
    steps.init(run.root, said)  # what was left open, now said
    run.path("checkpoints", "full-s0").mkdir(parents=True)  # something depends on it from here on
    for other in ({"exposure_matched": False}, {"accumulate": 2}, {"precision": "bf16"}):
        with pytest.raises(Mismatch, match=next(iter(other))):
            steps.init(run.root, tiny(digits_folder(), training=other))


def test_lora_without_a_start_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with refused("lora-start-missing"):
        steps.init(tmp_path / "run", tiny(digits_folder(), training={"lora": 4}))
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_noisy_partition_is_locked_and_older_runs_still_open(tmp_path: Path) -> None:
    noisy = tiny(digits_folder(), data={"partition": {"fraction": 0.13}})
    run = steps.init(tmp_path / "plain", tiny(digits_folder()))
    lock = json.loads(run.path("run.json").read_text())
    assert lock["locked"]["data"].pop("partition") is None
    run.path("run.json").write_text(json.dumps(lock))  # as it was before the setting existed
    Run.open(run.root)
    run.path("models", "full-s0").mkdir(parents=True)
    with refused("run-recipe-differs", kind=Mismatch):
        steps.init(run.root, noisy)
    other = steps.init(tmp_path / "noisy", noisy)
    assert other.info["data_digest"] != run.info["data_digest"]
    assert other.info["groups"] == run.info["groups"]
    assert other.info["locked"]["data"]["partition"] == {"fraction": 0.13, "seed": 42}
    other.path("models", "full-s0").mkdir(parents=True)
    with refused("run-recipe-differs", kind=Mismatch):
        steps.init(other.root, tiny(digits_folder(), data={"partition": {"fraction": 0.13, "seed": 43}}))


def test_a_recipe_may_be_edited_until_something_depends_on_it(tmp_path: Path) -> None:
    run = steps.init(tmp_path / "run", tiny(digits_folder()))
    text = run.path("recipe.yaml").read_text()
    assert "  steps: 40\n" in text
    run.path("recipe.yaml").write_text(text.replace("  steps: 40\n", "  steps: 7\n"))
    assert Run.open(run.root).info["locked"]["training"]["steps"] == 7
    assert Run.open(run.root).info["locked"] == json.loads(run.path("run.json").read_text())["locked"]
    steps.set_values(Run.open(run.root), ["training.steps=9", "queries.n=5"])
    opened = Run.open(run.root)
    assert (need_training(opened).steps, opened.recipe.queries.n) == (9, 5)
    # what was decoded and checked is made again by init
    text = run.path("recipe.yaml").read_text()
    run.path("recipe.yaml").write_text(text.replace("limit_per_group: 16", "limit_per_group: 4"))
    with refused("run-recipe-differs", match=f"guda init {run.root}", kind=Mismatch):
        Run.open(run.root)
    again = steps.init(run.root, Run.read(run.root).stored_recipe)
    assert again.info["groups"] == {"0": 4, "1": 4, "2": 4}
    assert load_data(Run.open(run.root)).n == 12
    # from here on it is locked
    again.path("checkpoints", "full-s0").mkdir(parents=True)
    with refused("set-section-locked"):
        steps.set_values(Run.open(run.root), ["training.steps=3"])
    text = run.path("recipe.yaml").read_text()
    run.path("recipe.yaml").write_text(text.replace("  steps: 9\n", "  steps: 8\n"))
    with refused("run-recipe-differs", match="checkpoints/full-s0", kind=Mismatch):
        Run.open(run.root)


def test_of_a_given_model_only_retrainings_depend_on_the_training_section(tmp_path: Path) -> None:
    recipe = tiny(
        digits_folder(), model={"net": "unet2d", "options": {}, "scheduler": None, "path": str(unet_folder())}
    )
    run = steps.init(tmp_path / "run", recipe)
    run.path("artifacts", "retrack-12345678").mkdir(parents=True)
    steps.set_values(run, ["training.steps=7"])
    assert Run.open(run.root).info["locked"]["training"]["steps"] == 7
    run.path("artifacts", "logo-12345678").mkdir(parents=True)
    with refused("set-section-locked"):
        steps.set_values(Run.open(run.root), ["training.steps=8"])
