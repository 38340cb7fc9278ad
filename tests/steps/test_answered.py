"""Agreement with retraining on the pictures that get an answer, beside that on all pictures."""

from importlib import import_module
from pathlib import Path

import pytest
from tinyrun import SET, copy_run

from guda import steps
from guda.evaluation.ceiling import compare
from guda.methods.base import get_method
from guda.methods.terms import load_queries
from guda.report.trust import answered, sentences
from guda.scoring.origin import UNKNOWN, Origin

FOREIGN = (1, 4, 5)


def test_pictures_without_an_answer_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = copy_run(tmp_path / "run")
    queries = load_queries(run, SET)
    before = steps.evaluate(run, SET)
    assert not [name for name in before.figures if "answered" in name]  # none is foreign
    origins = tuple(Origin(0.01) if q in FOREIGN else UNKNOWN for q in range(queries.n))
    monkeypatch.setattr(import_module("guda.steps.score"), "origins", lambda run, queries: origins)
    entry = steps.evaluate(run, SET)
    assert entry.methods == before.methods  # all pictures, as before
    oracle = get_method(run, "logo").all_scores(queries)  # type: ignore[attr-defined]
    keep = [q for q in range(queries.n) if q not in FOREIGN]
    config = run.recipe.evaluation
    found = compare(
        [oracle[f"logo-s{s}"].score[keep] for s in (1, 2)],
        {"retrack": get_method(run, "retrack").scores(queries).score[keep]}, n=config.resamples, seed=config.seed,
    )  # fmt: skip
    assert found.ceiling is not None
    assert entry.figures["answered"] == len(keep)
    assert answered(entry, "retrack") == found.methods["retrack"].intervals["top1"]
    assert answered(entry, "logo") == found.ceiling.intervals["top1"]
    assert "(9)" in sentences(entry, "retrack")[0]
