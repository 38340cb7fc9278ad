"""The exact posterior over a finite set of images, against brute force in float64."""

import pytest
import torch

from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import Schedule
from guda.unlearning.operators import retrack as module
from guda.unlearning.operators.retrack import Posterior

SCHEDULE = Schedule.from_scheduler(make_scheduler("squaredcos_cap_v2:1000"))
SHAPE = (3, 32, 32)  # 3,072 dims


def brute(x: torch.Tensor, x_t: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(squared distances / 2 s^2, log weights) by the definition, float64 [B, R]."""
    flat, data = x_t.double().flatten(1), x.double().flatten(1)
    exponent = []
    for row, step in zip(flat, t.tolist(), strict=True):
        a, s = SCHEDULE.a[step], SCHEDULE.s[step]
        exponent.append(((row - a * data) ** 2).sum(1) / (2 * s**2))
    stacked = torch.stack(exponent)
    return stacked, (-stacked).log_softmax(1)


@pytest.fixture(scope="module")
def retain() -> torch.Tensor:
    """Smooth images with near neighbours, as real ones have: some pairs differ by very little."""
    g = torch.Generator().manual_seed(0)
    base = torch.nn.functional.interpolate(torch.rand(100, 3, 4, 4, generator=g), size=32, mode="bilinear")
    near = base + 0.003 * torch.randn(100, *SHAPE, generator=g)
    return torch.cat([base, near]).clamp(0, 1) * 2 - 1


def noised(images: torch.Tensor, t: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    steps = torch.full((len(images),), t)
    eps = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return SCHEDULE.add_noise(images, eps, steps), steps


@pytest.mark.parametrize("t", [1, 20, 200, 600, 900, 998])
def test_weights_and_mean_equal_brute_force(retain: torch.Tensor, t: int) -> None:
    x_t, steps = noised(retain[:6], t)
    posterior = Posterior(retain, SCHEDULE)
    log_w = posterior.log_weights(x_t, steps)
    _, exact = brute(retain, x_t, steps)
    torch.testing.assert_close(log_w.exp(), exact.exp(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(log_w.exp().sum(1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-12)
    heavy = exact > -10
    torch.testing.assert_close(log_w[heavy], exact[heavy], rtol=0, atol=2e-3 if t > 20 else 1e-6)
    mean = (exact.exp() @ retain.double().flatten(1)).reshape(x_t.shape)
    torch.testing.assert_close(posterior.mean(x_t, steps).double(), mean, rtol=0, atol=2e-6)
    a, s = SCHEDULE.coefficients(steps, x_t.double())
    eps = (x_t.double() - a * mean) / s
    torch.testing.assert_close(posterior.eps(x_t, steps).double(), eps, rtol=0, atol=3e-6 / float(s[0]))


@pytest.mark.parametrize("t", [20, 600, 900])
def test_a_bare_exp_would_underflow_to_zero_for_every_image(retain: torch.Tensor, t: int) -> None:
    """Exponents are near -D/2 = -1536 even for the image that was noised: the target would silently become 0."""
    x_t, steps = noised(retain[:4], t)
    exponent, _ = brute(retain, x_t, steps)
    assert float(exponent.min()) > 1200
    assert float((-exponent).exp().sum()) == 0.0
    weights = Posterior(retain, SCHEDULE).log_weights(x_t, steps).exp()
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))


def test_at_low_noise_the_float32_expansion_alone_would_be_wrong(
    retain: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    x_t, steps = noised(retain[:20], 1)
    _, exact = brute(retain, x_t, steps)
    top2 = exact.topk(2, dim=1).indices

    def error() -> float:
        found = Posterior(retain, SCHEDULE).log_weights(x_t, steps)
        return float((found.gather(1, top2) - exact.gather(1, top2)).abs().max())

    assert error() < 1e-6
    monkeypatch.setattr(module, "REFINED", 1)
    assert error() > 1e-3


@pytest.mark.parametrize("chunk", [1, 7, 64, 200, 1000])
def test_chunking_changes_nothing(retain: torch.Tensor, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x_t, steps = noised(retain[:5], 700)
    reference = Posterior(retain, SCHEDULE).eps(x_t, steps)
    monkeypatch.setattr(module, "CHUNK", chunk)
    torch.testing.assert_close(Posterior(retain, SCHEDULE).eps(x_t, steps), reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", [1, 10, 100])
@pytest.mark.parametrize("t", [20, 600, 900])
def test_k_nearest_are_the_brute_force_nearest_to_x_t(retain: torch.Tensor, k: int, t: int) -> None:
    x_t, steps = noised(retain[:6], t)
    found = Posterior(retain, SCHEDULE, k_nearest=k).log_weights(x_t, steps)
    scaled = x_t.double().flatten(1) / SCHEDULE.a[t]
    distance = torch.cdist(scaled, retain.double().flatten(1), compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distance.topk(k, dim=1, largest=False).indices
    for row, kept in zip(found, nearest, strict=True):
        assert sorted(torch.isfinite(row).nonzero().flatten().tolist()) == sorted(kept.tolist())
    torch.testing.assert_close(found.exp().sum(1), torch.ones(6, dtype=torch.float64))
    _, exact = brute(retain, x_t, steps)
    torch.testing.assert_close(found.gather(1, nearest), exact.gather(1, nearest).log_softmax(1), rtol=0, atol=1e-6)


def test_at_high_noise_neighbours_of_the_clean_image_are_not_neighbours_of_x_t(retain: torch.Tensor) -> None:
    """The K nearest neighbours are those of x_t itself, not of the clean image."""
    x_t, steps = noised(retain[:10], 900)
    found = torch.isfinite(Posterior(retain, SCHEDULE, k_nearest=10).log_weights(x_t, steps))
    flat = retain.flatten(1)
    clean = torch.cdist(flat[:10], flat).topk(10, largest=False).indices
    kept = found.gather(1, clean).double().mean()
    assert kept < 0.6


def test_k_beyond_the_set_is_the_whole_set(retain: torch.Tensor) -> None:
    x_t, steps = noised(retain[:3], 800)
    whole = Posterior(retain, SCHEDULE).log_weights(x_t, steps)
    for k in (len(retain), 10**6):
        found = Posterior(retain, SCHEDULE, k_nearest=k).log_weights(x_t, steps)
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-4)  # `whole` refines 64 of them only


def test_one_image_is_its_own_posterior_and_the_mean_of_two_is_a_sigmoid() -> None:
    one = torch.full((1, 1, 2, 2), 0.3)
    x_t, t = torch.randn(3, 1, 2, 2), torch.tensor([5, 500, 990])
    torch.testing.assert_close(Posterior(one, SCHEDULE).mean(x_t, t), one.expand(3, 1, 2, 2))
    two = torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1)  # then m(x) = tanh(a x / s^2)
    x = torch.tensor([-1.0, 0.0, 0.4]).reshape(3, 1, 1, 1)
    steps = torch.tensor([700, 700, 700])
    expected = torch.tanh(SCHEDULE.a[700] * x.double() / SCHEDULE.s[700] ** 2)
    torch.testing.assert_close(Posterior(two, SCHEDULE).mean(x, steps).double(), expected, rtol=1e-6, atol=1e-7)


def test_without_signal_every_image_weighs_the_same() -> None:
    from diffusers import DDPMScheduler

    schedule = Schedule.from_scheduler(DDPMScheduler(rescale_betas_zero_snr=True, prediction_type="v_prediction"))
    images = torch.randn(5, 1, 2, 2)
    found = Posterior(images, schedule).log_weights(torch.randn(2, 1, 2, 2), torch.tensor([999, 999])).exp()
    torch.testing.assert_close(found, torch.full((2, 5), 0.2, dtype=torch.float64))
