"""Weights and conversions of the noise schedule, against 50-digit arithmetic and against their own inverses."""

import mpmath
import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import PREDICTIONS, Schedule
from refusals import refused

KINDS = ("linear:1000", "scaled_linear:1000", "squaredcos_cap_v2:1000", "squaredcos_cap_v2:4000", "sigmoid:1000")


def make(text: str) -> Schedule:
    return Schedule.from_scheduler(make_scheduler(text))


def zero_terminal(prediction: str) -> Schedule:
    return Schedule.from_scheduler(
        DDPMScheduler(num_train_timesteps=100, rescale_betas_zero_snr=True, prediction_type=prediction)
    )


def exact_weights(betas: np.ndarray) -> tuple[list[mpmath.mpf], list[mpmath.mpf], list[mpmath.mpf]]:
    """(abar, w by the beta form, w by the SNR form) in 50 digits."""
    with mpmath.workdps(50):
        beta = [mpmath.mpf(float(b)) for b in betas]
        abar = [1 - beta[0]]
        for b in beta[1:]:
            abar.append(abar[-1] * (1 - b))
        snr = [x / (1 - x) for x in abar]
        by_beta = [mpmath.mpf(0)] + [
            beta[t] / (2 * (1 - beta[t]) * (1 - abar[t - 1])) for t in range(1, len(beta))
        ]  # fmt: skip
        by_snr = [mpmath.mpf(0)] + [(snr[t - 1] / snr[t] - 1) / 2 for t in range(1, len(beta))]
        return abar, by_beta, by_snr


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_the_beta_form_and_the_snr_form_in_50_digits(kind: str) -> None:
    schedule = make(kind)
    abar, by_beta, by_snr = exact_weights(schedule.betas)
    np.testing.assert_allclose(np.array([float(x) for x in by_beta]), [float(x) for x in by_snr], rtol=1e-14)
    np.testing.assert_allclose(schedule.weights, [float(x) for x in by_beta], rtol=1e-10)
    np.testing.assert_allclose(schedule.abar, [float(x) for x in abar], rtol=1e-11)
    np.testing.assert_allclose(schedule.s**2, [float(1 - x) for x in abar], rtol=1e-11)
    assert schedule.weights[0] == 0  # no t = 0 term


def test_float32_abar_would_be_visibly_wrong_at_low_noise() -> None:
    """Why the schedule goes through log1p and expm1: the scheduler's own fp32 abar loses digits of 1 - abar."""
    scheduler = make_scheduler("squaredcos_cap_v2:4000")
    schedule = Schedule.from_scheduler(scheduler)
    abar, _, _ = exact_weights(schedule.betas[:3])
    exact = float(1 - abar[1])
    rough = 1 - float(scheduler.alphas_cumprod[1])
    assert abs(rough - exact) / exact > 1e-4
    assert schedule.s[1] ** 2 == pytest.approx(exact, rel=1e-12)


@given(st.lists(st.floats(1e-6, 0.9), min_size=2, max_size=40))
@settings(max_examples=60, deadline=None)
def test_signal_and_noise_share_unit_variance_and_weights_telescope(betas: list[float]) -> None:
    schedule = Schedule(np.array(betas), "epsilon")
    np.testing.assert_allclose(schedule.a**2 + schedule.s**2, 1, rtol=1e-12)
    assert (np.diff(schedule.log_snr) < 0).all()
    # prod (1 + 2 w_t) = SNR_0 / SNR_{T-1}
    np.testing.assert_allclose(
        np.log1p(2 * schedule.weights[1:]).sum(), schedule.log_snr[0] - schedule.log_snr[-1], rtol=1e-9
    )


@pytest.mark.parametrize(
    ("kind", "t_max"),
    [
        ("linear:1000", 999),
        ("scaled_linear:1000", 999),
        ("squaredcos_cap_v2:1000", 996),
        ("squaredcos_cap_v2:4000", 3996),
    ],
)
def test_t_max_is_the_last_step_with_beta_below_a_half(kind: str, t_max: int) -> None:
    schedule = make(kind)
    assert schedule.t_max == t_max
    assert schedule.betas[t_max] < 0.5
    assert (schedule.betas[t_max + 1 :] >= 0.5).all()


@pytest.mark.parametrize("steps", [1000, 4000])
def test_the_last_cosine_step_would_hold_97_percent_of_all_weight(steps: int) -> None:
    schedule = make(f"squaredcos_cap_v2:{steps}")
    assert schedule.weights[-1] / schedule.weights.sum() == pytest.approx(0.97, abs=0.01)
    kept = schedule.weights[1 : schedule.t_max + 1]
    assert kept.max() / kept.sum() < 0.2


def test_timesteps_below_10_hold_10_to_22_percent_of_the_weight() -> None:
    for kind in KINDS:
        schedule = make(kind)
        share = schedule.weights[1:10].sum() / schedule.weights[1 : schedule.t_max + 1].sum()
        assert 0.10 < share < 0.22


def test_a_schedule_without_a_small_beta_is_refused_in_one_line() -> None:
    with refused("schedule-too-short"):
        _ = make("squaredcos_cap_v2:2").t_max


