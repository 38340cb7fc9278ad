"""Answer sets: the finite-sample guarantee, by simulation and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from guda.scoring.answer_set import answer_sets, covered, interval_gaps, set_gaps, spreads, threshold
from refusals import refused


def world(rng: np.random.Generator, n: int, trainings: int, groups: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """A method's scores [Q, G] and retrainings' [S, Q, G] of pictures alike, each with noise of its own."""
    truth = rng.normal(0, 1, (n, groups)) * np.exp(rng.normal(0, 1, (n, 1)))
    method = truth + 0.5 * rng.standard_normal((n, groups))
    return method, truth + 0.7 * rng.standard_normal((trainings, n, groups))


@pytest.mark.parametrize("trainings", [1, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_sets_hold_the_first_group_of_one_retraining_as_often_as_claimed(trainings: int, scaled: bool) -> None:
    rng = np.random.default_rng(0)
    sets, intervals = [], []
    for _ in range(400):
        method, oracle = world(rng, 99 + 20, trainings)
        spread = spreads(method) if scaled else np.ones(len(method))
        reach = threshold(set_gaps(method[:99], oracle[:, :99], spread[:99]), 0.9)
        sets.append(covered(answer_sets(method[99:], reach, spread[99:]), oracle[:, 99:]).mean())
        reach = threshold(interval_gaps(method[:99], oracle[:, :99], spread[:99]), 0.9)
        intervals.append((interval_gaps(method[99:], oracle[:, 99:], spread[99:]) <= reach).mean())
    assert 0.895 < np.mean(sets) < 0.92  # 0.9 or a little more: a gap of zero is reached by more than asked
    assert 0.89 < np.mean(intervals) < 0.92


def test_the_threshold_by_hand() -> None:
    gaps = np.arange(19.0)[:, None]
    assert threshold(gaps, 0.95) == 18.0  # ceil(0.95 * 20) = 19th smallest of 19
    assert threshold(gaps, 0.9) == 17.0
    assert math.isinf(threshold(gaps[:18], 0.95))  # 18 pictures cannot promise 95 %
    several = np.repeat(gaps, 3, axis=1)
    assert threshold(several, 0.9) == threshold(gaps, 0.9)  # repeated, a gap counts once


def test_sets() -> None:
    scores = np.array([[3.0, 2.9, 0.0], [1.0, 5.0, 5.0]])
    assert answer_sets(scores, 0.2).tolist() == [[True, True, False], [False, True, True]]
    assert answer_sets(scores, math.inf).all()
    assert answer_sets(scores, 0.0)[np.arange(2), scores.argmax(axis=1)].all()  # the first group always is in it


def test_order_of_pictures_and_groups_does_not_matter() -> None:
    method, oracle = world(np.random.default_rng(1), 40, 2)
    order, groups = np.random.default_rng(2).permutation(40), np.array([3, 1, 5, 0, 2, 4])
    here = threshold(set_gaps(method, oracle))
    assert threshold(set_gaps(method[order][:, groups], oracle[:, order][:, :, groups])) == here
    sets = answer_sets(method, here)
    assert (answer_sets(method[order][:, groups], here) == sets[order][:, groups]).all()


def test_scores_of_other_pictures_are_refused() -> None:
    with refused("calibration-shape-invalid"):
        set_gaps(np.zeros((3, 2)), np.zeros((1, 4, 2)))
