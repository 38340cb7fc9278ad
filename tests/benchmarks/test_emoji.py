"""Emoji: which drawings are shared, how they come out, and what a damaged or missing package says."""

import io
import json
import tarfile

import numpy as np
import pytest

from guda.data import npm
from guda.data.sources import load_source
from guda_sources import emoji
from refusals import refused

pytest.importorskip("resvg_py")

HALF = '<path fill="#ff0000" d="M0 0h8v16H0z"/>'  # the left half red
DOT = '<path fill="currentColor" d="M4 4h8v8H4z"/>'
FILES = ("icons.json", "info.json", "package.json", "metadata.json")


def package(folder, name, icons, version="1.0.0", **changes):
    contents = {
        "icons.json": {"prefix": name, "width": 16, "height": 16, **icons},
        "info.json": {"license": {"spdx": "MIT", "url": "l"}, "author": {"name": f"maker of {name}", "url": "u"}},
        "package.json": {"version": version},
        "metadata.json": {"categories": {"Flags": ["rainbow"]}} if name == "one" else {},
    } | changes
    path = folder / f"iconify-json-{name}-{version}.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for file, value in contents.items():
            entry = tarfile.TarInfo(f"package/{file}")
            data = json.dumps(value).encode()
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def icons(colour, **more):
    half = {"body": HALF.replace("#ff0000", colour)}
    plain = {
        "half": half,
        "dot": {"body": DOT},
        "dot-dark": half,
        "dot-medium-dark": half,
        "rainbow": half,
        "street": {"body": HALF + DOT},
        "street-light": {"body": DOT + HALF},
    }
    return {"icons": plain | more, "aliases": {"flah": {"parent": "half", "hFlip": True}, "twin": {"parent": "dot"}}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(emoji, "SETS", {"one": "1.0.0", "two": "1.0.0"})
    monkeypatch.setenv(emoji.VARIABLE, str(tmp_path))
    monkeypatch.setenv(npm.CACHE, str(tmp_path / "cache"))
    package(tmp_path, "one", icons("#ff0000", own={"body": DOT}))
    package(tmp_path, "two", icons("#0000ff", other={"body": DOT}))
    return tmp_path


def test_shared_objects_without_flags_tones_and_second_names(folder):
    data = load_source("emoji", size=8)
    assert data.groups.names == ("one", "two")
    # "rainbow" is a flag, "dot-dark" a tone, "twin" another name of it; "street-light" is no tone of "street"
    assert [c for c, g in zip(data.contents, data.groups.labels, strict=True) if g == 0] == [
        "dot", "flah", "half", "street", "street light",
    ]  # fmt: skip
    assert data.ids[:2] == ("one/dot", "one/flah")
    assert data.meta["licences"]["two"]["author"] == "maker of two"
    assert emoji.licences() == data.meta["licences"]


def test_pixels_are_the_drawing_on_white(folder):
    data = load_source("emoji", size=8)
    at = dict(zip(data.ids, data.images, strict=True))
    expected = np.full((3, 8, 8), 255, np.uint8)
    expected[1:, :, :4] = 0
    np.testing.assert_array_equal(at["one/half"], expected)
    np.testing.assert_array_equal(at["one/flah"], expected[:, :, ::-1])  # an alias may mirror its parent
    assert at["two/half"][2].min() == 255
    assert (at["one/dot"] == 0).sum() == 3 * 16


def test_a_drawing_that_is_not_square_is_centred(folder):
    wide = {"body": '<path d="M0 0h32v16H0z"/>', "width": 32}
    package(folder, "one", icons("#ff0000", wide=wide))
    package(folder, "two", icons("#0000ff", wide=wide))
    data = load_source("emoji", size=8)
    rows = data.images[data.ids.index("one/wide"), 0].mean(axis=1)
    np.testing.assert_array_equal(rows, [255, 255, 0, 0, 0, 0, 255, 255])


def test_empty_drawings_leave_the_set(folder):
    package(folder, "two", icons("#0000ff", half={"body": "<g/>"}))
    left = set(load_source("emoji", size=8).contents)
    assert left == {"dot", "street", "street light"}  # "flah" is the empty one mirrored


def test_rendered_once_and_again_for_other_drawings(folder, monkeypatch):
    first = load_source("emoji", size=8)
    with monkeypatch.context() as m:
        m.setattr(emoji, "_render", lambda *_: pytest.fail("rendered again"))
        assert load_source("emoji", size=8).digest == first.digest
    package(folder, "two", icons("#00ff00"))
    assert load_source("emoji", size=8).digest != first.digest


def test_unpacked_packages_are_read_too(folder):
    first = load_source("emoji", size=8)
    for name in ("one", "two"):
        path = folder / f"iconify-json-{name}-1.0.0.tgz"
        (folder / name).mkdir()
        for file, value in zip(FILES, emoji._read(path, *FILES), strict=True):
            (folder / name / file).write_text(json.dumps(value))
        path.unlink()
    assert load_source("emoji", size=8).digest == first.digest


@pytest.mark.parametrize("damage", [lambda b: b[:-40], lambda b: b"no archive", lambda b: b[:60] + bytes(40) + b[100:]])
def test_damaged_package_is_one_line(folder, damage):
    path = folder / "iconify-json-two-1.0.0.tgz"
    path.write_bytes(damage(path.read_bytes()))
    with refused("download-damaged", match=r"iconify-json-two-1.0.0.tgz.*fetch it again") as e:
        load_source("emoji", size=8)
    assert "\n" not in str(e.value)


def test_package_without_its_files(folder):
    package(folder, "two", {}, **{"info.json": ["a list"]})
    with refused("download-damaged"):
        load_source("emoji", size=8)


def test_a_drawing_that_is_no_svg_is_named(folder):
    package(folder, "two", icons("#0000ff", half={"body": "<path"}))
    with refused("emoji-undrawable"):
        load_source("emoji", size=8)


def test_missing_package_and_missing_npm(folder, monkeypatch):
    (folder / "iconify-json-two-1.0.0.tgz").unlink()
    with refused("emoji-package-missing", match=r"npm pack @iconify-json/two@1.0.0"):
        load_source("emoji")
    monkeypatch.delenv(emoji.VARIABLE)
    monkeypatch.setattr(emoji.npm.shutil, "which", lambda _: None)
    with refused("npm-missing"):
        load_source("emoji")


def test_options(folder):
    with refused("source-option-unknown"):
        load_source("emoji", group_by="level:2")
    with refused("size-invalid"):
        load_source("emoji", size=0)
    assert load_source("emoji").shape == (3, 32, 32)
