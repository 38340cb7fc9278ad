"""Methods share fit, score and scores; a comparison is a loop over them."""

import json
from pathlib import Path

import numpy as np
import pytest
from constantmethod import Constant
from tinyrun import GROUPS, SET, Inline, copy_run, digits_folder, finished_root, tiny, tree, write_queries

from guda import steps
from guda.errors import GudaError, Mismatch
from guda.evaluation.results import DatasetEntry
from guda.methods.base import METHODS, get_method, method
from guda.methods.terms import load_queries
from guda.run.run import Run
from guda.scoring.scores import Scores


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def scores(run: Run, name: str) -> Scores:
    return Scores.read(steps.scores_path(run, SET, name))


# --- the registry ---------------------------------------------------------------------------------


def test_the_methods_there_are(run: Run) -> None:
    known = METHODS
    assert {"logo", "retrack", "similarity-pixel"} <= known.keys()
    assert all(cls.id == name and cls.summary for name, cls in known.items())
    assert get_method(run, "similarity-pixel").unit == "cosine"
    with pytest.raises(GudaError, match=r"unknown method 'retrak' \(did you mean 'retrack'\?\); known: "):
        get_method(run, "retrak")


def test_a_plug_in_goes_all_the_way(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GudaError, match="unknown method"):
        get_method(run, "constant")
    monkeypatch.setitem(METHODS._items, "constant", Constant)  # so that it is gone after the test
    assert method("constant")(Constant) is Constant
    steps.change_settings(run, ["constant"], ["slope=2.5"])
    assert steps.fit(run, ["constant"], Inline()) == 1
    assert steps.fit(run, ["constant"], Inline()) == 0
    assert "constant" in steps.fitted_methods(run)
    found = steps.score(run, SET, ["constant"], Inline())["constant"]
    assert found["s0-00003"].top(1)[0].group == "0"
    np.testing.assert_array_equal(scores(run, "constant").score, np.tile([0, -2.5, -5], (12, 1)))
    assert scores(run, "constant").stderr is None
    entry = steps.evaluate(run, SET)
    assert entry.methods["constant"].fit_evals == 7.0
    assert "evals_ratio_vs_logo.constant" in entry.figures
    assert steps.status(run)["methods"]["constant"] == {"fitted": 1, "of": 1}
    with pytest.raises(GudaError, match=r"methods\.constant: slop: .*settings: slope"):
        steps.change_settings(run, ["constant"], ["slop=1"])


# --- logo -----------------------------------------------------------------------------------------


def test_the_oracle_is_the_mean_of_its_seeds(run: Run) -> None:
    mean, one, two = (scores(run, name) for name in ("logo", "logo-s1", "logo-s2"))
    np.testing.assert_allclose(mean.score, (one.score + two.score) / 2, rtol=1e-9, atol=1e-9)
    assert not np.allclose(one.score, two.score)
    assert mean.groups == GROUPS
    assert mean.unit == "nats"
    assert (mean.lo < mean.score).all()
    assert (mean.score < mean.hi).all()
    assert (mean.n_evals == 2 * one.n_evals).all()
    assert (one.n_evals == 2 * 2 * 6 * 2).all()  # two models, pairs of noise, strata, rounds
    assert not np.allclose(mean.stderr, one.stderr)


def test_one_more_seed_keeps_the_trained_ones(run: Run) -> None:
    before = tree(run.root)
    steps.change_settings(run, ["logo"], ["seeds=[1, 2, 3]"])
    assert not get_method(run, "logo").fitted()
    with pytest.raises(GudaError, match="logo is not fitted"):
        steps.score(run, SET, ["logo"], Inline())
    engine = Inline()
    steps.fit(run, ["logo"], engine)
    assert engine.ran == ["train full-s3", *(f"train logo-s3 without {g}" for g in GROUPS)]
    steps.score(run, SET, ["logo"], Inline())
    after = tree(run.root)
    old = [k for k in before if k.startswith(("artifacts/logo", "models/full-s", "terms/")) and before[k][1]]
    assert {k: after[k] for k in old} == {k: before[k] for k in old}
    assert steps.evaluate(run, SET).seeds == [1, 2, 3]
    steps.change_settings(run, ["logo"], ["seeds=[2]"])
    engine = Inline()
    steps.score(run, SET, ["logo"], engine)
    assert engine.ran == []


