"""Datamodel scores of a run: the regression on the subset models' own terms, as a method and as an oracle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from subsetrun import MODELS, trained_root
from tinyrun import SET, Inline, copy_run, finished_root

from guda import steps
from guda.evaluation.results import DatasetEntry
from guda.methods.base import get_method
from guda.methods.datamodel import DatamodelMethod, read_values
from guda.methods.subsets import find_subsets
from guda.methods.terms import load_queries, run_scorer
from guda.run.run import Run
from guda.scoring.reading import CLOSER_EXCESS_SIGN, HALF_SIGN
from guda.scoring.scorer import Reader
from refusals import refused


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run", trained_root())


def test_scores_are_the_regression_of_the_models_own_elbos(run: Run) -> None:
    queries, found = load_queries(run, SET), get_method(run, "datamodel")
    scores = found.scores(queries)
    subsets, read = find_subsets(run), Reader(run_scorer(run), queries, 2)
    elbo = np.stack([-read(m).kl.mean(axis=0).sum(axis=-1) for m in subsets.models()])
    z = np.where(subsets.design()[0::2], 1.0, -1.0)
    expected = np.linalg.lstsq(z, elbo[0::2] - elbo[1::2], rcond=None)[0].T
    assert np.allclose(scores.score, expected)
    assert scores.unit == "nats"
    assert scores.sign == HALF_SIGN
    assert "Banzhaf" in scores.estimand
    assert scores.stderr is not None
    assert scores.stderr_training is not None
    assert (scores.stderr > scores.stderr_training).all()  # the draws add to it
    assert scores.lo is not None
    assert scores.hi is not None
    assert (scores.lo < scores.score).all()
    assert (scores.score < scores.hi).all()


def test_halves_of_the_pairs_share_no_model(run: Run) -> None:
    queries, found = load_queries(run, SET), get_method(run, "datamodel")
    assert isinstance(found, DatamodelMethod)
    values = read_values(find_subsets(run), queries)
    for half in (0, 1):
        own = values.fit(None, np.arange(MODELS // 2)[half::2]).coefficients
        assert np.allclose(found.all_scores(queries)[f"datamodel-s{half}"].score, own)


def test_it_is_an_oracle_and_every_method_has_an_lds(run: Run) -> None:
    against = steps.override(run, evaluation={"against": "datamodel"})
    entry = steps.evaluate(against, SET)
    assert entry.oracle == "datamodel"
    assert entry.ceiling is not None
    assert {"retrack", "similarity-pixel", "logo (retrained)"} <= set(entry.methods)
    for name in ("logo", "retrack", "datamodel"):
        mean, lo, hi = (entry.figures[f"lds.{name}{end}"] for end in ("", ".lo", ".hi"))
        assert lo <= mean <= hi
    assert entry.figures["lds_subsets"] == MODELS
    assert "lds_ceiling" in entry.figures
    again = DatasetEntry.model_validate(entry.model_dump(mode="json"))
    assert again == entry
    folder = steps.scores_folder(run, SET)
    kept = (folder / "evaluation.json").read_bytes()
    steps.evaluate(against, SET)
    assert (folder / "evaluation.json").read_bytes() == kept  # the run's own comparison stays
    assert (folder / "evaluation-against-datamodel.json").is_file()
    by_logo = steps.evaluate(run, SET)  # logo stays the run's oracle, datamodel a method
    assert by_logo.oracle is None
    assert "oracle" not in by_logo.model_dump(mode="json")
    assert "datamodel" in by_logo.methods


def test_without_subset_models_nothing_is_said_of_them() -> None:
    entry = steps.evaluate(Run.open(finished_root()), SET, own=False)
    assert not [name for name in entry.figures if name.startswith("lds")]


def test_path_and_excess(run: Run) -> None:
    other = steps.override(run, scoring={"estimand": "path", "excess": True})
    scores = steps.score(other, SET, ["datamodel"], Inline())["datamodel"]
    assert scores.sign == CLOSER_EXCESS_SIGN
    queries = load_queries(other, SET)
    plain = read_values(find_subsets(other), queries, log=True).fit(None).coefficients
    # the pictures are the average's own: each is compared with the mean of the others
    n = len(plain)
    assert np.allclose(scores.score, plain - (plain.sum(axis=0) - plain) / (n - 1))


def test_draws_and_error_do_not_depend_on_company(run: Run) -> None:
    queries = load_queries(run, SET)
    found = get_method(run, "datamodel")
    shard = queries.shards(run.recipe.scoring.shard)[0]
    assert np.array_equal(found.scores(queries).score[: shard.n], found.scores(shard).score)


def test_refusals(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    with refused("method-not-fitted"):
        steps.score(run, SET, ["datamodel"], Inline())
    with refused("scores-missing"):
        steps.evaluate(steps.override(run, evaluation={"against": "datamodel"}), SET)
    with refused("evaluation-oracle-unsupported"):
        steps.evaluate(steps.override(run, evaluation={"against": "subsets"}), SET)


def test_from_the_command_line(run: Run) -> None:
    command = [sys.executable, "-m", "guda", "evaluate", str(run.root), "--against", "datamodel", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["oracle"] == "datamodel"
