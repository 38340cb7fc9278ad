"""Which timesteps are drawn and what each counts for: strata partition 1..t_max, and a round is unbiased."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guda.config import ScoringConfig
from guda.diffusion.loading import make_scheduler
from guda.diffusion.noise import KeyedNoise
from guda.diffusion.schedule import Schedule
from guda.scoring.estimate import difference
from guda.scoring.plan import Plan, make_plan, paper_grid, stratified
from refusals import refused

SCHEDULES = {
    text: Schedule.from_scheduler(make_scheduler(text))
    for text in ("linear:1000", "scaled_linear:1000", "squaredcos_cap_v2:1000", "squaredcos_cap_v2:4000", "linear:50",
                 "squaredcos_cap_v2:20")
}  # fmt: skip


def check_partition(plan: Plan, n: int, t_max: int) -> None:
    members = [t for lo, hi in zip(plan.edges[:-1], plan.edges[1:], strict=True) for t in range(lo, hi)]
    assert members == list(range(1, t_max + 1))
    assert plan.n_strata == n
    assert (np.diff(plan.edges) >= 1).all()


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_strata_partition_1_to_t_max(data: st.DataObject) -> None:
    schedule = SCHEDULES[data.draw(st.sampled_from(sorted(SCHEDULES)))]
    n = data.draw(st.one_of(st.integers(1, min(60, schedule.t_max)), st.integers(1, schedule.t_max)))
    check_partition(stratified(schedule, n, seed=0), n, schedule.t_max)


@given(st.lists(st.floats(1e-6, 0.49), min_size=3, max_size=30), st.integers(1, 29))
@settings(max_examples=150, deadline=None)
def test_strata_partition_odd_schedules_too(betas: list[float], n: int) -> None:
    schedule = Schedule(np.array(betas), "epsilon")
    if n <= schedule.t_max:
        check_partition(stratified(schedule, n, seed=0), n, schedule.t_max)


@pytest.mark.parametrize("n", [0, 1000])
def test_more_strata_than_timesteps_are_refused_with_the_limit(n: int) -> None:
    with refused("strata-outside-schedule", match=r"needs 1\.\.999"):
        stratified(SCHEDULES["linear:1000"], n, seed=0)


@pytest.mark.parametrize("n", [1, 7, 40, 500])
def test_a_round_is_unbiased_exhaustively(n: int) -> None:
    """Mean over all t of a stratum of (1/probability) f(t), summed over strata, is the sum of f: for any f."""
    schedule = SCHEDULES["squaredcos_cap_v2:1000"]
    plan = stratified(schedule, n, seed=0)
    f = np.random.default_rng(0).normal(size=schedule.T) * schedule.weights
    total = sum(
        (plan.counts(np.arange(lo, hi)) * f[lo:hi]).mean()  # every t of a stratum is equally likely
        for lo, hi in zip(plan.edges[:-1], plan.edges[1:], strict=True)
    )
    assert total == pytest.approx(f[1 : schedule.t_max + 1].sum(), rel=1e-12)


def test_every_timestep_of_a_stratum_is_drawn_equally_often() -> None:
    plan = Plan((1, 4, 5, 12), seed=0)
    noise = KeyedNoise()
    t = np.stack([plan.draw(noise, f"q{i}", 0, (1, 1, 1))[0] for i in range(6000)])
    for k, (lo, hi) in enumerate(zip(plan.edges[:-1], plan.edges[1:], strict=True)):
        count = np.bincount(t[:, k] - lo, minlength=hi - lo)
        assert len(count) == hi - lo
        expected = 6000 / (hi - lo)
        assert (abs(count - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize("rounds", [2, 3, 4, 6])
def test_rounds_in_a_row_lie_far_apart_wherever_they_begin(rounds: int) -> None:
    plan = Plan((1, 1_000_001), seed=0)
    for first in (0, 5, 40):
        for query in ("a", "b", "c"):
            t = np.sort([plan.draw(KeyedNoise(), query, first + r, (1, 1, 1))[0][0] for r in range(rounds)])
            gaps = np.diff([*t, t[0] + 1_000_000]) / 1_000_000  # round the circle
            assert gaps.min() > 0.5 / rounds
            assert gaps.max() < 2 / rounds


def test_rotated_rounds_err_less_than_independent_ones_and_their_intervals_hold() -> None:
    """Along t a trend, and noise of its own: the mean of rounds that are spread over the stratum misses less of the
    trend. The error that is estimated counts the trend as noise, so intervals are wide enough."""
    plan, rng = Plan((1, 101, 201), seed=0), np.random.default_rng(0)
    for rounds in (2, 3, 6):
        t = np.array(
            [[plan.draw(KeyedNoise(), f"q{q}", r, (1, 1, 1))[0] for q in range(1500)] for r in range(rounds)]
        )  # [R, Q, S]
        independent = np.stack([rng.integers(1, 101, t.shape[:2]), rng.integers(101, 201, t.shape[:2])], axis=-1)
        truth = sum(_trend(np.arange(lo, hi)).mean() for lo, hi in ((1, 101), (101, 201)))
        spread = {}
        for kind, drawn in (("rotated", t), ("independent", independent)):
            found = difference(_trend(drawn) + rng.normal(0, 0.1, t.shape))
            assert found.score.mean() == pytest.approx(truth, abs=4 * found.score.std() / 1500**0.5)
            spread[kind] = found.score.std()
            if kind == "rotated":
                assert found.lo is not None
                assert found.hi is not None
                assert ((found.lo <= truth) & (truth <= found.hi)).mean() > 0.94
        assert spread["rotated"] < 0.85 * spread["independent"]


def _trend(t: np.ndarray) -> np.ndarray:
    return np.exp(-t / 60)


def test_strata_are_narrow_where_the_weight_is_and_cover_high_noise() -> None:
    schedule = SCHEDULES["squaredcos_cap_v2:1000"]
    plan = stratified(schedule, 40, seed=0)
    assert np.diff(plan.edges)[0] < np.diff(plan.edges)[20]
    assert sum(edge > 500 for edge in plan.edges) > 8


# ---- keys ---------------------------------------------------------------------------------------------------------


def test_draws_are_bitwise_functions_of_seed_query_round_and_stratum() -> None:
    schedule = SCHEDULES["linear:1000"]
    plan, noise = stratified(schedule, 8, seed=0), KeyedNoise()
    first = {(q, r): plan.draw(noise, q, r, (1, 3, 3)) for q in "abc" for r in range(3)}
    for (q, r), (t, eps) in reversed(first.items()):
        again = plan.draw(KeyedNoise(), q, r, (1, 3, 3))
        np.testing.assert_array_equal(again[0], t)
        assert again[1].tobytes() == eps.tobytes()
    other = stratified(schedule, 8, seed=1).draw(noise, "a", 0, (1, 3, 3))
    every = [eps[i].tobytes() for _, eps in (*first.values(), other) for i in range(8)]
    assert len(set(every)) == len(every)


def test_plan_key_names_seed_strata_and_grid() -> None:
    schedule = SCHEDULES["linear:1000"]
    plans = [
        stratified(schedule, 8, 0),
        stratified(schedule, 8, 1),
        stratified(schedule, 9, 0),
        paper_grid(schedule, 10, 0),
    ]
    assert len({plan.key for plan in plans}) == 4
    assert stratified(schedule, 8, 0).key == plans[0].key


# ---- the paper's grid ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "last", "n"), [("squaredcos_cap_v2:4000", 3990, 399), ("linear:1000", 990, 99)])
def test_the_paper_grid_is_every_tenth_timestep_with_weight_one(kind: str, last: int, n: int) -> None:
    plan = make_plan(SCHEDULES[kind], ScoringConfig(estimand="paper"))  # type: ignore[call-arg]
    assert plan.grid == tuple(range(10, last + 1, 10))
    assert plan.n_strata == n
    assert (plan.counts(np.array(plan.grid)) == 1).all()
    t, _ = plan.draw(KeyedNoise(), "q", 0, (1, 1, 1))
    np.testing.assert_array_equal(t, plan.grid)
    assert "raw sum" in plan.estimand
    assert "ELBO" not in plan.estimand  # never called an estimate of the bound


def test_the_default_estimand_names_t_max() -> None:
    plan = make_plan(SCHEDULES["squaredcos_cap_v2:1000"], ScoringConfig(plan="stratified"))  # type: ignore[call-arg]
    assert plan.estimand == "ELBO: sum over 1 <= t <= 996"


def test_a_stride_beyond_the_schedule_is_refused() -> None:
    with refused("stride-too-large"):
        paper_grid(SCHEDULES["linear:50"], 50, 0)
