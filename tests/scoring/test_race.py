"""Racing: stop rules, who goes on, and that the stated confidence holds however often one looks."""

import numpy as np
import pytest

from guda.errors import GudaError
from guda.scoring.race import Race, RaceResult, StopRule, anytime_reach, look_alpha, survivors
from refusals import refused


@pytest.mark.parametrize(
    ("text", "top", "confidence", "budget"),
    [
        ("top1@0.95", 1, 0.95, None),
        ("top3@.9", 3, 0.9, None),
        ("budget=500", 1, None, 500),
        ("top1@0.95,budget=500", 1, 0.95, 500),
        (" budget=500 , top2@0.8 ", 2, 0.8, 500),
    ],
)
def test_rules_are_parsed_and_named(text: str, top: int, confidence: float | None, budget: int | None) -> None:
    rule = StopRule.parse(text)
    assert rule == StopRule(top, confidence, budget)
    assert StopRule.parse(rule.name) == rule


@pytest.mark.parametrize(
    "text",
    ["", "top1", "top1@", "top1@1", "top1@1.0", "top0@0.9", "top1@0.3", "top1@0", "top-1@0.9", "budget=0", "budget=-5",
     "budget=many", "budget=", "0.95", "top1@0.95;budget=5", "top1@0.95,", "top1@0.95,top3@0.9", "budget=5,budget=6",
     "best@0.9", "top1@nan"],
)  # fmt: skip
def test_nonsense_rules_are_refused(text: str) -> None:
    with pytest.raises(GudaError, match="stop rule"):
        StopRule.parse(text)


def test_looks_spend_no_more_than_alpha_for_ever() -> None:
    assert look_alpha(0.05, 0) == look_alpha(0.05, 1) == 0
    spent = np.cumsum([look_alpha(0.05, r) for r in range(2, 5000)])
    assert spent[-1] <= 0.05
    assert spent[-1] > 0.0499
    assert np.isinf(anytime_reach(0.05, 1, 16, 9))
    assert anytime_reach(0.05, 2, 16, 9) > anytime_reach(0.05, 2, 16, 1) > 2


def contest(
    rng: np.random.Generator, truth: np.ndarray, n: int, rule: StopRule, rounds: int, strata: int = 8,
    noise: float = 1.0, evals: int = 16,
) -> tuple[Race, RaceResult]:  # fmt: skip
    """n races of the same truth, noise correlated between groups."""
    state = Race(n, len(truth), evals, rule, rounds)
    while state.wanted().any():
        shared = rng.normal(size=(n, 1, strata)) * noise
        own = rng.normal(size=(n, len(truth), strata)) * noise * np.linspace(0.5, 1.5, len(truth))[:, None]
        state.publish(truth[:, None] / strata + shared + own)
    return state, state.result()


# hard on purpose: ties and near ties for the first place, and looks as long as they last
@pytest.mark.parametrize("truth", [[0.5, 0.0, 0.0, 0.0], [3.0, 2.6, 0.0, -1.0, -2.0], [1.0, 0.99, 0.0]])
def test_a_settled_winner_is_wrong_no_more_often_than_stated(truth: list[float]) -> None:
    rng, n = np.random.default_rng(0), 300
    state, found = contest(rng, np.array(truth), n, StopRule(1, 0.8), 24, noise=0.15)
    wrong = state.settled & (found.winner() != 0)
    dropped = found.rounds[:, 0] < found.rounds.max(axis=1)  # the true best had to leave
    assert (wrong | dropped).mean() <= 0.2
    if truth[0] - truth[1] > 0.3:
        assert state.settled.mean() > 0.1  # the claim is made, not just avoided


def test_top3_is_the_right_set_as_often_as_stated() -> None:
    truth = np.array([4.0, 3.9, 3.8, 2.6, 2.5, 0.0, 0.0])
    state, found = contest(np.random.default_rng(1), truth, 300, StopRule(3, 0.9), 30, noise=0.15)
    last = np.where(found.rounds == found.rounds.max(axis=1, keepdims=True), found.score, -np.inf)
    first = np.sort(np.argsort(-last, axis=1)[:, :3], axis=1)
    wrong = state.settled & (first != [0, 1, 2]).any(axis=1)
    assert state.settled.mean() > 0.3
    assert wrong.mean() <= 0.1
    assert (found.rounds[:, 5] < found.rounds[:, 0]).mean() > 0.5  # the hopeless left early


