"""The indexed posterior gives what the brute force gives."""

import pytest
import torch

from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import Schedule
from guda.unlearning.operators import retrack as nearest
from guda.unlearning.operators.retrack import NearestPosterior, Posterior, posterior_over, support

pytest.importorskip("faiss")
SCHEDULE = Schedule.from_scheduler(make_scheduler("squaredcos_cap_v2:1000"))


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """600 images of 3x16x16, half of them nearly equal to another: float32 distances alone would confuse them."""
    g = torch.Generator().manual_seed(0)
    base = torch.nn.functional.interpolate(torch.rand(300, 3, 4, 4, generator=g), size=16, mode="bilinear")
    return torch.cat([base, base + 0.003 * torch.randn(base.shape, generator=g)]) * 2 - 1


def noised(images: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    steps = torch.full((len(images),), t)
    eps = torch.randn(images.shape, generator=torch.Generator().manual_seed(t))
    return SCHEDULE.add_noise(images, eps, steps), steps


@pytest.mark.parametrize("k", [1, 10, 5000])
@pytest.mark.parametrize("t", [1, 100, 600, 950, 999])
def test_indexed_weights_means_and_noise_equal_the_brute_force(images: torch.Tensor, k: int, t: int) -> None:
    x_t, steps = noised(images[::75], t)
    found, brute = NearestPosterior(images, SCHEDULE, k), Posterior(images, SCHEDULE, k)
    one, other = found.log_weights(x_t, steps), brute.log_weights(x_t, steps)
    assert torch.equal(one.isfinite(), other.isfinite())
    assert one.isfinite().sum(1).tolist() == [min(k, 600)] * len(x_t)
    torch.testing.assert_close(one.exp(), other.exp(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.mean(x_t, steps), brute.mean(x_t, steps), rtol=0, atol=2e-6)
    s = float(SCHEDULE.s[t])
    torch.testing.assert_close(found.eps(x_t, steps), brute.eps(x_t, steps), rtol=0, atol=1e-5 / s)


def test_the_support_is_the_same_weights_with_their_images(images: torch.Tensor) -> None:
    x_t, steps = noised(images[:7], 700)
    for posterior in (NearestPosterior(images, SCHEDULE, 5), Posterior(images, SCHEDULE, 5)):
        log_w, rows = support(posterior, x_t, steps)
        w = log_w.exp().float()
        mean = w @ rows if rows.ndim == 2 else (w[:, None] @ rows)[:, 0]
        torch.testing.assert_close(mean.reshape(x_t.shape), posterior.mean(x_t, steps), rtol=0, atol=2e-6)


def test_without_signal_any_k_weigh_the_same() -> None:
    from diffusers import DDPMScheduler

    schedule = Schedule.from_scheduler(DDPMScheduler(rescale_betas_zero_snr=True, prediction_type="v_prediction"))
    found = NearestPosterior(torch.randn(50, 1, 2, 2), schedule, 4)
    log_w, _ = found.nearest(torch.randn(3, 1, 2, 2), torch.full((3,), 999))
    torch.testing.assert_close(log_w.exp(), torch.full((3, 4), 0.25, dtype=torch.float64))


def test_the_index_serves_large_sets_only_where_it_is_installed(
    images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kind(k: int | None) -> type:
        return type(posterior_over(images, SCHEDULE, k))

    assert kind(5) is Posterior  # small
    monkeypatch.setattr(nearest, "LARGE", 599)
    assert kind(5) is NearestPosterior
    assert kind(None) is kind(600) is Posterior  # all of them: one matmul
    monkeypatch.setattr(nearest, "find_spec", lambda name: None)
    assert kind(5) is Posterior


def test_it_finds_the_neighbours_where_almost_no_signal_is_left() -> None:
    """a = 1e-5 at the end of the cosine: x_t/a is so long that float32 distances to it are all alike."""
    schedule = Schedule.from_scheduler(make_scheduler("squaredcos_cap_v2:4000"))
    g = torch.Generator().manual_seed(0)
    many = torch.rand(3000, 3, 16, 16, generator=g) * 2 - 1
    t = torch.full((8,), 3999)
    x_t = schedule.add_noise(many[:8], torch.randn(8, 3, 16, 16, generator=g), t)
    a = float(schedule.a[3999])
    exact = x_t.flatten(1).double() @ many.flatten(1).double().T - a * many.flatten(1).double().square().sum(1) / 2
    found = NearestPosterior(many, schedule, 10).nearest(x_t, t)[1]
    assert found.sort(1).values.tolist() == exact.topk(10).indices.sort(1).values.tolist()
