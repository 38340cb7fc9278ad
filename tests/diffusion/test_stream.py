"""The training stream: a pure function of its key, from which leaving a group out only deletes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guda.data.groups import Groups
from guda.diffusion.stream import CHUNK, Batch, Stream

SHAPE = (1, 2, 2)


def groups(sizes: list[int], seed: int = 0) -> Groups:
    labels = [str(k) for k, n in enumerate(sizes) for _ in range(n)]
    np.random.default_rng(seed).shuffle(labels)
    return Groups.from_labels(labels)


def stream(sizes: list[int], key: tuple[str | int, ...] = (0, "train"), **options: object) -> Stream:
    return Stream(key, groups(sizes), SHAPE, 100, **options)  # type: ignore[arg-type]


def rows(batch: Batch) -> list[tuple[int, int, bytes, bool]]:
    """One hashable item per example, noise and all."""
    return [
        (int(i), int(t), e.tobytes(), bool(f))
        for i, t, e, f in zip(batch.index, batch.t, batch.eps, batch.flip, strict=True)
    ]


def epochs(s: Stream, n: int) -> list[list[tuple[int, int, bytes, bool]]]:
    """The first n epochs, each on its own."""
    out = []
    for e in range(n):
        s.seek(e, 0)
        left = s.left_out(e)
        out.append(rows(s.take(s.n - (0 if left is None else s.groups.sizes[left]))))
    return out


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_how_it_is_cut_into_batches_changes_nothing(cuts: list[int]) -> None:
    whole = rows(stream([7, 300, 5], exposure_matched=True).take(sum(cuts)))
    s = stream([7, 300, 5], exposure_matched=True)
    assert [row for n in cuts for row in rows(s.take(n))] == whole


def test_equal_keys_give_equal_streams_and_others_differ() -> None:
    first = rows(stream([20, 20]).take(50))
    assert rows(stream([20, 20]).take(50)) == first
    other = rows(stream([20, 20], key=(1, "train")).take(50))
    assert not {e for _, _, e, _ in first} & {e for _, _, e, _ in other}


@pytest.mark.parametrize("out", [0, 1, 2])
def test_leaving_a_group_out_deletes_its_items_and_changes_nothing_else(out: int) -> None:
    sizes = [200, 90, 260]  # more than two chunks of noise per epoch
    assert sum(sizes) > 2 * CHUNK
    full, without = epochs(stream(sizes), 3), epochs(stream(sizes, leave_out=out), 3)
    label = groups(sizes).labels
    for a, b in zip(full, without, strict=True):
        assert [row for row in a if label[row[0]] != out] == b


@pytest.mark.parametrize("matched", [False, True])
@pytest.mark.parametrize("out", [0, 1, 2])
def test_an_aligned_run_differs_from_the_full_one_only_where_the_group_was(out: int, matched: bool) -> None:
    sizes = [200, 90, 260]
    label = groups(sizes).labels
    full = rows(stream(sizes, exposure_matched=matched).take(1300))
    aligned = rows(stream(sizes, exposure_matched=matched, leave_out=out, aligned=True).take(1300))
    chosen = set()
    for a, b in zip(full, aligned, strict=True):
        assert a[1:] == b[1:]  # the noise is that of the place
        assert label[b[0]] != out
        if label[a[0]] != out:
            assert a == b
        else:
            chosen.add(b[0])
    assert len(chosen) > 50  # all kinds of images are put there


def test_aligned_runs_without_other_groups_mostly_put_the_same_images_there() -> None:
    sizes = [40] * 10
    label = groups(sizes).labels
    of = [np.array([r[0] for r in rows(stream(sizes, leave_out=k, aligned=True).take(400))]) for k in (0, 1)]
    plain = np.array([r[0] for r in rows(stream(sizes).take(400))])
    others = (label[plain] != 0) & (label[plain] != 1)
    assert (of[0][others] == of[1][others]).all()
    again = stream(sizes, leave_out=0, aligned=True)
    again.take(150)
    resumed = stream(sizes, leave_out=0, aligned=True)
    resumed.seek(*again.cursor)
    assert [r[0] for r in rows(resumed.take(250))] == of[0][150:].tolist()


def test_every_kept_image_comes_exactly_once_per_epoch() -> None:
    sizes = [30, 50, 400]
    label = groups(sizes).labels
    for options in ({}, {"leave_out": 1}, {"exposure_matched": True}):
        s = stream(sizes, **options)
        orders = []
        for e, epoch in enumerate(epochs(s, 4)):
            left = s.left_out(e)
            order = [row[0] for row in epoch]
            assert sorted(order) == [i for i in range(s.n) if label[i] != left]
            orders.append(order)
        assert orders[0] != orders[3]


def test_exposure_matching_leaves_out_each_group_once_per_cycle() -> None:
    s = stream([3, 4, 5, 6], exposure_matched=True)
    cycles = [tuple(s.left_out(4 * c + e) for e in range(4)) for c in range(12)]
    assert all(sorted(cycle) == [0, 1, 2, 3] for cycle in cycles)
    assert len(set(cycles)) > 3  # keyed permutations, not one rotation
    # over a cycle every image is seen as often as in a LOGO run of the same number of epochs, 3 of 4
    seen = np.bincount([row[0] for epoch in epochs(s, 4) for row in epoch], minlength=s.n)
    assert (seen == 3).all()


def test_a_logo_run_always_leaves_out_its_own_group_even_when_matched() -> None:
    s = stream([3, 4, 5], leave_out=2, exposure_matched=True)
    assert {s.left_out(e) for e in range(9)} == {2}


def test_no_noise_is_used_twice_and_all_of_it_is_in_range() -> None:
    found = [row for epoch in epochs(stream([300, 300]), 3) for row in epoch]
    assert len({e for _, _, e, _ in found}) == len(found)
    t = np.array([row[1] for row in found])
    assert t.min() >= 0
    assert t.max() == 99
    assert abs(t.mean() - 49.5) < 3
    assert 0.4 < np.mean([row[3] for row in found]) < 0.6


@given(st.integers(0, 1500), st.integers(1, 64))
@settings(max_examples=30, deadline=None)
def test_the_cursor_is_all_the_state_there_is(skip: int, size: int) -> None:
    s = stream([150, 200, 30], exposure_matched=True)
    if skip:
        s.take(skip)
    twin = stream([150, 200, 30], exposure_matched=True)
    twin.seek(*s.cursor)
    assert rows(s.take(size)) == rows(twin.take(size))


def test_of_groups_that_share_images_the_left_out_one_takes_all_of_its_own() -> None:
    shared = Groups.from_labels([["a", "b"], "a", "b", ["b", "c"], "c"])
    for k in range(3):
        s = Stream((0, "train"), shared, SHAPE, 100, leave_out=k)
        shown = {i for i, *_ in rows(s.take(40))}
        assert shown == set(shared.without(k).tolist())


@pytest.mark.parametrize(
    "grouping",
    [
        Groups.from_labels([["a", "b"], "a", "b", ["b", "c"], "c", ["a", "c"]]),
        Groups.from_paths([[("x", "a")], [("x", "b")], [("x", "b")], [("y", "c")], [("y", "d")], [("y", "d")]]),
    ],
)
def test_exposure_is_the_same_for_images_of_one_group_and_of_several(grouping: Groups) -> None:
    s = Stream((0, "train"), grouping, SHAPE, 100, exposure_matched=True)
    cycle = len(set(grouping.homes.tolist()))
    seen = np.zeros(grouping.n_images, int)
    for e in range(cycle):
        s.seek(e, 0)
        left = s.left_out(e)
        batch = s.take(int((grouping.homes != left).sum()))
        assert s.cursor[0] == e
        seen += np.bincount(batch.index, minlength=grouping.n_images)
    assert seen.tolist() == [cycle - 1] * grouping.n_images
