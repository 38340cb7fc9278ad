"""The first hour with one's own pictures: check, init, run, on a tiny world, at the real command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from commandline import Guda, refused

from guda import steps
from guda.config import parse_config
from guda.errors import GudaError
from guda.files import digest_file
from guda.methods.logo import LogoConfig
from guda.run.recipe import preset
from guda.run.run import Run

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from inline_cli import inline_tasks
from tiny_world import RECIPE, write_pictures


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guda: Guda):
    """Pictures and a recipe without LOGO, in the current folder; tasks run in this process."""
    write_pictures(tmp_path)
    recipe = RECIPE | {"methods": {k: v for k, v in RECIPE["methods"].items() if k != "logo"}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "logo.yaml").write_text(
        yaml.safe_dump(RECIPE | {"methods": RECIPE["methods"] | {"logo": {"seeds": 2}}})
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GUDA_CACHE", str(tmp_path / "cache"))
    with inline_tasks():
        yield tmp_path


def as_json(answer) -> dict:
    assert answer.code == 0, answer
    return json.loads(answer.out)


def test_check_lists_what_init_refuses_and_skip_bad_records_it(guda: Guda, world: Path) -> None:
    assert guda("check", "art").code == 0
    for name in ("circles/bad.png", "stripes/worse.png"):
        (world / "art" / name).write_bytes(b"no image")
    (world / "art" / "none").mkdir()
    found = guda("check", "art")
    assert found.code == 1
    assert found.err == ""
    for part in ("circles/bad.png", "stripes/worse.png", "[folder-empty]", "[group-tiny]", "--skip-bad"):
        assert part in found.out
    told = guda("check", "art", "--json")
    assert told.code == 1
    value = json.loads(told.out)
    assert value["refused"]
    assert [p["files"] for p in value["problems"] if p["refused"]] == [["circles/bad.png"], ["stripes/worse.png"]]
    refused(guda("init", "run", "--data", "art", "--recipe", "recipe.yaml"), "[image-unreadable]", "guda check ")
    assert not (world / "run").exists()
    made = as_json(guda("init", "run", "--data", "art", "--recipe", "recipe.yaml", "--skip-bad", "--json"))
    codes = {"circles/bad.png": "image-unreadable", "stripes/worse.png": "image-unreadable", "none": "folder-empty"}
    assert made["left_out"] == codes
    assert as_json(guda("status", "run", "--json"))["left_out"] == codes
    assert Run.open("run").recipe.data.skip_bad is True
    refused(guda("check", "nowhere"), "[data-folder-missing]")


def test_a_first_recipe_is_sized_to_the_machine(guda: Guda, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "steps_per_second", lambda recipe, data: 0.5)
    made = guda("init", "run", "--data", "art")
    assert made.code == 0, made.err
    assert "1,800 steps, about 1:00 h" in made.out
    assert "run/previews" in made.out
    training = Run.open("run").recipe.training
    assert training is not None
    assert (training.steps, training.warmup) == (1800, 180)
    monkeypatch.setattr(steps, "steps_per_second", lambda recipe, data: 9.0)
    assert guda("init", "run").code == 0  # the same run: nothing is measured again
    assert Run.open("run").recipe.training == training
    value = as_json(guda("init", "run", "--hours", "0.1", "--json"))
    assert value["training"] == {"steps_per_second": 9.0}
    assert Run.open("run").recipe.training.steps == 3200  # type: ignore[union-attr]
    refused(guda("init", "other", "--data", "art", "--hours", "-1"), "[hours-invalid]")
    refused(guda("init", "run", "--model", "model", "--hours", "1"), "[hours-without-training]")


def test_steps_fit_into_the_hours() -> None:
    recipe = preset(text_to_image=False)
    assert recipe.training is not None
    fast, slow = steps.sized(recipe, 100.0, None), steps.sized(recipe, 0.01, None)
    assert fast.training.steps == recipe.training.steps == 20_000  # type: ignore[union-attr]
    assert slow.training.steps == 100  # type: ignore[union-attr]
    assert steps.sized(recipe, 100.0, 1.0).training.steps == 360_000  # type: ignore[union-attr]
    assert steps.sized(recipe, 1.2345, 1.0).training.steps == 4400  # type: ignore[union-attr]


def test_the_rate_is_that_of_training_and_leaves_nothing_behind(guda: Guda, world: Path) -> None:
    import torch

    from guda.run.data import load_data

    guda("init", "run", "--data", "art", "--recipe", "recipe.yaml")
    run, before = Run.open("run"), torch.get_rng_state()
    assert steps.steps_per_second(run.recipe, load_data(run), seconds=0.01) > 0
    assert torch.equal(before, torch.get_rng_state())
    assert run.made() is None


def test_run_does_what_is_missing_and_resumes(guda: Guda, world: Path) -> None:
    assert guda("init", "run", "--data", "art", "--recipe", "recipe.yaml").code == 0
    first = guda("run", "run", "--queries", "pictures", "--json")
    value = as_json(first)
    assert value["queries"] == "pictures"
    assert value["methods"] == ["posterior", "retrack", "similarity-pixel", "subsets"]
    assert value["evaluated"] is False
    assert Path(value["report"]).is_file()
    made = {p: digest_file(p) for p in Path("run").rglob("*") if p.is_file() and p.parent.name != "timings"}
    assert as_json(guda("run", "run", "--queries", "pictures", "--json")) == value
    kept = [p for p in made if p.parts[1] in ("models", "artifacts", "terms", "scores", "queries")]
    assert len(kept) > 10
    assert all(digest_file(p) == made[p] for p in kept)
    sheets = sorted(p.name for p in Path("run/previews").iterdir())
    assert sheets[0] == "full-s0-00000001.png"
    assert sheets[-1] == "full-s0-00000020.png"


def test_run_evaluates_with_an_oracle_and_asks_before_it_is_long(
    guda: Guda, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from guda.cli import runs

    assert guda("init", "run", "--data", "art", "--recipe", "logo.yaml").code == 0
    monkeypatch.setattr(runs, "LONG", 0.0)
    told = guda("run", "run", "--json")
    refused(told, "[run-unconfirmed]", "--yes")
    assert Run.open("run").made() is None
    done = guda("run", "run", "--yes")
    assert done.code == 0, done.err
    assert "fit logo" in done.err
    assert Path("run/evaluation.json").is_file()
    assert "Report: " in done.out
    assert "scored by" in done.out
    assert "subsets" not in done.out.split("scored by")[1].split(".")[0]  # halves are trained, and scored by others
    monkeypatch.setattr(runs, "LONG", 600.0)
    assert "Everything is there" in guda("run", "run").err


def test_fit_tells_of_the_oracle_and_free_methods_are_fitted_when_they_score(guda: Guda, world: Path) -> None:
    assert guda("init", "run", "--data", "art", "--recipe", "logo.yaml").code == 0
    refused(guda("score", "run", "-q", "pictures", "-m", "posterior"), "[model-not-trained]")
    assert guda("train", "run").code == 0
    refused(guda("score", "run", "-q", "pictures"), "[method-not-fitted]")
    fitted = guda("fit", "run", "-m", "retrack")
    assert fitted.code == 0, fitted.err
    told = guda("fit", "run")
    assert "Left out: logo, which retrains the model 8 times, about" in told.out
    value = as_json(guda("score", "run", "-q", "pictures", "-m", "posterior", "-m", "similarity-pixel", "--json"))
    answers = value["scores"]["posterior"]["answers"]
    assert set(answers) == {"q0", "q1"}
    for picture in answers.values():
        assert [g["rank"] for g in picture["groups"]] == [1, 2, 3]
        assert {g["group"] for g in picture["groups"]} == {"circles", "crosses", "stripes"}
        assert picture["verdict"]
    assert "retrack" in as_json(guda("score", "run", "-q", "pictures", "--json"))["scores"]
    refused(guda("score", "run", "-q", "pictures", "-m", "shift"), "[method-not-fitted]")


def test_a_number_of_seeds_is_as_good_as_a_list() -> None:
    assert parse_config(LogoConfig, {"seeds": 3}, "methods.logo").seeds == (1, 2, 3)
    assert parse_config(LogoConfig, {"seeds": [4, 2]}, "methods.logo").seeds == (4, 2)
    for wrong in (0, -1, True, "two"):
        with pytest.raises(GudaError) as error:
            parse_config(LogoConfig, {"seeds": wrong}, "methods.logo")
        assert error.value.code == "setting-invalid"
        assert "tuple" not in str(error.value)


def test_previews_change_no_byte_of_the_model(guda: Guda, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from guda.run import models

    for name in ("with", "without"):
        assert guda("init", name, "--data", "art", "--recipe", "recipe.yaml").code == 0
    assert guda("train", "with").code == 0
    monkeypatch.setattr(models, "_preview", lambda *_: None)
    assert guda("train", "without").code == 0
    assert not Path("without/previews").exists()
    files = sorted(p.relative_to("with") for p in Path("with/models").rglob("*") if p.is_file())
    assert files
    for file in files:
        assert digest_file("with" / file) == digest_file("without" / file)
