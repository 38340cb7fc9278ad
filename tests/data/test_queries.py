"""Queries: the order they are given in never matters, ids are stable, shards and subsets lose nothing."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.errors import GudaError, Mismatch
from refusals import refused

some_ids = st.lists(
    st.text(min_size=1, max_size=5).filter(lambda s: s.strip() and s.isprintable()),
    min_size=1,
    max_size=12,
    unique=True,
)


def pixels(n: int, h: int = 4, w: int = 4) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, size=(n, 1, h, w), dtype=np.uint8)


def put(path: Path, value: int = 0, size: tuple[int, int] = (4, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)


@given(some_ids, st.randoms(use_true_random=False))
def test_the_order_given_never_matters(ids: list[str], random: object) -> None:
    images, prompts = pixels(len(ids)), [f"a picture of {name}" for name in ids]
    queries = Queries.from_arrays(images, ids, prompts, layout="NCHW")
    order = list(range(len(ids)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = Queries.from_arrays(images[order], [ids[i] for i in order], [prompts[i] for i in order], layout="NCHW")
    assert queries.ids == tuple(sorted(ids)) == shuffled.ids
    assert queries.prompts == shuffled.prompts == tuple(f"a picture of {name}" for name in sorted(ids))
    np.testing.assert_array_equal(queries.images, shuffled.images)
    assert queries.digest == shuffled.digest
    for name, image in zip(ids, images, strict=True):
        np.testing.assert_array_equal(queries.images[queries.ids.index(name)], image)


@given(some_ids, st.integers(1, 15))
def test_shards_put_together_are_the_queries(ids: list[str], size: int) -> None:
    queries = Queries.from_arrays(pixels(len(ids)), ids)
    shards = queries.shards(size)
    assert all(shard.n == size for shard in shards[:-1])
    assert 1 <= shards[-1].n <= size
    assert sum((shard.ids for shard in shards), ()) == queries.ids
    np.testing.assert_array_equal(np.concatenate([shard.images for shard in shards]), queries.images)


def test_ids_are_sorted_plainly_not_naturally() -> None:
    assert Queries.from_arrays(pixels(3), ["q10", "q9", "q1"]).ids == ("q1", "q10", "q9")


def test_default_ids() -> None:
    queries = Queries.from_arrays(pixels(3))
    assert queries.ids == ("query-000000", "query-000001", "query-000002")
    assert queries.prompts is None
    assert (queries.n, len(queries), queries.shape) == (3, 3, (1, 4, 4))
    np.testing.assert_array_equal(queries.images, pixels(3))


def test_subset() -> None:
    queries = Queries.from_arrays(pixels(3), ["a", "b", "c"], ["x", "y", "z"])
    part = queries.subset(["c", "a"])
    assert (part.ids, part.prompts) == (("a", "c"), ("x", "z"))
    np.testing.assert_array_equal(part.images, pixels(3)[[0, 2]])
    assert part.digest == queries.subset(["a", "c"]).digest
    for bad, message in [
        (["img"], "no query 'img'"),
        ([], "no query ids"),
        (["a", "a"], "'a' .*occurs twice"),
        ("a", "not the text 'a'"),
    ]:
        with pytest.raises(GudaError, match=message):
            queries.subset(bad)
    with refused("query-unknown", match="did you mean 'query-000001'"):
        Queries.from_arrays(pixels(2)).subset(["query-00001"])


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_bad_shard_sizes_are_refused(size: int) -> None:
    with refused("shard-size-invalid"):
        Queries.from_arrays(pixels(2)).shards(size)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": ["a", "a"]}, "'a' of query images occurs twice"),
        ({"ids": ["a"]}, "2 query images but 1 ids"),
        ({"ids": ["a", ""]}, "id 1 of query images is ''"),
        ({"prompts": ["one"]}, "need 2 prompts"),
        ({"prompts": "xy"}, "not the text 'xy'"),
        ({"prompts": ["one", None]}, "prompt of query 'query-000001' is None"),
        ({"images": pixels(0)}, "empty"),
    ],
)
def test_bad_queries_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(GudaError, match=message):
        Queries.from_arrays(**{"images": pixels(2), **changes})


def test_digest_sees_ids_pixels_and_prompts_but_not_the_name() -> None:
    base = Queries.from_arrays(pixels(2))
    assert base.digest == Queries.from_arrays(pixels(2), name="other").digest
    others = [
        Queries.from_arrays(pixels(2)[::-1]),
        Queries.from_arrays(pixels(2), ["a", "b"]),
        Queries.from_arrays(pixels(2), prompts=["", ""]),
        Queries.from_arrays(pixels(2), prompts=["", "x"]),
    ]
    assert len({q.digest for q in [base, *others]}) == 5


def test_check_shape_says_both_sizes() -> None:
    queries = Queries.from_arrays(pixels(2, h=4, w=6))
    queries.check_shape((1, 4, 6))
    with refused("query-size-mismatch", match="6x4.* 8x8"):
        queries.check_shape((1, 8, 8))
    with refused("query-size-mismatch", match="6x4.* 8x4"):
        queries.check_shape((1, 4, 8))
    with refused("query-channels-mismatch", match=r"have 1 channels, the model takes 3; .*RGB"):
        queries.check_shape((3, 4, 6))


# --- folders --------------------------------------------------------------------------------------


def test_folder_ids_are_paths_without_extension(tmp_path: Path) -> None:
    for i, file in enumerate(["b.png", "a/10.png", "a/9.bmp", ".hidden.png"]):
        put(tmp_path / "gen" / file, i)
    queries = Queries.from_folder(tmp_path / "gen")
    assert queries.ids == ("a/10", "a/9", "b")
    assert queries.images[:, 0, 0, 0].tolist() == [1, 2, 0]
    assert queries.name == "gen"
    assert queries.prompts is None


def test_files_that_differ_only_in_extension_both_keep_it(tmp_path: Path) -> None:
    for i, file in enumerate(["a.png", "a.bmp", "b.png"]):
        put(tmp_path / file, i)
    assert Queries.from_folder(tmp_path).ids == ("a.bmp", "a.png", "b")
    put(tmp_path / "a.png.bmp", 3)  # cut short it would be "a.png", which is taken by now
    assert Queries.from_folder(tmp_path).ids == ("a.bmp", "a.png", "a.png.bmp", "b")


def test_folder_size_and_mode(tmp_path: Path) -> None:
    put(tmp_path / "a.png", size=(4, 4))
    put(tmp_path / "b.png", size=(8, 4))
    with refused("image-sizes-differ"):
        Queries.from_folder(tmp_path)
    assert Queries.from_folder(tmp_path, size=4, mode="RGB").shape == (3, 4, 4)
    with refused("mode-invalid"):
        Queries.from_folder(tmp_path, mode="rgb")


def test_empty_folder(tmp_path: Path) -> None:
    with refused("data-folder-empty"):
        Queries.from_folder(tmp_path)


def write_prompts(folder: Path, *rows: dict) -> None:
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_prompts_follow_their_images(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    put(tmp_path / "d/b.png")
    write_prompts(tmp_path, {"file_name": "d/b.png", "prompt": "two", "seed": 3}, {"file_name": "a.png", "prompt": ""})
    assert Queries.from_folder(tmp_path).prompts == ("", "two")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"file_name": "a.png", "prompt": "x"}], r"no row for 'b\.png'"),
        (
            [{"file_name": f"{c}.png", "prompt": "x"} for c in "abc"],
            r"prompts\.jsonl:3: there is no image 'c\.png'",
        ),
        ([{"file_name": "a.png", "prompt": "x"}, {"file_name": "b.png"}], r"prompts\.jsonl:2: no prompt"),
        ([{"file_name": f"{c}.png", "prompt": None} for c in "ab"], r"prompts\.jsonl:1: no prompt"),
    ],
)
def test_bad_prompts_are_refused(tmp_path: Path, rows: list[dict], message: str) -> None:
    put(tmp_path / "a.png")
    put(tmp_path / "b.png")
    write_prompts(tmp_path, *rows)
    with pytest.raises(GudaError, match=message):
        Queries.from_folder(tmp_path)


# --- on disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompts", [None, ["", "ü"]])
def test_save_and_load(tmp_path: Path, prompts: list[str] | None) -> None:
    queries = Queries.from_arrays(pixels(2), ["z", "a/b"], prompts, name="gen")
    queries.save(tmp_path)
    again = Queries.load(tmp_path)
    np.testing.assert_array_equal(again.images, queries.images)
    assert (again.ids, again.prompts, again.name) == (queries.ids, queries.prompts, "gen")
    assert again.digest == queries.digest


def test_tampering_is_refused_with_both_digests(tmp_path: Path) -> None:
    queries = Queries.from_arrays(pixels(2), prompts=["x", "y"])
    queries.save(tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps({**index, "digest": "f" * 64}))
    with pytest.raises(Mismatch, match=f"{queries.digest}.*{'f' * 64}"):
        Queries.load(tmp_path)
    for change in ({"ids": ["a", "b"]}, {"prompts": ["x", "z"]}, {"prompts": None}):
        (tmp_path / "index.json").write_text(json.dumps({**index, **change}))
        with pytest.raises(Mismatch, match=queries.digest):
            Queries.load(tmp_path)


@pytest.mark.parametrize("change", [{"ids": None}, {"prompts": 5}, {"name": 1}])
def test_damaged_index_is_refused(tmp_path: Path, change: dict) -> None:
    Queries.from_arrays(pixels(2)).save(tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps({**index, **change}))
    with refused("stored-index-invalid"):
        Queries.load(tmp_path)


def test_training_images_are_not_queries(tmp_path: Path) -> None:
    ImageData.from_arrays(pixels(2), ["a", "b"]).save(tmp_path)
    with refused("stored-images-kind"):
        Queries.load(tmp_path)
