"""Groups are a partition: what is accepted round-trips, what is not is refused by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guda.data.groups import Groups, natural
from guda.errors import GudaError, choices
from refusals import refused

labellings = st.lists(st.sampled_from(["a", "b", "1", "2", "10", "ü x"]), min_size=2, max_size=30).filter(
    lambda labels: len(set(labels)) > 1
)


def test_names_are_sorted_naturally() -> None:
    assert Groups.from_labels(["10", "2", "1", "2"]).names == ("1", "2", "10")
    assert sorted(["img10", "img9", "a", "img09"], key=natural) == ["a", "img09", "img9", "img10"]


@given(st.lists(st.text(max_size=8), max_size=8))
def test_natural_is_a_total_order_that_separates_different_texts(texts: list[str]) -> None:
    backwards = texts[::-1]
    assert sorted(texts, key=natural) == sorted(backwards, key=natural)


@given(labellings)
def test_members_and_without_partition_the_images(labels: list[str]) -> None:
    groups = Groups.from_labels(labels)
    assert groups.sizes == tuple(labels.count(name) for name in groups.names)
    assert [groups.names[k] for k in groups.labels] == labels
    for k, name in enumerate(groups.names):
        assert groups.index(name) == k
        assert [labels[i] for i in groups.members(k)] == [name] * groups.sizes[k]
        assert sorted([*groups.members(k), *groups.without(k)]) == list(range(len(labels)))


@given(labellings)
def test_json_round_trip(labels: list[str]) -> None:
    import json

    groups = Groups.from_labels(labels)
    again = Groups.from_json(json.loads(json.dumps(groups.to_json())))
    assert again == groups
    assert hash(again) == hash(groups)


def test_inequality() -> None:
    assert Groups.from_labels(["a", "b"]) != Groups.from_labels(["b", "a"])
    assert Groups.from_labels(["a", "b"]) != Groups.from_labels(["a", "c"])
    assert Groups.from_labels(["a", "b"]) != "a"


def test_unknown_name_lists_the_groups_and_suggests() -> None:
    groups = Groups.from_labels(["monet", "manet", "klimt"])
    with refused("group-unknown", match=r"'klimmt' \(did you mean 'klimt'\?\).*klimt, manet, monet"):
        groups.index("klimmt")
    with pytest.raises(GudaError) as error:
        groups.index("zzzz")
    assert "did you mean" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Klimt,Monet", ["Klimt", "Monet"]),
        (" Klimt , Monet ", ["Klimt", "Monet"]),
        ("Doe, Jane", ["Doe, Jane"]),
        ("Klimt, Doe, Jane,Monet", ["Klimt", "Doe, Jane", "Monet"]),
        ("Doe,Monet", ["Doe", "Monet"]),
        ("Jane,Monet", ["Jane", "Monet"]),  # unknown names stay, to be refused by name
    ],
)
def test_a_list_of_names_knows_names_with_commas(text: str, names: list[str]) -> None:
    assert Groups.from_labels(["Monet", "Klimt", "Doe", "Doe, Jane"]).listed(text) == names


def test_a_long_list_of_names_is_cut_and_says_so() -> None:
    assert choices([str(i) for i in range(25)]).endswith("19, ... and 5 more")


@pytest.mark.parametrize("k", [-1, 2])
def test_group_numbers_out_of_range_are_refused(k: int) -> None:
    groups = Groups.from_labels(["a", "b"])
    with pytest.raises(GudaError, match=f"no group number {k}"):
        groups.members(k)
    with pytest.raises(GudaError, match=f"no group number {k}"):
        groups.without(k)


def test_an_image_without_a_group_is_named() -> None:
    membership = np.array([[1, 0], [1, 1], [0, 0]], dtype=bool)
    with refused("image-without-group", match="image 2 is in no group"):
        Groups(("a", "b"), membership)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "a"], "at least two, found 1"),
        ([], "at least two, found 0"),
        (["a", " "], "label of image 1 is empty"),
        (["a", None], "label of image 1 is None"),
        (["a", 0.5], "label of image 1 is 0.5"),
        (["a", True], "label of image 1 is True"),
        ("ab", "not the text 'ab'"),
    ],
)
def test_bad_labels_are_refused(labels: list[str], message: str) -> None:
    with pytest.raises(GudaError, match=message):
        Groups.from_labels(labels)


def test_whole_number_labels_are_their_text() -> None:
    assert Groups.from_labels(np.array([10, 9])).names == ("9", "10")  # type: ignore[arg-type]


def test_bad_matrices_are_refused() -> None:
    with refused("group-empty", match="'c' has no images"):
        Groups(("a", "b", "c"), np.eye(3, dtype=bool)[:2])
    with refused("group-name-duplicate", match="'a' occurs twice"):
        Groups(("a", "a"), np.eye(2, dtype=bool))
    with refused("group-membership-invalid"):
        Groups(("a", "b"), np.eye(2))
    with refused("group-membership-invalid"):
        Groups(("a", "b"), np.eye(3, dtype=bool))
    with refused("group-name-invalid"):
        Groups(("a", ""), np.eye(2, dtype=bool))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"n_images": 2, "names": ["a", "b"], "members": [[0]]},
        {"n_images": 2, "names": ["a", "b"], "members": [[0], [2]]},
        {"n_images": 2, "names": ["a", "b"], "members": [[0], [-1]]},
        {"n_images": 2, "names": ["a", "b"], "members": [[0], ["x"]]},
    ],
)
def test_damaged_json_is_refused(value: dict) -> None:
    with refused("groups-damaged"):
        Groups.from_json(value)


def test_membership_cannot_be_changed_from_outside() -> None:
    membership = np.eye(2, dtype=bool)
    groups = Groups(("a", "b"), membership)
    membership[:] = False
    assert groups.sizes == (1, 1)
    with pytest.raises(ValueError, match="read-only"):
        groups.membership[0, 0] = False
    with pytest.raises(ValueError, match="read-only"):
        groups.labels[0] = 1


def test_take_keeps_names_and_refuses_to_empty_a_group() -> None:
    groups = Groups.from_labels(["a", "b", "a", "b"])
    assert groups.take(np.array([3, 0])) == Groups(("a", "b"), np.array([[0, 1], [1, 0]], dtype=bool))
    with refused("group-empty", match="'b' has no images"):
        groups.take(np.array([0, 2]))
