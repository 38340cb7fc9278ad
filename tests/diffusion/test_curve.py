"""A loss that is still falling is recognised, a healthy training is not blamed."""

import numpy as np

from guda.diffusion.training import still_falling


def curve(shape, noise: float, seed: int = 0, n: int = 100) -> list[float]:
    x = np.arange(1, n + 1) / n
    return (shape(x) * (1 + noise * np.random.default_rng(seed).normal(size=n))).tolist()


def test_a_training_that_stopped_too_early_is_recognised() -> None:
    for seed in range(20):
        found = still_falling(curve(lambda x: np.exp(-2 * x), 0.02, seed))
        assert found is not None
        assert 0.3 < found.fall < 0.8  # exp(0.4) - 1 = 0.49
        assert "not be trained enough" in found.text


def test_a_curve_that_has_levelled_out_is_not_blamed() -> None:
    for seed in range(200):
        assert still_falling(curve(lambda x: 0.165 + 0.8 * np.exp(-25 * x), 0.03, seed)) is None
        # the digits recipe: 5 % by the falling learning rate alone
        assert still_falling(curve(lambda x: 0.165 * (1 + 0.25 * (1 - x)), 0.03, seed)) is None


def test_noise_is_not_a_fall() -> None:
    assert sum(still_falling(curve(lambda x: 1 + 0 * x, 0.3, seed)) is not None for seed in range(300)) <= 2


def test_few_points_and_broken_ones_say_nothing() -> None:
    assert still_falling([]) is None
    assert still_falling([3.0, 2.0, 1.0]) is None
    assert still_falling([1.0] * 99 + [float("nan")]) is None
    assert still_falling([0.0] * 100) is None
