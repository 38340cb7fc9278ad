"""The density-ratio objective is the retain-only one: by quadrature on the line, where every integral is known."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from guda.config import parse_config
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.unlearning.operators.retrack import (
    NearestPosterior,
    Posterior,
    Retrack,
    RetrackConfig,
    effective_size,
    log_density,
    ratio_weights,
)
from guda.unlearning.unlearn import Batch
from refusals import refused

SCHEDULER = "squaredcos_cap_v2:100"
TIMES = (30, 70)
NODES, MASS = np.polynomial.hermite_e.hermegauss(40)
MASS = MASS / MASS.sum()

STUDENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zero": torch.zeros_like,
    "linear": lambda x: 0.7 * x - 0.2,
    "wavy": lambda x: torch.sin(3 * x) + 0.5 * x**2,
}


class Line(torch.nn.Module):
    def __init__(self, f: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.f(x)


def student(name: str) -> Denoiser:
    return Denoiser.from_module(Line(STUDENTS[name]), make_scheduler(SCHEDULER), (1, 1, 1))


@pytest.fixture(scope="module")
def line() -> ImageData:
    """Images of one pixel: three to forget, four to keep, interleaved."""
    pixels = np.array([100, 150, 210, 40, 120, 170, 230], np.uint8).reshape(7, 1, 1, 1)
    return ImageData.from_arrays(pixels, ["f"] * 3 + ["r"] * 4, layout="NCHW")


def rule(data: ImageData, **values: Any) -> Retrack:
    return Retrack(student("zero"), data, "f", RetrackConfig.model_validate({"density_ratio": True} | values))


def points(data: ImageData, members: slice) -> tuple[Batch, np.ndarray]:
    """Every (image, t, quadrature node), and its probability."""
    model = student("zero")
    x0 = model.encode(data.images[members])
    grid = [(x, t, e, m / len(x0) / len(TIMES)) for x in x0 for t in TIMES for e, m in zip(NODES, MASS, strict=True)]
    x = torch.stack([g[0] for g in grid])
    t = torch.tensor([g[1] for g in grid])
    eps = torch.tensor([g[2] for g in grid], dtype=torch.float32).reshape(x.shape)
    return Batch(x, t, eps, model.schedule.add_noise(x, eps, t)), np.array([g[3] for g in grid])


def expected_loss(operator: Retrack, data: ImageData, name: str) -> float:
    """The expectation of the operator's forget loss over its own samples, each a batch of one."""
    half, mass = points(data, slice(0, 3))
    model = student(name)
    with torch.no_grad():
        each = [
            float(operator.forget(model, Batch(*(v[i : i + 1] for v in (half.x0, half.t, half.eps, half.x_t)))))
            for i in range(len(mass))
        ]
    return float(mass @ np.array(each))


def retain_losses(operator: Retrack, data: ImageData, name: str) -> tuple[float, float]:
    """Over the retain set: E (f - eps_bar)^2 and the denoising loss E (f - eps)^2."""
    half, mass = points(data, slice(3, 7))
    f = student(name).eps(half.x_t, half.t)
    errors = ((f - operator.target(half)).square(), (f - half.eps).square())
    return tuple(float(mass @ e.double().numpy().ravel()) for e in errors)  # type: ignore[return-value]


def test_the_ratio_turns_the_forget_loss_into_the_retain_only_objective(line: ImageData) -> None:
    operator = rule(line)
    constants = []
    for name in STUDENTS:
        ours = expected_loss(operator, line, name)
        posterior_form, denoising = retain_losses(operator, line, name)
        assert ours == pytest.approx(posterior_form, rel=2e-4)
        constants.append(denoising - ours)
    assert constants[0] > 0.05  # the variance of eps given x_t: not zero, and the same for every student
    np.testing.assert_allclose(constants, constants[0], rtol=2e-3)


def test_without_the_ratio_the_objective_is_another(line: ImageData) -> None:
    plain = rule(line, density_ratio=False)
    gaps = [expected_loss(plain, line, name) - retain_losses(plain, line, name)[0] for name in STUDENTS]
    assert max(map(abs, gaps)) > 0.05


