"""An option belongs to its command; only `guda set` and the functions of its kind write the recipe, checked first."""

from pathlib import Path

import pytest
from tinyrun import SET, Inline, copy_run, exact, finished_root

from guda import steps
from guda.run.run import Run
from guda.run.task import pending
from guda.scoring.scores import Scores
from refusals import refused


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def recipe_bytes(run: Run) -> bytes:
    return run.path("recipe.yaml").read_bytes()


def test_an_override_leaves_the_recipe_and_the_runs_own_files_as_they_were(run: Run) -> None:
    before, own = recipe_bytes(run), exact(run.root)
    other = steps.override(run, scoring={"rounds": 3}, groups="0,2", methods=["retrack"], settings=["steps=4"])
    assert (other.recipe.scoring.rounds, other.recipe.scoring.groups) == (3, ("0", "2"))
    assert other.recipe.methods["retrack"]["steps"] == 4
    assert other.recipe.methods["retrack"]["batch_forget"] == 8  # of the recipe
    with refused("method-not-fitted"):
        steps.score(other, SET, ["retrack"], Inline())
    steps.fit(other, ["retrack"], Inline())
    found = steps.score(other, SET, ["retrack"], Inline())["retrack"]
    assert found.groups == ("0", "2")
    after = exact(run.root)
    assert recipe_bytes(run) == before
    assert {name: after[name] for name in own} == own  # nothing of the run's own was written again
    new = {name for name in after if name not in own and name.startswith("scores/")}
    assert new
    assert all(name.startswith(f"scores/{SET}/with-") for name in new), new
    again = Run.open(run.root)
    assert steps.scored_methods(again, SET) == steps.scored_methods(run, SET)
    assert Scores.read(steps.scores_path(again, SET, "retrack")).groups == ("0", "1", "2")


def test_tasks_carry_the_changes_to_whoever_runs_them(run: Run) -> None:
    other = steps.override(run, scoring={"rounds": 4})
    tasks = steps.fit_tasks(other, ["retrack"])
    for task in tasks:
        for made in task.makes:
            run.path(made).unlink(missing_ok=True)
    assert {str(t.changes) for t in pending(other, tasks)} == {"{'scoring': {'rounds': 4}}"}
    assert all(not t.changes for t in pending(run, tasks))


def test_the_recipes_own_values_are_no_difference(run: Run) -> None:
    same = steps.override(run, scoring={"rounds": run.recipe.scoring.rounds}, groups="all")
    assert same.set_apart is None
    assert steps.scores_path(same, SET, "logo") == steps.scores_path(run, SET, "logo")


def test_scores_that_differ_in_anything_have_a_folder_of_their_own(run: Run) -> None:
    several = [
        {}, {"rounds": 3}, {"drift": "subtract"}, {"foreign": "skip"}, {"estimand": "paper"}, {"estimand": "path"},
        {"estimand": "path", "rounds": 3}, {"excess": True},
    ]  # fmt: skip
    folders = {steps.scores_folder(steps.override(run, scoring=changes), SET) for changes in several}
    assert len(folders) == 8
    assert run.path("scores", SET, "path") in folders  # where a recipe with that estimand has them


def test_an_evaluation_by_other_settings_is_not_the_runs_own(run: Run) -> None:
    before = run.path("evaluation.json").read_bytes()
    steps.evaluate(steps.override(run, scoring={"rounds": 1}), SET)
    assert run.path("evaluation.json").read_bytes() == before
    assert exact(finished_root())  # the shared run is untouched


def test_set_writes_the_recipe(run: Run) -> None:
    steps.set_values(
        run,
        ["methods.retrack.steps=7", "scoring.rounds=5", "queries.n=20", "scoring.groups=0,1", "methods.nda.t=[0.2]"],
    )
    found = Run.open(run.root).recipe
    assert (found.scoring.rounds, found.queries.n, found.scoring.groups) == (5, 20, ("0", "1"))
    assert found.methods["retrack"]["steps"] == 7
    assert found.methods["retrack"]["batch_forget"] == 8
    assert found.methods["nda"] == {"t": [0.2]}
    steps.set_values(run, ["scoring.groups=all"])
    assert Run.open(run.root).recipe.scoring.groups is None


BAD = {
    "methods.retrack.lr=.inf": "setting-not-finite",
    "methods.retrack.lr=inf": "setting-invalid",
    "methods.retrack.lr=.nan": "setting-not-finite",
    "methods.retrack.stepz=3": "setting-unknown",
    "methods.retrak.steps=3": "method-unknown",
    "methods.retrack=3": "set-key-unknown",
    "methods.logo.seeds=[0,1]": "logo-seed-is-training",
    "scoring.rounds=1000000000": "recipe-invalid-value",
    "scoring.rounds=0": "recipe-invalid-value",
    "scoring.rounds=true": "recipe-invalid-value",
    "methods.retrack.lr=true": "setting-invalid",
    "scoring.groups=0,nope": "group-unknown",
    "scoring.groups=0": "groups-too-few",
    "scoring.nope=1": "recipe-unknown-key",
    "rounds=3": "set-key-unknown",
    "training.lr=1": "set-section-locked",
    "scoring.rounds": "set-syntax-invalid",
    "scoring.rounds=[": "set-not-yaml",
    "queries.objects=3": "sample-objects-unsupported",
}


@pytest.mark.parametrize("text", BAD)
def test_a_refused_set_writes_nothing(text: str, run: Run) -> None:
    before = recipe_bytes(run)
    with refused(BAD[text]):
        steps.set_values(run, ["scoring.rounds=3", text])
    assert recipe_bytes(run) == before


def test_a_recipe_that_was_bricked_by_hand_is_one_line_that_names_the_place(run: Run) -> None:
    text = run.path("recipe.yaml").read_text()
    run.path("recipe.yaml").write_text(text.replace("    steps: 5\n", "    steps: 5\n    lr: .inf\n"))
    with refused("setting-not-finite", match=r"recipe.yaml: methods\.retrack\.lr"):
        Run.open(run.root)
