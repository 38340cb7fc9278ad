"""A text-to-image run from the command line, and the mistakes that are answered with one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commandline import Guda, refused
from PIL import Image
from textrun import SET, STYLES, copy_text, sd_folder, styles_folder, write_prompted
from tinyrun import tree

from guda.run.run import Run

EMOJI = Path(__file__).parents[2] / "benchmarks" / "recipes" / "reproduce" / "emoji.yaml"


@pytest.mark.slow
def test_own_model_and_styles_with_the_usual_verbs(guda: Guda, tmp_path: Path) -> None:
    """init, prompts build, fit, score with prompts.jsonl, report: what docs/text-to-image.md promises."""
    run = tmp_path / "run"
    made = guda("init", run, "--model", sd_folder(), "--data", styles_folder(), "--content-by", "level:2", "--json")
    assert made.code == 0, made.err
    recipe = Run.open(run).recipe
    assert recipe.prompts is not None
    lists = {s: [f"{s.lower()} {w}" for w in ("one", "two", "three")] for s in STYLES}
    shutil.rmtree(run)
    value = recipe.model_dump(mode="json") | {"prompts": {"source": "file", "lists": lists}}
    value["methods"] = {"anchors-uniform": {"steps": 2, "batch_forget": 2, "batch_retain": 2, "store": "lora:2"}}
    value["scoring"] |= {"strata": 3, "rounds": 2, "plan": "stratified"}
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(value))
    assert guda("init", run, "--recipe", file).code == 0
    refused(guda("fit", run), "guda prompts build")
    assert guda("prompts", "build", run).code == 0
    assert guda("fit", run, "--workers", 1).code == 0
    folder = write_prompted(tmp_path / "pictures")
    scored = guda("score", run, "--queries", folder, "--workers", 1, "--json")
    assert scored.code == 0, scored.err
    assert json.loads(scored.out)["scores"]["anchors-uniform"]["unit"] == "log ratio"
    assert guda("report", run).code == 0


def test_prompts_and_pictures_must_match(guda: Guda, tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run").root
    folder = write_prompted(tmp_path / "pictures")
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    (folder / "prompts.jsonl").write_text("\n".join([*lines, '{"file_name": "gone.png", "prompt": "x"}']) + "\n")
    refused(guda("score", run, "--queries", folder), "gone.png")
    (folder / "prompts.jsonl").write_text(lines[0] + "\n")
    refused(guda("score", run, "--queries", folder), "q1.png")
    (folder / "prompts.jsonl").unlink()
    refused(guda("score", run, "--queries", folder), "every image needs its prompt")


def test_unknown_styles_are_refused_and_nothing_changes(guda: Guda, tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run").root
    before = tree(run)
    refused(guda("fit", run, "-m", "anchors-uniform", "--groups", "Bricks,Cubism"), "unknown group 'Cubism'")
    refused(guda("score", run, "--groups", "Bricks"), "at least two")
    assert tree(run) == before


def test_groups_of_one_command_and_of_the_run(guda: Guda, tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run").root
    done = guda("score", run, "--queries", SET, "-m", "anchors-uniform", "--groups", "Crayon,Bricks", "--json")
    assert done.code == 0, done.err
    assert Run.open(run).recipe.scoring.groups is None
    assert guda("set", run, "scoring.groups=Crayon,Bricks").code == 0
    assert Run.open(run).recipe.scoring.groups == ("Crayon", "Bricks")
    assert guda("set", run, "scoring.groups=all").code == 0
    assert Run.open(run).recipe.scoring.groups is None


def test_an_unsupported_scheduler_is_named(guda: Guda, tmp_path: Path) -> None:
    model = tmp_path / "sd"
    shutil.copytree(sd_folder(), model)
    config = {"_class_name": "EDMEulerScheduler", "sigma_data": 0.5, "num_train_timesteps": 1000}
    (model / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    index = json.loads((model / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", "EDMEulerScheduler"]
    (model / "model_index.json").write_text(json.dumps(index))
    answer = guda("init", tmp_path / "run", "--model", model, "--data", styles_folder(), "--content-by", "level:2")
    refused(answer, "EDMEulerScheduler")
    assert not (tmp_path / "run").exists()


def test_pictures_of_another_size_are_refused(guda: Guda, tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run").root
    folder = write_prompted(tmp_path / "pictures")
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(folder / "q0.png")
    refused(guda("score", run, "--queries", folder), "differ in size")


def test_a_recipe_is_planned_without_its_data(guda: Guda) -> None:
    told = guda("plan", "unlearncanvas-paper", "--json")
    assert told.code == 0, told.err
    value = json.loads(told.out)
    assert value["queries"] == 320
    assert value["groups"] == 16
    assert value["parameters"] == 859_520_964  # Stable Diffusion 1.5's U-Net
    evals = {row["what"]: row["evals"] for row in value["rows"]}
    assert evals["train the full model"] == 3 * 10_000 * 32
    assert evals["fit anchors-weighted"] == 16 * 2_000 * 4 * (2 + 2)
    assert evals["score 320 queries by anchors-weighted"] == 320 * 17 * 99
    assert value["bank"]["full copies"] == value["bank"]["fp32"] == 16 * 4 * 859_520_964
    assert value["bank"]["lora:4"] < 0.01 * value["bank"]["full copies"]
    refused(guda("plan", "digits-of-pi"), "no recipe")
    told = guda("reproduce", EMOJI, "--plan")
    assert told.code == 0
    assert "fit logo (18 trainings)" in told.out
