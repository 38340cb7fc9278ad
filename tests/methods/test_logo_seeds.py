"""The model under study is no independent retraining of itself."""

from pathlib import Path

from tinyrun import SET, Inline, copy_run, digits_folder, tiny

from guda import steps
from guda.methods.base import get_method
from guda.run.run import Run
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
