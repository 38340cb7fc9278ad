"""Which groups can be attributed at all: known signal-to-noise, random groups, placebos."""

from __future__ import annotations

import numpy as np
import pytest

from guda.evaluation.attributable import (
    MOST,
    Attributability,
    attributable,
    double_centred,
    reliability,
    repeat_test,
    retrainings,
    spearman_brown,
)
from guda.evaluation.results import DatasetEntry
from guda.evaluation.tables import attributable_tables
from refusals import refused


def table(rng: np.random.Generator, s: int, q: int, signal: np.ndarray, uneven: float = 0.0) -> np.ndarray:
    """[s, q, groups]: constants of (training, group), factors of (training, picture) and of the picture, signal, noise.

    `uneven`: how much pictures differ in how noisy they are, the same in every training."""
    g = len(signal)
    constant, factor = rng.normal(0, 5, (s, 1, g)), rng.normal(0, 2, (s, q, 1)) + rng.normal(0, 4, (1, q, 1))
    noise = np.exp(uneven * rng.normal(size=(1, q, 1))) * rng.normal(size=(s, q, g))
    return constant + factor + signal * rng.normal(size=(q, g)) + noise


def names(n: int) -> list[str]:
    return [str(k) for k in range(n)]


def answers(found: Attributability) -> list[str]:
    return [g.answer for g in found.groups]


def test_reliability_of_a_known_ratio_of_signal_and_noise() -> None:
    signal = np.full(40, 2.0)
    found = attributable(names(40), table(np.random.default_rng(0), 3, 3000, signal), n=200)
    expected = 4 / (4 + 1)
    one = np.array([g.one.mean for g in found.groups if g.one])
    np.testing.assert_allclose(one, expected, atol=0.03)
    assert all(g.one is not None and g.one.lo < g.one.mean < g.one.hi for g in found.groups)
    assert {g.answer for g in found.groups} == {"attributable"}
    covered = np.mean([g.one.lo <= expected <= g.one.hi for g in found.groups if g.one])
    assert covered >= 0.85


def test_against_brute_force() -> None:
    x = double_centred(table(np.random.default_rng(1), 3, 25, np.array([1.0, 0.2, 3.0])))
    np.testing.assert_allclose(x.mean(axis=1), 0, atol=1e-12)
    for k, r in enumerate(reliability(x)):
        c = np.cov(x[:, :, k], bias=True)
        assert r == pytest.approx(c[np.triu_indices(3, 1)].mean() / np.diagonal(c).mean())


def test_groups_alike_are_centred_by_the_plain_mean_and_loud_ones_hardly_count() -> None:
    rng = np.random.default_rng(9)
    pair = rng.normal(size=(2, 30, 2))
    np.testing.assert_allclose(double_centred(pair).sum(axis=2), 0, atol=1e-12)
    scores = rng.normal(size=(2, 4000, 6)) + np.array([50.0, 0, 0, 0, 0, 0]) * rng.normal(size=(4000, 1))
    r = reliability(double_centred(scores))
    assert r[0] > 0.99
    assert (
        np.abs(r[1:]).max() < 0.05
    )  # by the plain mean of six, (50 / 6)^2 of the others' variance would be its signal


def test_the_repeat_test_is_exact_for_few_pictures() -> None:
    x = np.array([[1.0, 2.0, -3.0], [2.0, 1.0, -1.0]])[:, :, None]  # products 2, 2, 3: only one of 8 sign vectors is 7
    assert repeat_test(x, flips=39_999)[0] == pytest.approx(1 / 8, abs=0.01)
    assert repeat_test(np.zeros((2, 5, 1)))[0] == 1.0


def test_spearman_brown_there_and_back() -> None:
    assert spearman_brown(0.5, 4) == pytest.approx(0.8)
    assert retrainings(0.5) == 4
    assert retrainings(0.49) == 5
    assert retrainings(1.0) == retrainings(0.8) == 1
    assert retrainings(0.0) is None
    assert retrainings(-0.2) is None
    assert spearman_brown(-0.2, 3) == 0.0
    for r in (0.03, 0.2, 0.61):
        needed = retrainings(r)
        assert needed is not None
        assert spearman_brown(r, needed) >= 0.8 > spearman_brown(r, needed - 1)


@pytest.mark.parametrize("seeds", [2, 4])
def test_sixty_random_groups_are_below_noise(seeds: int) -> None:
    """Pictures that every change of the model tells on, and that are noisy in every training, are no signal."""
    rng = np.random.default_rng(seeds)
    found = [attributable(names(60), table(rng, seeds, 200, np.zeros(60), uneven=0.8), n=20) for _ in range(10)]
    assert sum(f.count("attributable") for f in found) == 0
    assert sum(60 - f.count("below noise") for f in found) <= 2  # of 600; 0.05 per table of 60


def test_strong_weak_and_absent_groups_are_told_apart() -> None:
    signal = np.array([4.0] * 4 + [0.6] * 3 + [0.0] * 5)
    found = attributable(names(12), table(np.random.default_rng(5), 2, 600, signal), n=200)
    assert answers(found) == ["attributable"] * 4 + ["pool with others"] * 3 + ["below noise"] * 5
    assert all(2 < (g.retrainings or 0) <= MOST for g in found.groups[4:7])


