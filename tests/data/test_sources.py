"""Sources: by name or path, options refused, not ignored, limits depend on nothing but their key."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from guda.data import sources
from guda.data.digits import load_digits_data
from guda.data.images import ImageData
from guda.data.sources import known_sources, limit_groups, load_source, source
from guda.errors import GudaError


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return load_digits_data()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sources, "_SOURCES", dict(sources._SOURCES))
    return


def art(root: Path) -> Path:
    for group in ("a", "b"):
        (root / group).mkdir(parents=True)
        Image.fromarray(np.full((4, 4), ord(group), dtype=np.uint8)).save(root / group / "1.png")
    return root


def test_digits(digits: ImageData) -> None:
    from sklearn.datasets import load_digits

    assert (digits.n, digits.shape, digits.name) == (1797, (1, 8, 8), "digits")
    assert digits.ids[0] == "digit-0000"
    assert digits.ids[-1] == "digit-1796"
    assert digits.groups.names == tuple("0123456789")
    raw = load_digits()
    np.testing.assert_array_equal(digits.groups.labels, raw.target)
    levels = [0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255]
    np.testing.assert_array_equal(digits.images[:, 0], np.array(levels)[raw.images.astype(int)])


def test_by_name_and_by_path(digits: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_source("digits").digest == digits.digest
    folder = art(tmp_path / "art")
    expected = ImageData.from_folder(folder).digest
    assert load_source(str(folder)).digest == expected
    monkeypatch.chdir(tmp_path)
    assert load_source("art").digest == expected
    assert load_source("art", size=2, mode="RGB", group_by="level:1").shape == (3, 2, 2)


def test_a_source_goes_before_a_folder_of_the_same_name(
    digits: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    art(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    assert load_source("digits").digest == digits.digest
    assert load_source("./digits").n == 2


def test_unknown_names_list_the_sources() -> None:
    with pytest.raises(GudaError, match=r"'digit'; the sources are .*digits.*did you mean 'digits'"):
        load_source("digit")
    with pytest.raises(GudaError, match="image folder no/such/place does not exist"):
        load_source("no/such/place")


@pytest.mark.parametrize("option", [{"size": 8}, {"group_by": "level:1"}, {"mode": "L"}])
def test_options_a_source_does_not_take_are_refused(option: dict) -> None:
    with pytest.raises(GudaError, match=f"'digits' does not take {next(iter(option))}.*no such options"):
        load_source("digits", **option)


@pytest.mark.usefixtures("registry")
def test_registering_a_source(digits: ImageData) -> None:
    seen = []

    @source("tiny")
    def tiny(size: int | None = None) -> ImageData:
        seen.append(size)
        return digits

    assert "tiny" in known_sources()
    assert load_source("tiny", size=3) is digits
    assert load_source("tiny") is digits
    assert seen == [3, None]
    with pytest.raises(GudaError, match=r"does not take mode .*it takes size"):
        load_source("tiny", mode="L")
    with pytest.raises(GudaError, match="'tiny' is already registered"):
        source("tiny")(tiny)


def test_limit_keeps_order_and_counts(digits: ImageData) -> None:
    part = load_source("digits", limit_per_group=5, seed=1)
    assert part.groups.sizes == (5,) * 10
    assert list(part.ids) == sorted(part.ids)
    position = {name: i for i, name in enumerate(digits.ids)}
    np.testing.assert_array_equal(part.images, digits.images[[position[name] for name in part.ids]])
    assert (part.meta["limit_per_group"], part.meta["limit_seed"]) == (5, 1)
    assert part.digest == limit_groups(digits, 5, 1).digest
    assert part.digest != limit_groups(digits, 5, 2).digest
    assert limit_groups(digits, 10_000, 0).digest == digits.digest


def test_a_larger_limit_contains_the_smaller(digits: ImageData) -> None:
    assert set(limit_groups(digits, 5, 0).ids) < set(limit_groups(digits, 9, 0).ids)


def test_what_is_kept_of_a_group_does_not_depend_on_other_groups(digits: ImageData) -> None:
    labels = digits.groups.labels
    few = np.flatnonzero((labels == 3) | (labels == 7))
    part = ImageData.from_arrays(
        digits.images[few], [str(k) for k in labels[few]], ids=[digits.ids[i] for i in few], layout="NCHW"
    )
    kept = limit_groups(digits, 5, 0)
    expected = [name for name, k in zip(kept.ids, kept.groups.labels, strict=True) if k in (3, 7)]
    assert list(limit_groups(part, 5, 0).ids) == expected


@pytest.mark.parametrize(("limit", "seed", "message"), [(0, 0, "limit_per_group"), (1.5, 0, "limit"), (1, -1, "seed")])
def test_bad_limits_are_refused(digits: ImageData, limit: int, seed: int, message: str) -> None:
    with pytest.raises(GudaError, match=f"{message}.*must be a whole number"):
        limit_groups(digits, limit, seed)
