"""Every kind of plan: a partition, an unbiased round, bounded weights; antithetic pairs; what is refused."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from test_elbo_terms import SHAPE, contributions, expected_errors, gaussian

from guda.config import ScoringConfig
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.noise import KeyedNoise
from guda.diffusion.schedule import Schedule
from guda.errors import GudaError
from guda.scoring.pilot import DEFENSIVE
from guda.scoring.pilot import density as pilot_density
from guda.scoring.plan import ROTATION, Plan, importance, make_plan, paper_grid, prior_density, stratified, uniform
from guda.scoring.terms import make_draws, squared_errors
from refusals import refused

SMALL = Schedule.from_scheduler(make_scheduler("squaredcos_cap_v2:60"))
densities = arrays(np.float64, SMALL.t_max, elements=st.floats(1e-6, 1e6))


def plans(n: int, p: np.ndarray, antithetic: bool = False) -> dict[str, Plan]:
    return {
        "uniform": uniform(SMALL, n, 0, antithetic),
        "stratified": stratified(SMALL, n, 0, antithetic),
        "importance": importance(SMALL, p, n, 0, antithetic),
    }


@given(densities, st.integers(1, SMALL.t_max))
@settings(max_examples=120, deadline=None)
def test_strata_partition_and_a_round_is_unbiased_exhaustively(p: np.ndarray, n: int) -> None:
    """sum over strata and their t of P(t) counts(t) f(t) is the sum of f, with P taken from the plan's definition."""
    f = np.random.default_rng(n).normal(size=SMALL.t_max + 1)
    for kind, plan in plans(n, p).items():
        assert plan.edges[0] == 1
        assert plan.edges[-1] == SMALL.t_max + 1
        assert len(plan.edges) == n + 1
        assert all(b > a for a, b in pairwise(plan.edges))
        total = 0.0
        for low, high in pairwise(plan.edges):
            t = np.arange(low, high)
            chance = p[t - 1] / p[t - 1].sum() if kind == "importance" else np.full(len(t), 1 / len(t))
            np.testing.assert_allclose(chance * plan.counts(t), 1, rtol=1e-9)
            total += float((chance * plan.counts(t) * f[t]).sum())
        assert total == pytest.approx(f[1:].sum(), rel=1e-9, abs=1e-9)


def test_draws_follow_the_density() -> None:
    p = np.r_[np.linspace(1, 30, 20), np.full(SMALL.t_max - 20, 2.0)]
    noise, n = KeyedNoise(), 8000
    for kind, plan in plans(5, p).items():
        t = np.stack([plan.draw(noise, f"q{i}", 0, (1, 1, 1))[0] for i in range(n)])
        for s, (low, high) in enumerate(pairwise(plan.edges)):
            found = np.bincount(t[:, s] - low, minlength=high - low)
            assert len(found) == high - low
            chance = p[low - 1 : high - 1] if kind == "importance" else np.ones(high - low)
            expected = n * chance / chance.sum()
            assert (abs(found - expected) < 5 * np.sqrt(expected) + 1).all(), kind


def test_equal_strata_of_a_steep_density_carry_equal_mass() -> None:
    schedule = Schedule.from_scheduler(make_scheduler("linear:1000"))
    p = np.exp(-np.arange(schedule.t_max) / 300)
    plan = importance(schedule, p, 12, 0)
    mass = np.array([p[a - 1 : b - 1].sum() for a, b in pairwise(plan.edges)]) / p.sum()
    assert abs(mass - 1 / 12).max() < 0.005


def test_all_plans_draw_with_the_same_keys_and_the_same_noise() -> None:
    p = np.linspace(1, 9, SMALL.t_max)
    found = {k: plan.draw(KeyedNoise(), "q", 2, (1, 2, 2)) for k, plan in plans(6, p).items()}
    pairs = {k: plan.draw(KeyedNoise(), "q", 2, (1, 2, 2)) for k, plan in plans(6, p, antithetic=True).items()}
    for kind, (t, eps) in found.items():
        assert eps.tobytes() == found["uniform"][1].tobytes()
        assert t.tolist() == pairs[kind][0].tolist()
        assert eps.tobytes() == pairs[kind][1].tobytes()
    # u of a stratum is the same number for all: the same quantile of its distribution
    u = [(KeyedNoise().at(0, "start", "q", i).random() + 2 * ROTATION) % 1 for i in range(6)]
    for kind, plan in plans(6, p).items():
        for i, (low, high) in enumerate(pairwise(plan.edges)):
            chance = p[low - 1 : high - 1] if kind == "importance" else np.ones(high - low)
            below = chance[: found[kind][0][i] - low].sum() / chance.sum()
            assert below <= u[i] + 1e-12
            assert u[i] <= below + chance[found[kind][0][i] - low] / chance.sum() + 1e-12
    keys = {plan.key for anti in (False, True) for plan in plans(6, p, anti).values()}
    assert len(keys) == 6


