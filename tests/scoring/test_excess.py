"""Excess scores: log ratios (path) and differences (ELBO) to the average picture, their errors, and the trap."""

import numpy as np
import pytest

from guda.data.queries import Queries
from guda.scoring.estimate import difference, moments, rank_columns
from guda.scoring.race import Race, StopRule
from guda.scoring.reference import average
from refusals import refused

RNG = np.random.default_rng(0)


def test_a_log_ratio_is_the_log_of_the_divergence_less_the_mean_log_of_the_others() -> None:
    reference = np.exp(RNG.normal(size=(20, 3)))
    d = np.exp(RNG.normal(size=(2, 4, 3, 5)))  # rounds, pictures, groups, strata
    skipped = np.array([-1, 7, -1, 0])
    found = average(reference, True, skipped)
    score = found.spread(d).mean(axis=0).sum(axis=-1)
    plain = np.log(d.mean(axis=0).sum(axis=-1))
    for q, s in enumerate(skipped):
        left = reference if s < 0 else np.delete(reference, s, axis=0)
        np.testing.assert_allclose(score[q], plain[q] - np.log(left).mean(axis=0), atol=1e-12)
    assert found.unit == "log ratio"


def test_an_excess_of_differences_is_a_difference() -> None:
    reference, d = RNG.normal(size=(20, 3)), RNG.normal(size=(2, 4, 3, 5))
    found = average(reference, False, np.array([-1, 7, -1, 0]))
    score = found.spread(d).mean(axis=0).sum(axis=-1)
    plain = d.mean(axis=0).sum(axis=-1)
    np.testing.assert_allclose(score[1], plain[1] - np.delete(reference, 7, axis=0).mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(score[2], plain[2] - reference.mean(axis=0), atol=1e-12)


def test_the_average_is_what_a_log_ratio_is_a_ratio_to() -> None:
    reference, d = np.exp(RNG.normal(1, 0.5, size=(40, 3))), np.exp(RNG.normal(size=(2, 4, 3, 5)))
    found = average(reference, True, np.full(4, -1))
    constants, score = found.constants(), found.spread(d).mean(axis=0).sum(axis=-1)
    np.testing.assert_allclose(np.exp(score) * constants["mean"], d.mean(axis=0).sum(axis=-1))
    assert (constants["lo"] < constants["mean"]).all()
    assert (constants["mean"] < constants["hi"]).all()
    relative = np.log(reference).std(axis=0, ddof=1) / np.sqrt(40)
    np.testing.assert_allclose(constants["stderr"], constants["mean"] * relative)
    np.testing.assert_allclose(average(reference, False, np.full(4, -1)).constants()["mean"], reference.mean(axis=0))


def test_intervals_cover_the_true_log_ratio() -> None:
    """Divergences with 5 % scoring error, an average of 50 pictures: both errors are in the interval."""
    truth, spread, n, covered = 1.3, 0.8, 50, []
    for _ in range(400):
        reference = np.exp(RNG.normal(0.4, spread, size=(n, 2)))
        d = np.exp(0.4 + truth) / 8 * (1 + 0.3 * RNG.normal(size=(4, 1, 2, 8)))
        found = average(reference, True, np.array([-1]))
        columns = difference(found.spread(d)[:, :, 0])
        wide = found.widen(
            {"score": columns.score[:, None] * [1, 1], "stderr": columns.stderr[:, None] * [1, 1],
             "lo": columns.lo[:, None] * [1, 1], "hi": columns.hi[:, None] * [1, 1]}
        )  # fmt: skip
        covered.append(wide["lo"][0, 0] <= truth <= wide["hi"][0, 0])
    assert 0.92 < np.mean(covered) < 0.99


def test_the_averages_error_is_shared_by_groups_that_move_together() -> None:
    shared = RNG.normal(size=(200, 1))
    found = average(np.exp(np.concatenate([shared, shared], axis=1)), True, np.array([-1]))
    gap = moments(np.ones((2, 2, 3)) + 0.001 * RNG.normal(size=(2, 2, 3)), found.cov).pairwise()[1]
    assert gap[0, 1] < 0.1 * np.sqrt(found.cov[0, 0])  # it cancels in the difference of the two


def test_a_group_that_changes_nothing_has_a_number() -> None:
    found = average(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), True, np.array([-1]))
    score = found.spread(np.array([1.0, 0.0]).reshape(1, 1, 2, 1).repeat(2, axis=0)).mean(axis=0).sum(axis=-1)
    assert np.isfinite(score).all()


