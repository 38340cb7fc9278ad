"""Groups that share images, and groups of groups."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.sources import limit_groups, noisy_partition
from guda.errors import GudaError
from refusals import refused

ART = [("France", "Monet"), ("France", "Renoir"), ("Spain", "Goya"), ("France", "Monet"), ("Spain", "Dali")]


def tree() -> Groups:
    return Groups.from_paths([[path] for path in ART])


def image_data(groups: Groups) -> ImageData:
    rng = np.random.default_rng(0)
    return ImageData.from_arrays(rng.integers(0, 256, (groups.n_images, 1, 4, 4), np.uint8), groups)


# ---- sharing ---------------------------------------------------------------------------------------------------------


def test_an_image_may_have_several_labels() -> None:
    groups = Groups.from_labels(["oil", ["oil", "sea"], "sea", ("ink", 7)])
    assert groups.names == ("7", "ink", "oil", "sea")
    assert groups.membership.astype(int).tolist() == [[0, 0, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1], [1, 1, 0, 0]]
    assert groups.sizes == (1, 1, 2, 2)
    assert groups.members(3).tolist() == [1, 2]
    assert groups.without(3).tolist() == [0, 3]
    assert groups.parents is None
    assert groups.leaves == (0, 1, 2, 3)
    assert not groups.disjoint
    assert groups.homes.tolist() == [2, 2, 3, 0]
    with refused("groups-overlap", match=r"image 1 is in oil, sea, and prompts, labels of a conditional model"):
        _ = groups.labels


@given(st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=2, max_size=30))
def test_atoms_are_the_images_that_share_all_groups(labels: list[set[int]]) -> None:
    if len(set().union(*labels)) < 2:
        return
    groups = Groups.from_labels(labels)
    atom, made_of = groups.atoms
    assert np.array_equal(made_of[atom], groups.membership)
    assert len(np.unique(made_of, axis=0)) == len(made_of)
    assert set(atom.tolist()) == set(range(len(made_of)))
    assert groups.membership[np.arange(len(labels)), groups.homes].all()
    assert Groups.from_json(json.loads(json.dumps(groups.to_json()))) == groups


@given(st.lists(st.integers(0, 5), min_size=2, max_size=30))
def test_of_a_partition_atoms_homes_and_labels_are_the_groups(labels: list[int]) -> None:
    if len(set(labels)) < 2:
        return
    groups = Groups.from_labels(labels)
    assert np.array_equal(groups.atoms[0], groups.labels)
    assert np.array_equal(groups.atoms[1], np.eye(len(groups), dtype=bool))
    assert np.array_equal(groups.homes, groups.labels)
    assert groups.disjoint
    assert "parents" not in groups.to_json()  # digests of data saved before there were trees stay what they were


def test_a_group_of_all_images_is_refused_where_something_must_be_left() -> None:
    groups = Groups.from_labels([["all", "a"], ["all", "b"]])
    with refused("group-covers-all", match="'all' holds every image: without it nothing is left"):
        groups.check_rest()
    Groups.from_labels(["a", "b"]).check_rest()


@pytest.mark.parametrize(
    ("labels", "message"), [([["a"], []], "image 1 are an empty list"), (["a", ["b", None]], "None")]
)
def test_bad_lists_of_labels(labels: list[object], message: str) -> None:
    with pytest.raises(GudaError, match=message):
        Groups.from_labels(labels)


def test_a_noisy_partition_and_limits_of_shared_images() -> None:
    shared = image_data(Groups.from_labels([["a", "b"], "a", "a", "b", "b"]))
    with refused("partition-groups-overlap"):
        noisy_partition(shared, 0.5)
    few = limit_groups(shared, 1, seed=0)
    assert few.n <= 2
    assert all(size >= 1 for size in few.groups.sizes)


# ---- trees -----------------------------------------------------------------------------------------------------------


def test_a_tree_holds_the_groups_above_too() -> None:
    groups = tree()
    assert groups.names == ("France", "Monet", "Renoir", "Spain", "Dali", "Goya")
    assert groups.parents == (None, 0, 0, None, 3, 3)
    assert groups.members(0).tolist() == [0, 1, 3]
    assert groups.leaf_names == ("Monet", "Renoir", "Dali", "Goya")
    assert [groups.names[k] for k in groups.labels] == [artist for _, artist in ART]
    assert groups.disjoint
    assert np.array_equal(groups.homes, groups.labels)
    assert len(groups.atoms[1]) == 4
    assert groups.above(1) == (0,)
    assert groups.above(0) == ()
    assert Groups.from_json(json.loads(json.dumps(groups.to_json()))) == groups
    assert groups != Groups(groups.names, groups.membership)


def test_a_name_that_occurs_twice_becomes_its_path() -> None:
    groups = Groups.from_paths([[("a", "x")], [("a", "y")], [("b", "x")], [("b", "b")]])
    assert groups.names == ("a", "a/x", "y", "b", "b/b", "b/x")


def test_the_way_down() -> None:
    groups = Groups.from_paths([[("a", "b", "c")], [("a", "b", "d")], [("a", "e")], [("f",)]])
    number = groups.index

    def levels(*asked: str) -> list[set[str]]:
        return [{groups.names[k] for k in level} for level in groups.levels([number(n) for n in asked])]

    assert levels("c", "d", "e", "f") == [{"a", "f"}, {"b", "e", "f"}, {"c", "d", "e", "f"}]
    assert levels("c", "e") == [{"a"}, {"b", "e"}, {"c", "e"}]
    assert levels("b", "f") == [{"a", "f"}, {"b", "f"}]
    assert levels("a", "f") == [{"a", "f"}]
    groups.check_apart([number("c"), number("d"), number("f")])
    with refused("groups-nested", match="'c' is a part of 'b'"):
        groups.check_apart([number("b"), number("c")])


def test_a_selection_keeps_its_family() -> None:
    data = image_data(tree())
    kept = data.branches(["Monet", "Goya"])
    assert kept.n == 3
    assert kept.groups.names == ("France", "Monet", "Spain", "Goya")
    assert kept.groups.sizes == (2, 2, 1, 1)
    assert data.branches(["France"]).groups.names == ("Monet", "Renoir")  # France would be all there is
    assert data.branches(["France", "Goya"]).groups.names == ("France", "Monet", "Renoir", "Spain", "Goya")
    assert kept.groups.parents == (None, 0, None, 2)
    assert data.only(["Monet", "Goya"]).groups.parents is None
    assert data.only(["Monet", "Goya"]).groups.names == ("Monet", "Goya")


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ((None, 0), "parents for 2"),
        ((None, None, 5), "must be the number of a group before it"),
        ((1, None, None), "must be the number of a group before it"),
        ((None, 0, None), "image 1 is in 'b' but not in 'a', which is above it"),
    ],
)
def test_parents_that_cannot_be(parents: tuple[int | None, ...], message: str) -> None:
    membership = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], bool)
    with pytest.raises(GudaError, match=message):
        Groups(("a", "b", "c"), membership, parents)


def test_a_limit_counts_the_leaves() -> None:
    few = limit_groups(image_data(tree()), 1, seed=0)
    assert few.n == 4
    assert few.groups.parents == tree().parents
