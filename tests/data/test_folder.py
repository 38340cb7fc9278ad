"""Image folders: the pixels a file holds come out, and every way a folder can be wrong is one clear line."""

import json
import os
import re
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from guda.data.folder import image_files, read_image
from guda.data.images import ImageData
from guda.errors import GudaError
from refusals import refused


def colour(seed: int = 0, h: int = 6, w: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=(h, w, 3), dtype=np.uint8)


def put(path: Path, pixels: np.ndarray | None = None, mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(colour() if pixels is None else pixels)
    (image if mode is None else image.convert(mode)).save(path)
    return path


def art(root: Path) -> Path:
    """Two styles, two objects."""
    for i, file in enumerate(["monet/dog/1.png", "monet/cat/2.png", "klimt/dog/10.png", "klimt/dog/9.png"]):
        put(root / file, colour(i))
    return root


def one_line(error: pytest.ExceptionInfo[GudaError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# --- files and groups -----------------------------------------------------------------------------


def test_first_folder_level_is_the_default_group_and_order_is_natural(tmp_path: Path) -> None:
    data = ImageData.from_folder(art(tmp_path / "art"))
    assert data.ids == ("klimt/dog/9.png", "klimt/dog/10.png", "monet/cat/2.png", "monet/dog/1.png")
    assert data.groups.names == ("klimt", "monet")
    assert data.groups.labels.tolist() == [0, 0, 1, 1]
    assert data.shape == (3, 6, 6)
    assert data.name == "art"
    np.testing.assert_array_equal(data.images[0], colour(3).transpose(2, 0, 1))
    assert data.digest == ImageData.from_folder(tmp_path / "art", group_by="level:1").digest


@pytest.mark.parametrize("group_by", ["level:2", "2"])
def test_second_folder_level(tmp_path: Path, group_by: str) -> None:
    data = ImageData.from_folder(art(tmp_path), group_by=group_by)
    assert data.groups.names == ("cat", "dog")
    assert data.groups.sizes == (1, 3)


def test_hidden_files_and_other_files_are_left_out(tmp_path: Path) -> None:
    art(tmp_path)
    put(tmp_path / ".cache" / "x.png")
    (tmp_path / "monet" / "._1.png").write_bytes(b"resource fork")
    (tmp_path / "README.txt").write_text("about")
    assert len(image_files(tmp_path)) == 4


def test_extensions_are_matched_in_any_case(tmp_path: Path) -> None:
    for i, name in enumerate(
        ["a/1.PNG", "a/2.JpEg", "b/3.webp", "b/4.bmp", "b/5.gif", "b/6.tif", "b/7.TIFF", "b/8.jpg"]
    ):
        put(tmp_path / name, colour(i))
    assert ImageData.from_folder(tmp_path).n == 8


def test_linked_group_folders_are_followed_but_circles_are_refused(tmp_path: Path) -> None:
    art(tmp_path / "art")
    put(tmp_path / "elsewhere" / "x.png")
    os.symlink(tmp_path / "elsewhere", tmp_path / "art" / "linked")
    assert ImageData.from_folder(tmp_path / "art").groups.names == ("klimt", "linked", "monet")
    os.symlink(tmp_path / "art", tmp_path / "art" / "monet" / "again")
    with refused("folder-link-cycle"):
        image_files(tmp_path / "art")


def test_pictures_in_formats_we_cannot_read_are_not_passed_over(tmp_path: Path) -> None:
    art(tmp_path)
    (tmp_path / "monet" / "x.HEIC").write_bytes(b"")
    with refused("image-type-unsupported"):
        ImageData.from_folder(tmp_path)


def test_file_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "a")
    try:
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/a/\xff.png"))).write_bytes(b"")
    except OSError:
        pytest.skip("this file system allows only UTF-8 names")
    with refused("file-name-encoding", match="not UTF-8"):
        image_files(tmp_path)


def test_missing_empty_and_file_roots_are_refused(tmp_path: Path) -> None:
    with refused("data-folder-missing"):
        ImageData.from_folder(tmp_path / "nowhere")
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    with refused("data-folder-empty"):
        ImageData.from_folder(tmp_path / "empty")
    with refused("data-folder-file"):
        ImageData.from_folder(put(tmp_path / "x.png"))


def test_one_group_is_refused_and_named(tmp_path: Path) -> None:
    put(tmp_path / "only" / "1.png")
    put(tmp_path / "only" / "2.png")
    with refused("groups-too-few", match=r"all 2 images .* one group, 'only'"):
        ImageData.from_folder(tmp_path)


def test_groups_are_checked_before_pixels_are_decoded(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "1.png").write_bytes(b"not an image")
    with refused("groups-too-few"):
        ImageData.from_folder(tmp_path)


def test_images_without_the_group_level_are_left_out_and_recorded_unless_all_are(tmp_path: Path) -> None:
    art(tmp_path)
    plain = ImageData.from_folder(tmp_path)
    put(tmp_path / "stray.png")
    data = ImageData.from_folder(tmp_path)
    assert data.digest == plain.digest
    assert data.left_out == {"stray.png": "image-without-group"}
    with pytest.raises(GudaError) as error:
        ImageData.from_folder(tmp_path, group_by="level:3")
    assert re.search(r"\d folders above it.*level 3.*--group-by COLUMN", one_line(error))
    (tmp_path / "stray.png").unlink()
    with refused("group-level-missing", match="level 3"):
        ImageData.from_folder(tmp_path, group_by="level:3")


@pytest.mark.parametrize("group_by", ["level:0", "0", "level:x", "level:-1"])
def test_bad_levels_are_refused(tmp_path: Path, group_by: str) -> None:
    with pytest.raises(GudaError, match="level:1"):
        ImageData.from_folder(art(tmp_path), group_by=group_by)


# --- metadata -------------------------------------------------------------------------------------


def flat(root: Path) -> Path:
    for i in range(3):
        put(root / f"{i}.png", colour(i))
    return root


def jsonl(path: Path, *rows: object) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_metadata_jsonl(tmp_path: Path) -> None:
    rows = [{"file_name": f"./{i}.png", "style": style} for i, style in [(2, "x"), (0, "y"), (1, "x")]]
    jsonl(flat(tmp_path) / "metadata.jsonl", *rows)
    data = ImageData.from_folder(tmp_path, group_by="style")
    assert data.ids == ("0.png", "1.png", "2.png")
    assert [data.groups.names[k] for k in data.groups.labels] == ["y", "x", "x"]
    assert data.meta["group_by"] == "style"


def test_metadata_values_may_be_whole_numbers_or_booleans(tmp_path: Path) -> None:
    values = [(0, 10, True), (1, 9, False), (2, 10, True)]
    rows = [{"file_name": f"{i}.png", "vendor": v, "paid": p} for i, v, p in values]
    jsonl(flat(tmp_path) / "metadata.jsonl", *rows)
    assert ImageData.from_folder(tmp_path, group_by="vendor").groups.names == ("9", "10")
    assert ImageData.from_folder(tmp_path, group_by="paid").groups.names == ("false", "true")


def test_metadata_csv_cells_stay_text(tmp_path: Path) -> None:
    flat(tmp_path)
    text = '\ufefffile_name,artist\n0.png,NA\n1.png,"Doe, Jane"\n2.png,01\n'  # with Excel's byte-order mark
    (tmp_path / "metadata.csv").write_text(text, encoding="utf-8")
    data = ImageData.from_folder(tmp_path, group_by="artist")
    assert [data.groups.names[k] for k in data.groups.labels] == ["NA", "Doe, Jane", "01"]


def test_grouping_by_a_column_without_metadata_explains_both_ways(tmp_path: Path) -> None:
    with pytest.raises(GudaError) as error:
        ImageData.from_folder(art(tmp_path), group_by="style")
    assert re.search(r"metadata\.jsonl or metadata\.csv.*file_name and style.*--group-by level:1", one_line(error))


def test_missing_column_lists_the_columns(tmp_path: Path) -> None:
    jsonl(flat(tmp_path) / "metadata.jsonl", *[{"file_name": f"{i}.png", "style": "x"} for i in range(3)])
    with refused(
        "metadata-column-unknown", match=r"'styl' \(did you mean 'style'\?\); its columns are file_name, style"
    ):
        ImageData.from_folder(tmp_path, group_by="styl")


GOOD = [{"file_name": "0.png", "g": "x"}, {"file_name": "1.png", "g": "y"}, {"file_name": "2.png", "g": "x"}]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*GOOD, {"file_name": "3.png", "g": "x"}], r"metadata\.jsonl:4: there is no image '3\.png'"),
        ([*GOOD, {"file_name": "../0.png", "g": "x"}], r"there is no image '\.\./0\.png'"),
        ([*GOOD, GOOD[0]], r"metadata\.jsonl:4: '0\.png' already has a row"),
        (GOOD[:2], r"no row for '2\.png' \(1 of 3"),
        ([*GOOD[:2], {"file_name": "2.png", "g": " "}], r"metadata\.jsonl:3: column 'g' is empty"),
        ([*GOOD[:2], {"file_name": "2.png", "g": None}], "column 'g' is empty"),
        ([*GOOD[:2], {"file_name": "2.png"}], "column 'g' is empty"),
        ([*GOOD[:2], {"file_name": "2.png", "g": 0.5}], "column 'g' holds 0.5"),
        ([*GOOD[:2], {"g": "x"}], r"metadata\.jsonl:3: no file_name"),
        ([*GOOD[:2], ["2.png", "x"]], "expected an object"),
        ([], "has no rows"),
    ],
)
def test_bad_metadata_rows_are_refused(tmp_path: Path, rows: list[object], message: str) -> None:
    jsonl(flat(tmp_path) / "metadata.jsonl", *rows)
    with pytest.raises(GudaError, match=message) as error:
        ImageData.from_folder(tmp_path, group_by="g")
    one_line(error)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metadata.jsonl", b'{"file_name": \n', r"metadata\.jsonl:1: not valid JSON"),
        ("metadata.jsonl", b"\xff\xfe{}", "not UTF-8"),
        ("metadata.csv", b"file_name,g\n0.png,x,z\n", r"metadata\.csv:2: more cells"),
        ("metadata.csv", b'file_name,g\n0.png,"x\n', "not valid CSV"),
        ("metadata.csv", b"file_name,g,g\n0.png,x,y\n", "names a column twice"),
        ("metadata.csv", b"file_name,g\n0.png,x\n1.png,y\n2.png\n", "column 'g' is empty"),
        ("metadata.csv", b"image,g\n0.png,x\n", "no file_name"),
    ],
)
def test_damaged_metadata_files_are_refused(tmp_path: Path, name: str, text: bytes, message: str) -> None:
    (flat(tmp_path) / name).write_bytes(text)
    with pytest.raises(GudaError, match=message):
        ImageData.from_folder(tmp_path, group_by="g")


