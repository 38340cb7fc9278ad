"""log p by the probability-flow ODE against closed forms: the optimal denoiser of a Gaussian."""

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from guda.config import LikelihoodConfig
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.likelihood import Probes, evals, grid, log_likelihoods
from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import FlowSchedule, Schedule
from guda.errors import GudaError, NotFinite

SHAPE = (1, 3, 4)
IDS = [f"q{i}" for i in range(6)]


class Optimal(torch.nn.Module):
    """What the optimal denoiser of N(mean, diag(variance)) says, in any parametrisation; t may be fractional."""

    def __init__(self, schedule: Schedule, mean: torch.Tensor, variance: torch.Tensor) -> None:
        super().__init__()
        self.schedule, self.mean, self.variance = schedule, mean, variance

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        # flow networks are told s T; the others t itself
        index = t.double() / self.schedule.T if self.schedule.prediction == "flow" else t.double()
        if self.schedule.prediction == "flow":
            s = index.reshape(-1, 1, 1, 1).to(x)
            a = 1 - s
        else:
            a, s = self.schedule.coefficients(index, x)
        eps = s * (x - a * self.mean) / (a**2 * self.variance + s**2)
        x0 = self.mean + a * self.variance * (x - a * self.mean) / (a**2 * self.variance + s**2)
        kinds = {"epsilon": eps, "sample": x0, "v_prediction": a * eps - s * x0, "flow": eps - x0}
        return kinds[self.schedule.prediction]


