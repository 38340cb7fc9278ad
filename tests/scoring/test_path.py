"""Path divergence against closed forms: two Gaussian models, whose divergence and ELBO difference are known.

For x_0 ~ N(m, v I) the optimal network says eps_hat(x_t) = s (x_t - a m)/V, V = a^2 v + s^2. With two of them
    E ||eps_1 - eps_2||^2 = s^2 ( |a (x_0 - m_1)/V_1 - a (x_0 - m_2)/V_2|^2 + D s^2 (1/V_1 - 1/V_2)^2 ),
    E ||eps - eps_i||^2   = (1 - s^2/V_i)^2 D + (s a/V_i)^2 |x_0 - m_i|^2.
"""

import numpy as np
import pytest
import torch

from guda.data.groups import Groups
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import PREDICTIONS, Schedule
from guda.scoring.estimate import difference
from guda.scoring.plan import Plan, importance, stratified, uniform
from guda.scoring.terms import Draws, kl, make_draws, measure, measure_rule
from guda.unlearning.density import ImageDensity
from guda.unlearning.rule import Rule, RuledDenoiser

SHAPE, D = (1, 2, 2), 4
X0 = torch.tensor([0.9, -0.4, 0.3, 0.1]).reshape(1, *SHAPE)


class Gaussian(torch.nn.Module):
    """The optimal denoiser of N(m, v I) in any parametrisation, in double precision."""

    def __init__(self, schedule: Schedule, m: float, v: float) -> None:
        super().__init__()
        self.schedule, self.m, self.v = schedule, m, v

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x = x.double()
        a, s = self.schedule.coefficients(t, x)
        scale = a**2 * self.v + s**2
        eps = s * (x - a * self.m) / scale
        x0 = self.m + a * self.v * (x - a * self.m) / scale
        return {"epsilon": eps, "sample": x0, "v_prediction": a * eps - s * x0}[self.schedule.prediction]


def gaussian(text: str, m: float, v: float) -> Denoiser:
    scheduler = make_scheduler(text)
    return Denoiser.from_module(Gaussian(Schedule.from_scheduler(scheduler), m, v), scheduler, SHAPE)


def exact(schedule: Schedule, one: tuple[float, float], two: tuple[float, float]) -> tuple[float, float]:
    """(path divergence, ELBO difference) of X0."""
    a, s = schedule.a, schedule.s
    x = X0.double().numpy().reshape(-1)
    (m1, v1), (m2, v2) = one, two
    b1, b2 = a**2 * v1 + s**2, a**2 * v2 + s**2
    apart = (a / b1)[:, None] * (x - m1) - (a / b2)[:, None] * (x - m2)
    change = s**2 * ((apart**2).sum(axis=1) + D * s**2 * (1 / b1 - 1 / b2) ** 2)

    def error(m: float, b: np.ndarray) -> np.ndarray:
        return (1 - s**2 / b) ** 2 * D + (s * a / b) ** 2 * ((x - m) ** 2).sum()

    w, t = schedule.weights, slice(1, schedule.t_max + 1)
    return float((w * change)[t].sum()), float((w * (error(m2, b2) - error(m1, b1)))[t].sum())


