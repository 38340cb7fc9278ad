"""The whole Stable Diffusion path on a pipeline of the real classes: fine-tune, LOGO, unlearn, generate, score."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from textrun import (
    SET,
    STYLES,
    copy_text,
    finished_text,
    start,
    styles_folder,
    tiny_text,
    write_prompted,
)
from tinyrun import Inline, exact, interrupted

from guda import steps
from guda.diffusion.denoiser import Denoiser
from guda.engine.processes import Workers, run_tasks
from guda.errors import GudaError, Mismatch
from guda.evaluation.results import read_entry
from guda.methods.terms import load_queries
from guda.report.page import write_report
from guda.run.data import load_data, load_prompts
from guda.run.models import load_model
from guda.run.recipe import Recipe
from guda.run.run import Run
from guda.scoring.reading import value
from guda.scoring.scores import Scores
from refusals import refused


def scores_of(run: Run, method: str, name: str = SET) -> Scores:
    return Scores.read(steps.scores_path(run, name, method))


def test_a_stable_diffusion_run_ends_in_an_evaluation_and_a_report(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    entry = read_entry(run.path("evaluation.json"))
    assert entry.n_queries == 2 * len(STYLES)
    assert {"anchors-uniform", "anchors-removed", "similarity-pixel"} <= set(entry.methods)
    assert entry.ceiling["top1"].mean is not None
    page = write_report(run, SET).read_text()
    assert all(style in page for style in STYLES)


def test_queries_are_the_evaluation_prompts_of_every_style(tmp_path: Path) -> None:
    run = Run.open(finished_text())
    queries, prompts = load_queries(run, SET), load_prompts(run)
    assert queries.prompts is not None
    for name, prompt in zip(queries.ids, queries.prompts, strict=True):
        style, thing = name.split("/")
        assert prompt == prompts.evaluation[style, thing]
        assert not any(s.lower() in prompt.lower() for s in STYLES)
    assert len({name.split("/")[1] for name in queries.ids}) == 2


def test_scores_are_differences_of_latent_elbos_told_the_prompt() -> None:
    """By hand: the same draws through two networks and the schedule's own weights."""
    from guda.methods.base import get_method
    from guda.run.plan import run_plan
    from guda.scoring.terms import kl, make_draws
    from guda.unlearning.bank import Counterfactual

    run = Run.open(finished_text())
    queries, plan = load_queries(run, SET), run_plan(run)
    method = get_method(run, "anchors-uniform")
    full = load_model(run, "base")
    without = Counterfactual.load(run.path(method.file("Crayon"))).apply(full)  # type: ignore[attr-defined]
    pipe_latents = full.encode(queries.images)
    assert tuple(pipe_latents.shape[1:]) == full.shape == (4, 8, 8)
    total = np.zeros(queries.n)
    for r in range(2):
        errors = np.zeros((2, queries.n, plan.n_strata))
        draws = make_draws(full, pipe_latents, queries.ids, plan, r)
        for q in range(queries.n):
            for s in range(plan.n_strata):
                t = torch.tensor([draws.t[q, s]])
                cond = full.condition([queries.prompts[q]])  # type: ignore[index]
                for m, model in enumerate((without, full)):
                    with torch.inference_mode():
                        e = [float(((model.eps(draws.x_t[q, s, h][None], t, cond) - draws.eps[q, s, h]) ** 2).sum())
                             for h in range(draws.eps.shape[2])]  # fmt: skip
                    errors[m, q, s] = np.mean(e)
        one, two = (kl(plan, full.schedule.weights, draws.t, e) for e in errors)
        total += (one - two).sum(axis=-1) / 2
    found = scores_of(run, "anchors-uniform")
    np.testing.assert_allclose(found.score[:, found.groups.index("Crayon")], total, rtol=2e-3, atol=1e-6)


def test_logo_and_full_share_the_pretrained_start() -> None:
    """With no step taken there is nothing to attribute: every difference is to the same start."""
    run = Run.open(finished_text())
    first, base = load_model(run, "start").weights(), load_model(run, "base").weights()
    moved = max(float((base[k] - first[k]).abs().max()) for k in first)
    assert 0 < moved < 0.1
    assert load_model(run, "base").frozen is not None
    saved = Denoiser.from_pretrained(run.path("models", "full-s0"))  # by itself, frozen parts found again
    assert saved.digest() == load_model(run, "base").digest()
    assert saved.frozen is not None
    assert saved.frozen.digest() == run.info["frozen"]


def test_an_interrupted_text_run_is_byte_identical(tmp_path: Path) -> None:
    root = tmp_path / "run"
    start(root)
    ran = interrupted(root)
    assert exact(root) == exact(finished_text())
    assert len(ran) == len(set(ran)), "something was done twice"