@pytest.mark.parametrize("clip", [0.5, 1.0, 2.0])
def test_clipping_lowers_the_objective_by_a_known_amount(
    line: ImageData, clip: float, record_property: Callable[[str, object], None]
) -> None:
    """bias = E_for[(min(ratio, clip) - ratio) error] <= 0: what the retain set holds and the group does not is lost."""
    free, clipped = rule(line), rule(line, ratio_clip=clip)
    for name in STUDENTS:
        whole = expected_loss(free, line, name)
        bias = expected_loss(clipped, line, name) - whole
        record_property(f"bias of clip {clip}, student {name}", bias)
        print(f"clip {clip}, student {name}: bias {bias:+.4f} of {whole:.4f}")
        half, mass = points(line, slice(0, 3))
        over = (free.weights(half) - clip).clamp_min(0).numpy()
        error = (student(name).eps(half.x_t, half.t) - free.target(half)).square().double().numpy().ravel()
        assert bias == pytest.approx(-float(mass @ (over * error)), rel=1e-3)
        assert bias < -1e-3


def test_densities_equal_the_mixtures_own_formula(line: ImageData) -> None:
    model = student("zero")
    for members in (slice(0, 3), slice(3, 7)):
        half, _ = points(line, members)
        data = model.encode(line.images[3:7]).double().reshape(1, -1)
        a, s = (c.reshape(-1, 1) for c in model.schedule.coefficients(half.t, half.x_t.double()))
        x = half.x_t.double().reshape(-1, 1)
        exact = torch.logsumexp(-((x - a * data) ** 2) / (2 * s**2), 1) - np.log(4)
        posterior = Posterior(model.encode(line.images[3:7]), model.schedule)
        torch.testing.assert_close(log_density(posterior, half.x_t, half.t), exact, rtol=1e-9, atol=1e-6)


def test_of_the_k_nearest_only_their_terms_count(make_images: Callable[..., ImageData]) -> None:
    """And at 3,072 dims, where the densities themselves are 0."""
    pytest.importorskip("faiss")
    schedule = student("zero").schedule
    g = torch.Generator().manual_seed(0)
    images = torch.rand(20, 3, 32, 32, generator=g) * 2 - 1
    t = torch.tensor([20, 60, 90])
    x_t = schedule.add_noise(images[:3], torch.randn(3, 3, 32, 32, generator=g), t)
    a, s = schedule.coefficients(t, x_t.flatten(1).double())
    terms = -((x_t.flatten(1).double()[:, None] - a[:, :, None] * images.flatten(1).double()) ** 2).sum(2) / (2 * s**2)
    assert float(terms.exp().sum()) == 0
    for k in (4, 20):
        exact = terms.topk(k).values.logsumexp(1) - np.log(20)
        for cls in (NearestPosterior, Posterior):
            found = log_density(cls(images, schedule, k), x_t, t)
            torch.testing.assert_close(found, exact, rtol=0, atol=1e-5)


def test_weights_are_clipped_normalised_and_their_effective_size_known() -> None:
    log_ratio = torch.tensor([0.0, 1.0, -2.0, 1000.0], dtype=torch.float64)
    w = ratio_weights(log_ratio, 2.0, False)
    torch.testing.assert_close(w, torch.tensor([1.0, 2.0, np.exp(-2), 2.0], dtype=torch.float64))
    v = ratio_weights(log_ratio, 2.0, True)
    torch.testing.assert_close(v, w / w.mean())
    torch.testing.assert_close(ratio_weights(log_ratio, None, True), torch.tensor([0.0, 0, 0, 4]).double())
    assert effective_size(torch.ones(7)) == pytest.approx(7)
    assert effective_size(torch.tensor([5.0, 0, 0])) == pytest.approx(1)
    assert effective_size(torch.tensor([3.0, 1.0])) == pytest.approx(16 / 10)
    assert effective_size(torch.zeros(3)) == 0.0


def test_the_effective_sample_size_of_the_steps_is_noted(line: ImageData) -> None:
    operator = rule(line)
    half, _ = points(line, slice(0, 3))
    operator.forget(student("zero"), half)
    with torch.no_grad():  # a check, not a step
        operator.forget(student("zero"), half)
    share = effective_size(operator.weights(half)) / len(half.t)
    assert operator.notes() == {"effective_share": pytest.approx(share), "effective_samples": pytest.approx(64 * share)}
    assert 0 < share < 0.9
    assert rule(line, density_ratio=False).notes() == {}


@pytest.mark.parametrize("values", [{"ratio_clip": 2.0}, {"self_normalise": True}])
def test_options_of_a_ratio_that_is_off_are_refused(values: dict[str, Any]) -> None:
    with refused("setting-invalid"):
        parse_config(RetrackConfig, values, "retrack")
