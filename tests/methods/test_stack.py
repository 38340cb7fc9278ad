"""Stack: weights by least squares on scores of tuning pictures only, and scores that are the weighted sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinyrun import SET, Inline, copy_run

from guda import steps
from guda.files import read_json, write_json
from guda.methods.base import get_method
from guda.methods.stack import Stack, score_weights
from guda.methods.terms import load_queries
from guda.run.run import Run
from refusals import refused


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = copy_run(tmp_path / "run")
    steps.change_settings(found, ["stack"], ["methods=[retrack,similarity-pixel]", "pictures=6"])
    return found


def stack(run: Run) -> Stack:
    found = get_method(run, "stack")
    assert isinstance(found, Stack)
    return found


def test_weights_are_what_the_oracle_is_made_of() -> None:
    """Constants of a picture and its size do not count; a method that opposes the oracle gets nothing."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 40, 5))
    size = np.exp(rng.normal(size=(40, 1)))
    gold = (2 * a + 0.5 * b) * size + rng.normal(size=(40, 1))
    found = score_weights(gold, np.stack([a * size + 7.0, b * size, -gold]))
    np.testing.assert_allclose(found, [2, 0.5, 0], atol=1e-9)


def test_nothing_to_stack() -> None:
    gold = np.random.default_rng(1).normal(size=(6, 3))
    with refused("stack-weights-zero"):
        score_weights(gold, -gold[None])
    with refused("stack-weights-zero"):
        score_weights(gold, np.ones((2, 6, 3)))


@pytest.mark.parametrize("scoring", [{"estimand": "elbo"}, {"estimand": "path", "excess": True}])
def test_scores_are_the_weighted_sum_of_the_members(run: Run, scoring: dict[str, object]) -> None:
    steps.change_scoring(run, **scoring)
    steps.fit(run, ["stack"], Inline())
    found = steps.score(run, SET, ["retrack", "similarity-pixel", "stack"], Inline())
    weights, plain = stack(run).weights(), found["similarity-pixel"].score
    expected = weights["retrack"] * found["retrack"].score
    centred = plain - plain.mean(axis=1, keepdims=True)
    expected = expected + weights["similarity-pixel"] * centred / plain.std(axis=1, keepdims=True)
    np.testing.assert_allclose(found["stack"].score, expected)
    assert found["stack"].unit != found["retrack"].unit  # its level means nothing
    assert found["stack"].stderr is None
    assert "stack" in steps.evaluate(run, SET).methods


def test_weights_belong_to_one_estimand_and_are_recorded(run: Run) -> None:
    steps.fit(run, ["stack"], Inline())
    file = stack(run).weights_file
    kept = read_json(run.path(file))
    assert kept["pictures"] == load_queries(run, kept["queries"]).digest
    assert kept["queries"] != SET
    steps.change_scoring(run, estimand="path")
    assert stack(run).weights_file != file
    assert not stack(run).fitted()
    steps.change_scoring(run, estimand="elbo")
    assert stack(run).fitted()
    write_json(run.path(file), kept | {"n": 7})
    with refused("weights-damaged"):
        stack(run).weights()


def test_tuning_pictures_are_refused(run: Run) -> None:
    steps.fit(run, ["stack"], Inline())
    with refused("weights-tuning-pictures"):
        steps.score(run, read_json(run.path(stack(run).weights_file))["queries"], ["stack"], Inline())


def test_given_weights_need_no_retraining(run: Run) -> None:
    steps.change_settings(run, ["stack"], ['weights={"retrack": 0.5, "similarity-pixel": 2.0}'])
    assert not any("weigh" in task.name for task in stack(run).fit())
    assert np.isfinite(steps.score(run, SET, ["stack"], Inline())["stack"].score).all()


def test_names_follow_the_parts_of_members_and_the_pictures(run: Run) -> None:
    steps.change_settings(run, ["hybrid"], ["tuned=retrack"])
    steps.change_settings(run, ["stack"], ["methods=[hybrid,similarity-pixel]"])
    names = [stack(run).weights_file]
    steps.change_settings(run, ["retrack"], ["steps=3"])
    names.append(stack(run).weights_file)
    steps.change_settings(run, ["stack"], ["seed=77"])
    names.append(stack(run).weights_file)
    assert len(set(names)) == 3
    steps.change_scoring(run, rounds=5)  # more draws of the same question
    assert stack(run).weights_file == names[-1]
    assert stack(run).parts() == ("retrack", "posterior", "similarity-pixel")


def test_a_run_that_is_judged_by_halves_still_lists_its_methods(run: Run) -> None:
    value = run.recipe.model_copy(
        update={"evaluation": run.recipe.evaluation.model_copy(update={"against": "datamodel"})}
    )
    run.__dict__["recipe"] = value
    assert not stack(run).fitted()


def test_a_blend_may_be_a_member(run: Run) -> None:
    steps.change_settings(run, ["continuation"], ["steps=4", "batch=16", "warmup=1"])
    steps.change_settings(run, ["blend"], ["methods=[retrack,continuation]", "pictures=6"])
    steps.change_settings(run, ["stack"], ["methods=[blend,similarity-pixel]"])
    steps.fit(run, ["stack"], Inline())
    assert np.isfinite(steps.score(run, SET, ["stack"], Inline())["stack"].score).all()


def test_what_cannot_be_stacked(run: Run) -> None:
    for methods in ("[retrack,logo]", "[retrack,stack]"):
        with refused("member-unsupported"):
            steps.change_settings(run, ["stack"], [f"methods={methods}"])
