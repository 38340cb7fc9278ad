"""Fashion-MNIST: read from a folder with the same files; a missing one says how to get it."""

import gzip

import numpy as np
import pytest

from guda.data.fashion import NAMES, VARIABLE
from guda.data.sources import load_source
from refusals import refused


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20, 28, 28), np.uint8), np.arange(20, dtype=np.uint8) % 10
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + images.tobytes()))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + labels.tobytes()))
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path, images


def test_groups_and_pixels(folder):
    data = load_source("fashion-mnist")
    assert data.shape == (1, 28, 28)
    assert set(data.groups.names) == set(NAMES)
    np.testing.assert_array_equal(data.images[:, 0], folder[1])
    assert data.groups.names[data.groups.labels[9]] == "ankle-boot"


def test_shrinking_averages_blocks(folder):
    small = load_source("fashion-mnist", size=14).images[3, 0]
    block = folder[1][3, 4:6, 8:10].astype(float).mean()
    assert abs(float(small[2, 4]) - block) <= 0.5


@pytest.mark.parametrize("size", [13, 20])
def test_uneven_size_is_refused(folder, size):
    with refused("fashion-size-unsupported"):
        load_source("fashion-mnist", size=size)


def test_missing_files_say_how_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with refused("fashion-missing"):
        load_source("fashion-mnist")


def test_truncated_files_are_refused(folder):
    path = folder[0] / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-50])
    with refused("fashion-damaged"):
        load_source("fashion-mnist")
