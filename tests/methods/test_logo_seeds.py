"""The model under study is no independent retraining of itself."""

from pathlib import Path

import torch
from tinyrun import SET, Inline, copy_run, digits_folder, tiny

from guda import steps
from guda.diffusion.training import train
from guda.methods.base import get_method
from guda.run.data import load_data
from guda.run.models import architecture, need_training
from guda.run.run import Run
from guda.unlearning.bank import Counterfactual
from refusals import refused


def test_its_seed_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with refused("logo-seed-is-training"):
        steps.init(tmp_path / "run", tiny(digits_folder(), methods={"logo": {"seeds": [0, 1]}}))
    assert not (tmp_path / "run").exists()
    run, engine = steps.init(tmp_path / "run", tiny(digits_folder())), Inline()
    run.recipe = run.recipe.model_copy(update={"methods": {"logo": {"seeds": [0, 1]}}})  # a recipe edited later
    with refused("logo-seed-is-training"):
        steps.fit(run, ["logo"], engine)
    assert engine.ran == []
    other = tiny(digits_folder(), methods={"logo": {"seeds": [0, 1]}}, training={"seed": 7})
    get_method(steps.init(tmp_path / "other", other), "logo").check()


def test_where_it_was_trained_before_it_is_counted_out(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")  # trained with seed 0, LOGO with seeds 1 and 2
    both = steps.evaluate(run, SET)
    assert both.seeds == [1, 2]
    assert both.ceiling is not None
    locked = run.recipe.training
    assert locked is not None
    # the same models, had the model under study been trained with seed 2
    run.recipe = run.recipe.model_copy(update={"training": locked.model_copy(update={"seed": 2})})
    logo = get_method(run, "logo")
    assert logo.independent_seeds() == (1,)
    from guda.steps.evaluate import _seeds

    seeds, notes = _seeds(logo)
    assert seeds == [1]
    (note,) = notes
    assert "seed 2" in note
    assert "left out" in note


def test_attributability_is_part_of_an_evaluation(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    found = steps.evaluate(run, SET).attributable
    assert found is not None
    assert list(found) == ["logo"]  # retrack has one training and no placebos here
    assert (found["logo"].trainings, found["logo"].placebos) == (2, 0)
    assert [g.group for g in found["logo"].groups] == ["0", "1", "2"]
    steps.fit(run, ["retrack"], Inline(), placebos=5)
    steps.score(run, SET, ["retrack"], Inline())
    found = steps.evaluate(Run.open(run.root), SET).attributable
    assert found is not None
    assert list(found) == ["logo", "retrack"]
    assert (found["retrack"].trainings, found["retrack"].placebos) == (1, 5)


def test_aligned_retrainings_are_models_of_their_own(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    plain = get_method(run, "logo")
    assert plain.fitted()
    asked = steps.override(run, methods=["logo"], settings=["aligned=true", "seeds=[1]"])
    logo = get_method(asked, "logo")
    assert logo.folder != plain.folder
    assert not logo.fitted()
    steps.fit(asked, ["logo"], Inline())
    assert logo.fitted()
    group, data = logo.groups[0], load_data(run)
    weights = {a: Counterfactual.load(run.path(m.file(group, 1))).tensors for a, m in ((True, logo), (False, plain))}
    trained = train(
        architecture(run), data.images, data.groups, need_training(run), seed=1, leave_out=group, aligned=True
    ).weights
    for name, value in trained.items():
        assert torch.equal(value, weights[True][name])
    assert any(not torch.equal(v, weights[False][k]) for k, v in trained.items())
    with refused("setting-invalid"):
        steps.init(tmp_path / "other", tiny(digits_folder(), methods={"logo": {"aligned": True, "coupled": False}}))
