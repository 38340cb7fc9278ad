"""From images' scores to groups': against numpy on the whole matrix, whatever the blocks."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from guda.baselines.influence import PATTERN, aggregate, by_group, highest

SCORES = np.random.default_rng(0).standard_normal((5, 40))  # 5 queries, 40 training images
GROUPS = [np.array([3]), np.arange(30, 38), np.setdiff1d(np.arange(30), [3])[::-1]]  # 1, 8 and 29 images


def influence(positions: np.ndarray) -> np.ndarray:
    return SCORES[:, positions]


def top(m: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda rows: np.sort(rows, axis=1)[:, ::-1][:, :m].mean(axis=1)


BY_NUMPY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sum": lambda rows: rows.sum(axis=1),
    "mean": lambda rows: rows.mean(axis=1),
    "max": lambda rows: rows.max(axis=1),
    "median": lambda rows: np.median(rows, axis=1),
    "top1": lambda rows: rows.max(axis=1),
    "top3": top(3),
    "top10": top(10),
}


@pytest.mark.parametrize("how", BY_NUMPY)
def test_against_numpy(how: str) -> None:
    found = by_group(influence, GROUPS, how)
    assert found.shape == (5, 3)
    for g, members in enumerate(GROUPS):
        np.testing.assert_allclose(found[:, g], BY_NUMPY[how](SCORES[:, members]), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("how", BY_NUMPY)
@pytest.mark.parametrize("block", [1, 2, 7, 29, 1000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_do_not_matter(how: str, block: int, order: str) -> None:
    asked = []

    def in_blocks(positions: np.ndarray) -> np.ndarray:
        asked.append(len(positions))
        return np.asarray(influence(positions), order=order)  # type: ignore[call-overload]

    whole, found = by_group(influence, GROUPS, how), by_group(in_blocks, GROUPS, how, block)
    assert max(asked) <= block
    assert sum(asked) == 38
    if how in ("sum", "mean"):
        np.testing.assert_allclose(found, whole, rtol=1e-12, atol=1e-12)
    else:
        np.testing.assert_array_equal(found, whole)


def test_a_group_smaller_than_m_gives_the_mean_of_all() -> None:
    members = GROUPS[1]
    np.testing.assert_allclose(aggregate(influence, members, "top10", 3), aggregate(influence, members, "mean"))
    np.testing.assert_array_equal(aggregate(influence, GROUPS[0], "top10"), SCORES[:, 3])
    assert (aggregate(influence, GROUPS[2], "top10") > aggregate(influence, GROUPS[2], "mean")).all()


def test_top1_is_max_and_more_images_lower_the_mean_of_the_highest() -> None:
    for members in GROUPS:
        np.testing.assert_array_equal(aggregate(influence, members, "top1", 4), aggregate(influence, members, "max", 5))
    tops = np.stack([aggregate(influence, GROUPS[2], f"top{m}", 4) for m in range(1, 30)])
    assert (np.diff(tops, axis=0) <= 0).all()


def test_ties_are_counted_as_often_as_they_occur() -> None:
    tied = np.array([[2.0, 5.0, 5.0, 1.0, 5.0]])
    assert aggregate(lambda at: tied[:, at], np.arange(5), "top2", 2) == 5
    assert aggregate(lambda at: tied[:, at], np.arange(5), "top4", 2) == 17 / 4


def test_the_order_of_images_does_not_matter_to_the_bits_of_orders() -> None:
    shuffled = np.random.default_rng(1).permutation(GROUPS[2])
    for how in ("max", "median", "top3", "top10"):
        np.testing.assert_array_equal(aggregate(influence, shuffled, how, 6), aggregate(influence, GROUPS[2], how))


def test_sum_prefers_the_larger_of_two_alike_groups_and_mean_does_not() -> None:
    scores = np.full((1, 12), 0.5)
    groups = [np.arange(3), np.arange(3, 12)]
    np.testing.assert_array_equal(by_group(lambda at: scores[:, at], groups, "sum"), [[1.5, 4.5]])
    np.testing.assert_array_equal(by_group(lambda at: scores[:, at], groups, "mean"), [[0.5, 0.5]])


def test_names() -> None:
    assert [highest(how) for how in ("max", "top1", "top10", "sum", "top0")] == [1, 1, 10, None, None]
    for how in BY_NUMPY:
        assert re.fullmatch(PATTERN, how)
    assert not re.fullmatch(PATTERN, "top0")
    with pytest.raises(ValueError, match="top0"):
        aggregate(influence, GROUPS[1], "top0")