# ---- conversions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("kind", ["linear:1000", "squaredcos_cap_v2:1000"])
def test_a_perfect_predictor_of_any_type_gives_back_eps_and_x0(kind: str, prediction: str) -> None:
    schedule = make(f"{kind}:{prediction}")
    g = torch.Generator().manual_seed(0)
    t = torch.tensor([0, 1, 10, 400, 900, 990])
    x0, eps = (torch.randn(6, 2, 3, 3, generator=g, dtype=torch.float64) for _ in range(2))
    x_t = schedule.add_noise(x0, eps, t)
    a, s = schedule.coefficients(t, x0)
    torch.testing.assert_close(x_t, a * x0 + s * eps, rtol=0, atol=0)
    output = schedule.target(x0, eps, t)
    torch.testing.assert_close(schedule.to_eps(output, x_t, t), eps, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(schedule.to_x0(output, x_t, t), x0, rtol=1e-9, atol=1e-9)


@given(st.sampled_from(PREDICTIONS), st.integers(0, 99), st.floats(-3, 3), st.floats(-3, 3))
@settings(max_examples=60, deadline=None)
def test_eps_and_x0_of_any_output_explain_the_same_x_t(prediction: str, t: int, output: float, x: float) -> None:
    """x_t = a x0_hat + s eps_hat, whatever the network said: the two errors are two sides of one."""
    schedule = make(f"linear:100:{prediction}")
    out, x_t = (torch.full((1, 1, 1, 1), v, dtype=torch.float64) for v in (output, x))
    step = torch.tensor([t])
    a, s = schedule.coefficients(step, x_t)
    back = a * schedule.to_x0(out, x_t, step) + s * schedule.to_eps(out, x_t, step)
    torch.testing.assert_close(back, x_t, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_eps_form_and_the_x0_form_of_the_kl_agree(prediction: str) -> None:
    schedule = make(f"squaredcos_cap_v2:100:{prediction}")
    g = torch.Generator().manual_seed(1)
    t = torch.arange(1, 100)
    x0, eps, out = (torch.randn(99, 1, 2, 2, generator=g, dtype=torch.float64) for _ in range(3))
    x_t = schedule.add_noise(x0, eps, t)
    eps_error = (schedule.to_eps(out, x_t, t) - eps).square().flatten(1).sum(1).numpy()
    x0_error = (schedule.to_x0(out, x_t, t) - x0).square().flatten(1).sum(1).numpy()
    snr = np.exp(schedule.log_snr)
    np.testing.assert_allclose(schedule.weights[1:] * eps_error, (snr[:-1] - snr[1:]) / 2 * x0_error, rtol=1e-8)


@pytest.mark.parametrize("prediction", ["v_prediction", "sample"])
def test_zero_terminal_snr_is_weighed_in_the_x0_form(prediction: str) -> None:
    schedule = zero_terminal(prediction)
    assert schedule.zero_snr.tolist() == [False] * 99 + [True]
    assert schedule.a[-1] == 0
    assert schedule.s[-1] == 1
    assert np.isfinite(schedule.weights).all()
    assert schedule.weights[-1] == pytest.approx(np.exp(schedule.log_snr[-2]) / 2, rel=1e-12)
    t, x0 = torch.tensor([99]), torch.randn(1, 1, 2, 2)
    eps = torch.randn(1, 1, 2, 2)
    torch.testing.assert_close(schedule.to_x0(schedule.target(x0, eps, t), schedule.add_noise(x0, eps, t), t), x0)


def test_an_eps_network_is_refused_where_there_is_no_signal() -> None:
    schedule, x = zero_terminal("epsilon"), torch.zeros(2, 1, 2, 2)
    with refused("timestep-without-signal", match="SNR = 0"):
        schedule.to_x0(x, x, torch.tensor([3, 99]))
    assert torch.isfinite(schedule.to_x0(x, x, torch.tensor([3, 98]))).all()


# ---- what is refused ----------------------------------------------------------------------------------------------


def test_unknown_prediction_type_is_refused_by_name() -> None:
    with refused("prediction-unknown", match=r"'flow_velocity'.*epsilon, v_prediction, sample"):
        make("linear:100:flow_velocity")


@pytest.mark.parametrize("kind", ["learned", "learned_range"])
def test_learned_variance_is_refused(kind: str) -> None:
    with refused("scheduler-variance-learned"):
        Schedule.from_scheduler(DDPMScheduler(variance_type=kind))


@pytest.mark.parametrize("betas", [[0.1], [0.1, 0.0], [0.1, 1.1], [0.1, np.nan], [[0.1, 0.2]]])
def test_impossible_betas_are_refused(betas: list[float]) -> None:
    with refused("betas-invalid"):
        Schedule(np.array(betas), "epsilon")


def test_digest_names_betas_and_prediction_whatever_scheduler_brought_them() -> None:
    assert make("linear:1000").digest == Schedule.from_scheduler(DDIMScheduler(beta_schedule="linear")).digest
    assert len({make(k).digest for k in (*KINDS, "linear:1000:v_prediction")}) == len(KINDS) + 1