def test_logo_against_the_runs_own_model_needs_no_new_training_or_terms(run: Run) -> None:
    own = scores(run, "logo").score
    steps.change_settings(run, ["logo"], ["own_full=false"])
    engine = Inline()
    steps.score(run, SET, ["logo"], engine)
    assert engine.ran == []
    other = scores(run, "logo").score
    shift = other - own  # ELBO(base) - ELBO(full of the seed): one number per picture, the ranking is unchanged
    np.testing.assert_allclose(shift, np.broadcast_to(shift[:, :1], shift.shape), rtol=1e-6)
    assert np.abs(shift).max() > 0


def test_logo_settings_that_change_training_change_the_name(run: Run) -> None:
    coupled = get_method(run, "logo").folder
    steps.change_settings(run, ["logo"], ["coupled=false"])
    assert get_method(run, "logo").folder != coupled


def test_without_a_training_section_there_is_no_oracle(tmp_path: Path, run: Run) -> None:
    from tinyrun import unet_folder

    recipe = tiny(digits_folder(), model={"path": str(unet_folder()), "scheduler": None}, training=None,
                  methods={"logo": {}})  # fmt: skip
    own = steps.init(tmp_path / "own", recipe)
    with pytest.raises(GudaError, match="no `training` section"):
        steps.fit(own, ["logo"], Inline())
    assert steps.fitted_methods(own) == []
    with pytest.raises(GudaError, match="nothing to train"):
        steps.train(own, Inline())


# --- evaluation -----------------------------------------------------------------------------------


def test_evaluation_is_one_entry_of_the_results_schema(run: Run) -> None:
    entry = steps.evaluate(run, SET)
    text = run.path("evaluation.json").read_text()
    assert run.path("scores", SET, "evaluation.json").read_text() == text
    value = json.loads(text)
    assert DatasetEntry.model_validate(value) == entry
    assert value["n_queries"] == 12
    assert value["seeds"] == [1, 2]
    assert value["unit"] == "nats"
    assert "t <=" in value["estimand"]
    metrics = {"top1", "mrr", "ndcg3", "ndcg3_linear", "top3", "rbo", "spearman"}
    assert metrics <= value["ceiling"].keys()
    assert {"logo", "retrack", "similarity-pixel"} <= value["methods"].keys()
    for name in ("retrack", "similarity-pixel"):
        found = value["methods"][name]
        assert metrics <= found["metrics"].keys()
        assert all(f["lo"] <= f["mean"] <= f["hi"] for f in found["metrics"].values())
    retrack = value["methods"]["retrack"]
    assert retrack["fit_evals"] == 5 * (3 * 8 + 4 * 8)
    assert retrack["fit_seconds"] > 0
    assert value["methods"]["logo"]["fit_evals"] == 3 * 40 * 32
    assert value["figures"]["evals_ratio_vs_logo.retrack"] == pytest.approx(3 * 40 * 32 / (5 * 56))


def test_one_retraining_has_no_ceiling(run: Run) -> None:
    steps.change_settings(run, ["logo"], ["seeds=[1]"])
    entry = steps.evaluate(run, SET)
    assert entry.ceiling is None
    assert json.loads(run.path("evaluation.json").read_text())["ceiling"] is None
    assert entry.seeds == [1]
    assert "retrack" in entry.methods


def test_what_cannot_be_compared_is_refused(run: Run) -> None:
    before = run.path("evaluation.json").read_bytes()
    for changes, message in (
        ({"against": "retrack"}, "only logo is an oracle"),
        ({"reference": "similarity-pixl"}, "similarity-pixl"),
    ):
        run.update(tiny(digits_folder(), evaluation=changes))
        with pytest.raises(GudaError, match=message):
            steps.evaluate(run, SET)
    assert run.path("evaluation.json").read_bytes() == before
    run.update(tiny(digits_folder(), evaluation={"reference": "similarity-pixel"}))
    entry = steps.evaluate(run, SET)
    assert entry.reference == "similarity-pixel"
    assert entry.methods["retrack"].difference


# --- queries and settings -------------------------------------------------------------------------


