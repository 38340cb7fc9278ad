"""Image folders: which files there are, their pixels and their labels.

Used for training data (ImageData.from_folder) and for queries (Queries.from_folder). Every file is decoded in full, so
a damaged one is found before a model is trained on it.

Labels are groups and contents, from folder names or a table beside the images. The layout is that of Hugging Face's
`imagefolder`: nested folders, and optionally metadata.jsonl or metadata.csv at the root, with a `file_name` column
relative to it. The prompts of queries come from a table of the same form.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from guda.data.groups import natural
from guda.errors import GudaError, choices, suggestion
from guda.memory import check_memory
from guda.parsing import TEXT_BYTES, ParseError, check_regular, parse_json

if TYPE_CHECKING:
    from PIL import Image
import csv
import re
from dataclasses import dataclass
from itertools import product
from pathlib import PurePosixPath
from typing import Any

LARGEST_SIDE = 16384  # pixels of a scaled image

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})

# Pictures we cannot read. They are refused: passing over them would drop training images without a word.
FOREIGN = frozenset({".avif", ".heic", ".heif", ".jxl", ".jp2", ".psd", ".svg", ".tga", ".ppm", ".pgm"})

# Decoders are limited to these: a file named .png that holds PostScript must not start Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")


# --- files ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Listing:
    """What is below a folder, in natural order."""

    files: list[str]  # images, as relative POSIX paths; hidden ones are left out
    refused: dict[str, GudaError]  # what cannot be used, by relative path
    others: list[str]  # files that are not images
    empty: list[str]  # folders without any image below them, the topmost of each


def list_folder(root: Path) -> Listing:
    """Everything below `root`. Nothing inside is an error yet; see `image_files`."""
    if not root.exists():
        raise GudaError("data-folder-missing", f"image folder {root} does not exist")
    if not root.is_dir():
        raise GudaError("data-folder-file", f"{root} is a file; give the folder that holds the images")
    found = Listing([], {}, [], [])
    _walk(root, "", (), found)
    for names in (found.files, found.others, found.empty):
        names.sort(key=_natural_path)
    return found


def _natural_path(file: str) -> list[Any]:
    return [natural(part) for part in file.split("/")]


def image_files(root: Path) -> list[str]:
    """Relative POSIX paths of all images below `root`, hidden ones left out, in natural order; an error if something
    there cannot be used."""
    found = list_folder(root)
    refuse_files(root, found.refused)
    return found.files or no_images(root)


def no_images(root: Path) -> Any:
    raise GudaError("data-folder-empty", f"no images in {root}; expected files ending in {choices(sorted(EXTENSIONS))}")


def refuse_files(root: Path, refused: Mapping[str, GudaError], fix: str = "") -> None:
    """Raise for the first of the files that cannot be used, in natural order; the message counts the others."""
    if not refused:
        return
    code, told = (first := refused[min(refused, key=_natural_path)]).code, str(first)
    if others := len(refused) - 1:
        told += f"; {others} more cannot be used either"
    raise GudaError(code, told + (fix or f"; guda check {root} lists every problem")) from None


DEEPEST = 100  # folders in folders; a tree of groups has a few levels


def _walk(folder: Path, prefix: str, above: tuple[str, ...], found: Listing) -> bool:
    """Whether there is any picture below, readable or not."""
    name = prefix.rstrip("/") or "."
    if len(above) > DEEPEST:
        shown = "/".join(prefix.split("/")[:3])
        found.refused[name] = GudaError(
            "folder-too-deep", f"{above[0]}/{shown}/... is more than {DEEPEST} folders deep; move the images up"
        )
        return True
    real = os.path.realpath(folder)
    if real in above:  # symbolic links are followed, as group folders are often links, but not in circles
        found.refused[name] = GudaError(
            "folder-link-cycle", f"{folder} is a link to a folder above it; remove the link"
        )
        return True
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as e:
        found.refused[name] = GudaError("folder-unreadable", f"cannot list {folder}: {e.strerror}")
        return True
    some, empty = False, len(found.empty)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        relative = prefix + entry.name
        suffix = os.path.splitext(entry.name)[1].lower()
        try:
            relative.encode()
            is_folder = entry.is_dir()
        except UnicodeEncodeError:
            if suffix not in EXTENSIONS and not entry.is_dir():
                continue
            shown = relative.encode("ascii", "backslashreplace").decode()
            found.refused[shown] = GudaError(
                "file-name-encoding", f"the file name {relative!a} in {folder} is not UTF-8; rename it"
            )
            some = True
            continue
        except OSError as e:  # a link to itself
            found.refused[relative] = GudaError(
                "folder-unreadable", f"cannot read {entry.path}: {e.strerror}; remove it"
            )
            continue
        if is_folder:
            some |= _walk(folder / entry.name, relative + "/", (*above, real), found)
        elif suffix in FOREIGN:
            some = True
            found.refused[relative] = GudaError(
                "image-type-unsupported",
                f"{entry.path}: {suffix} images cannot be read; convert it to PNG or JPEG, or remove it",
            )
        elif suffix in EXTENSIONS:
            some = True
            found.files.append(relative)
        else:
            found.others.append(relative)
    if not some and prefix:
        found.empty[empty:] = [name]  # what is inside is empty because of it
    return some


# --- pixels ---------------------------------------------------------------------------------------
def check_options(size: int | None, mode: str | None) -> None:
    if size is not None and (isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1):
        raise GudaError("size-invalid", f"size must be a whole number of pixels, at least 1, got {size!r}")
    if size is not None and size > LARGEST_SIDE:
        raise GudaError("size-invalid", f"size is {size}; images of at most {LARGEST_SIDE} pixels a side are made")
    if mode not in (None, "L", "RGB"):
        raise GudaError("mode-invalid", f"mode must be L (grey) or RGB, got {mode!r}")


def read_image(path: Path, size: int | None = None, mode: str | None = None) -> np.ndarray:
    """One image, uint8 [C, H, W]; upright by its EXIF tag, transparency composited on white.

    size: scale the shorter side to `size` (bicubic, antialiased) and cut the centre square.
    mode: "L" or "RGB"; without it, one channel if the file is stored as grey, three otherwise.
    """
    check_options(size, mode)
    return to_pixels(open_image(path, mode), size)


def to_pixels(image: Image.Image, size: int | None) -> np.ndarray:
    """uint8 [C, H, W] of an image in mode L or RGB."""
    from PIL import Image, ImageOps

    if size is not None:
        # The crop box is resampled directly: scaling first would blow a 1 x 50,000 strip up to gigabytes.
        image = ImageOps.fit(image, (size, size), method=Image.Resampling.BICUBIC)
    pixels = np.array(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def open_image(path: Path, mode: str | None = None) -> Image.Image:
    """The decoded image in mode L or RGB, in its own size; its `info` has the mode of the file as "stored"."""
    from PIL import Image, ImageOps

    try:
        check_regular(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged tags; an image that is damaged itself does not load
            # Pillow warns above its limit and raises only at twice that; one limit is enough.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as file:
                _check_kind(path, file)
                file.load()
                image, stored = _flatten(ImageOps.exif_transpose(file), mode), file.mode
    except (GudaError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise GudaError(
            "image-too-large",
            f"{path} has more than {Image.MAX_IMAGE_PIXELS} pixels, Pillow's limit against decompression "
            "bombs; scale it down or remove it",
        ) from None
    except Exception as e:  # a damaged file makes Pillow's decoders raise nearly anything
        raise GudaError("image-unreadable", f"cannot read image {path} ({e}); replace it or remove it") from None
    image.info = {"stored": stored}
    return image


def _check_kind(path: Path, file: Image.Image) -> None:
    if file.mode.startswith(("I", "F")):
        raise GudaError(
            "image-depth-unsupported",
            f"{path} has 16-bit, 32-bit or floating-point pixels (mode {file.mode}); convert it to 8 bits per channel",
        )
    frames = getattr(file, "n_frames", 1)
    if frames > 1 and file.format != "MPO":  # MPO: a camera's JPEG with previews after the picture itself
        raise GudaError("image-animated", f"{path} has {frames} frames; save the one you mean as a still image")


def _flatten(image: Image.Image, mode: str | None) -> Image.Image:
    """Without palette and transparency, in mode L or RGB."""
    from PIL import Image

    target = mode or ("L" if image.mode in ("1", "L", "LA") else "RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa"):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    elif image.mode == "P":
        image = image.convert("RGB")
    return image if image.mode == target else image.convert(target)


def read_images(root: Path, files: Sequence[str], size: int | None = None, mode: str | None = None) -> np.ndarray:
    """All of `files`, uint8 [n, C, H, W], read-only; one channel if `mode` says so or every image is grey."""
    images, refused = decode(root, files, size, mode)
    refuse_files(root, refused)
    return images


def decode(
    root: Path, files: Sequence[str], size: int | None = None, mode: str | None = None
) -> tuple[np.ndarray, dict[str, GudaError]]:
    """(pixels of those that can be read, what is wrong with the others). Every file is tried, so that all problems are
    known at once; what was decoded before comes from a cache (data/decoded.py)."""
    from guda.data.decoded import Decoded, progress

    check_options(size, mode)
    if size is not None:
        _check_room(len(files), (3 if mode == "RGB" else 1, size, size), root)
    cache, refused = Decoded.load(root, files, size, mode), dict[str, GudaError]()
    out, kept = np.empty((0, 0, 0, 0), np.uint8), list[str]()
    for number, file in enumerate(files):
        progress(number, len(files))
        try:
            image = cache[file] if file in cache else read_image(root / file, size, mode)
        except GudaError as e:
            refused[file] = e
            continue
        if not kept:  # all of the memory at once and once: 24,000 images of 512 pixels are 19 GB
            _check_room(len(files), image.shape, root)
            out = np.empty((len(files), *image.shape), np.uint8)
        if image.shape[1:] != out.shape[2:]:
            (h0, w0), (h, w) = out.shape[2:], image.shape[1:]
            raise GudaError(
                "image-sizes-differ",
                f"images in {root} differ in size: {kept[0]} is {w0}x{h0}, {file} is {w}x{h}; "
                "scale them all to one size first (training images: guda init --size N)",
            )
        if image.shape[0] > out.shape[1]:  # the first colours after grey ones
            grey, out = out, np.empty((len(files), *image.shape), np.uint8)
            out[: len(kept)] = grey[: len(kept)]
        out[len(kept)] = image  # grey among colours is repeated over the channels
        cache.note(file, image.shape[0])
        kept.append(file)
    progress(len(files), len(files))
    out = out[: len(kept)]
    cache.save(kept, out)
    out.setflags(write=False)
    return out, refused


def _check_room(n: int, shape: tuple[int, ...], root: Path) -> None:
    c, h, w = shape
    check_memory(n * c * h * w, f"{root}: {n} images of {w}x{h} pixels", "give a smaller --size, or fewer images")


def group_levels(group_by: str | None) -> int:
    """How many folders an image must be in to have a group; 0: its groups are columns of a table."""
    parts = ["level:1"] if group_by is None else group_by.split("/")
    found = [re.fullmatch(r"(?:level:)?([0-9]{1,9})", part.strip()) for part in parts]
    return max((int(level[1]) for level in found if level), default=0)


def strays(files: Sequence[str], group_by: str | None) -> list[str]:
    """Images that lie above the folders of the groups (art/cover.jpg beside art/monet/1.jpg) and so are in none."""
    out = [file for file in files if file.count("/") < group_levels(group_by)]
    return [] if len(out) == len(files) else out


METADATA = ("metadata.jsonl", "metadata.csv")


def image_labels(root: Path, files: Sequence[str], by: str) -> list[str]:
    """A text for every file: a folder level ("level:2" or "2") or a metadata column."""
    return [of_image[0] for of_image in _labels(root, files, by, several=False)]


def _labels(root: Path, files: Sequence[str], by: str, several: bool) -> list[list[str]]:
    """The texts of every file; one each, unless `several` may stand in a column."""
    level = re.fullmatch(r"(?:level:)?([0-9]+)", by)
    if level is None and by.startswith("level:"):
        raise GudaError("group-by-invalid", f"group-by {by!r} is not a folder level; write level:1, level:2, ...")
    if level:
        return [[label] for label in _level_labels(root, files, int(level[1]))]
    return _column_labels(root, files, by, several)


def group_paths(root: Path, files: Sequence[str], group_by: str | None = None) -> list[list[tuple[str, ...]]]:
    """The groups of every file, each by its names from the top down: folder levels (default the first) or metadata
    columns, with slashes between them. A list in a column, which JSON has, is several groups."""
    parts = ["level:1"] if group_by is None else [part.strip() for part in group_by.split("/")]
    if not all(parts):
        raise GudaError(
            "group-by-empty", f"group-by {group_by!r} has an empty part; write e.g. level:1/level:2, or movement/artist"
        )
    if len(set(parts)) != len(parts):
        raise GudaError(
            "group-by-duplicate", f"group-by {group_by!r} names {next(p for p in parts if parts.count(p) > 1)!r} twice"
        )
    levels = [_labels(root, files, part, several=True) for part in parts]
    for part, labels in zip(parts, levels, strict=True):
        if len({tuple(of_image) for of_image in labels}) == 1 and len(labels[0]) == 1:
            raise GudaError(
                "groups-too-few",
                f"all {len(labels)} images in {root} are in one group, {labels[0][0]!r}; attribution compares "
                "at least two: choose another folder level or metadata column with --group-by"
                + (f" than {part}" if len(parts) > 1 else ""),
            )
    for i, of_image in enumerate(zip(*levels, strict=True)):
        if sum(len(labels) > 1 for labels in of_image) > 1:  # which belongs to which is not told
            raise GudaError(
                "group-lists-ambiguous",
                f"{files[i]}: lists in two columns of {group_by!r} do not say which part belongs to which group; "
                "give a list in one of them",
            )
    return [list(product(*of_image)) for of_image in zip(*levels, strict=True)]


def _level_labels(root: Path, files: Sequence[str], level: int) -> list[str]:
    if level < 1:
        raise GudaError("group-level-invalid", "folder levels count from 1: level:1 is the first folder below the root")
    labels = []
    for file in files:
        folders = file.split("/")[:-1]
        if len(folders) < level:
            raise GudaError(
                "group-level-missing",
                f"{file} in {root} has {len(folders)} folders above it, but its group is the name of folder "
                f"level {level}; put it in a folder, or group by a metadata column with --group-by COLUMN",
            )
        labels.append(folders[level - 1])
    return labels


def _column_labels(root: Path, files: Sequence[str], column: str, several: bool) -> list[list[str]]:
    present = [root / name for name in METADATA if (root / name).is_file()]
    if not present:
        raise GudaError(
            "metadata-missing",
            f"cannot group by {column!r}: {root} has no metadata.jsonl or metadata.csv; add one with columns "
            f"file_name and {column}, or group by folder with --group-by level:1",
        )
    if len(present) > 1:
        raise GudaError("metadata-ambiguous", f"{root} has both metadata.jsonl and metadata.csv; keep one")
    table = read_rows(present[0], files)
    columns = list(dict.fromkeys(name for row in table for name in row.values))
    if column not in columns:
        raise GudaError(
            "metadata-column-unknown",
            f"{present[0]} has no column {column!r}{suggestion(column, columns)}; its columns are {choices(columns)}",
        )
    return [_group_values(row, column, several) for row in table]


def _group_values(row: Row, column: str, several: bool) -> list[str]:
    value = row.values.get(column)
    if not several or not isinstance(value, list):
        return [_group_value(row, column, value)]
    found = [_group_value(row, column, one) for one in value]
    if not found:
        raise GudaError(
            "metadata-group-empty", f"{row.where}: column {column!r} is an empty list; every image needs a group"
        )
    if len(set(found)) != len(found):
        raise GudaError(
            "metadata-group-duplicate",
            f"{row.where}: column {column!r} names a group twice ({choices(found)}); remove one",
        )
    return found


def _group_value(row: Row, column: str, value: Any) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise GudaError("metadata-group-empty", f"{row.where}: column {column!r} is empty; every image needs a group")
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int):
        raise GudaError(
            "metadata-group-invalid",
            f"{row.where}: column {column!r} holds {value!r}; a group is text or a whole number",
        )
    return str(value)


# --- tables ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Row:
    """One line of a metadata or prompts file; `where` is "file:line", for errors."""

    where: str
    values: dict[str, Any]


def read_rows(path: Path, files: Sequence[str]) -> list[Row]:
    """The row of every file, in the order of `files`, from a .jsonl or .csv table; each file has one row and each row
    a file. CSV cells stay text: no guessing that turns an artist called "NA" into a gap."""
    try:
        check_regular(path, TEXT_BYTES)
        with open(path, encoding="utf-8-sig", newline="") as f:
            rows = _read_csv(path, f) if path.suffix == ".csv" else _read_jsonl(path, f)
    except OSError as e:
        raise GudaError("metadata-unreadable", f"cannot read {path}: {e.strerror}") from None
    except UnicodeDecodeError:
        raise GudaError("metadata-encoding", f"{path} is not UTF-8; save it as UTF-8") from None
    if not rows:
        raise GudaError("metadata-empty", f"{path} has no rows; write one row per image")
    return _match(path, rows, files)


def _read_csv(path: Path, lines: Any) -> list[Row]:
    reader = csv.DictReader(lines, strict=True)
    rows = []
    try:
        header = list(reader.fieldnames or ())
        if len(set(header)) != len(header):
            raise GudaError("metadata-column-duplicate", f"{path} names a column twice ({choices(header)}); rename one")
        for values in reader:
            where = f"{path}:{reader.line_num}"
            if None in values:
                raise GudaError(
                    "metadata-cells-extra",
                    f"{where}: more cells than the header has columns; quote cells that hold commas",
                )
            rows.append(Row(where, dict(values)))
    except csv.Error as e:
        raise GudaError(
            "metadata-csv-invalid", f"{path}:{reader.line_num}: not valid CSV ({e}); correct the line"
        ) from None
    return rows


def _read_jsonl(path: Path, lines: Any) -> list[Row]:
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = parse_json(line)
        except ParseError as e:
            raise GudaError(
                "metadata-json-invalid", f"{path}:{number}: not valid JSON ({e}); write one object per line"
            ) from None
        if not isinstance(values, dict):
            raise GudaError(
                "metadata-row-invalid",
                f'{path}:{number}: expected an object such as {{"file_name": ...}}, got {values!r}',
            )
        rows.append(Row(f"{path}:{number}", values))
    return rows


def _match(path: Path, rows: Sequence[Row], files: Sequence[str]) -> list[Row]:
    known, by_file = set(files), dict[str, Row]()
    for row in rows:
        name = row.values.get("file_name")
        if not isinstance(name, str) or not name:
            raise GudaError(
                "metadata-file-name-missing",
                f"{row.where}: no file_name; every row names its image, relative to {path.parent}",
            )
        file = str(PurePosixPath(name))  # "./a.png" is "a.png"
        if file not in known:
            raise GudaError(
                "metadata-image-missing",
                f"{row.where}: there is no image {name!r} in {path.parent}; remove the row or restore the image",
            )
        if file in by_file:
            raise GudaError(
                "metadata-row-duplicate", f"{row.where}: {name!r} already has a row ({by_file[file].where}); remove one"
            )
        by_file[file] = row
    missing = [file for file in files if file not in by_file]
    if missing:
        raise GudaError(
            "metadata-row-missing",
            f"{path} has no row for {missing[0]!r} ({len(missing)} of {len(files)} images without a row); add it",
        )
    return [by_file[file] for file in files]