def test_a_clear_race_is_short_and_spends_where_it_is_close() -> None:
    state, found = contest(np.random.default_rng(2), np.array([40.0, 0.0, -5.0]), 50, StopRule(1, 0.95), 64, noise=0.5)
    assert state.settled.all()
    assert (found.rounds.max(axis=1) <= 3).all()
    assert (found.winner() == 0).all()
    state, found = contest(
        np.random.default_rng(3), np.array([40.0, 39.9, -400.0]), 50, StopRule(1, 0.95), 30, noise=0.5
    )
    assert (found.rounds[:, 2] < 4).all()
    assert found.rounds[:, :2].mean() > 10
    assert (found.rounds[:, 0] == found.rounds[:, 1]).all()
    np.testing.assert_array_equal(found.evals, ((found.rounds.sum(axis=1)) + found.rounds.max(axis=1)) * 16)


def test_anytime_intervals_cover_for_all_groups_and_are_wider_for_those_that_left() -> None:
    truth = np.array([3.0, 2.0, 0.0, -3.0])
    _, found = contest(np.random.default_rng(4), truth, 400, StopRule(1, 0.9), 30)
    inside = (found.lo <= truth) & (truth <= found.hi)
    assert (inside.mean(axis=0) >= 0.95).all()
    assert np.isfinite(found.lo).all()
    width = found.hi - found.lo
    left = found.rounds < found.rounds.max(axis=1, keepdims=True)
    assert left.any()
    assert np.median(width[left] / found.stderr[left]) > np.median(width[~left] / found.stderr[~left]) * 0.5
    assert width[left].mean() > width[~left].mean()


def test_group_scores_are_means_of_the_rounds_they_were_in() -> None:
    rng = np.random.default_rng(5)
    rule, state = StopRule(1, 0.9), None
    state = Race(1, 3, 4, rule, 10)
    given = []
    while (wanted := state.wanted()).any():
        d = rng.normal(size=(1, 3, 5)) + np.array([9.0, 8.8, -90.0])[:, None]
        given.append(np.where(wanted[:, :, None], d, np.nan))
        state.publish(d)
    found = state.result()
    for g in range(3):
        mine = np.stack(given)[: found.rounds[0, g], 0, g]
        assert np.isfinite(mine).all()
        assert found.score[0, g] == pytest.approx(mine.mean(axis=0).sum())
        expected = np.sqrt((mine.var(axis=0, ddof=1) / len(mine)).sum())
        assert found.stderr[0, g] == pytest.approx(expected)


@pytest.mark.parametrize("rule", ["budget=400", "budget=97", "top1@0.95,budget=400", "top1@0.95,budget=1000"])
def test_a_budget_is_never_exceeded_and_halving_focuses_it(rule: str) -> None:
    parsed = StopRule.parse(rule)
    truth = np.linspace(1, 0, 5)
    state, found = contest(np.random.default_rng(6), truth, 60, parsed, 64)
    assert parsed.budget is not None
    assert (found.evals <= parsed.budget).all()
    assert (found.evals == (found.rounds.sum(axis=1) + found.rounds.max(axis=1)) * 16).all()
    if parsed.confidence is None:
        assert not state.settled.any()  # a budget claims nothing
        # the next round of the smallest field would not fit
        assert (found.evals + 3 * 16 > parsed.budget).all() or rule == "budget=97"
    if rule == "budget=97":
        assert (found.rounds == 1).all()
        assert np.isinf(found.hi).all()  # one round has no error, and no interval pretends one
    if rule == "budget=400":
        assert found.rounds.max() > 2 * found.rounds.min()


def test_impossible_races_are_refused() -> None:
    with refused("stop-budget-small", match="costs 96 evaluations"):
        Race(3, 5, 16, StopRule.parse("budget=95"), 10)
    Race(3, 5, 16, StopRule.parse("budget=96"), 10)
    for top in (5, 6):
        with refused("stop-already-settled"):
            Race(3, 5, 16, StopRule(top, 0.9), 10)


def test_rounds_end_somewhere() -> None:
    state, found = contest(np.random.default_rng(7), np.zeros(3), 20, StopRule(1, 0.99), 5)
    assert len(state.rounds) == 5
    assert found.rounds.max() == 5
    assert not state.settled.all()


def test_decisions_depend_on_the_published_terms_alone() -> None:
    rng = np.random.default_rng(8)
    d = rng.normal(size=(4, 5, 6)) + np.array([5.0, 1.0, 0.0, 0.0, -20.0])[:, None]
    active = np.ones(5, bool)
    one = survivors(d, active, StopRule(1, 0.9))
    np.testing.assert_array_equal(survivors(d.copy(), active.copy(), StopRule(1, 0.9)), one)
    order = np.array([3, 1, 4, 0, 2])
    np.testing.assert_array_equal(survivors(d[:, order], active, StopRule(1, 0.9)), one[order])
    assert active.all()  # arguments are left alone
    assert survivors(d[:1], active, StopRule(1, 0.9)).all()  # one round has no error: nobody leaves
