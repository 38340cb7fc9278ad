"""The ELBO against closed forms: Gaussian data, whose optimal denoiser and whose every KL term are known.

For x_0 ~ N(0, v I) the optimal network says eps_hat(x_t) = c_t x_t, c_t = s_t/(a_t^2 v + s_t^2), so for one query x_0
    E ||eps - eps_hat||^2 = (1 - c_t s_t)^2 D + (c_t a_t)^2 |x_0|^2.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import PREDICTIONS, Schedule
from guda.scoring.estimate import difference
from guda.scoring.plan import Plan, paper_grid, stratified
from guda.scoring.terms import Draws, kl, make_draws, squared_errors
from refusals import refused

SHAPE = (1, 2, 2)
D = 4


class Gaussian(torch.nn.Module):
    """The optimal denoiser of N(0, v I), in any parametrisation."""

    def __init__(self, schedule: Schedule, v: float) -> None:
        super().__init__()
        self.schedule, self.v = schedule, v
        self.sizes: list[int] = []

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        a, s = self.schedule.coefficients(t, x)
        scale = a**2 * self.v + s**2
        eps, x0 = s * x / scale, a * self.v * x / scale
        return {"epsilon": eps, "sample": x0, "v_prediction": a * eps - s * x0}[self.schedule.prediction]


def gaussian(text: str, v: float) -> Denoiser:
    scheduler = make_scheduler(text)
    return Denoiser.from_module(Gaussian(Schedule.from_scheduler(scheduler), v), scheduler, SHAPE)


def expected_errors(schedule: Schedule, v: float, x0: torch.Tensor) -> np.ndarray:
    """E ||eps - eps_hat||^2 for every t, [T]."""
    a, s = schedule.a, schedule.s
    c = s / (a**2 * v + s**2)
    return (1 - c * s) ** 2 * D + (c * a) ** 2 * float(x0.double().square().sum())


def contributions(denoiser: Denoiser, x0: torch.Tensor, ids: list[str], plan: Plan, rounds: int) -> np.ndarray:
    """[R, Q, S] nats, as a run computes them."""
    out = []
    for r in range(rounds):
        draws = make_draws(denoiser, x0, ids, plan, r)
        out.append(kl(plan, denoiser.schedule.weights, draws.t, squared_errors(denoiser, draws, 512)))
    return np.stack(out)


@pytest.fixture(scope="module")
def x0() -> torch.Tensor:
    return torch.tensor([0.9, -0.4, 0.3, 0.1]).reshape(1, *SHAPE)


@pytest.mark.parametrize("kind", ["linear:1000", "squaredcos_cap_v2:1000"])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_estimator_is_unbiased_for_the_exact_sum(kind: str, prediction: str, x0: torch.Tensor) -> None:
    """400 independent replicates (ids) of one query: their mean is the analytic sum within its standard error."""
    denoiser = gaussian(f"{kind}:{prediction}", v=0.3)
    schedule, n = denoiser.schedule, 400
    found = contributions(denoiser, x0.expand(n, *SHAPE), [f"q{i}" for i in range(n)], stratified(schedule, 20, 0), 2)
    totals = found.mean(axis=0).sum(axis=-1)
    t = slice(1, schedule.t_max + 1)
    exact = float((schedule.weights[t] * expected_errors(schedule, 0.3, x0)[t]).sum())
    assert abs(totals.mean() - exact) < 4 * totals.std(ddof=1) / np.sqrt(n)
    assert totals.std(ddof=1) / np.sqrt(n) < 0.02 * exact  # the bound above has teeth


def test_each_timesteps_term_has_its_closed_form(x0: torch.Tensor) -> None:
    denoiser, n = gaussian("linear:1000", v=0.3), 3000
    plan = Plan((), 0, (1, 30, 300, 900))
    draws = make_draws(denoiser, x0.expand(n, *SHAPE), [f"q{i}" for i in range(n)], plan, 0)
    errors = squared_errors(denoiser, draws, 512)
    exact = expected_errors(denoiser.schedule, 0.3, x0)[list(plan.grid)]
    assert (abs(errors.mean(axis=0) - exact) < 4.5 * errors.std(axis=0) / np.sqrt(n)).all()


@pytest.mark.parametrize("kind", ["linear:1000", "squaredcos_cap_v2:1000"])
def test_the_score_of_two_gaussians_is_the_closed_form_and_its_intervals_cover_it(kind: str, x0: torch.Tensor) -> None:
    full, without = gaussian(kind, v=0.3), gaussian(kind, v=0.6)
    schedule, n = full.schedule, 600
    plan, ids, x = stratified(schedule, 20, 0), [f"q{i}" for i in range(n)], x0.expand(n, *SHAPE)
    found = difference(contributions(without, x, ids, plan, 3) - contributions(full, x, ids, plan, 3))
    t = slice(1, schedule.t_max + 1)
    gap = expected_errors(schedule, 0.6, x0) - expected_errors(schedule, 0.3, x0)
    exact = float((schedule.weights[t] * gap[t]).sum())
    assert abs(found.score.mean() - exact) < 4 * found.score.std(ddof=1) / np.sqrt(n)
    assert found.stderr is not None
    assert found.lo is not None
    assert found.hi is not None
    assert (found.stderr**2).mean() == pytest.approx(found.score.var(ddof=1), rel=0.25)
    assert ((found.lo <= exact) & (exact <= found.hi)).mean() > 0.90


def test_the_score_tracks_the_difference_of_log_likelihoods(x0: torch.Tensor) -> None:
    """With many steps the bound is tight: the analytic score is E log p_full - E log p_without at the first step."""
    schedule = Schedule.from_scheduler(make_scheduler("linear:1000"))
    t = slice(1, schedule.t_max + 1)
    for x, sign in ((x0, 1), (3 * x0, -1)):
        gap = expected_errors(schedule, 0.6, x) - expected_errors(schedule, 0.3, x)
        score = float((schedule.weights[t] * gap[t]).sum())
        a, s = schedule.a[0], schedule.s[0]
        second_moment = a**2 * float(x.double().square().sum()) + D * s**2
        var = {v: a**2 * v + s**2 for v in (0.3, 0.6)}
        log_p = {v: -D / 2 * np.log(2 * np.pi * var[v]) - second_moment / (2 * var[v]) for v in var}
        assert score == pytest.approx(log_p[0.3] - log_p[0.6], rel=0.03, abs=0.01)
        assert np.sign(score) == sign  # a small picture is better explained by the narrow Gaussian


def test_a_perfect_network_has_no_error() -> None:
    """One training image: the optimal denoiser knows eps exactly, so every term of that image is zero."""

    class One(torch.nn.Module):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return torch.full_like(x, 0.25)

    denoiser = Denoiser.from_module(One(), make_scheduler("linear:100:sample"), SHAPE)
    x0 = torch.full((2, *SHAPE), 0.25)
    draws = make_draws(denoiser, x0, ["a", "b"], stratified(denoiser.schedule, 10, 0), 0)
    assert squared_errors(denoiser, draws, 7).max() < 1e-7


@pytest.mark.parametrize("prediction", ["v_prediction", "sample"])
def test_zero_terminal_snr_is_scored_in_x0(prediction: str, x0: torch.Tensor) -> None:
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler(num_train_timesteps=100, rescale_betas_zero_snr=True, prediction_type=prediction)
    schedule = Schedule.from_scheduler(scheduler)
    denoiser = Denoiser.from_module(Gaussian(schedule, 0.3), scheduler, SHAPE)
    plan = Plan((), 0, (50, 99))
    errors = squared_errors(denoiser, make_draws(denoiser, x0, ["q"], plan, 0), 4)
    assert errors[0, 1] == pytest.approx(float(x0.square().sum()), rel=1e-5)  # without signal, x0_hat = 0
    assert np.isfinite(kl(plan, schedule.weights, np.array([[50, 99]]), errors)).all()


def test_a_network_that_returns_nan_is_refused_with_the_timestep(x0: torch.Tensor) -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return torch.where(t[:, None, None, None] == 40, torch.nan, x)

    denoiser = Denoiser.from_module(Broken(), make_scheduler("linear:100"), SHAPE)
    draws = make_draws(denoiser, x0, ["q"], paper_grid(denoiser.schedule, 10, 0), 0)
    with refused("network-not-finite", match="t = 40"):
        squared_errors(denoiser, draws, 4)


# ---- invariance ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def queries() -> Queries:
    images = np.random.default_rng(0).integers(0, 256, (8, 1, 4, 4), dtype=np.uint8)
    return Queries.from_arrays(images, [f"q{i}" for i in range(8)], layout="NCHW")


def terms(denoiser: Denoiser, queries: Queries, plan: Plan, block: int) -> dict[str, bytes]:
    draws = make_draws(denoiser, denoiser.encode(queries.images), queries.ids, plan, 0)
    errors = squared_errors(denoiser, draws, block)
    return {name: row.tobytes() for name, row in zip(queries.ids, errors, strict=True)}


def test_x_t_is_a_bitwise_function_of_its_keys(make_mlp: Callable[..., Denoiser], queries: Queries) -> None:
    """Not of the other queries, their order, nor of which model asked."""
    denoiser, other = make_mlp("squaredcos_cap_v2:1000"), make_mlp("squaredcos_cap_v2:1000", seed=5)
    plan = stratified(denoiser.schedule, 6, 0)

    def inputs(asked: Denoiser, part: Queries) -> dict[tuple[str, int], tuple[Any, ...]]:
        draws = make_draws(asked, asked.encode(part.images), part.ids, plan, 1)
        return {
            (name, i): (int(draws.t[q, i]), *(x[q, i].numpy().tobytes() for x in (draws.eps, draws.x_t)))
            for q, name in enumerate(part.ids)
            for i in range(6)
        }  # fmt: skip

    whole = inputs(denoiser, queries)
    parts: dict[tuple[str, int], Any] = {}
    for size in (1, 3):
        for shard in reversed(queries.shards(size)):
            parts |= inputs(other, shard)
        assert parts == whole


def test_terms_are_byte_identical_whatever_the_order_and_the_partition_into_equal_blocks(
    make_mlp: Callable[..., Denoiser], queries: Queries
) -> None:
    denoiser = make_mlp("squaredcos_cap_v2:1000")
    plan = stratified(denoiser.schedule, 6, 0)
    whole = terms(denoiser, queries, plan, block=12)  # two queries a block
    mixed = Queries(queries.ids[::-1], queries.images[::-1])
    assert terms(denoiser, mixed, plan, block=12) == whole
    for size in (2, 4, 6):
        pieces: dict[str, bytes] = {}
        for shard in reversed(queries.shards(size)):
            pieces |= terms(denoiser, shard, plan, block=12)
        assert pieces == whole


@pytest.mark.parametrize("net", ["mlp", "unet"])
def test_other_block_sizes_agree_to_1e4(
    net: str, make_mlp: Callable[..., Denoiser], make_unet: Callable[..., Any], queries: Queries
) -> None:
    denoiser = (
        make_mlp("linear:1000")
        if net == "mlp"
        else Denoiser.from_module(make_unet(sample_size=4), make_scheduler("linear:1000"))
    )
    draws = make_draws(denoiser, denoiser.encode(queries.images), queries.ids, stratified(denoiser.schedule, 6, 0), 0)
    reference = squared_errors(denoiser, draws, 48)
    for block in (1, 5, 7, 13, 64):
        np.testing.assert_allclose(squared_errors(denoiser, draws, block), reference, rtol=1e-4)


def test_networks_see_blocks_of_one_size_and_padding_does_not_leak(x0: torch.Tensor) -> None:
    """An elementwise network makes every block size bitwise equal, so any leak of padding would show."""
    denoiser = gaussian("linear:100", 0.3)
    plan, ids = stratified(denoiser.schedule, 5, 0), [f"q{i}" for i in range(7)]
    x = torch.randn(7, *SHAPE, generator=torch.Generator().manual_seed(0))
    draws = make_draws(denoiser, x, ids, plan, 0)
    module: Any = denoiser.module
    reference = squared_errors(denoiser, draws, 1)
    for block in (2, 8, 32, 100):
        module.sizes.clear()
        assert squared_errors(denoiser, draws, block).tobytes() == reference.tobytes()
        assert module.sizes == [block] * -(-35 // block)
    alone = make_draws(denoiser, x[2:3], ids[2:3], plan, 0)
    assert squared_errors(denoiser, alone, 32).tobytes() == reference[2].tobytes()


def test_every_query_is_scored_under_its_own_condition(make_unet: Callable[..., Any]) -> None:
    denoiser = Denoiser.from_module(make_unet(num_class_embeds=3), make_scheduler("linear:100"))
    x0 = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    plan = stratified(denoiser.schedule, 4, 0)
    cond = denoiser.condition(["0", "2", "1"])
    assert cond is not None
    together = squared_errors(denoiser, make_draws(denoiser, x0, ["a", "b", "c"], plan, 0), 5, cond)
    for q, name in enumerate("abc"):
        alone = make_draws(denoiser, x0[q : q + 1], [name], plan, 0)
        np.testing.assert_allclose(squared_errors(denoiser, alone, 5, cond[q : q + 1])[0], together[q], rtol=1e-4)
    swapped = squared_errors(
        denoiser, make_draws(denoiser, x0, ["a", "b", "c"], plan, 0), 5, cond[torch.tensor([1, 0, 2])]
    )
    assert (abs(swapped[:2] / together[:2] - 1) > 1e-4).any()


def test_errors_are_summed_in_float64() -> None:
    """3,072 squares of 1 + 2^-13 or so: a float32 running sum would be off in the 5th digit."""
    denoiser = Denoiser.from_module(torch.nn.Identity(), make_scheduler("linear:10"), (3, 32, 32))
    denoiser.module.forward = lambda x, t: torch.zeros_like(x)  # type: ignore[method-assign]
    eps = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    draws = Draws(np.array([[5]]), eps[None, None], eps[None, None], torch.zeros(1, 3, 32, 32))
    assert squared_errors(denoiser, draws, 1)[0, 0] == float((eps.double() ** 2).sum())