def test_two_metadata_files_are_refused(tmp_path: Path) -> None:
    jsonl(flat(tmp_path) / "metadata.jsonl", *GOOD)
    (tmp_path / "metadata.csv").write_text("file_name,g\n")
    with refused("metadata-ambiguous"):
        ImageData.from_folder(tmp_path, group_by="g")


# --- pixels ---------------------------------------------------------------------------------------


def test_grey_only_folders_have_one_channel_mixed_ones_three(tmp_path: Path) -> None:
    grey = colour()[..., 0]
    put(tmp_path / "a" / "1.png", grey)
    put(tmp_path / "b" / "2.png", grey > 99)  # mode 1
    data = ImageData.from_folder(tmp_path)
    assert data.shape == (1, 6, 6)
    np.testing.assert_array_equal(data.images[0, 0], grey)
    np.testing.assert_array_equal(data.images[1, 0], np.where(grey > 99, 255, 0))
    put(tmp_path / "b" / "3.png", colour(1))
    data = ImageData.from_folder(tmp_path)
    assert data.shape == (3, 6, 6)
    for channel in data.images[0]:
        np.testing.assert_array_equal(channel, grey)
    assert ImageData.from_folder(tmp_path, mode="L").shape == (1, 6, 6)


def test_mode_rgb_lifts_grey(tmp_path: Path) -> None:
    grey = colour()[..., 0]
    np.testing.assert_array_equal(read_image(put(tmp_path / "1.png", grey), mode="RGB"), np.stack([grey] * 3))