def test_a_signal_that_would_take_too_many_retrainings_is_below_noise() -> None:
    found = attributable(names(8), table(np.random.default_rng(2), 2, 40_000, np.full(8, 0.25)), n=20)
    assert all(g.p is not None and g.p < 0.05 for g in found.groups)  # there is something
    assert set(answers(found)) == {"below noise"}
    assert all((g.retrainings or 0) > MOST for g in found.groups)


def test_order_of_pictures_and_groups_does_not_matter() -> None:
    rng = np.random.default_rng(8)
    scores = table(rng, 2, 80, np.array([2.0, 0.0, 1.0, 3.0]))
    swap, groups = rng.permutation(80), [2, 0, 3, 1]
    here, there = reliability(double_centred(scores)), reliability(double_centred(scores[:, swap][:, :, groups]))
    np.testing.assert_allclose(there, here[groups], rtol=1e-10)


def test_placebos_answer_where_there_is_one_training() -> None:
    rng = np.random.default_rng(3)
    scores = table(rng, 1, 300, np.array([3.0] * 5 + [0.0] * 25))
    found = attributable(names(10), scores[:, :, :10], scores[0, :, 10:], n=200)
    assert answers(found) == ["attributable"] * 5 + ["below noise"] * 5
    assert found.placebos == 20
    for g in found.groups[:5]:
        assert g.one is not None
        assert g.one.mean == pytest.approx(0.9, abs=0.05)  # 9 of 10 parts are signal


def test_random_groups_do_not_exceed_placebos() -> None:
    rng = np.random.default_rng(4)
    found = []
    for _ in range(10):
        scores = table(rng, 1, 200, np.zeros(80), uneven=0.5)
        found.append(attributable(names(60), scores[:, :, :60], scores[0, :, 60:], n=20))
    assert sum(f.count("attributable") for f in found) == 0
    assert sum(60 - f.count("below noise") for f in found) <= 4


def test_trainings_and_placebos_must_both_speak_for_a_group() -> None:
    rng = np.random.default_rng(6)
    both = table(rng, 2, 300, np.array([4.0] * 14))
    scores, loud = both[:, :, :6], both[0, :, 6:]  # placebos that vary as much as the groups do
    assert set(answers(attributable(names(6), scores, n=50))) == {"attributable"}
    assert set(answers(attributable(names(6), scores, loud, n=50))) == {"below noise"}


def test_one_training_and_no_placebos_or_few_is_not_known() -> None:
    scores = table(np.random.default_rng(7), 1, 50, np.array([4.0] * 3))
    for placebos in (None, np.zeros((50, 4))):
        found = attributable(names(3), scores, placebos)
        assert set(answers(found)) == {"unknown"}
        assert all(g.one is None and g.retrainings is None for g in found.groups)


@pytest.mark.parametrize(("trainings", "pictures", "known"), [(2, 7, False), (2, 8, True), (3, 3, False), (3, 4, True)])
def test_too_few_pictures_are_not_called_noise(trainings: int, pictures: int, known: bool) -> None:
    """Ten groups whose scores repeat perfectly: where the repeat test can say so, they are attributable."""
    scores = np.repeat(np.random.default_rng(0).normal(size=(1, pictures, 10)), trainings, axis=0)
    answers = {g.answer for g in attributable([f"g{k}" for k in range(10)], scores).groups}
    assert answers == ({"attributable"} if known else {"unknown"})


def test_what_cannot_be_asked_is_refused() -> None:
    scores = table(np.random.default_rng(7), 2, 50, np.array([4.0] * 3))
    with refused("seed-scores-shape-invalid"):
        attributable(names(4), scores)
    with refused("placebo-scores-shape-invalid"):
        attributable(names(3), scores, np.zeros((49, 9)))
    scores[0, 0, 0] = np.nan
    with refused("values-not-finite"):
        attributable(names(3), scores)


def test_constant_scores_are_no_signal() -> None:
    found = attributable(names(3), np.zeros((2, 10, 3)), n=20)
    assert set(answers(found)) == {"below noise"}


def test_it_is_kept_and_shown_with_the_evaluation() -> None:
    scores = table(np.random.default_rng(5), 2, 600, np.array([4.0] * 4 + [0.0] * 4))
    found = attributable(names(8), scores, n=50)
    plain = DatasetEntry(n_queries=600, seeds=[1, 2], ceiling=None, methods={}, n_groups=8)
    assert "attributable" not in plain.model_dump(mode="json")
    entry = plain.model_copy(update={"attributable": {"logo": found}})
    assert DatasetEntry.model_validate(entry.model_dump(mode="json")) == entry
    [shown] = attributable_tables("digits", entry)
    assert "By logo, 2 trainings" in shown.title
    assert [row[:2] for row in shown.texts()][::7] == [("0", "attributable"), ("7", "below noise")]
    unknown = plain.model_copy(update={"attributable": {"logo": attributable(names(8), scores[:1])}})
    assert "Not known" in attributable_tables("digits", unknown)[0].note