def test_what_counts_as_nothing_is_of_the_picture_alone() -> None:
    d = np.array([[1.0, 0.0], [1e6, 0.0]]).reshape(1, 2, 2, 1).repeat(2, axis=0)
    reference = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 1.0]])
    both = average(reference, True, np.array([-1, -1])).spread(d)
    alone = average(reference, True, np.array([-1])).spread(d[:, :1])
    np.testing.assert_array_equal(both[:, :1], alone)


def test_an_average_of_two_is_refused() -> None:
    with refused("average-too-small"):
        average(np.ones((2, 3)), True, np.array([-1]))


def test_pictures_are_recognised_by_pixels_and_prompt_not_by_name() -> None:
    images = RNG.integers(0, 255, (5, 1, 4, 4)).astype(np.uint8)
    known = Queries(tuple("abcde"), images)
    asked = Queries(("x", "y"), images[[3, 0]])
    assert known.find(asked.images).tolist() == [3, 0]
    assert known.find(images[:1] ^ 1).tolist() == [-1]
    told = Queries(tuple("abcde"), images, tuple("vwxyz"))
    assert told.find(images[3:4], ("y",)).tolist() == [3]
    assert told.find(images[3:4], ("z",)).tolist() == [-1]


@pytest.mark.parametrize("log", [True, False])
def test_a_race_decides_by_the_excess_not_by_the_plain_score(log: bool) -> None:
    """Group 1 has the larger score everywhere; for this picture group 0 is further above its average."""
    reference = np.stack([np.full(30, 1.0), np.full(30, 20.0)], axis=1) * np.exp(0.1 * RNG.normal(size=(30, 2)))
    less = average(reference, log, np.array([-1]))
    state = Race(1, 2, 8, StopRule(1, 0.95), 20, less=less)
    truth = np.array([9.0, 21.0])
    while state.wanted().any():
        state.publish(truth[None, :, None] / 4 * (1 + 0.02 * RNG.normal(size=(1, 2, 4))))
    found = state.result()
    assert state.settled.all()
    assert found.winner().tolist() == [0]
    expected = np.log(truth) - np.log(reference).mean(axis=0) if log else truth - reference.mean(axis=0)
    np.testing.assert_allclose(found.score[0], expected, atol=0.05 * np.abs(expected).max())


def test_groups_that_hardly_change_do_not_hide_who_is_first() -> None:
    """Group 0 is at 50 times its average, the others at about their own with large relative errors."""
    reference = np.exp(RNG.normal(size=(100, 4)))
    less = average(reference, True, np.array([-1]))
    truth = np.exp(less.mean) * [50.0, 1.0, 1.0, 1.0]
    noise = np.array([0.02, 0.9, 0.9, 0.9])[:, None] * RNG.normal(size=(3, 1, 4, 8))
    d = truth[:, None] / 8 * np.maximum(1 + noise, 0.01)
    ranks = rank_columns(*less.ranked(d))
    assert ranks["p_first"][0, 0] > 0.99
    assert (ranks["rank_lo"][0, 0], ranks["rank_hi"][0, 0]) == (1, 1)
    ratios, extra = less.ranked(d)
    assert callable(extra)
    plain = d.mean(axis=0).sum(axis=-1)[0] / np.exp(less.mean)
    np.testing.assert_allclose(ratios.mean(axis=0).sum(axis=-1)[0], plain)
    np.testing.assert_allclose(extra(0), less.cov * np.outer(plain, plain))  # the average's error, in ratios
