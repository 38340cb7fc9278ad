"""The floor of a run comes from its stored terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinyrun import SET, copy_run

from guda import steps
from guda.evaluation.metrics import top1
from guda.methods.base import get_method
from guda.methods.logo import Logo
from guda.methods.terms import load_queries
from guda.scoring.scores import Scores
from guda.steps.score import scores_path


def test_rounds_are_the_scores_taken_apart(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    logo = get_method(run, "logo")
    assert isinstance(logo, Logo)
    rounds = logo.round_values(load_queries(run, SET))
    assert rounds.shape == (2, 12, 3)
    assert rounds.mean(axis=0) == pytest.approx(Scores.read(scores_path(run, SET, "logo")).score)
    floor = steps.evaluate(run, SET).floor
    assert floor is not None
    expected = np.mean([top1(rounds[0], rounds[1]), top1(rounds[1], rounds[0])])
    assert floor.metrics["top1"].mean == pytest.approx(expected)
    above = steps.evaluate(run, SET, "50:100").floor  # of the banded estimand
    assert above is not None
    assert above.metrics["spearman"] != floor.metrics["spearman"]


def test_one_round_has_none(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    steps.change_scoring(run, rounds=1)
    assert steps.evaluate(run, SET).floor is None
