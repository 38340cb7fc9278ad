"""What images show: kept with them, limited the same way in every group, refused where it is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.sources import keep_contents
from refusals import refused

STYLES, THINGS = ("a", "b", "c"), ("bus", "cat", "dog", "sea")


@pytest.fixture
def data() -> ImageData:
    pairs = [(s, t) for s in STYLES for t in THINGS]
    images = np.arange(len(pairs) * 4, dtype=np.uint8).reshape(-1, 1, 2, 2)
    ids = tuple(f"{s}/{t}" for s, t in pairs)
    return ImageData(images, ids, Groups.from_labels([s for s, _ in pairs]), "x", {}, tuple(t for _, t in pairs))


def test_contents_survive_the_disk_and_are_part_of_the_digest(data: ImageData, tmp_path: Path) -> None:
    data.save(tmp_path / "data")
    assert ImageData.load(tmp_path / "data").contents == data.contents
    assert data.contents is not None
    assert replace(data, contents=("ship", *data.contents[1:])).digest != data.digest
    assert replace(data, contents=None).digest != data.digest


def test_every_group_keeps_the_same_contents(data: ImageData) -> None:
    kept = keep_contents(data, 2, seed=0)
    assert kept.contents is not None
    for k in range(len(STYLES)):
        assert {kept.contents[i] for i in kept.groups.members(k)} == set(kept.contents)
    assert len(set(kept.contents)) == 2
    assert all(i == f"{STYLES[g]}/{c}" for i, g, c in zip(kept.ids, kept.groups.labels, kept.contents, strict=True))
    assert set(kept.contents) <= set(keep_contents(data, 3, seed=0).contents or ())  # more keeps those chosen before
    # which ones depends on names alone, not on the groups there are
    assert set(keep_contents(data.only(["a", "c"]), 2, seed=0).contents or ()) == set(kept.contents)


def test_some_groups_only(data: ImageData) -> None:
    some = data.only(["c", "a"])
    assert some.groups.names == ("a", "c")
    assert [i[0] for i in some.ids] == ["a"] * 4 + ["c"] * 4
    assert some.contents == THINGS * 2
    assert np.array_equal(some.images[4], data.images[8])
    with refused("group-unknown", match="unknown group 'd'"):
        data.only(["a", "d"])


def test_mistakes(data: ImageData) -> None:
    with refused("contents-too-few", match="show 4 different things"):
        keep_contents(data, 5, seed=0)
    with refused("contents-missing"):
        keep_contents(replace(data, contents=None), 2, seed=0)
    with refused("contents-count-mismatch", match="12 contents, one each"):
        replace(data, contents=("bus",))
    with refused("content-invalid", match="the content of image 'a/bus' is ''"):
        replace(data, contents=("", *(data.contents or ())[1:]))