def test_alpha_is_composited_on_white(tmp_path: Path) -> None:
    rgba = np.zeros((2, 2, 4), dtype=np.uint8)
    rgba[..., 0] = 200
    rgba[..., 3] = [[0, 255], [51, 255]]
    image = read_image(put(tmp_path / "a.png", rgba))
    assert image[:, 0, 0].tolist() == [255, 255, 255]
    assert image[:, 0, 1].tolist() == [200, 0, 0]
    assert image[:, 1, 0].tolist() == [244, 204, 204]  # 0.2 of the colour, 0.8 of white


def test_grey_with_alpha_stays_grey(tmp_path: Path) -> None:
    la = np.array([[[7, 0], [7, 255]]], dtype=np.uint8)
    image = read_image(put(tmp_path / "a.png", la))
    assert image.tolist() == [[[255, 7]]]


def test_palette_with_and_without_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "p.png")
    assert read_image(tmp_path / "p.png")[:, 0].T.tolist() == [[10, 20, 30], [200, 100, 50]]
    image.save(tmp_path / "t.png", transparency=0)
    assert read_image(tmp_path / "t.png")[:, 0].T.tolist() == [[255, 255, 255], [200, 100, 50]]


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show rotated by 90 degrees clockwise
    Image.fromarray(colour(h=4, w=6)).save(tmp_path / "x.png", exif=exif)
    expected = np.rot90(colour(h=4, w=6), k=-1)
    np.testing.assert_array_equal(read_image(tmp_path / "x.png"), expected.transpose(2, 0, 1))


