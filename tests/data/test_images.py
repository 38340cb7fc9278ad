"""Training images: one stored form whatever the input layout, a digest that covers it, a safe round trip."""

import json
from pathlib import Path

import numpy as np
import pytest

from guda.data.groups import Groups
from guda.data.images import ImageData, freeze, to_float, to_uint8
from guda.data.queries import Queries
from guda.errors import GudaError, Mismatch
from refusals import refused


def pixels(n: int = 4, c: int = 3, h: int = 6, w: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=(n, c, h, w), dtype=np.uint8)


LABELS = ["a", "b", "a", "b"]


def test_float_round_trip_is_exact_for_every_value() -> None:
    values = np.arange(256, dtype=np.uint8)
    floats = to_float(values)
    assert floats.dtype == np.float32
    assert floats[0] == -1
    assert floats[-1] == 1
    np.testing.assert_array_equal(to_uint8(floats), values)
    np.testing.assert_array_equal(to_uint8(floats.astype(np.float64)), values)


def test_to_uint8_rounds_clips_and_refuses_nan() -> None:
    assert to_uint8(np.array([-9.0, 9.0, np.inf, 0.0039])).tolist() == [0, 255, 255, 128]
    with refused("pixels-not-finite"):
        to_uint8(np.array([np.nan]))
    with refused("pixels-dtype-invalid", match="int64"):
        to_uint8(np.array([1]))
    with refused("pixels-dtype-invalid", match="float64"):
        to_float(np.array([1.0]))


@pytest.mark.parametrize("c", [1, 3])
def test_all_layouts_and_float_give_the_same_data(c: int) -> None:
    nchw = pixels(c=c)
    expected = ImageData.from_arrays(nchw, LABELS)
    assert expected.n == 4
    assert expected.shape == (c, 6, 5)
    variants = [
        nchw.transpose(0, 2, 3, 1),
        nchw.astype(np.float32) / np.float32(255),
        nchw.transpose(0, 2, 3, 1) / 255,
    ]
    variants += [nchw[:, 0]] if c == 1 else []
    for variant in variants:
        data = ImageData.from_arrays(variant, LABELS)
        np.testing.assert_array_equal(data.images, nchw)
        assert data.digest == expected.digest


def test_ambiguous_channel_axis_needs_a_layout() -> None:
    images = pixels(h=6, w=3)
    with refused("layout-ambiguous", match="layout='NCHW' or layout='NHWC'"):
        ImageData.from_arrays(images, LABELS)
    assert ImageData.from_arrays(images, LABELS, layout="NCHW").shape == (3, 6, 3)
    assert ImageData.from_arrays(images, LABELS, layout="NHWC").shape == (3, 3, 6)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (pixels(c=2), "no channel axis"),
        (pixels()[0, 0], "expected NCHW, NHWC or NHW"),
        (pixels().astype(np.int64), "dtype int64"),
        (pixels().astype(np.float32), r"must lie in \[0, 1\]"),
        (np.where(pixels() > 3, np.nan, 0.5), "NaN"),
        (np.full((4, 1, 5, 5), np.inf), r"must lie in \[0, 1\]"),
        (np.full((4, 1, 5, 5), -0.1), r"\(x \+ 1\) / 2"),
        (pixels(n=0), "are empty"),
        (np.zeros((0, 5, 5)), "are empty"),
    ],
)
def test_bad_arrays_are_refused(images: np.ndarray, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        ImageData.from_arrays(images, LABELS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": ["x", "y", "x", "z"]}, "'x' of training images occurs twice"),
        ({"ids": ["x", "y", "z"]}, "4 training images but 3 ids"),
        ({"ids": ["x", "y", "z", ""]}, "id 3 of training images is ''"),
        ({"ids": ["x", "y", "z", 4]}, "id 3 of training images is 4"),
        ({"ids": ["x", "y", "z", "\ud800"]}, "not valid Unicode"),
        ({"labels": ["a", "b"]}, "group labels for 2"),
        ({"layout": "CHWN"}, "unknown layout"),
        ({"layout": "NHW"}, "layout NHW needs 3 axes"),
    ],
)
def test_bad_ids_labels_layouts_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        ImageData.from_arrays(**{"images": pixels(), "labels": LABELS, **changes})