def found(full: Denoiser, other: Denoiser, draws: Draws) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(errors of full, errors of other, changes), [Q, S] each."""
    one = measure(full, draws, 64, keep=True)
    two = measure(other, draws, 64, reference=one.predictions)
    assert two.changes is not None
    return one.errors[0], two.errors[0], two.changes[0]


def plans(schedule: Schedule) -> dict[str, Plan]:
    ramp = np.linspace(3, 1, schedule.t_max)
    return {
        "uniform": uniform(schedule, 20, 0),
        "stratified": stratified(schedule, 20, 0, antithetic=True),
        "importance": importance(schedule, ramp / ramp.sum(), 20, 0),
    }


@pytest.mark.parametrize("kind", ["uniform", "stratified", "importance"])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_divergence_and_difference_are_the_closed_forms_under_every_plan(kind: str, prediction: str) -> None:
    text = f"squaredcos_cap_v2:1000:{prediction}"
    one, two, n = (0.2, 0.3), (-0.1, 0.5), 300
    full, other = gaussian(text, *one), gaussian(text, *two)
    schedule = full.schedule
    plan = plans(schedule)[kind]
    totals = []
    for r in range(2):
        draws = make_draws(full, X0.expand(n, *SHAPE), [f"q{i}" for i in range(n)], plan, r)
        before, after, change = found(full, other, draws)
        nats = [kl(plan, schedule.weights, draws.t, x) for x in (change, after - before)]
        totals.append([x.sum(axis=-1) for x in nats])
    for value, truth in zip(np.array(totals).mean(axis=0), exact(schedule, one, two), strict=True):
        error = value.std(ddof=1) / np.sqrt(n)
        assert abs(value.mean() - truth) < 4 * error
        assert error < 0.05 * abs(truth)  # the bound above has teeth


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_difference_is_the_divergence_plus_the_cross_term_draw_by_draw(prediction: str) -> None:
    """|eps - eps_2|^2 - |eps - eps_1|^2 = |Delta|^2 + 2 <eps - eps_1, Delta> to 1e-10."""
    text = f"linear:1000:{prediction}"
    full, other = gaussian(text, 0.2, 0.3), gaussian(text, -0.1, 0.5)
    draws = make_draws(full, X0, ["q"], stratified(full.schedule, 12, 0), 0)
    before, after, change = found(full, other, draws)
    x_t, t = draws.x_t.flatten(0, 2), torch.from_numpy(draws.t.reshape(-1))
    one, two = (m.schedule.to_eps(m.raw(x_t, t), x_t, t) for m in (full, other))
    cross = ((draws.eps.flatten(0, 2) - one) * (one - two)).flatten(1).sum(1).numpy()
    np.testing.assert_allclose(after - before, change + 2 * cross[None], rtol=0, atol=1e-10)
    assert (np.abs(cross) > 1e-3).any()


def test_models_that_differ_by_a_constant_have_no_luck_left() -> None:
    """Equal variances: Delta is the same at every x_t, so a single round is exact up to the choice of t."""
    full, other = gaussian("linear:1000", 0.2, 0.3), gaussian("linear:1000", -0.1, 0.3)
    draws = make_draws(full, X0.expand(50, *SHAPE), [f"q{i}" for i in range(50)], Plan((), 0, (5, 100, 800)), 0)
    before, after, change = found(full, other, draws)
    assert (change.std(axis=0) < 1e-6 * change.mean(axis=0)).all()
    luck = (after - before).std(axis=0) / change.mean(axis=0)  # which is what path leaves out
    assert luck[0] > 10 > luck[2]


def test_intervals_cover_the_divergence() -> None:
    full, other = gaussian("linear:1000", 0.2, 0.3), gaussian("linear:1000", -0.1, 0.5)
    plan, n = stratified(full.schedule, 20, 0), 300
    rounds = []
    for r in range(3):
        draws = make_draws(full, X0.expand(n, *SHAPE), [f"q{i}" for i in range(n)], plan, r)
        rounds.append(kl(plan, full.schedule.weights, draws.t, found(full, other, draws)[2]))
    estimate = difference(np.stack(rounds))
    truth = exact(full.schedule, (0.2, 0.3), (-0.1, 0.5))[0]
    assert estimate.lo is not None
    assert estimate.hi is not None
    assert ((estimate.lo <= truth) & (truth <= estimate.hi)).mean() > 0.90


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_rules_changes_need_no_network_and_are_those_of_its_predictions(prediction: str) -> None:
    base = gaussian(f"linear:1000:{prediction}", 0.2, 0.3)
    images = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (30, *SHAPE)).astype(np.float32))
    labels = np.arange(30) % 3
    atoms, made_of = (torch.from_numpy(x) for x in Groups(("a", "b", "c"), np.eye(3, dtype=bool)[labels]).atoms)
    rule = Rule(ImageDensity(images, atoms, base.schedule, 0.3, made_of), (0.0, 1.0))
    ruled = RuledDenoiser(base, rule, [0, 1, 2])
    draws = make_draws(base, X0, ["q"], stratified(base.schedule, 12, 0, antithetic=True), 0)
    slow = measure(ruled, draws, 16, reference=measure(base, draws, 16, keep=True).predictions).changes
    base.module.forward = None  # type: ignore[assignment]  # any evaluation fails now
    fast = measure_rule(ruled, draws, 16)
    np.testing.assert_allclose(fast, slow, rtol=1e-3, atol=1e-9)
    assert fast.max() > 1e-3
