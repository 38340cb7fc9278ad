"""guda distil on a tiny run: from samples to a method that answers without its teacher."""

from __future__ import annotations

import json

import numpy as np
import pytest
from inline_cli import guda
from tinyrun import SET, Inline, tiny, write_digits

from guda import steps
from guda.data.queries import Queries
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.steps.score import scores_path
from refusals import refused


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("distil")
    recipe = tiny(
        write_digits(root / "data", ("0", "1", "2")),
        methods={"posterior": {}, "distilled": {"teacher": "posterior", "pictures": 40, "steps": 30, "width": 8}},
    )
    found = steps.init(root / "run", recipe)
    steps.train(found, Inline())
    steps.fit(found, ["posterior"], Inline())
    steps.sample(found, Inline())
    return found


def test_it_is_refused_before_its_teacher_has_scored(run: Run) -> None:
    assert not get_method(run, "distilled").fitted()
    with refused("distil-teacher-unscored"):
        steps.fit(run, ["distilled"], Inline())
    with refused("method-not-fitted"):
        steps.score(run, SET, ["distilled"], Inline())


def test_distil_scores_and_resumes(run: Run) -> None:
    found = steps.distil(run, Inline())
    assert (found.teacher, found.pictures, found.checked) == ("posterior", 40, 6)
    assert 0 <= found.same_first.mean <= 1
    scores = steps.score(run, SET, ["distilled"], Inline())["distilled"]
    assert scores.unit == "nats"
    assert scores.estimand.endswith("as posterior would score it")
    assert np.all(np.asarray(scores.lo) < scores.score)
    assert Scores.read(scores_path(run, SET, "distilled")).groups == ("0", "1", "2")
    again = Inline()
    steps.distil(Run.open(run.root), again)
    steps.score(Run.open(run.root), SET, ["distilled"], again)
    assert again.ran == []


def test_one_picture_gets_the_answer_it_has_in_a_set(run: Run) -> None:
    steps.distil(run, Inline())
    every = steps.score(run, SET, ["distilled"], Inline())["distilled"]
    alone = load_queries(run, SET).subset(every.queries[2:3])
    Queries(alone.ids, alone.images, alone.prompts, "one").save(run.path("queries", "one"))
    found = steps.score(run, "one", ["distilled"], Inline())["distilled"]
    assert np.allclose(found.score[0], every.score[2], rtol=1e-5)


def test_another_question_needs_another_student(run: Run) -> None:
    steps.distil(run, Inline())
    other = steps.override(run, scoring={"rounds": 3})
    assert not get_method(other, "distilled").fitted()


def test_a_student_of_another_model_or_with_changed_bytes_is_refused(run: Run) -> None:
    steps.distil(run, Inline())
    found = get_method(run, "distilled")
    path = run.path(found.file)  # type: ignore[attr-defined]
    kept = path.read_bytes()
    try:
        path.write_bytes(kept[:-4] + b"\0\0\0\1")
        with refused("student-damaged"):
            steps.score(run, SET, ["distilled"], Inline())
    finally:
        path.write_bytes(kept)


def test_a_teacher_that_cannot_be_imitated_is_refused(run: Run) -> None:
    for name in ("similarity-pixel", "logo", "distilled"):
        with refused("distil-teacher-missing"):
            steps.distil(steps.override(run, methods=["distilled"], settings=[f"teacher={name}"]), Inline())


def test_the_commands_say_what_was_measured(run: Run) -> None:
    found = json.loads(guda("distil", run.root, "--json"))
    assert (found["teacher"], found["checked"]) == ("posterior", 6)
    assert found["same_first"]["lo"] <= found["same_first"]["mean"] <= found["same_first"]["hi"]
    guda("score", run.root, "--method", "distilled", "--queries", SET)
    told = json.loads(guda("evaluate", run.root, "--queries", SET, "--screen", "posterior:2", "--json"))
    assert told["screen"] == "posterior:2"
    assert set(told["recall"]) == {"distilled"}