def test_worker_processes_give_the_same_bytes(tmp_path: Path) -> None:
    """Terms of two processes are those of one; latents and embeddings come from the same files."""
    run = copy_text(tmp_path / "run")
    for part in ("terms", "scores", "cache"):
        shutil.rmtree(run.path(part), ignore_errors=True)
    pool = Workers(2)
    steps.score(run, SET, ["anchors-uniform"], lambda r, tasks, title: run_tasks(r, tasks, pool, None))
    mine, whole = exact(run.root), exact(finished_text())
    assert any(name.startswith("terms/") for name in mine)
    assert all(whole[name] == value for name, value in mine.items())


def test_a_folder_with_prompts_is_scored_and_one_without_is_refused(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    folder = write_prompted(tmp_path / "mine")
    name = steps.add_queries(run, folder)
    steps.score(run, name, ["anchors-uniform"], Inline())
    assert scores_of(run, "anchors-uniform", name).score.shape == (3, len(STYLES))
    (folder / "prompts.jsonl").unlink()
    with refused("prompts-required", match=r"text-to-image: every image needs its prompt \(a prompts.jsonl file\)"):
        steps.add_queries(run, folder, "other")


def test_the_prompt_reaches_the_score(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    one, two = write_prompted(tmp_path / "one"), write_prompted(tmp_path / "two")
    text = (two / "prompts.jsonl").read_text()
    (two / "prompts.jsonl").write_text(text.replace("Dogs", "Sea"))
    for folder in (one, two):
        steps.score(run, steps.add_queries(run, folder), ["anchors-uniform"], Inline())
    a, b = (scores_of(run, "anchors-uniform", n).score for n in ("one", "two"))
    assert not np.allclose(a, b)


def test_groups_limit_fit_and_score_and_leave_training_alone(tmp_path: Path) -> None:
    recipe = tiny_text(scoring={"groups": ["Dapple", "Bricks"]}, methods={"logo": {"seeds": [1]}})
    run = start(tmp_path / "run", recipe)
    engine = Inline()
    steps.pipeline(run, engine)
    fits = [name for name in engine.ran if name.startswith(("fit anchors", "train logo"))]
    assert fits
    assert not any("Crayon" in name for name in fits)
    full = finished_text() / "models" / "full-s0" / "unet"
    mine = run.path("models", "full-s0", "unet", "diffusion_pytorch_model.safetensors").read_bytes()
    assert mine == (full / "diffusion_pytorch_model.safetensors").read_bytes(), "training keeps all styles"
    name = run.query_sets()[0]
    assert {q.split("/")[0] for q in load_queries(run, name).ids} == {"Bricks", "Dapple"}
    found = scores_of(run, "anchors-uniform", name)
    assert found.groups == ("Bricks", "Dapple")  # in the data's order
    whole = scores_of(Run.open(finished_text()), "similarity-pixel")
    assert scores_of(run, "similarity-pixel", name).groups == found.groups
    assert whole.groups == STYLES
    page = write_report(run, name).read_text().partition("<details")[0]  # the recipe below still names all styles
    assert "Crayon" not in page
    steps.change_groups(run, "all")
    assert run.recipe.scoring.groups is None
    with refused("group-unknown", match=r"unknown group 'Crayons'.*did you mean 'Crayon'"):
        steps.change_groups(run, "Crayons,Dapple")


def test_the_pretrained_start_is_a_reference_row(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    found = steps.score(run, SET, ["pretrained"], Inline())["pretrained"]
    assert found.score.shape == (6, 1)
    assert np.isfinite(found.score).all()
    assert "pretrained" not in steps.scored_methods(run, SET)  # no ranking to compare
    steps.evaluate(run, SET)


def test_what_fine_tuning_taught_is_a_path_divergence_where_that_is_asked_for(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    steps.change_scoring(run, estimand="path", plan="stratified")
    assert (steps.score(run, SET, ["pretrained"], Inline())["pretrained"].score > 0).all()


def test_other_prompts_are_refused(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    path = run.path("prompts", "prompts.json")
    path.write_text(path.read_text().replace("waxy", "oily"))
    with pytest.raises(Mismatch):
        load_prompts(Run.open(run.root))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": {"content_by": None}}, "give data.content_by"),
        ({"prompts": None}, "or give a recipe with a `prompts` section"),
        ({"prompts": {"lists": {"Bricks": ["a", "b", "c"]}}}, None),
        ({"scoring": {"groups": ["Bricks", "Cubism"]}}, "unknown group 'Cubism'"),
        ({"model": {"path": "x"}}, "give one of them"),
    ],
)
def test_recipes_that_cannot_work_are_refused_before_anything_is_written(
    tmp_path: Path, changes: dict, says: str | None
) -> None:
    recipe = tiny_text(**changes)
    if says is None:  # found when the prompts are built
        with refused("style-undescribed", match="'Crayon' is not described"):
            start(tmp_path / "run", recipe)
        return
    with pytest.raises(GudaError, match=says):
        steps.init(tmp_path / "run", recipe)
    assert not (tmp_path / "run").exists()


def test_retrack_is_refused_on_text_models_and_anchors_are_named(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    with refused("operator-model-unsupported"):
        steps.fit(run, ["retrack"], Inline())


def test_data_know_their_objects() -> None:
    data = load_data(Run.open(finished_text()))
    assert data.contents is not None
    assert set(data.contents) == {"Cats", "Dogs", "Sea", "Trees"}
    assert data.meta["path"] == str(styles_folder())


def test_the_report_shows_prompts_and_what_fine_tuning_taught(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    row = steps.score(run, SET, ["pretrained"], Inline())["pretrained"]
    page = write_report(run, SET).read_text()
    first = row.cell(0, 0)
    assert f"all fine-tuning data together: {value(first.score, first.lo, first.hi, 1, 'nats')}" in page
    assert load_queries(run, SET).prompts[0] in page  # type: ignore[index]
    assert load_data(run).digest in page


def test_other_prompts_are_refused_even_after_the_file_is_deleted(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    value = run.info | {"prompts_digest": "0" * 64}
    run.path("run.json").write_text(json.dumps(value))
    with refused("prompts-changed", kind=Mismatch):
        load_prompts(Run.open(run.root))
    run.path("prompts", "prompts.json").unlink()
    with refused("run-lock-mismatch", kind=Mismatch):
        steps.prompts_build(Run.open(run.root))


def test_operators_of_unconditional_models_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    for name in ("esd", "posterior", "hybrid", "shift"):
        engine = Inline()
        with pytest.raises(GudaError, match=r"not defined for .*anchors-weighted"):
            steps.fit(run, [name], engine)
        assert engine.ran == []


def test_health_of_a_text_run_is_measured_with_the_training_prompts(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    steps.change_groups(run, "Bricks,Dapple")
    found = steps.health(run, steps.health_methods(run), Inline(), n=2)
    assert set(found) == {"anchors-uniform", "anchors-removed"}  # not the reference row
    assert found["anchors-uniform"].groups == ["Bricks", "Dapple"]
    assert np.shape(found["anchors-uniform"].matrix) == (2, 2)
    with refused("method-without-models"):
        steps.health(run, ["pretrained"], Inline())


def test_tuning_asks_about_the_chosen_groups_and_other_objects(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    run = copy_text(tmp_path / "run")
    steps.change_groups(run, "Bricks,Dapple")
    from guda.steps.search_space import parse_space

    tuned = steps.tune(run, "anchors-uniform", 1, Inline(), queries_seed=7, n=200, space=parse_space("lr=1e-4..1e-3"))
    assert tuned.groups == ("Bricks", "Dapple")
    mine = {q.split("/")[1] for q in load_queries(run, tuned.queries).ids}
    assert mine == {"Cats", "Dogs", "Sea", "Trees"}  # more were asked for than there are: all of them
    with refused("group-not-scored", match="'Crayon' is not among the groups this run asks about"):
        steps.tune(run, "anchors-uniform", 1, Inline(), queries_seed=7, groups=["Crayon", "Bricks"])


def test_objects_of_another_seed_are_others_where_there_are_enough() -> None:
    from guda.run.samples import prompt_list

    run = Run.open(finished_text())
    own = {i.split("/")[1] for i, _ in prompt_list(run, run.recipe.queries)}
    other = {i.split("/")[1] for i, _ in prompt_list(run, run.recipe.queries.model_copy(update={"seed": 7}))}
    assert len(own) == len(other) == 2
    assert not own & other
    # and the name of the set says so: drawn as the recipe's own, the same seed means other objects
    from guda.run.samples import set_name

    seven = run.recipe.queries.model_copy(update={"seed": 7})
    as_tuning = set_name(run, seven)
    run.__dict__["recipe"] = run.recipe.model_copy(update={"queries": seven})
    assert set_name(run, seven) != as_tuning


def test_sampling_a_number_of_pictures_is_refused_on_text_runs(tmp_path: Path) -> None:
    run = copy_text(tmp_path / "run")
    with refused("sample-count-unsupported"):
        steps.change_queries(run, n=20)
    steps.change_queries(run, objects=1)
    assert run.recipe.queries.objects == 1
    assert steps.query_count(run, run.recipe.queries) == len(STYLES)


def test_a_style_of_every_image_is_asked_for_before_a_run_is_made(tmp_path: Path) -> None:
    """A prompt names one style."""
    folder = tmp_path / "images"
    folder.mkdir()
    rows = []
    for style in STYLES:
        for path in sorted((styles_folder() / style).rglob("*.png")):
            name = f"{style}-{path.parent.name}-{path.name}"
            (folder / name).write_bytes(path.read_bytes())
            rows.append({"file_name": name, "style": sorted({style, STYLES[0]}), "object": path.parent.name})
    rows[-1]["style"] = [STYLES[1]]  # the first style does not hold every image
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    value = tiny_text().model_dump(mode="json")
    value["data"] |= {"source": str(folder), "group_by": "style", "content_by": "object"}
    with refused("groups-overlap"):
        steps.init(tmp_path / "run", Recipe.model_validate(value))
    assert not (tmp_path / "run").exists()
