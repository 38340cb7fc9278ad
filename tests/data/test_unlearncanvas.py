"""UnlearnCanvas: the tree is checked before a pixel is read, and every hole in it is named."""

import shutil

import numpy as np
import pytest
from PIL import Image

from guda.data import unlearncanvas
from guda.data.sources import load_source
from guda.errors import GudaError
from refusals import refused

STYLES, OBJECTS = ("Cold_Warm", "Rust", "Van_Gogh"), ("Bears", "Sea_Birds")


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name, value in (("STYLES", STYLES), ("OBJECTS", OBJECTS), ("IMAGES", 2)):
        monkeypatch.setattr(unlearncanvas, name, value)
    monkeypatch.setenv(unlearncanvas.VARIABLE, str(tmp_path / "canvas"))
    for i, style in enumerate((*STYLES, "Seed_Images")):
        for j, name in enumerate(OBJECTS):
            folder = tmp_path / "canvas" / style / name
            folder.mkdir(parents=True)
            for k in (1, 2):
                Image.fromarray(np.full((8, 8, 3), 40 * i + 10 * j + k, np.uint8)).save(
                    folder / f"{k}.jpg", quality=100
                )
    (tmp_path / "canvas" / "README.md").write_text("about")
    return tmp_path / "canvas"


def test_styles_are_groups_and_objects_contents(root):
    data = load_source("unlearncanvas", size=4)
    assert data.groups.names == STYLES  # as published
    assert data.groups.sizes == (4, 4, 4)
    assert data.ids[:3] == ("Cold_Warm/Bears/1.jpg", "Cold_Warm/Bears/2.jpg", "Cold_Warm/Sea_Birds/1.jpg")
    assert data.contents[:3] == ("Bears", "Bears", "Sea Birds")
    assert data.shape == (3, 4, 4)
    expected = [40 * i + 10 * j + k for i in range(3) for j in range(2) for k in (1, 2)]
    assert np.abs(data.images.mean(axis=(1, 2, 3)) - expected).max() <= 1
    assert load_source(f"unlearncanvas:{root}", size=4).digest == data.digest


def test_default_size_is_that_of_stable_diffusion(root):
    assert load_source("unlearncanvas").shape == (3, 512, 512)


def test_seed_images_with_a_space_are_no_group_either(root):
    (root / "Seed_Images").rename(root / "Seed Images")
    (root / "Cold_Warm").rename(root / "Cold Warm")
    assert load_source("unlearncanvas", size=4).groups.names == ("Cold Warm", "Rust", "Van_Gogh")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: shutil.rmtree(root / "Rust"), "lacks 1 of 3 styles: Rust;.*OPTML-Group"),
        (lambda root: shutil.rmtree(root / "Rust" / "Bears"), "Rust lacks 1 of 2 objects: Bears"),
        (lambda root: (root / "Van_Gogh" / "Bears" / "2.jpg").unlink(), r"Van_Gogh/Bears lacks 2\.jpg"),
        (lambda root: (root / "Rust" / "Bears" / "3.jpg").touch(), r"'3\.jpg'"),
        (lambda root: (root / "Rusty").mkdir(), "'Rusty'.*did you mean 'Rust'"),
        (lambda root: (root / "Rust" / "Bees").mkdir(), "'Bees'"),
        (lambda root: (root / "Van Gogh").mkdir(), "twice"),
        (lambda root: shutil.rmtree(root), "OPTML-Group/UnlearnCanvas.*GUDA_UNLEARNCANVAS"),
    ],
)
def test_what_is_wrong_is_named(root, change, words):
    change(root)
    with pytest.raises(GudaError, match=words) as e:
        load_source("unlearncanvas", size=4)
    assert "\n" not in str(e.value)


def test_no_folder_given(monkeypatch):
    monkeypatch.delenv(unlearncanvas.VARIABLE, raising=False)
    with refused("unlearncanvas-missing", match=r"where is UnlearnCanvas\?.*https://"):
        load_source("unlearncanvas")


def test_the_paper_figures():
    assert (len(unlearncanvas.STYLES), len(unlearncanvas.OBJECTS), unlearncanvas.IMAGES) == (60, 20, 20)
    assert len(set(unlearncanvas.STYLES)) == 60


def test_a_path_goes_to_sources_that_read_one_only(root):
    with pytest.raises(GudaError):
        load_source(f"digits:{root}")