def test_mixed_sizes_name_two_files_and_the_option(tmp_path: Path) -> None:
    put(tmp_path / "a" / "1.png", colour(h=6, w=6))
    put(tmp_path / "b" / "2.png", colour(h=6, w=8))
    with pytest.raises(GudaError) as error:
        ImageData.from_folder(tmp_path)
    assert re.search(r"a/1\.png is 6x6, b/2\.png is 8x6;.*--size N", one_line(error))
    assert ImageData.from_folder(tmp_path, size=5).shape == (3, 5, 5)


def test_size_leaves_images_of_that_size_alone(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read_image(put(tmp_path / "1.png"), size=6), colour().transpose(2, 0, 1))


def test_size_cuts_the_centre_square(tmp_path: Path) -> None:
    pixels = colour(h=4, w=10)
    np.testing.assert_array_equal(
        read_image(put(tmp_path / "w.png", pixels), size=4), pixels[:, 3:7].transpose(2, 0, 1)
    )
    tall = pixels.transpose(1, 0, 2).copy()
    np.testing.assert_array_equal(read_image(put(tmp_path / "h.png", tall), size=4), tall[3:7].transpose(2, 0, 1))


def test_scaling_down_is_antialiased(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64), dtype=np.uint8)
    stripes[:, ::2] = 255
    image = read_image(put(tmp_path / "s.png", stripes), size=8)
    assert abs(image.astype(int) - 127).max() < 25  # picking pixels would give 0 or 255


@pytest.mark.parametrize("name", ["x.png", "x.jpg", "x.webp", "x.bmp", "x.gif", "x.tif"])
def test_truncated_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    put(tmp_path / "b" / "ok.png", colour(h=64, w=64))
    path = put(tmp_path / "a" / name, colour(h=64, w=64))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(GudaError, match=f"cannot read image .*{re.escape(name)}") as error:
        ImageData.from_folder(tmp_path)
    one_line(error)


@pytest.mark.parametrize("content", [b"", b"hello", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"])
def test_files_that_are_no_images_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.png").write_bytes(content)
    with refused("image-unreadable"):
        read_image(tmp_path / "x.png")


def test_deep_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.arange(9, dtype=np.uint16).reshape(3, 3)).save(tmp_path / "x.png")
    with refused("image-depth-unsupported", match=r"16-bit.*8 bits per channel"):
        read_image(tmp_path / "x.png")


def test_animations_are_refused(tmp_path: Path) -> None:
    frames = [Image.fromarray(colour(i)) for i in range(3)]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    with refused("image-animated", match="3 frames"):
        read_image(tmp_path / "x.gif")


@pytest.mark.parametrize("side", [12_000, 60_000])  # above Pillow's warning, and above its error
def test_decompression_bombs_are_refused(tmp_path: Path, side: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    (tmp_path / "x.png").write_bytes(png)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with refused("image-too-large"):
            read_image(tmp_path / "x.png")


@pytest.mark.parametrize(("option", "value"), [("size", 0), ("size", True), ("size", 8.0), ("mode", "CMYK")])
def test_bad_options_are_refused(tmp_path: Path, option: str, value: object) -> None:
    with pytest.raises(GudaError, match=f"{option} must be"):
        ImageData.from_folder(art(tmp_path), **{option: value})  # type: ignore[arg-type]
