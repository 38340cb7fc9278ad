"""A student of scores: what it can learn it learns, its intervals cover, and its bits are its key's."""

import numpy as np
import pytest

from guda.scoring.student import Split, Student, check_student, split, train_student

WIDTH, STEPS = 64, 600


def world(n: int = 900, noise: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, 6]; scores [n, 3] that depend on them, with noise that depends on the first feature."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 6)).astype(np.float32)
    truth = np.stack([2 * x[:, 0] + x[:, 1] ** 2, 3 * x[:, 2], -x[:, 0] + x[:, 3]], axis=1)
    spread = noise * np.exp(0.7 * x[:, :1])
    return x, 10 + 5 * (truth + spread * rng.standard_normal(truth.shape))


def trained(x: np.ndarray, y: np.ndarray, parts: Split, seed: int = 0) -> Student:
    return train_student(x, y, parts, width=WIDTH, steps=STEPS, lr=3e-3, seed=seed)


@pytest.fixture(scope="module")
def case() -> tuple[np.ndarray, np.ndarray, Split, Student]:
    x, y = world()
    parts = split(len(x), 0)
    return x, y, parts, trained(x, y, parts)


def test_parts_are_disjoint_and_complete() -> None:
    parts = split(101, 3)
    assert sorted(np.concatenate([parts.train, parts.calibrate, parts.check])) == list(range(101))
    assert len(parts.train) == 71
    assert not np.array_equal(parts.check, split(101, 4).check)


def test_it_learns_the_first_group_and_its_intervals_cover(case: tuple[np.ndarray, np.ndarray, Split, Student]) -> None:
    _, _, parts, student = case
    x, y = world(4000, seed=1)  # fresh pictures
    found = check_student(student, x, y, np.arange(len(x)))
    assert found.same_first > 0.8
    assert 0.92 < found.inside < 0.98
    assert found.n == 4000
    assert len(parts.check) > 100


def test_intervals_are_wider_where_the_teacher_is_noisier(case: tuple[np.ndarray, np.ndarray, Split, Student]) -> None:
    student = case[3]
    x, _ = world(2000, seed=2)
    _, half = student.predict(x)
    noisy, quiet = half[x[:, 0] > 1].mean(), half[x[:, 0] < -1].mean()
    assert noisy > 1.5 * quiet


def test_the_same_key_gives_the_same_bits_whatever_torch_was_seeded_with() -> None:
    import torch

    x, y = world(120)
    parts = split(120, 0)
    torch.manual_seed(1)
    one = trained(x, y, parts).predict(x)[0]
    torch.manual_seed(2)
    assert np.array_equal(trained(x, y, parts).predict(x)[0], one)
    assert not np.array_equal(trained(x, y, parts, seed=1).predict(x)[0], one)


def test_with_few_pictures_the_interval_reaches_the_farthest() -> None:
    x, y = world(40)
    parts = split(40, 0)
    student = trained(x, y, parts)
    mu, half = student.predict(x[parts.calibrate])
    assert (np.abs(y[parts.calibrate] - mu) <= half * (1 + 1e-5)).all()  # 6 of them: the quantile is the maximum
