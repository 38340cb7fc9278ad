"""Everything a user can get wrong: one line on stderr, exit code 2, nothing written."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from commandline import Guda, program, refused
from PIL import Image
from safetensors.torch import load_file, save_file
from tinyrun import SET, copy_run, digits_folder, tiny, tree, unet_folder, write_digits, write_queries

from guda import steps


def png(path: Path, size: int = 8, mode: str = "L") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


@pytest.fixture
def art(tmp_path: Path) -> Path:
    return write_digits(tmp_path / "art", each=3)


def recipe_file(tmp_path: Path, **changes: object) -> Path:
    value = yaml.safe_load(tiny(digits_folder()).to_yaml())
    for key, change in changes.items():
        place = value
        *parents, last = key.split("__")
        for parent in parents:
            place = place[parent]
        place[last] = change
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


# --- init: data -----------------------------------------------------------------------------------


def empty(art: Path) -> list[str]:
    shutil.rmtree(art)
    art.mkdir()
    return ["no images in"]


def missing(art: Path) -> list[str]:
    shutil.rmtree(art)
    return ["does not exist"]


def one_group(art: Path) -> list[str]:
    shutil.rmtree(art / "1")
    shutil.rmtree(art / "2")
    return ["one group", "--group-by"]


def mixed_sizes(art: Path) -> list[str]:
    png(art / "1" / "big.png", 12)
    return ["differ in size", "--size"]


def cut_png(art: Path) -> list[str]:
    path = png(art / "1" / "cut.png", 64)
    path.write_bytes(path.read_bytes()[:200])
    return ["cut.png", "cannot read image"]


def a_file(art: Path) -> list[str]:
    shutil.rmtree(art)
    art.write_text("x")
    return ["is a file"]


@pytest.mark.parametrize("spoil", [empty, missing, one_group, mixed_sizes, cut_png, a_file])
def test_bad_data(guda: Guda, tmp_path: Path, art: Path, spoil) -> None:
    parts = spoil(art)
    refused(guda("init", tmp_path / "run", "--data", art, "--model", unet_folder()), *parts)
    assert not (tmp_path / "run").exists()


def test_bad_options_of_init(guda: Guda, tmp_path: Path, art: Path) -> None:
    run = tmp_path / "run"
    for args, parts in [
        (["--data", "digit"], ["unknown data source 'digit'", "did you mean 'digits'?"]),
        (["--data", art, "--group-by", "artist"], ["cannot group by 'artist'"]),
        (["--data", art, "--group-by", "level:9"], ["level 9"]),
        (["--data", "digits", "--size", "8"], ["does not take size"]),
        ([], ["give --data"]),
        (["--data", art, "--scheduler", "lineer:1000"], ["lineer:1000", "linear"]),
        (["--data", art, "--recipe", "digit"], ["no recipe 'digit'", "digits"]),
        (["--data", art, "--recipe", tmp_path / "none.yaml"], ["none.yaml does not exist"]),
        (["--data", art, "--size", "7"], ["cannot run on 7x7", "--size"]),  # a U-Net of three levels cannot halve it
    ]:
        before = tree(tmp_path)
        refused(guda("init", run, *args), *parts)
        assert tree(tmp_path) == before


def test_bad_recipes(guda: Guda, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for changes, part in [
        ({"trainig": {}}, "trainig"),
        ({"training__step": 4}, "training.step"),
        ({"methods__retrack__stepz": 4}, "methods.retrack: stepz"),
        ({"methods__retrak": {}}, "unknown method 'retrak'"),
        ({"scoring__strata": 5000}, "scoring.strata = 5000"),
        ({"training": None}, "no model"),
        ({"model__options": {"widht": 3}}, "model.options"),
    ]:
        refused(guda("init", run, "--recipe", recipe_file(tmp_path, **changes)), part)
        assert not run.exists()
    (tmp_path / "recipe.yaml").write_text("a: [\n  b: {")
    refused(guda("init", run, "--recipe", tmp_path / "recipe.yaml"), "not valid YAML")
    assert not run.exists()


def test_a_place_that_is_taken(guda: Guda, tmp_path: Path, art: Path) -> None:
    (tmp_path / "file").write_text("x")
    before = tree(tmp_path)
    refused(guda("init", tmp_path, "--data", art, "--model", unet_folder()), "not a run folder")
    refused(guda("init", tmp_path / "file", "--data", art, "--model", unet_folder()), "is a file")
    assert tree(tmp_path) == before


# --- init: model ----------------------------------------------------------------------------------


def no_folder(model: Path) -> list[str]:
    shutil.rmtree(model)
    return ["no such folder"]


def empty_folder(model: Path) -> list[str]:
    shutil.rmtree(model)
    model.mkdir()
    return ["neither model_index.json nor config.json"]


def nan(model: Path) -> list[str]:
    file = next((model / "unet").glob("*.safetensors"))
    state = load_file(file)
    state["conv_in.weight"][0] = float("nan")
    save_file(state, file, metadata={"format": "pt"})
    return ["conv_in.weight", "NaN"]


def cut_weights(model: Path) -> list[str]:
    file = next((model / "unet").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:1000])
    return ["cannot be loaded"]


def bare(model: Path) -> list[str]:
    for name in ("model_index.json", "scheduler"):
        path = model / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for file in (model / "unet").iterdir():
        file.rename(model / file.name)
    return ["no noise schedule", "--scheduler linear:1000"]


def no_weights(model: Path) -> list[str]:
    next((model / "unet").glob("*.safetensors")).unlink()
    return ["safetensors"]


@pytest.mark.parametrize("spoil", [no_folder, empty_folder, nan, cut_weights, bare, no_weights])
def test_bad_models(guda: Guda, tmp_path: Path, art: Path, spoil) -> None:
    model = tmp_path / "model"
    shutil.copytree(unet_folder(), model)
    parts = spoil(model)
    refused(guda("init", tmp_path / "run", "--data", art, "--model", model), *parts)
    assert not (tmp_path / "run").exists()
    if spoil is bare:  # and the fix it names works
        assert guda("init", tmp_path / "run", "--data", art, "--model", model, "--scheduler", "linear:50").code == 0


def test_data_that_do_not_fit_the_model(guda: Guda, tmp_path: Path, art: Path) -> None:
    refused(guda("init", tmp_path / "run", "--data", art, "--model", unet_folder(), "--size", "16"), "--size 8")
    for group in ("a", "b"):
        png(tmp_path / "colour" / group / "1.png", 8, "RGB")
    refused(guda("init", tmp_path / "run", "--data", tmp_path / "colour", "--model", unet_folder()), "channel")
    assert not (tmp_path / "run").exists()


# --- runs -----------------------------------------------------------------------------------------

VERBS = ("train", "fit", "sample", "score", "evaluate", "report", "status")


@pytest.mark.parametrize("verb", VERBS)
def test_no_such_run(guda: Guda, tmp_path: Path, verb: str) -> None:
    refused(guda(verb, tmp_path / "none"), "does not exist", "guda init")
    (tmp_path / "other").mkdir()
    refused(guda(verb, tmp_path / "other"), "is not a run folder", "guda init")
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


def test_other_inputs_show_both_values(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    before = tree(run.root)
    recipe = recipe_file(tmp_path, training__steps=41)
    refused(guda("init", run.root, "--recipe", recipe), "training.steps differs: found 40, given 41")
    assert tree(run.root) == before
    text = run.path("recipe.yaml").read_text()
    run.path("recipe.yaml").write_text(text.replace("steps: 40", "steps: 41"))
    for verb in VERBS:
        refused(guda(verb, run.root), "training.steps differs: found 40, given 41")


def test_too_early(guda: Guda, tmp_path: Path) -> None:
    """score before fit, evaluate and report before queries: each names the step that is missing."""
    run, pictures = tmp_path / "run", write_queries(tmp_path / "generated")
    steps.init(run, tiny(digits_folder()))
    before = tree(run)
    refused(guda("score", run), "nothing is fitted", f"guda fit {run}")
    refused(guda("score", run, "--queries", pictures), "nothing is fitted")
    refused(guda("score", run, "--queries", pictures, "--method", "retrack"), "retrack is not fitted", "guda fit")
    refused(
        guda("score", run, "--queries", pictures, "--method", "retrak"), "unknown method", "did you mean 'retrack'?"
    )
    refused(guda("evaluate", run), "no queries", "guda sample")
    refused(guda("report", run), "no queries", "guda sample")
    assert tree(run) == before


def test_mistakes_in_a_finished_run(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run").root
    big = write_queries(tmp_path / "big", size=12)
    (tmp_path / "hollow").mkdir()
    prompted = write_queries(tmp_path / "prompted")
    (prompted / "prompts.jsonl").write_text(
        "".join(f'{{"file_name": "q{i:02d}.png", "prompt": "a"}}\n' for i in range(6))
    )
    before = tree(run)
    for args, parts in [
        (["score", run, "--queries", big], ["12x12", "8x8"]),
        (["score", run, "--queries", tmp_path / "hollow"], ["no images in"]),
        (["score", run, "--queries", tmp_path / "nowhere"], ["no query set", SET]),
        (["score", run, "--queries", prompted], ["unconditional", "prompts.jsonl"]),
        (["score", run, "--queries", SET, "--name", "x"], ["--name"]),
        (["score", run, "--method", "retrak"], ["unknown method 'retrak'", "did you mean 'retrack'?"]),
        (["fit", run, "--method", "retrak"], ["unknown method 'retrak'", "did you mean 'retrack'?"]),
        (["fit", run, "--method", "retrak", "--set", "steps=2"], ["unknown method 'retrak'"]),
        (["fit", run, "--method", "retrack", "--set", "stepz=2"], ["stepz", "settings: steps"]),
        (["fit", run, "--method", "retrack", "--set", "steps=two"], ["methods.retrack: steps"]),
        (["fit", run, "--method", "retrack", "--set", "steps"], ["key=value"]),
        (["fit", run, "--method", "retrack", "--set", "window=[1"], ["not valid YAML"]),
        (["fit", run, "--set", "steps=2"], ["exactly one --method"]),
        (["evaluate", run, "--queries", "nope"], ["no query set 'nope'"]),
        (["report", run, "--queries", "nope"], ["no query set 'nope'"]),
    ]:
        refused(guda(*args), *parts)
        assert tree(run) == before, args


def test_evaluate_without_the_oracle(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run").root
    for folder in (run / "artifacts").glob("logo-*"):
        shutil.rmtree(folder)
    for file in (run / "scores" / SET).glob("logo*"):
        file.unlink()
    before = tree(run)
    refused(guda("evaluate", run), f"guda fit {run} --method logo", "guda score")
    assert tree(run) == before


def test_report_without_scores(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run").root
    shutil.rmtree(run / "scores")
    (run / "evaluation.json").unlink()
    before = tree(run)
    refused(guda("report", run), "guda score")
    assert tree(run) == before


def test_a_recipe_with_nothing_to_fit(guda: Guda, tmp_path: Path) -> None:
    steps.init(tmp_path / "run", tiny(digits_folder(), methods={}).model_copy(update={"methods": {"logo": {}}}))
    refused(guda("fit", tmp_path / "run"), "--method")


def test_damage_found_by_a_worker_is_one_line_too(guda: Guda, tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run").root
    shutil.rmtree(run / "terms")
    file = next((run / "models" / "full-s0").rglob("*.safetensors"))
    state = load_file(file)
    save_file({k: v + 1 for k, v in state.items()}, file, metadata={"format": "pt"})
    answer = guda("score", run, "--method", "retrack", "--workers", "1", "--json")
    refused(answer, "digest of the weights: found", "given")


def test_as_real_programs(tmp_path: Path, art: Path) -> None:
    cut_png(art)
    refused(program("init", tmp_path / "run", "--data", art, "--model", unet_folder()), "cut.png")
    assert not (tmp_path / "run").exists()
    refused(program("fit", tmp_path / "none", "--json"), "does not exist")
    model = tmp_path / "model"
    shutil.copytree(unet_folder(), model)
    nan(model)
    shutil.rmtree(art / "1")
    refused(program("init", "run", "--data", "art", "--model", "./model", cwd=tmp_path), "NaN")
    assert not (tmp_path / "run").exists()