def test_meta_must_be_json() -> None:
    with refused("meta-not-json"):
        ImageData(pixels(), tuple("wxyz"), Groups.from_labels(LABELS), "n", {"path": Path("x")})


def test_later_writes_to_the_source_array_do_not_reach_the_data() -> None:
    source = pixels()
    data = ImageData.from_arrays(source, LABELS)
    source[:] = 0
    np.testing.assert_array_equal(data.images, pixels())
    with pytest.raises(ValueError, match="read-only"):
        data.images[0] = 0
    assert freeze(data.images) is data.images  # read-only arrays are not copied again


def test_digest_sees_pixels_ids_and_groups_but_not_the_name() -> None:
    base = ImageData.from_arrays(pixels(), LABELS)
    changed = pixels()
    changed[3, 2, 5, 4] ^= 1
    assert base.digest == ImageData.from_arrays(pixels(), LABELS, name="other").digest
    others = [
        ImageData.from_arrays(changed, LABELS),
        ImageData.from_arrays(pixels(), LABELS, ids=list("wxyz")),
        ImageData.from_arrays(pixels(), ["a", "b", "b", "a"]),
        ImageData.from_arrays(pixels(), ["a", "c", "a", "c"]),
    ]
    assert len({d.digest for d in [base, *others]}) == 5
    assert len(base.digest) == 64


def test_summary_shares() -> None:
    data = ImageData.from_arrays(pixels(), ["a", "b", "b", "b"])
    assert data.summary() == [("a", 1, 0.25), ("b", 3, 0.75)]


def test_take() -> None:
    data = ImageData.from_arrays(pixels(), LABELS)
    part = data.take(np.array([3, 0]))
    assert part.ids == (data.ids[3], data.ids[0])
    np.testing.assert_array_equal(part.images, pixels()[[3, 0]])
    assert part.groups.labels.tolist() == [1, 0]


def test_save_and_load(tmp_path: Path) -> None:
    data = ImageData.from_arrays(pixels(), LABELS, ids=["ä", "x/y.png", "2", "10"], name="näme")
    data.save(tmp_path / "d")
    again = ImageData.load(tmp_path / "d")
    np.testing.assert_array_equal(again.images, data.images)
    assert (again.ids, again.groups, again.name, again.meta, again.digest) == (
        data.ids,
        data.groups,
        data.name,
        data.meta,
        data.digest,
    )
    assert not again.images.flags.writeable
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["images.safetensors", "index.json"]


def test_tampering_is_refused_with_both_digests(tmp_path: Path) -> None:
    data = ImageData.from_arrays(pixels(), LABELS)
    data.save(tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())

    (tmp_path / "index.json").write_text(json.dumps({**index, "digest": "0" * 64}))
    with pytest.raises(Mismatch) as error:
        ImageData.load(tmp_path)
    assert data.digest in str(error.value)
    assert "0" * 64 in str(error.value)

    (tmp_path / "index.json").write_text(json.dumps({**index, "ids": index["ids"][::-1]}))
    with pytest.raises(Mismatch, match=data.digest):
        ImageData.load(tmp_path)

    swapped = {**index["groups"], "members": index["groups"]["members"][::-1]}
    (tmp_path / "index.json").write_text(json.dumps({**index, "groups": swapped}))
    with pytest.raises(Mismatch, match=data.digest):
        ImageData.load(tmp_path)

    (tmp_path / "index.json").write_text(json.dumps(index))
    raw = bytearray((tmp_path / "images.safetensors").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "images.safetensors").write_bytes(raw)
    with pytest.raises(Mismatch, match=data.digest):
        ImageData.load(tmp_path)


def test_damaged_or_foreign_folders_are_refused(tmp_path: Path) -> None:
    with refused("file-missing"):
        ImageData.load(tmp_path / "nowhere")
    data = ImageData.from_arrays(pixels(), LABELS)
    data.save(tmp_path / "d")
    (tmp_path / "d" / "images.safetensors").unlink()
    with refused("file-missing"):
        ImageData.load(tmp_path / "d")
    Queries.from_arrays(pixels()).save(tmp_path / "q")
    with refused("stored-images-kind"):
        ImageData.load(tmp_path / "q")
    (tmp_path / "d" / "index.json").write_text("[]")
    with refused("stored-index-invalid"):
        ImageData.load(tmp_path / "d")
