"""`guda calibrate`: answer sets from pictures of their own, in published tables while they match the settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinyrun import SET, Inline, copy_run

from guda import steps
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.calibration import calibration_path, calibration_state, read_calibration
from guda.steps.score import publish, scores_path
from refusals import refused

N = 24


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def table(run: Run, method: str = "retrack") -> Scores:
    return Scores.read(scores_path(run, SET, method))


def test_tables_carry_the_sets_and_say_how_they_were_validated(run: Run) -> None:
    assert table(run).answer is None
    assert "not validated" in steps.calibration_note(run, "retrack")
    made = steps.calibrate(run, Inline(), n=N)
    assert set(made) == {"retrack", "similarity-pixel"}
    found, calibration = table(run), made["retrack"][0]
    assert calibration.n == N
    assert calibration.seeds == [1, 2]
    assert found.validation == calibration.sentence
    assert "24 other pictures against 2 retrainings" in found.validation
    assert found.answer is not None
    assert (found.answer[found.rank == 1] == 1).all()  # the first group is always in the set
    assert found.predicted_lo is not None
    assert (found.predicted_lo < found.score).all()
    assert table(run, "similarity-pixel").predicted_lo is None  # its unit is not retraining's
    kinds = {v.kind for v in found.verdict().values()}
    assert all(v.note == found.validation for v in found.verdict().values() if v.groups), kinds


def test_its_pictures_do_not_take_the_place_of_others_in_the_costs(run: Run) -> None:
    before = run.timings("sample")
    steps.calibrate(run, Inline(), n=N)
    assert len(run.timings("sample")) == len(before) + 1


def test_it_resumes_and_the_order_of_commands_does_not_matter(run: Run, tmp_path: Path) -> None:
    other = copy_run(tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        steps.calibrate(other, Inline(stop_after=4), n=N)
    first = Inline()
    steps.calibrate(run, first, n=N)
    rest = Inline()
    steps.calibrate(other, rest, n=N)
    assert len(rest.ran) == len(first.ran) - 4
    steps.calibrate(other, again := Inline(), n=N)
    assert again.ran == []
    steps.score(other, SET, ["retrack"], Inline())  # scored after the calibration, the other before it
    for file in (Path("calibration/elbo/retrack.json"), scores_path(run, SET, "retrack").relative_to(run.root)):
        assert (run.root / file).read_bytes() == (other.root / file).read_bytes()


def test_one_of_other_settings_is_not_used(run: Run) -> None:
    steps.calibrate(run, Inline(), ["retrack"], n=N)
    steps.update_settings(run, "logo", {"seeds": [1]})  # another oracle
    found = get_method(run, "retrack")
    assert calibration_state(run, found)[0] == "stale"
    assert "guda calibrate" in steps.calibration_note(run, "retrack")
    scores = publish(run, load_queries(run, SET), found)["retrack"]
    assert scores.answer is None
    assert scores.validation == ""
    steps.update_settings(run, "logo", {"seeds": [1, 2]})
    assert publish(run, load_queries(run, SET), get_method(run, "retrack"))["retrack"].answer is not None
    steps.update_settings(run, "retrack", {"steps": 6})
    steps.fit(run, ["retrack"], Inline())
    assert calibration_state(run, get_method(run, "retrack"))[0] == "stale"


def test_other_scores_have_a_calibration_of_their_own(run: Run) -> None:
    steps.calibrate(run, Inline(), ["retrack"], n=N)
    before = calibration_path(run, "retrack")
    steps.change_scoring(run, estimand="path", excess=True)
    assert calibration_path(run, "retrack") != before
    assert read_calibration(run, "retrack") is None
    made, path = steps.calibrate(run, Inline(), ["retrack"], n=N)["retrack"]
    assert path.is_file()
    assert before.is_file()
    assert not made.scaled  # log ratios are on one scale


def test_the_evaluation_tells_how_often_the_sets_held(run: Run) -> None:
    assert not any("answer_set" in name for name in steps.evaluate(run, SET).figures)
    steps.calibrate(run, Inline(), ["retrack"], n=N)
    figures = steps.evaluate(run, SET).figures
    found = table(run)
    gold = np.stack([Scores.read(scores_path(run, SET, f"logo-s{s}")).score for s in (1, 2)])
    assert found.answer is not None
    inside = [[found.answer[q, g] for q, g in enumerate(one.argmax(axis=1))] for one in gold]
    assert figures["answer_set_coverage.retrack"] == pytest.approx(np.mean(inside))
    assert figures["answer_set_size.retrack"] == pytest.approx(found.answer.sum(axis=1).mean())
    assert figures["answer_set_coverage.retrack.lo"] <= figures["answer_set_coverage.retrack"]
    assert 0 <= figures["predictive_coverage.retrack"] <= 1
    assert "predictive_coverage.logo" not in figures  # two seeds: one alone predicts nothing


def test_the_pictures_are_not_those_that_are_asked_about_by_default(run: Run) -> None:
    steps.calibrate(run, Inline(), ["retrack"], n=N)
    steps.change_queries(run, n=30)
    assert steps.choose_queries(run) == SET


def test_too_few_pictures_promise_nothing(run: Run) -> None:
    made, _ = steps.calibrate(run, Inline(), ["retrack"], n=4)["retrack"]
    assert made.threshold is None
    assert made.size == 3
    found = table(run).answer
    assert found is not None
    assert found.all()


def test_the_oracle_has_nothing_to_calibrate(run: Run) -> None:
    with refused("calibration-method-unsupported", "logo"):
        steps.calibrate(run, Inline(), ["logo"])


def test_retrainings_carry_their_spread(run: Run) -> None:
    steps.score(run, SET, ["logo"], Inline())
    found = table(run, "logo")
    assert found.stderr_training is not None
    assert (found.stderr_training >= 0).all()
    assert found.predicted_lo is not None
    assert "retraining itself, 2 times" in found.validation
    assert table(run, "logo-s1").stderr_training is None
