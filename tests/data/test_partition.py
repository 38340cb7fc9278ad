"""Noisy partitions: the margins that are promised, whatever the groups, and that nothing depends on any order."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.sources import derangement, load_source, moved_per_group, noisy_partition
from refusals import refused


def images(sizes: list[int], order: int = 0) -> ImageData:
    """Groups of these sizes; images 1x1, ids tied to the picture, in one of many orders."""
    labels = [f"g{k}" for k, size in enumerate(sizes) for _ in range(size)]
    ids = [f"{label}/{i}" for i, label in enumerate(labels)]
    shuffled = np.random.default_rng(order).permutation(len(ids))
    pixels = (np.arange(len(ids)) % 251).astype(np.uint8).reshape(-1, 1, 1, 1)[shuffled]
    return ImageData.from_arrays(pixels, [labels[i] for i in shuffled], [ids[i] for i in shuffled], layout="NCHW")


def names_of(data: ImageData) -> dict[str, str]:
    return {i: data.groups.names[k] for i, k in zip(data.ids, data.groups.labels, strict=True)}


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(4, 40), min_size=2, max_size=7),
    fraction=st.floats(0.13, 0.95),
    seed=st.integers(0, 2**31),
    order=st.integers(0, 1000),
)
def test_margins(sizes: list[int], fraction: float, seed: int, order: int) -> None:
    clean = images(sizes)
    m = round(fraction * min(sizes))
    noisy = noisy_partition(clean, fraction, seed)
    before, after = names_of(clean), names_of(noisy)
    moved = {i for i in before if before[i] != after[i]}
    assert Counter(before[i] for i in moved) == dict.fromkeys(clean.groups.names, m)  # every group's exports
    assert Counter(after[i] for i in moved) == dict.fromkeys(clean.groups.names, m)  # and imports
    assert len(moved) == m * len(sizes)  # none of them stayed home; the others were not touched
    assert noisy.groups.sizes == clean.groups.sizes
    assert noisy.ids == clean.ids
    assert np.array_equal(noisy.images, clean.images)
    # another order of the images: the same picture gets the same name
    assert names_of(noisy_partition(images(sizes, order), fraction, seed)) == after


def test_order_of_the_groups_does_not_matter() -> None:
    clean = images([20, 30, 25])
    turned = [2, 0, 1]
    groups = Groups(tuple(clean.groups.names[k] for k in turned), clean.groups.membership[:, turned])
    other = ImageData(clean.images, clean.ids, groups, clean.name)
    assert names_of(noisy_partition(other, 0.2)) == names_of(noisy_partition(clean, 0.2))


def test_seed_and_fraction_change_it_and_the_digest() -> None:
    clean = images([40] * 4)
    found = {noisy_partition(clean, f, s).digest for f, s in [(0.1, 42), (0.1, 43), (0.2, 42)]} | {clean.digest}
    assert len(found) == 4
    assert noisy_partition(clean, 0.1, 42).digest in found
    assert noisy_partition(clean, 0.1).meta["partition"] == {"fraction": 0.1, "seed": 42, "moved_per_group": 4}


def test_more_noise_keeps_the_moves_of_less() -> None:
    clean = images([40] * 5)
    before, little, much = (names_of(d) for d in (clean, noisy_partition(clean, 0.1), noisy_partition(clean, 0.2)))
    assert all(much[i] == little[i] for i in before if little[i] != before[i])


def test_derangements_are_all_equally_likely() -> None:
    names = list("abcd")
    possible = {p for p in permutations(names) if all(a != b for a, b in zip(names, p, strict=True))}
    assert len(possible) == 9
    drawn = Counter(tuple(derangement(names, seed)) for seed in range(1800))
    assert set(drawn) == possible
    assert max(abs(n - 200) for n in drawn.values()) < 5 * np.sqrt(200 * 8 / 9)


def test_two_groups_can_only_swap() -> None:
    assert derangement(["x", "y"], 7) == ["y", "x"]


def test_too_little_noise_is_refused() -> None:
    with refused("partition-fraction-small", match=r"smallest group \('g1', 8 images\) is less than one image"):
        noisy_partition(images([20, 8]), 0.05)
    with refused("partition-fraction-invalid", match="between 0 and 1"):
        moved_per_group(images([20, 8]).groups, 1.0)


def test_a_source_is_partitioned_after_it_is_limited() -> None:
    plain = load_source("digits", groups=["0", "1", "2"], limit_per_group=40)
    noisy = load_source("digits", groups=["0", "1", "2"], limit_per_group=40, partition={"fraction": 0.05, "seed": 42})
    assert plain.ids == noisy.ids
    assert int((plain.groups.labels != noisy.groups.labels).sum()) == 3 * 2
