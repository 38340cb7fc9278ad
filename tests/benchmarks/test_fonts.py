"""Fonts as data: what is drawn, which families can be groups, where their files come from."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from guda.data.sources import load_source
from guda.errors import GudaError
from guda_sources import debian, fonts
from guda_sources.faces import families, rank, split_name
from guda_sources.fonts import CHARACTERS, FINER, Pen, alike, apart, jitter, why_not
from refusals import refused

matplotlib = pytest.importorskip("matplotlib")
SHIPPED = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
SANS, SERIF = SHIPPED / "DejaVuSans.ttf", SHIPPED / "DejaVuSerif.ttf"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GUDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(fonts.VARIABLE, raising=False)


@pytest.fixture
def folder(tmp_path):
    """DejaVu Sans in two styles, DejaVu Serif, and a font of symbols."""
    where = tmp_path / "mine"
    (where / "below").mkdir(parents=True)
    for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "below/DejaVuSerif.ttf", "STIXSizOneSymReg.ttf"):
        shutil.copy(SHIPPED / Path(name).name, where / name)
    return where


# --- drawing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 32])
def test_capitals_have_one_height_and_are_centred(size):
    for file in (SANS, SERIF, SHIPPED / "DejaVuSansMono.ttf", SHIPPED / "cmr10.ttf"):
        rows = Pen(file, size).draw("H").max(axis=1)
        drawn = np.flatnonzero(rows > 127)
        assert abs(len(drawn) - size * 9 / 16) <= 1
        assert abs((drawn[0] + drawn[-1] + 1) / 2 - size / 2) <= 0.5


def test_letters_stand_on_one_line_and_stay_inside():
    pen = Pen(SANS, 32)
    bottom = {c: np.flatnonzero(pen.draw(c).max(axis=1) > 127)[-1] for c in "HxEg"}
    assert bottom["H"] == bottom["x"] == bottom["E"] < bottom["g"]
    for c in CHARACTERS:
        image = pen.draw(c)
        assert image.dtype == np.uint8
        edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        assert image.max() > 200
        assert edge.max() == 0
        columns = np.flatnonzero(image.max(axis=0))
        assert abs(columns[0] + columns[-1] - 31) <= 2  # centred from left to right


def test_a_shift_of_whole_pixels_moves_the_same_picture():
    pen = Pen(SERIF, 16)
    np.testing.assert_array_equal(pen.draw("k", shift=(FINER, 0)), np.roll(pen.draw("k"), 1, axis=1))
    np.testing.assert_array_equal(pen.draw("k", shift=(0, -FINER)), np.roll(pen.draw("k"), -1, axis=0))


def test_a_wide_family_is_shrunk_to_fit(monkeypatch):
    assert Pen(SANS, 16).shrunk == pytest.approx(1.0, abs=0.02)
    monkeypatch.setattr(fonts, "CAPITAL", 0.95)  # as if the capitals were so tall that descenders had no room
    pen = Pen(SANS, 16)
    assert pen.shrunk < 0.9
    assert all(pen.draw(c)[[0, -1]].max() == 0 for c in "gjpqyQW")


def test_further_images_are_the_same_in_every_family_and_plain_first():
    assert jitter("A", 0, 16) == (1.0, (0, 0))
    seen = {jitter(c, v, 16) for c in CHARACTERS for v in range(1, 4)}
    assert len(seen) > 100
    assert all(0.85 <= s <= 1 and max(map(abs, shift)) <= FINER for s, shift in seen)


# --- which families -------------------------------------------------------------------------------


def test_fonts_without_the_characters_are_told():
    assert Pen(SANS, 16).lacks() == []
    assert why_not(SANS) is None
    assert Pen(SHIPPED / "STIXSizOneSymReg.ttf", 16).lacks() == list(CHARACTERS)
    assert why_not(SHIPPED / "STIXSizOneSymReg.ttf").startswith("no A B C D E F G H ...")


def test_names_and_styles():
    assert split_name("Lato Black", "Italic") == ("Lato", "Black Italic")
    assert split_name("Medium", "Bold") == ("Medium", "Bold")  # a name is never used up
    styles = ["Condensed Light", "Bold Oblique", "Oblique", "Bold", "Book"]
    assert sorted(styles, key=rank) == ["Book", "Bold", "Oblique", "Bold Oblique", "Condensed Light"]
    found = {f.name: [p.stem for p in f.files] for f in families(SHIPPED)[0]}
    assert found["DejaVu Sans"] == [
        "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique",
    ]  # fmt: skip


def test_same_and_near_families():
    a = np.zeros((2, 4, 4), np.uint8)
    a[:, 1:3] = 200
    b = a.copy()
    b[0, 1, 0] = 180
    c = np.full_like(a, 90)
    assert apart(a, a) == 0
    assert apart(a, b) == pytest.approx(20 / (16 * 200))
    assert apart(a, np.zeros_like(a)) == 1
    same, near = alike({"one": a, "two": a.copy(), "three": b, "four": c})
    assert same == {"two": "one"}
    assert near == [("one", "three", round(20 / 3200, 3))]


# --- the data set ---------------------------------------------------------------------------------


def test_a_folder_of_fonts(folder):
    data = load_source(f"fonts:{folder}", size=16, variants=3)
    assert data.groups.names == ("DejaVu Sans", "DejaVu Serif")
    assert data.shape == (1, 16, 16)
    assert data.n == 2 * 62 * 3
    assert data.contents[:62] == tuple(CHARACTERS)
    assert data.ids[0] == "DejaVu Sans/A-0"
    assert "no A B" in next(iter(data.meta["skipped"].values()))
    at = dict(zip(data.ids, data.images[:, 0], strict=True))
    np.testing.assert_array_equal(at["DejaVu Serif/q-0"], Pen(SERIF, 16).draw("q"))
    bold = Pen(SHIPPED / "DejaVuSans-Bold.ttf", 16)
    np.testing.assert_array_equal(at["DejaVu Sans/q-1"], bold.draw("q", *jitter("q", 1, 16)))
    np.testing.assert_array_equal(at["DejaVu Sans/q-2"], Pen(SANS, 16).draw("q", *jitter("q", 2, 16)))


def test_drawn_once_and_the_same_bytes_again(folder, tmp_path, monkeypatch):
    first = load_source(f"fonts:{folder}", variants=1)
    with monkeypatch.context() as m:
        m.setattr(fonts, "draw_family", lambda *_: pytest.fail("drawn again"))
        assert load_source(f"fonts:{folder}", variants=1).digest == first.digest
    shutil.rmtree(tmp_path / "cache")
    assert load_source(f"fonts:{folder}", variants=1).digest == first.digest
    more = load_source(f"fonts:{folder}", variants=2)  # more images keep those of fewer
    at = dict(zip(more.ids, more.images, strict=True))
    assert all((at[name] == image).all() for name, image in zip(first.ids, first.images, strict=True))


def test_a_copy_under_another_file_name_is_no_second_family(folder):
    shutil.copy(SANS, folder / "zzz.ttf")
    assert load_source(f"fonts:{folder}", variants=1).groups.names == ("DejaVu Sans", "DejaVu Serif")


def test_bad_folders_and_options(tmp_path, folder):
    with refused("font-folder-missing"):
        load_source(f"fonts:{tmp_path / 'nowhere'}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "broken.ttf").write_bytes(b"not a font")
    with refused("font-folder-empty"):
        load_source(f"fonts:{tmp_path / 'empty'}")
    shutil.copy(SANS, tmp_path / "empty" / "one.ttf")
    with refused("font-families-too-few", match=r"1 family to tell apart.*broken.ttf"):
        load_source(f"fonts:{tmp_path / 'empty'}")
    with refused("source-option-invalid", match="variants: Input should be greater than 0"):
        load_source(f"fonts:{folder}", variants=0)
    with refused("source-option-unknown"):
        load_source("fonts", group_by="level:1")


# --- packages -------------------------------------------------------------------------------------


def test_the_pinned_table():
    table = fonts.pinned()
    names = [name for entry in table.values() for name in entry["families"]]
    assert len(names) == len(set(names)) >= 100
    for entry in table.values():
        assert isinstance(entry["version"], str)
        for files in entry["families"].values():
            assert 1 <= len(files) <= 4
            assert all(isinstance(sha, str) and len(sha) == 16 for sha in files.values())


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two packages as .deb files that the table pins."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb")
    table, out = {}, tmp_path / "debs"
    out.mkdir()
    for name, file in (("fonts-one", SANS), ("fonts-two", SERIF)):
        root = tmp_path / name
        (root / "DEBIAN").mkdir(parents=True)
        (root / "usr/share/fonts/x").mkdir(parents=True)
        control = (
            f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody <n@example.org>\nDescription: x\n"
        )
        (root / "DEBIAN/control").write_text(control)
        shutil.copy(file, root / "usr/share/fonts/x")
        subprocess.run(["dpkg-deb", "-b", "-Znone", root, out / f"{name}_1.0_all.deb"], check=True, capture_output=True)
        sha = fonts.store.digest_file(file)[:16]
        table[name] = {"version": "1.0", "families": {name[6:]: {f"x/{file.name}": sha}}}
    monkeypatch.setattr(fonts, "pinned", lambda: table)
    monkeypatch.setattr(fonts, "INSTALLED", tmp_path / "root")
    monkeypatch.setenv(fonts.VARIABLE, str(out))
    return out, table


def test_packages_of_a_folder(packages, tmp_path, monkeypatch):
    data = load_source("fonts", variants=1)
    assert data.groups.names == ("one", "two")
    np.testing.assert_array_equal(data.images[0, 0], Pen(SANS, 16).draw("A"))
    (packages[0] / "fonts-two_1.0_all.deb").unlink()
    with refused("debian-package-missing"):
        load_source("fonts", variants=1)
    shutil.copytree(tmp_path / "fonts-two", packages[0] / "fonts-two")  # unpacked does as well
    assert load_source("fonts", variants=1).digest == data.digest
    # what is installed is used as it is, with no download
    monkeypatch.delenv(fonts.VARIABLE)
    for name in ("fonts-one", "fonts-two"):
        shutil.copytree(tmp_path / name, tmp_path / "root", dirs_exist_ok=True)
    monkeypatch.setattr(debian, "unpacked", lambda *_: pytest.fail("downloaded"))
    assert load_source("fonts", variants=1).digest == data.digest


def test_another_version_is_refused(packages):
    packages[1]["fonts-two"]["families"]["two"]["x/DejaVuSerif.ttf"] = "0" * 16
    with refused("font-version-mismatch", match=r"not the file of fonts-two 1.0.*fonts:FOLDER"):
        load_source("fonts")


def test_no_apt_no_network_and_a_damaged_package(packages, monkeypatch):
    monkeypatch.delenv(fonts.VARIABLE)
    with monkeypatch.context() as m:
        m.setattr(debian.shutil, "which", lambda _: None)
        with refused("apt-missing"):
            load_source("fonts")
    if shutil.which("apt-get"):  # no release has this package
        with refused("download-failed", match=r"cannot download fonts-one 1.0 \(.*\); run apt-get update"):
            load_source("fonts")
    monkeypatch.setenv(fonts.VARIABLE, str(packages[0]))
    (packages[0] / "fonts-one_1.0_all.deb").write_bytes(b"no archive")
    with refused("download-damaged") as e:
        load_source("fonts")
    assert "\n" not in str(e.value)


def test_two_real_packages(monkeypatch):
    """Downloaded if there is a network; the letters are those the table pins."""
    if shutil.which("apt-get") is None:
        pytest.skip("no apt-get")
    table = {name: fonts.pinned()[name] for name in ("fonts-engadget", "fonts-fantasma")}
    monkeypatch.setattr(fonts, "pinned", lambda: table)
    try:
        data = load_source("fonts", variants=1)
    except GudaError as e:
        if "cannot download" in str(e):
            pytest.skip(str(e))
        raise
    assert data.groups.names == ("Engadget", "Fantasma")
    assert data.n == 2 * 62
