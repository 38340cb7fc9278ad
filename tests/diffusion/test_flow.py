"""Flow matching: weights against the KL of two Gaussians worked out by hand, conversions against their inverses."""

import mpmath
import numpy as np
import pytest
import torch
from diffusers import (
    EDMEulerScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    LCMScheduler,
    LMSDiscreteScheduler,
    PNDMScheduler,
    TCDScheduler,
    UniPCMultistepScheduler,
)

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.sampling import sample
from guda.diffusion.schedule import PREDICTIONS, FlowSchedule, Schedule
from guda.errors import GudaError
from refusals import refused

SHIFTS = (1.0, 3.0)


def flow(shift: float = 3.0, T: int = 1000) -> Schedule:
    return Schedule.from_scheduler(FlowMatchEulerDiscreteScheduler(num_train_timesteps=T, shift=shift))


@pytest.mark.parametrize("shift", SHIFTS)
def test_noise_levels_and_what_the_network_is_told_are_the_schedulers_own(shift: float) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    schedule = Schedule.from_scheduler(scheduler)
    assert isinstance(schedule, FlowSchedule)
    np.testing.assert_allclose(schedule.s[::-1], scheduler.sigmas.numpy(), rtol=1e-6)
    np.testing.assert_allclose(schedule.a + schedule.s, 1, rtol=1e-15)
    told = schedule.network_time(torch.arange(1000))
    np.testing.assert_allclose(told.flip(0).numpy(), scheduler.timesteps.numpy(), rtol=1e-6)
    assert torch.equal(Schedule.from_scheduler(PNDMScheduler()).network_time(torch.arange(5)), torch.arange(5))


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("t", [1, 2, 50, 500, 900, 990, 998])
def test_a_weight_is_the_kl_of_two_posteriors_of_the_path(shift: float, t: int) -> None:
    """q(x_{t-1} | x_t, x_0) for x_0 and for x0_hat: Gaussians of one variance, by Bayes' rule in 40 digits."""
    schedule = flow(shift)
    with mpmath.workdps(40):
        one = mpmath.mpf(1)
        sigma = [shift * u / (1 + (shift - 1) * u) for u in (one * t / 1000, one * (t + 1) / 1000)]
        (a0, s0), (a1, s1) = ((1 - s, s) for s in sigma)
        ratio = a1 / a0  # x_t = ratio x_{t-1} + noise of variance `step`
        step = s1**2 - ratio**2 * s0**2
        variance = 1 / (1 / s0**2 + ratio**2 / step)
        x0, x0_hat, eps = mpmath.mpf("0.7"), mpmath.mpf("-0.4"), mpmath.mpf("1.3")
        x_t = a1 * x0 + s1 * eps

        def mean(x: mpmath.mpf) -> mpmath.mpf:
            return variance * (a0 * x / s0**2 + ratio * x_t / step)

        kl = (mean(x0) - mean(x0_hat)) ** 2 / (2 * variance)
        eps_hat = (x_t - a1 * x0_hat) / s1
        assert float(kl / (eps - eps_hat) ** 2) == pytest.approx(schedule.weights[t], rel=1e-11)


def test_the_last_step_has_no_signal_and_is_weighed_in_the_x0_form() -> None:
    schedule = flow(3.0, 100)
    assert schedule.zero_snr.tolist() == [False] * 99 + [True]
    assert schedule.weights[-1] == pytest.approx((schedule.a[-2] / schedule.s[-2]) ** 2 / 2, rel=1e-12)
    assert np.isfinite(schedule.weights).all()
    x0, eps, t = torch.randn(1, 1, 2, 2), torch.randn(1, 1, 2, 2), torch.tensor([99])
    torch.testing.assert_close(schedule.to_x0(schedule.target(x0, eps, t), schedule.add_noise(x0, eps, t), t), x0)


@pytest.mark.parametrize("shift", SHIFTS)
def test_t_max_is_the_last_step_of_the_equivalent_path_with_beta_below_a_half(shift: float) -> None:
    schedule = flow(shift)
    snr = (schedule.a / schedule.s) ** 2
    abar = snr / (1 + snr)
    beta = 1 - abar[1:] / abar[:-1]
    np.testing.assert_allclose(schedule.betas[1:], beta, rtol=1e-9, atol=1e-12)
    assert schedule.t_max == 1 + np.flatnonzero(beta < 0.5).max()
    # near s = 1 the SNR is (k/T)^2 / shift^2 with k steps left: (3/4)^2 > 1/2 > (2/3)^2, whatever the shift
    assert schedule.t_max == 996