def test_an_antithetic_draw_is_the_mean_of_plus_and_minus_eps_bitwise() -> None:
    denoiser = gaussian("linear:60", 0.3)
    x0 = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(0))
    ids = ["a", "b", "c"]
    single = make_draws(denoiser, x0, ids, stratified(denoiser.schedule, 5, 0), 1)
    pair = make_draws(denoiser, x0, ids, stratified(denoiser.schedule, 5, 0, antithetic=True), 1)
    assert single.eps.shape == (3, 5, 1, *SHAPE)
    assert pair.eps.shape == pair.x_t.shape == (3, 5, 2, *SHAPE)
    np.testing.assert_array_equal(pair.t, single.t)
    assert torch.equal(pair.eps[:, :, :1], single.eps)
    assert torch.equal(pair.eps[:, :, 1], -pair.eps[:, :, 0])
    assert torch.equal(pair.x_t[:, :, :1], single.x_t)
    minus = type(single)(single.t, -single.eps, pair.x_t[:, :, 1:], x0)
    expected = (squared_errors(denoiser, single, 8) + squared_errors(denoiser, minus, 8)) / 2
    assert squared_errors(denoiser, pair, 8).tobytes() == expected.tobytes()
    # and x_t of the second half is the noised image of -eps
    t = torch.from_numpy(np.repeat(single.t.reshape(-1), 1))
    again = denoiser.schedule.add_noise(
        x0[:, None].expand(3, 5, *SHAPE).flatten(0, 1), -single.eps.flatten(0, 2), t
    ).reshape(3, 5, *SHAPE)
    assert torch.equal(pair.x_t[:, :, 1], again)
    some = pair.of(np.array([2, 0]))
    assert torch.equal(some.x_t, pair.x_t[[2, 0]])
    np.testing.assert_array_equal(some.t, pair.t[[2, 0]])