def test_a_folder_becomes_a_set_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_queries(tmp_path / "my pictures")
    assert steps.choose_or_add_queries(run, str(folder)) == "my_pictures"
    before = tree(run.root)
    assert steps.choose_or_add_queries(run, str(folder)) == "my_pictures"
    assert steps.choose_or_add_queries(run, "my_pictures") == "my_pictures"
    assert tree(run.root) == before
    assert load_queries(run, "my_pictures").ids == tuple(f"q{i:02d}" for i in range(6))
    (folder / "q00.png").unlink()
    for name in (str(folder), f"{folder}/"):
        with pytest.raises(Mismatch, match=r"other pictures: found .*--name"):
            steps.choose_or_add_queries(run, name)
    assert steps.choose_or_add_queries(run, str(folder), "second") == "second"
    # a folder in the working directory with the name of a set is the folder, not silently the older set
    folder.rename(tmp_path / "my_pictures")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Mismatch, match="other pictures"):
        steps.choose_or_add_queries(run, "my_pictures")


def test_query_set_names_stay_inside_the_run(run: Run, tmp_path: Path) -> None:
    folder = write_queries(tmp_path / "q")
    before = tree(tmp_path)
    for name in ("../x", "a/b", "", ".hidden", "a b"):
        with pytest.raises(GudaError, match="--name"):
            steps.add_queries(run, folder, name)
    with pytest.raises(GudaError, match="--name names a new query set"):
        steps.choose_or_add_queries(run, SET, "other")
    assert tree(tmp_path) == before


def test_which_set_is_meant(run: Run, tmp_path: Path) -> None:
    assert steps.choose_queries(run) == SET
    steps.add_queries(run, write_queries(tmp_path / "q"))
    assert steps.choose_queries(run) == SET  # the recipe's own
    assert steps.choose_queries(run, "q") == "q"
    with pytest.raises(GudaError, match=f"no query set 'p' .* sets: q, {SET}"):
        steps.choose_queries(run, "p")
    steps.change_queries(run, n=5, seed=9)
    with pytest.raises(GudaError, match="several query sets; choose one"):
        steps.choose_queries(run)
    assert steps.sample(run, Inline()) == "samples-s9-n5-t4"
    assert steps.choose_queries(run) == "samples-s9-n5-t4"


def test_more_samples_keep_those_drawn(run: Run) -> None:
    steps.change_queries(run, n=20)
    engine = Inline()
    name = steps.sample(run, engine)
    assert engine.ran == []  # a block holds 64
    old, new = load_queries(run, SET), load_queries(run, name)
    assert new.ids[:12] == old.ids
    np.testing.assert_array_equal(new.images[:12], old.images)


@pytest.mark.parametrize(
    ("methods", "settings", "message"),
    [
        (["retrack"], ["stepz=3"], r"methods\.retrack: stepz"),
        (["retrack"], ["steps"], "write key=value"),
        (["retrack"], ["steps=many"], r"methods\.retrack: steps"),
        (["retrack"], ["window=[0.1"], "not valid YAML"),
        (["retrac"], ["steps=3"], "unknown method 'retrac'"),
        (["retrack", "logo"], ["steps=3"], "exactly one --method"),
        ([], ["steps=3"], "exactly one --method"),
    ],
)
def test_bad_settings_change_nothing(run: Run, methods: list[str], settings: list[str], message: str) -> None:
    before = tree(run.root)
    with pytest.raises(GudaError, match=message):
        steps.change_settings(run, methods, settings)
    assert tree(run.root) == before


def test_settings_add_up(run: Run) -> None:
    steps.change_settings(run, ["retrack"], ["steps=7"])
    steps.change_settings(run, ["retrack"], ["lr=1e-4"])
    config = get_method(Run.open(run.root), "retrack").config
    assert (config.steps, config.lr, config.batch_forget) == (7, 1e-4, 8)


def test_status_says_what_there_is() -> None:
    value = steps.status(Run.open(finished_root()))
    json.dumps(value, allow_nan=False)
    assert value["groups"] == dict.fromkeys(GROUPS, 16)
    assert value["model"] == {"name": "full-s0", "ready": True}
    assert value["methods"]["logo"] == {"fitted": 6, "of": 6}
    assert value["methods"]["retrack"] == {"fitted": 3, "of": 3}
    assert value["queries"][SET] == {"n": 12, "scored": ["logo", "retrack", "similarity-pixel"]}
    assert value["running"] == []
    assert value["evaluated"] is True