def test_every_parametrisation_of_one_prediction_converts_to_the_same_eps_and_x0() -> None:
    """A wrong guess of x_0 stays the same guess, said as eps, x_0, v or velocity; errors weigh the same nats."""
    g = torch.Generator().manual_seed(0)
    t = torch.tensor([0, 1, 30, 70, 97])
    x0, guess, eps = (torch.randn(5, 2, 3, 3, generator=g, dtype=torch.float64) for _ in range(3))
    for schedule in [Schedule.from_scheduler(make_scheduler(f"linear:100:{p}")) for p in PREDICTIONS] + [
        flow(3.0, 100)
    ]:
        x_t = schedule.add_noise(x0, eps, t)
        a, s = schedule.coefficients(t, x0)
        eps_guess = (x_t - a * guess) / s
        output = schedule.target(guess, eps_guess, t)
        torch.testing.assert_close(schedule.to_x0(output, x_t, t), guess, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(schedule.to_eps(output, x_t, t), eps_guess, rtol=1e-9, atol=1e-9)
        moved = output + schedule.output_change(x0 - guess, t)
        torch.testing.assert_close(moved, schedule.target(x0, eps, t), rtol=1e-9, atol=1e-9)
        snr = np.exp(schedule.log_snr)
        later = t[1:].numpy()
        by_eps = schedule.weights[later] * (eps - eps_guess).square().flatten(1).sum(1).numpy()[1:]
        by_x0 = (snr[later - 1] - snr[later]) / 2 * (x0 - guess).square().flatten(1).sum(1).numpy()[1:]
        np.testing.assert_allclose(by_eps, by_x0, rtol=1e-8)


def test_flow_target_is_noise_less_picture() -> None:
    x0, eps = torch.randn(2, 1, 2, 2), torch.randn(2, 1, 2, 2)
    assert torch.equal(flow().target(x0, eps, torch.tensor([3, 500])), eps - x0)


# ---- which schedulers ---------------------------------------------------------------------------------------------


def test_digests_of_variance_preserving_schedules_are_what_runs_have_locked() -> None:
    locked = {"linear:1000": "3ff4125d90b6", "squaredcos_cap_v2:1000:v_prediction": "1b0e443a3e6e"}
    for text, expected in locked.items():
        assert Schedule.from_scheduler(make_scheduler(text)).digest == expected
    assert len({flow(1.0).digest, flow(3.0).digest, flow(3.0, 100).digest}) == 3


def test_samplers_of_one_training_schedule_are_one_schedule() -> None:
    options = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    kinds = (PNDMScheduler, EulerDiscreteScheduler, LMSDiscreteScheduler, UniPCMultistepScheduler)
    assert len({Schedule.from_scheduler(kind(**options)).digest for kind in kinds}) == 1


@pytest.mark.parametrize(
    "scheduler",
    [
        EDMEulerScheduler(),
        FlowMatchHeunDiscreteScheduler(),
        LCMScheduler(),
        TCDScheduler(),
        EulerDiscreteScheduler(timestep_type="continuous", prediction_type="v_prediction"),
        UniPCMultistepScheduler(use_flow_sigmas=True),
    ],
    ids=lambda s: type(s).__name__,
)
def test_other_schedulers_are_refused_by_name_with_the_supported_ones(scheduler: object) -> None:
    with pytest.raises(GudaError, match=rf"{type(scheduler).__name__}.*DDPM.*FlowMatchEulerDiscrete"):
        Schedule.from_scheduler(scheduler)


@pytest.mark.parametrize("field", ["use_dynamic_shifting", "invert_sigmas"])
def test_noise_levels_that_depend_on_more_than_t_are_refused(field: str) -> None:
    with pytest.raises(GudaError, match=rf"{field}.*fixed shift"):
        Schedule.from_scheduler(FlowMatchEulerDiscreteScheduler(**{field: True}))


def test_flow_models_are_not_sampled_with_the_ancestral_sampler() -> None:
    flow_model = Denoiser.from_module(torch.nn.Identity(), FlowMatchEulerDiscreteScheduler(), (1, 2, 2))
    with refused("flow-sampling-unsupported"):
        sample(flow_model, [0], seed=0)


def test_impossible_flows_are_refused() -> None:
    for T, shift in ((1, 1.0), (10, 0.0), (10, float("nan"))):
        with refused("flow-schedule-invalid"):
            FlowSchedule.of(T, shift)
