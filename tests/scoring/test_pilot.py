"""The pilot's density: sums to one, goes where the models differ, and never starves a timestep."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.loading import make_scheduler
from guda.diffusion.schedule import Schedule
from guda.scoring.pilot import DEFENSIVE, IMAGES, POINTS, density, measure, measure_density, pilot_images, pilot_kind
from guda.scoring.plan import prior_density
from refusals import refused

SCHEDULE = Schedule.from_scheduler(make_scheduler("linear:1000"))


def grid(points: int = 40) -> np.ndarray:
    return np.linspace(1, SCHEDULE.t_max, points)[:, None]


def test_the_density_sums_to_one_and_follows_known_contrasts() -> None:
    """r(t) = 1 + 9 at a bump: what does not come from the defensive share is r, interpolated."""
    t = grid(200)
    r = np.exp(-((t[:, 0] - 400) ** 2) / (2 * 80**2)) + 0.01
    sign = np.array([1.0, -1.0])
    p = density(SCHEDULE, t, r[:, None, None] * sign)  # two groups, +r and -r
    assert p.shape == (SCHEDULE.t_max,)
    assert p.sum() == pytest.approx(1)
    every = np.arange(1, SCHEDULE.t_max + 1)
    exact = np.exp(-((every - 400) ** 2) / (2 * 80**2)) + 0.01
    found = (p - DEFENSIVE * prior_density(SCHEDULE)) / (1 - DEFENSIVE)
    np.testing.assert_allclose(found, exact / exact.sum(), rtol=0.02)
    assert 390 < every[found.argmax()] < 410


def test_the_defensive_share_is_kept_where_the_pilot_saw_nothing() -> None:
    r = np.where(grid()[:, 0] < 500, 1.0, 0.0)
    p = density(SCHEDULE, grid(), r[:, None, None])
    prior = prior_density(SCHEDULE)
    assert (p >= DEFENSIVE * prior).all()
    np.testing.assert_allclose(p[600:], DEFENSIVE * prior[600:], rtol=1e-3)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_pilot_without_differences_is_refused(bad: float) -> None:
    with refused("pilot-without-difference"):
        density(SCHEDULE, grid(), np.full((40, 2, 3), bad))


def test_contrasts_are_differences_between_counterfactuals(make_mlp: Callable[..., Denoiser]) -> None:
    full, one, two = make_mlp(seed=0), make_mlp(seed=1), make_mlp(seed=2)
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 4, 4), dtype=np.uint8)
    t, contrasts, evals = measure(full, [one, two, full], images, 0, 16)
    points = min(POINTS, full.schedule.t_max)
    assert t.shape == (points, 5)
    assert contrasts.shape == (points, 5, 3)
    assert evals == 5 * points * 2 * (1 + 3)
    np.testing.assert_allclose(contrasts.sum(axis=-1), 0, atol=1e-9)
    _, other, _ = measure(one, [one, two, full], images, 0, 16)  # what the full model is cancels
    np.testing.assert_allclose(other, contrasts, rtol=1e-6, atol=1e-9)
    assert (abs(contrasts) > 0).any(axis=(1, 2)).all()
    with refused("pilot-groups-too-few"):
        measure(full, [one], images, 0, 16)
    _, same, _ = measure(full, [one, one], images, 0, 16)
    with refused("pilot-without-difference"):
        density(full.schedule, t, same)


def test_pilot_images_are_spread_over_groups(make_images: Callable[..., Any]) -> None:
    data: ImageData = make_images({"a": 40, "b": 3, "c": 40, "d": 1})
    chosen = pilot_images(data, 12, 0)
    assert len(chosen) == len(set(chosen.tolist())) == 12
    counts = [len(np.intersect1d(chosen, data.groups.members(k))) for k in range(4)]
    assert dict(zip(data.groups.names, counts, strict=True)) == {"a": 4, "b": 3, "c": 4, "d": 1}
    np.testing.assert_array_equal(chosen, pilot_images(data, 12, 0))
    assert chosen.tolist() != pilot_images(data, 12, 1).tolist()
    assert len(pilot_images(data, 1000, 0)) == 84


# ---- what it compares ---------------------------------------------------------------------------------------------


def test_an_unconditional_model_is_compared_by_a_rule_of_the_first_groups(
    make_mlp: Callable[..., Denoiser], make_images: Callable[..., Any]
) -> None:
    data = make_images(dict.fromkeys("abcdefg", 12))
    full = make_mlp(seed=0)
    for path in (False, True):
        found = measure_density(full, data, 16, path=path)
        assert (found.by, found.groups, found.images) == ("rule", tuple("abcde"), IMAGES)
        points = min(POINTS, full.schedule.t_max)
        assert found.evals == (0 if path else IMAGES * points * 2 * 2)  # a rule answers for all groups at once
        assert found.density.sum() == pytest.approx(1)
        assert not np.allclose(found.density, prior_density(full.schedule))
        np.testing.assert_array_equal(found.density, measure_density(full, data, 5, path=path).density)  # any block


def test_nothing_is_compared_where_images_are_too_large_for_a_covariance(
    make_mlp: Callable[..., Denoiser], make_images: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    full, two = make_mlp(seed=0), make_images({"a": 6, "b": 6})
    assert pilot_kind(full, two, None) == "rule"
    monkeypatch.setattr("guda.scoring.pilot.LARGEST", 15)
    found = measure_density(full, two, 16)
    assert (found.by, found.evals, len(found.size)) == ("nothing", 0, 0)
    np.testing.assert_array_equal(found.density, prior_density(full.schedule))


def test_a_conditional_model_is_compared_with_itself_told_of_other_groups(
    make_images: Callable[..., Any], tiny_pipeline: Callable[[str], Any]
) -> None:
    full = Denoiser.from_pretrained(tiny_pipeline("sd"))
    grey = make_images({"a": 3, "b": 3, "c": 3}, size=16)
    data = ImageData.from_arrays(np.repeat(grey.images, 3, axis=1), [grey.groups.names[k] for k in grey.groups.labels],
                                 layout="NCHW")  # fmt: skip
    prompts = [f"a painting in style {data.groups.names[k]}" for k in data.groups.labels]
    found = measure_density(full, data, 8, prompts)
    assert (found.by, found.groups) == ("prompts", ("a", "b", "c"))
    assert found.evals == len(pilot_images(data, IMAGES, 0)) * POINTS * 2 * (1 + 3)
    assert found.density.sum() == pytest.approx(1)
    alike = measure_density(full, data, 8, ["a painting"] * data.n)
    assert alike.by == pilot_kind(full, data, None) == "nothing"
    np.testing.assert_array_equal(alike.density, prior_density(full.schedule))
