"""Unlearning by several seeds: the mean is scored, its error includes their spread, and adding one keeps the others."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from tinyrun import SET, Inline, copy_run

from guda import steps
from guda.methods.base import get_method
from guda.methods.unlearned import Unlearned
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.score import scores_path
from guda.unlearning.unlearn import OPERATORS, UnlearnConfig
from refusals import refused


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def kept(run: Run) -> dict[str, str]:
    files = run.path("artifacts").glob("retrack-*/**/*.safetensors")
    return {str(f.relative_to(run.root)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_names_are_what_they_were_without_seeds() -> None:
    assert "seeds" not in UnlearnConfig().model_dump()
    assert all("seeds" not in o.Config().model_dump(mode="json") for o in OPERATORS.values())
    assert UnlearnConfig(seeds=(0, 1)).model_dump(mode="json")["seeds"] == [0, 1]


@pytest.mark.parametrize("estimand", [{}, {"estimand": "path", "excess": True}])
def test_a_seed_more_keeps_the_others_and_scores_are_the_mean(run: Run, estimand: dict[str, object]) -> None:
    steps.change_scoring(run, **estimand)
    steps.score(run, SET, ["retrack"], Inline())
    before, one = kept(run), Scores.read(scores_path(run, SET, "retrack"))
    assert one.stderr_training is None
    steps.change_settings(run, ["retrack"], ["seeds=[0,1]"])
    steps.fit(run, ["retrack"], two := Inline())
    assert len(two.ran) == 3  # the new seed's groups
    steps.change_settings(run, ["retrack"], ["seeds=[0,1,2]"])
    steps.fit(run, ["retrack"], three := Inline())
    assert len(three.ran) == 3
    after = kept(run)
    assert {f: d for f, d in after.items() if f in before} == before
    assert len(set(after.values())) == 9  # every seed has models of its own
    steps.score(run, SET, ["retrack"], Inline())
    scores = Scores.read(scores_path(run, SET, "retrack"))
    seeds = [Scores.read(scores_path(run, SET, f"retrack-s{s}")).score for s in (0, 1, 2)]
    np.testing.assert_allclose(seeds[0], one.score)
    if not estimand:
        np.testing.assert_allclose(scores.score, np.mean(seeds, axis=0))
    assert scores.stderr_training is not None
    assert scores.predicted_lo is not None
    assert scores.predicted_hi is not None
    assert (scores.predicted_lo <= np.mean(seeds, axis=0)).all()
    assert scores.validation == ""  # another unlearning is no retraining
    assert steps.scored_methods(run, SET).count("retrack") == 1


def test_the_order_of_seeds_does_not_matter(run: Run) -> None:
    steps.change_settings(run, ["retrack"], ["seeds=[0,1]"])
    steps.fit(run, ["retrack"], Inline())
    here = steps.score(run, SET, ["retrack"], Inline())["retrack"]
    steps.change_settings(run, ["retrack"], ["seeds=[1,0]"])
    there = steps.score(run, SET, ["retrack"], Inline())["retrack"]
    np.testing.assert_allclose(there.score, here.score)
    np.testing.assert_allclose(there.stderr_training, here.stderr_training)


def test_placebos_have_one_seed(run: Run) -> None:
    steps.change_settings(run, ["retrack"], ["seeds=[0,1]"])
    steps.fit(run, ["retrack"], Inline(), placebos=2)
    assert sum("placebo" in f for f in kept(run)) == 2
    steps.score(run, SET, ["retrack"], Inline())
    assert steps.placebo_null(run, SET, "retrack") is not None


def test_a_seed_twice_is_refused(run: Run) -> None:
    with refused("setting-invalid", "different"):
        steps.change_settings(run, ["retrack"], ["seeds=[1,1]"])
        get_method(run, "retrack")


def test_files_of_the_settings_own_seed_stay_where_they_are(run: Run) -> None:
    found = get_method(run, "retrack")
    assert isinstance(found, Unlearned)
    assert found.file("0", 0) == found.file("0")
    assert found.file("0", 1) != found.file("0")
