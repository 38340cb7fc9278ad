"""Posteriors over patches: brute force place by place, the whole image as a limit, windows that are known."""

import numpy as np
import pytest
import torch

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import Schedule
from guda.unlearning.density import ImageDensity
from guda.unlearning.patches import LEVELS, PatchDensity, candidates, fit_windows, halves_at, window_sums
from guda.unlearning.rule import RuleConfig, fit_rule, make_density

SCHEDULE = Schedule.from_scheduler(make_scheduler("squaredcos_cap_v2:1000"))


def images(n: int = 18, side: int = 5, channels: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 3
    return 0.4 * torch.randn(n, channels, side, side, generator=g) + 0.2 * (labels[:, None, None, None] - 1), labels


def noised(x: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.full((len(x),), t)
    return SCHEDULE.add_noise(x, torch.randn(x.shape, generator=torch.Generator().manual_seed(3)), at), at


def density(x: torch.Tensor, labels: torch.Tensor, half: int, h: float = 0.0, **further: torch.Tensor) -> PatchDensity:
    return PatchDensity(x, labels, SCHEDULE, np.full(SCHEDULE.T, half), h, **further)


def brute_mean(x: torch.Tensor, a: float, v: float, y: torch.Tensor, half: int) -> torch.Tensor:
    """Sum over images of weight times centre pixel, one place after the other."""
    out, side = torch.empty_like(x, dtype=torch.float64), x.shape[-1]
    for r in range(side):
        for c in range(side):
            rows, columns = slice(max(0, r - half), r + half + 1), slice(max(0, c - half), c + half + 1)
            apart = (x[:, rows, columns].double() - a * y[:, :, rows, columns].double()).square().sum(dim=(1, 2, 3))
            out[:, r, c] = torch.softmax(-apart / (2 * v), 0) @ y[:, :, r, c].double()
    return out


@pytest.mark.parametrize("t", [1, 40, 300, 900])
@pytest.mark.parametrize("half", [0, 1, 2, 4])
@pytest.mark.parametrize("h", [0.0, 0.3])
def test_every_groups_change_equals_brute_force(t: int, half: int, h: float) -> None:
    y, labels = images()
    x_t, at = noised(y[:3], t)
    found = density(y, labels, half, h).changes(x_t, at)
    a, s = float(SCHEDULE.a[t]), float(SCHEDULE.s[t])
    v = s**2 + a**2 * h**2
    for b, x in enumerate(x_t):
        for k in range(3):
            expected = brute_mean(x, a, v, y[labels != k], half) - brute_mean(x, a, v, y, half)
            torch.testing.assert_close(found[k, b].double(), expected * s**2 / v, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("t", [20, 400])
def test_a_window_as_large_as_the_image_is_the_density_of_images(t: int) -> None:
    y, labels = images()
    x_t, at = noised(y[:4], t)
    whole = ImageDensity(y, labels, SCHEDULE, 0.2).changes(x_t, at)
    torch.testing.assert_close(density(y, labels, 99, 0.2).changes(x_t, at), whole, rtol=1e-3, atol=2e-5)


def test_groups_that_share_images_take_them_along() -> None:
    y, _ = images()
    labels = torch.arange(len(y)) % 3  # atoms: only the first group, only the second, both
    made_of = torch.tensor([[True, False], [False, True], [True, True]])
    x_t, at = noised(y[:2], 200)
    found = density(y, labels, 1, made_of=made_of).changes(x_t, at)
    a, s = float(SCHEDULE.a[200]), float(SCHEDULE.s[200])
    for k, kept in enumerate((labels == 1, labels == 0)):
        expected = brute_mean(x_t[0], a, s**2, y[kept], 1) - brute_mean(x_t[0], a, s**2, y, 1)
        torch.testing.assert_close(found[k, 0].double(), expected, rtol=1e-3, atol=2e-5)


def test_a_rows_bits_do_not_depend_on_the_others() -> None:
    y, labels = images()
    x_t, at = noised(y[:4], 100)
    found = density(y, labels, 1)
    assert torch.equal(found.changes(x_t, at)[:, 2], found.changes(x_t[2:3], at[2:3])[:, 0])


def test_window_sums_equal_convolution_with_zeros_outside() -> None:
    x = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for half in range(8):
        ones = torch.ones(1, 1, 2 * half + 1, 2 * half + 1, dtype=torch.float64)
        expected = torch.nn.functional.conv2d(x[:, None], ones, padding=half)[:, 0]
        torch.testing.assert_close(window_sums(x, half), expected)


class Pixelwise(torch.nn.Module):
    """The optimal denoiser of pixels that are +1 or -1, each by itself: E x_0 = tanh(a x_t / s^2)."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        a, s = SCHEDULE.coefficients(t, x)
        return (x - a * torch.tanh(a * x / s**2)) / s


class Wholesale(torch.nn.Module):
    """That of a few images that are seen whole."""

    def __init__(self, y: torch.Tensor) -> None:
        super().__init__()
        self.y = torch.nn.Parameter(y)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        a, s = SCHEDULE.coefficients(t, x)
        logits = -(x[:, None] - a[:, None] * self.y).square().flatten(2).sum(2) / (2 * s.reshape(-1, 1) ** 2)
        return (x - a * torch.einsum("bn,nchw->bchw", logits.softmax(1), self.y)) / s


def test_independent_pixels_get_the_smallest_window() -> None:
    x0 = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], (200, 1, 6, 6)).astype(np.float32))
    base = Denoiser.from_module(Pixelwise(), make_scheduler("squaredcos_cap_v2:1000"), (1, 6, 6))
    found = fit_windows(base, x0, seed=0, images=8)
    assert len(found["half"]) <= LEVELS
    middle = (found["log_snr"] > -4) & (found["log_snr"] < 6)  # below, every window predicts the mean
    assert int(middle.sum()) >= 3
    assert found["half"][middle].tolist() == [0] * int(middle.sum())
    assert float(found["r2"][middle].min()) > 0.8


def test_a_model_of_whole_images_gets_the_largest_window() -> None:
    few = torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    x0 = few.repeat(10, 1, 1, 1)  # each has copies, so that one left out is explained by the others
    base = Denoiser.from_module(Wholesale(few), make_scheduler("squaredcos_cap_v2:1000"), (1, 6, 6))
    found = fit_windows(base, x0, seed=0, images=8)
    between = (found["log_snr"] > -5) & (found["log_snr"] < -2)  # with less noise a part tells the image
    assert int(between.sum()) >= 1
    assert found["half"][between].tolist() == [5] * int(between.sum())


def test_every_timestep_has_the_window_of_the_nearest_level() -> None:
    halves = halves_at(SCHEDULE, np.array([4.0, 0.0]), np.array([1, 3]))
    assert halves[np.abs(SCHEDULE.log_snr - 3).argmin()] == 1
    assert halves[np.abs(SCHEDULE.log_snr - 1).argmin()] == 3
    assert halves[-1] == 3


def test_candidates_end_with_the_whole_image() -> None:
    assert candidates(16) == [0, 1, 2, 3, 5, 8, 11, 15]
    assert candidates(1) == [0]


def test_a_rule_of_patches_is_written_and_read() -> None:
    rng = np.random.default_rng(0)
    data = ImageData.from_arrays(rng.integers(0, 256, (12, 1, 4, 4), np.uint8), [str(i % 3) for i in range(12)])
    base = Denoiser.from_module(Pixelwise(), make_scheduler("squaredcos_cap_v2:1000"), (1, 4, 4))
    config = RuleConfig.model_validate({"density": "patches"})
    found = make_density(base, data, config, fit_rule(base, data, config))
    assert isinstance(found, PatchDensity)
    without = fit_rule(base, data, config, np.array([0, 3, 6, 9]))  # what group 0 is made of
    x_t, at = noised(base.encode(data.images[:2]), 200)
    removed = make_density(base, data, config, without)
    torch.testing.assert_close(removed.changes(x_t, at)[0], found.changes(x_t, at)[0])