@given(densities)
@settings(max_examples=60, deadline=None)
def test_the_defensive_mixture_bounds_every_weight(size: np.ndarray) -> None:
    """Whatever a pilot saw, p >= DEFENSIVE prior; so a draw counts at most P_stratum / (DEFENSIVE prior(t))."""
    grid = np.arange(1, SMALL.t_max + 1)[:, None]
    p = pilot_density(SMALL, grid, size[:, None, None])
    prior = prior_density(SMALL)
    assert (p >= DEFENSIVE * prior * (1 - 1e-12)).all()
    plan = importance(SMALL, p, 6, 0)
    for low, high in pairwise(plan.edges):
        t = np.arange(low, high)
        bound = p[t - 1].sum() / (DEFENSIVE * prior[t - 1])
        assert (plan.counts(t) <= bound * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plan((0, 5), 0), "t >= 1"),
        (lambda: Plan((1, 5, 5), 0), "not empty"),
        (lambda: Plan((1, 9, 5), 0), "in order"),
        (lambda: Plan((1,), 0), "strata"),
        (lambda: Plan((), 0, (0, 10)), "begins at t = 1"),
        (lambda: Plan((1, 4), 0, density=(1.0, 0.0, 1.0)), "positive"),
        (lambda: Plan((1, 4), 0, density=(1.0, float("nan"), 1.0)), "positive"),
        (lambda: Plan((1, 4), 0, density=(1.0, float("inf"), 1.0)), "finite"),
        (lambda: Plan((1, 4), 0, density=(1.0, 1.0)), "every t"),
        (lambda: importance(SMALL, np.ones(SMALL.t_max - 1), 4, 0), "make a new pilot"),
        (lambda: importance(SMALL, np.ones(SMALL.t_max), SMALL.t_max + 1, 0), "scoring.strata"),
        (lambda: uniform(SMALL, 0, 0), "scoring.strata"),
        (lambda: paper_grid(SMALL, 60, 0), "stride"),
        (lambda: make_plan(SMALL, ScoringConfig()), "needs a pilot"),  # type: ignore[call-arg]
    ],
)
def test_impossible_plans_are_refused(make: Any, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        make()


@pytest.mark.parametrize("plan", [Plan((1, 40, 101), 0), Plan((), 0, (10, 100))])
def test_a_plan_beyond_the_schedule_is_refused_before_anything_runs(plan: Plan) -> None:
    denoiser = gaussian("linear:100", 0.3)
    with refused("plan-outside-schedule", match="reaches t = 100, this schedule ends at 99"):
        make_draws(denoiser, torch.zeros(1, *SHAPE), ["q"], plan, 0)


# ---- the whole bound -----------------------------------------------------------------------------------------------

N = 400


def two_gaussians() -> tuple[Denoiser, Denoiser, torch.Tensor, float]:
    full, without = gaussian("squaredcos_cap_v2:1000", 0.3), gaussian("squaredcos_cap_v2:1000", 0.36)
    x0 = torch.tensor([0.9, -0.4, 0.3, 0.1]).reshape(1, *SHAPE)
    t = slice(1, full.schedule.t_max + 1)
    gap = expected_errors(full.schedule, 0.36, x0) - expected_errors(full.schedule, 0.3, x0)
    return full, without, x0.expand(N, *SHAPE), float((full.schedule.weights[t] * gap[t]).sum())


def totals(plan: Plan, rounds: int = 1) -> tuple[np.ndarray, float]:
    full, without, x, exact = two_gaussians()
    ids = [f"q{i}" for i in range(N)]
    d = contributions(without, x, ids, plan, rounds) - contributions(full, x, ids, plan, rounds)
    return d.mean(axis=0).sum(axis=-1), exact


def known_density() -> np.ndarray:
    """w_t times the root mean square of the antithetic paired difference, as a perfect pilot would see it."""
    full, _, x, _ = two_gaussians()
    schedule = full.schedule
    a, s = schedule.a, schedule.s
    c = {v: s / (a**2 * v + s**2) for v in (0.3, 0.36)}
    r2 = float(x[0].double().square().sum())
    # even part of the difference: ((1 - c s)^2 |eps|^2 + (c a)^2 |x0|^2), |eps|^2 has mean D and variance 2 D
    even = (1 - c[0.36] * s) ** 2 - (1 - c[0.3] * s) ** 2
    level = even * 4 + ((c[0.36] * a) ** 2 - (c[0.3] * a) ** 2) * r2
    size = schedule.weights * np.sqrt(level**2 + 8 * even**2)
    t = slice(1, schedule.t_max + 1)
    return 0.9 * size[t] / size[t].sum() + 0.1 * prior_density(schedule)


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("kind", ["uniform", "stratified", "importance"])
def test_every_plan_is_unbiased_for_the_whole_bound(kind: str, antithetic: bool) -> None:
    schedule = two_gaussians()[0].schedule
    plan = {
        "uniform": lambda: uniform(schedule, 16, 3, antithetic),
        "stratified": lambda: stratified(schedule, 16, 3, antithetic),
        "importance": lambda: importance(schedule, known_density(), 16, 3, antithetic),
    }[kind]()
    found, exact = totals(plan, rounds=2)
    error = found.std(ddof=1) / np.sqrt(N)
    assert abs(found.mean() - exact) < 4 * error
    # the check has teeth: a few percent of the sum of |contributions| would be seen
    _, without, x, _ = two_gaussians()
    d = contributions(without, x[:50], [f"q{i}" for i in range(50)], plan, 1)
    assert error < 0.05 * abs(d).sum(axis=-1).mean()


def test_importance_with_pairs_has_a_third_of_the_variance_of_uniform_at_equal_cost() -> None:
    """Per network evaluation: 8 strata of pairs against 16 strata of single draws."""
    schedule = two_gaussians()[0].schedule
    plain, _ = totals(uniform(schedule, 16, 0))
    best, _ = totals(importance(schedule, known_density(), 8, 0, antithetic=True))
    assert best.var(ddof=1) < plain.var(ddof=1) / 3