def gaussian(schedule: Schedule, spread: Sequence[float] = (0.3,)) -> Denoiser:
    """One variance: J is a multiple of I and every probe gives the exact trace. Several: diagonal, still exact."""
    mean = torch.linspace(-0.5, 0.5, math.prod(SHAPE)).reshape(SHAPE)
    variance = torch.tensor(list(spread) * (math.prod(SHAPE) // len(spread))).reshape(SHAPE)
    return Denoiser(Optimal(schedule, mean, variance), schedule, SHAPE)


def exact(denoiser: Denoiser, x0: torch.Tensor) -> np.ndarray:
    """Along the flow of a Gaussian (x_t - a mean)/sqrt(a^2 v + s^2) stays what it is, so that
    log p = log N(x_T; 0, I) + sum log sqrt(V_T / V_0)."""
    schedule = denoiser.schedule
    module: Any = denoiser.module
    mean, v = module.mean.double(), module.variance.double()
    t = schedule.t_max
    scale = math.hypot(schedule.a[t], schedule.s[t])
    first = schedule.a[0] ** 2 * v + schedule.s[0] ** 2
    last = (schedule.a[t] ** 2 * v + schedule.s[t] ** 2) / scale**2
    x_T = schedule.a[t] / scale * mean + (last / first).sqrt() * (x0.double() - schedule.a[0] * mean)
    log_n = -0.5 * (x_T**2 + math.log(2 * math.pi))
    return (log_n + 0.5 * (last / first).log()).flatten(1).sum(1).numpy()


def betas(kind: str, prediction: str = "epsilon") -> Schedule:
    return Schedule.from_scheduler(make_scheduler(f"{kind}:{prediction}"))


@pytest.fixture
def x0() -> torch.Tensor:
    return torch.randn(len(IDS), *SHAPE, generator=torch.Generator().manual_seed(1)) * 0.6


def solve(denoiser: Denoiser, x0: torch.Tensor, seeds: int = 1, **settings: Any) -> np.ndarray:
    config = LikelihoodConfig(**({"block": 8, "seeds": seeds} | settings))
    return log_likelihoods(denoiser, x0, IDS[: len(x0)], config, range(seeds))[0]


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("kind", ["linear:1000", "squaredcos_cap_v2:100"])
def test_log_p_of_a_gaussian_is_exact_in_every_parametrisation(kind: str, prediction: str, x0: torch.Tensor) -> None:
    denoiser = gaussian(betas(kind, prediction), (0.05, 0.3, 1.5))
    wanted = exact(denoiser, x0)
    np.testing.assert_allclose(solve(denoiser, x0, solver="rk4", steps=60)[0], wanted, atol=3e-3)
    if prediction == "epsilon":
        np.testing.assert_allclose(solve(denoiser, x0, solver="heun", steps=300)[0], wanted, atol=1e-2)


@pytest.mark.parametrize("kind", ["linear:1000", "squaredcos_cap_v2:100"])
def test_adaptive_steps_find_the_same(kind: str, x0: torch.Tensor) -> None:
    denoiser = gaussian(betas(kind), (0.05, 0.3, 1.5))
    np.testing.assert_allclose(solve(denoiser, x0[:3], solver="adaptive")[0], exact(denoiser, x0[:3]), atol=5e-3)


def test_flow_matching_is_the_same_ode(x0: torch.Tensor) -> None:
    denoiser = gaussian(FlowSchedule.of(1000, 3.0), (0.05, 0.3, 1.5))
    np.testing.assert_allclose(solve(denoiser, x0, solver="rk4", steps=80)[0], exact(denoiser, x0), atol=5e-3)


def test_it_is_the_density_of_the_data_but_for_the_first_noise_and_the_prior(x0: torch.Tensor) -> None:
    denoiser = gaussian(betas("linear:1000"))
    module: Any = denoiser.module
    wanted = torch.distributions.Normal(module.mean, 0.3**0.5).log_prob(x0).flatten(1).sum(1)
    np.testing.assert_allclose(solve(denoiser, x0, steps=150)[0], wanted.numpy(), atol=0.05)


@pytest.mark.parametrize(("solver", "order"), [("heun", 2), ("rk4", 4)])
def test_fixed_steps_converge_at_their_order(solver: str, order: int, x0: torch.Tensor) -> None:
    denoiser = gaussian(betas("linear:1000"), (0.05, 0.3, 1.5))
    errors = [np.abs(solve(denoiser, x0, solver=solver, steps=n) - exact(denoiser, x0)).max() for n in (25, 50)]
    assert 2 ** (order - 0.6) < errors[0] / errors[1] < 2 ** (order + 1.5), errors


def test_the_grid_goes_from_the_first_timestep_to_t_max() -> None:
    schedule = betas("linear:1000")
    points = grid(schedule, 50)
    assert (np.diff(points) < 0).all()
    np.testing.assert_allclose(schedule.time_of(points[[0, -1]]), [0, schedule.t_max], atol=1e-6)


@pytest.mark.parametrize("schedule", [betas("linear:50"), betas("scaled_linear:200"), FlowSchedule.of(80, 2.0)])
def test_between_timesteps_the_schedule_is_interpolated(schedule: Schedule) -> None:
    whole = np.arange(schedule.t_max + 1)
    for exact_, found in zip((schedule.a, schedule.s), schedule.at(whole.astype(float)), strict=True):
        np.testing.assert_allclose(found, exact_[whole], rtol=1e-12)
    np.testing.assert_allclose(schedule.time_of(schedule.log_snr[whole]), whole, atol=1e-7)
    half = np.array([3.25])
    a, s = schedule.at(half)
    np.testing.assert_allclose(schedule.time_of(2 * np.log(a / s)), half, atol=1e-9)
    if schedule.prediction == "epsilon":
        np.testing.assert_allclose(2 * np.log(a), 0.75 * schedule.log_abar[3] + 0.25 * schedule.log_abar[4], rtol=1e-12)


def test_probes_are_named_by_seed_query_and_number_alone() -> None:
    one = Probes(["a", "b", "c"], [0, 1], (1, 3, 5))(7)
    assert one.shape == (2, 3, 1, 3, 5)
    assert set(np.unique(one)) == {-1, 1}
    np.testing.assert_array_equal(Probes(["c", "a"], [1], (1, 3, 5))(7)[0], one[1][[2, 0]])
    assert (Probes(["a"], [0], (1, 3, 5))(8) != one[0, :1]).any()
    many = Probes([str(i) for i in range(400)], [0], (1, 3, 5))(0)
    assert abs(float(many.mean())) < 0.06


def test_the_trace_is_right_on_average_and_models_meet_the_same_probes(
    make_mlp: Callable[..., Denoiser], x0: torch.Tensor
) -> None:
    model = make_mlp(seed=3)
    x = torch.randn(1, *model.shape, generator=torch.Generator().manual_seed(2)) * 0.5
    config = {"solver": "rk4", "steps": 5}
    n = 40
    fresh = log_likelihoods(model, x, ["q"], LikelihoodConfig(block=1, **config), range(n))[0][:, 0]
    fixed = log_likelihoods(model, x, ["q"], LikelihoodConfig(block=1, probes="fixed", **config), range(n))[0][:, 0]
    error = math.hypot(fresh.std() / n**0.5, fixed.std() / n**0.5)
    assert abs(fresh.mean() - fixed.mean()) < 4 * error
    assert fresh.std() < 0.5 * fixed.std()  # what another probe at every point is for
    twin = model.clone()
    again = log_likelihoods(twin, x, ["q"], LikelihoodConfig(block=1, **config), range(3))[0][:, 0]
    assert again.tobytes() == fresh[:3].tobytes()
    # the noise of two models that differ little cancels in their difference
    with torch.no_grad():
        for p in twin.module.parameters():
            p.mul_(1.01)
    other = log_likelihoods(twin, x, ["q"], LikelihoodConfig(block=1, **config), range(30))[0][:, 0]
    assert (other - fresh[:30]).std() < 0.1 * fresh.std()


@pytest.mark.parametrize("solver", ["heun", "rk4"])
def test_neither_blocks_nor_company_change_a_bit(make_mlp: Callable[..., Denoiser], solver: str) -> None:
    model = make_mlp()
    x = torch.randn(6, *model.shape, generator=torch.Generator().manual_seed(2))
    together = solve(model, x, seeds=2, solver=solver, steps=10)
    for i in range(6):
        config = LikelihoodConfig(block=8, solver=solver, steps=10)
        alone = log_likelihoods(model, x[i : i + 1], [IDS[i]], config, [1])[0]
        assert alone[0, 0] == together[1, i]
    other = solve(model, x, seeds=2, solver=solver, steps=10, block=3)
    np.testing.assert_allclose(other, together, atol=1e-3)  # nats


def test_adaptive_solves_do_not_meet(make_mlp: Callable[..., Denoiser]) -> None:
    model = make_mlp()
    x = torch.randn(3, *model.shape, generator=torch.Generator().manual_seed(2))
    together = solve(model, x, seeds=2, solver="adaptive", tolerance=1e-3)
    config = LikelihoodConfig(solver="adaptive", tolerance=1e-3)
    assert log_likelihoods(model, x[1:2], [IDS[1]], config, [1])[0][0, 0] == together[1, 1]


def test_a_conditional_model_is_told(make_mlp: Callable[..., Denoiser]) -> None:
    model = make_mlp(num_class_embeds=3)
    with torch.no_grad():
        model.module.classes.weight.mul_(3)  # type: ignore[union-attr, operator]
    x = torch.randn(2, *model.shape, generator=torch.Generator().manual_seed(2))
    config = LikelihoodConfig(steps=5, block=2)
    values = [
        log_likelihoods(model, x, ["a", "b"], config, [0], model.condition(c))[0] for c in (["0", "1"], ["0", "2"])
    ]
    assert values[0][0, 0] == values[1][0, 0]
    assert values[0][0, 1] != values[1][0, 1]


@pytest.mark.parametrize(
    ("settings", "units"), [({}, 100 * 6 + 5), ({"solver": "rk4", "steps": 10, "seeds": 1}, 10 * 4 * 3)]
)
def test_cost_is_what_is_evaluated(make_mlp: Callable[..., Denoiser], settings: dict[str, Any], units: int) -> None:
    config = LikelihoodConfig(**settings)
    model, forward, backward = make_mlp(), 0, 0
    raw = model.raw

    def counting(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        nonlocal forward
        forward += 1
        out = raw(x, *rest)
        if out.requires_grad:
            out.register_hook(lambda _: _count())
        return out

    def _count() -> None:
        nonlocal backward
        backward += 1

    model.raw = counting  # type: ignore[method-assign]
    log_likelihoods(
        model, torch.zeros(1, *model.shape), ["a"], config.model_copy(update={"block": 1}), range(config.seeds)
    )
    assert evals(config) == units == forward + 2 * backward


def test_what_goes_wrong_is_one_line(make_mlp: Callable[..., Denoiser], monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_mlp()
    with torch.no_grad():
        next(model.module.parameters()).fill_(math.nan)
    with pytest.raises(NotFinite, match="log p of 'a' is not a number"):
        log_likelihoods(model, torch.zeros(1, *model.shape), ["a"], LikelihoodConfig(steps=2), [0])
    there = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == "torchdiffeq":
            raise ImportError(name)
        return there(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(GudaError, match=r"pip install 'guda\[likelihood\]'"):
        log_likelihoods(make_mlp(), torch.zeros(1, *model.shape), ["a"], LikelihoodConfig(solver="adaptive"), [0])
