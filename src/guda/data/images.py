"""ImageData: the training set, pixels with ids and groups, and how a stack of images is kept on disk.

Pixels have one stored form, uint8 [n, C, H, W]; `to_float` and `to_uint8` lead to and from the floats a network sees.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from guda import files
from guda.data.folder import (
    check_options,
    decode,
    group_paths,
    image_labels,
    list_folder,
    no_images,
    refuse_files,
    strays,
)
from guda.data.groups import Groups
from guda.errors import GudaError, Mismatch

CHANNELS = (1, 3)


def to_float(images: np.ndarray) -> np.ndarray:
    """uint8 -> float32 in [-1, 1]: x / 127.5 - 1."""
    if images.dtype != np.uint8:
        raise GudaError("pixels-dtype-invalid", f"to_float takes uint8 pixels, got {images.dtype}")
    return images.astype(np.float32) / np.float32(127.5) - np.float32(1)


def to_uint8(values: np.ndarray) -> np.ndarray:
    """Floats in [-1, 1] -> uint8, rounded; what a sampler leaves beyond the range is clipped."""
    if values.dtype.kind != "f":
        raise GudaError("pixels-dtype-invalid", f"to_uint8 takes floats in [-1, 1], got {values.dtype}")
    scaled = (values.astype(np.float32) + np.float32(1)) * np.float32(127.5)
    if np.isnan(scaled).any():
        raise GudaError("pixels-not-finite", "to_uint8 got NaN pixels; the model that made them has diverged")
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def freeze(array: np.ndarray) -> np.ndarray:
    """A C-contiguous array nobody can write to, so that a digest taken of it stays true.

    Writable arrays are copied (their owner may still change them); read-only ones are taken as they are.
    """
    array = np.array(array, order="C") if array.flags.writeable else np.ascontiguousarray(array)
    array.setflags(write=False)
    return array


def check_pixels(images: np.ndarray, what: str) -> np.ndarray:
    """Frozen uint8 [n, C, H, W] with n >= 1 and C 1 or 3, or an error."""
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4:
        found = f"{images.dtype} {list(images.shape)}" if isinstance(images, np.ndarray) else type(images).__name__
        raise GudaError(
            "images-array-invalid",
            f"{what} must be a uint8 array [n, C, H, W], got {found}; use from_arrays to convert",
        )
    if images.size == 0:
        raise GudaError("images-empty", f"{what} are empty (shape {list(images.shape)}); give at least one image")
    if images.shape[1] not in CHANNELS:
        raise GudaError(
            "images-channels-invalid", f"{what} have {images.shape[1]} channels, expected 1 (grey) or 3 (RGB)"
        )
    return freeze(images)


def as_pixels(images: np.ndarray, layout: str | None = None) -> np.ndarray:
    """uint8 [n, C, H, W] from uint8 or from floats in [0, 1], given as NCHW, NHWC or NHW.

    layout: "NCHW", "NHWC" or "NHW"; needed only where the shape alone leaves two readings.
    """
    images = np.asarray(images)
    layout = layout or _guess_layout(images.shape)
    if layout not in ("NCHW", "NHWC", "NHW"):
        raise GudaError("layout-unknown", f"unknown layout {layout!r}; it is NCHW, NHWC or NHW")
    if images.ndim != len(layout):
        raise GudaError(
            "layout-mismatch", f"layout {layout} needs {len(layout)} axes, images have shape {list(images.shape)}"
        )
    if layout == "NHW":
        images = images[:, None]
    elif layout == "NHWC":
        images = np.moveaxis(images, 3, 1)
    return check_pixels(_as_uint8(images), "images")


def _guess_layout(shape: tuple[int, ...]) -> str:
    if len(shape) == 3:
        return "NHW"
    if len(shape) != 4:
        raise GudaError("images-shape-invalid", f"images have shape {list(shape)}; expected NCHW, NHWC or NHW")
    first, last = shape[1] in CHANNELS, shape[3] in CHANNELS
    if first and last:
        raise GudaError(
            "layout-ambiguous",
            f"images of shape {list(shape)} can be read as NCHW and as NHWC; pass layout='NCHW' or layout='NHWC'",
        )
    if not first and not last:
        raise GudaError(
            "images-channels-invalid",
            f"images of shape {list(shape)} have no channel axis of size 1 or 3 (axis 1 for NCHW, axis 3 for NHWC)",
        )
    return "NCHW" if first else "NHWC"


def _as_uint8(images: np.ndarray) -> np.ndarray:
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f":
        raise GudaError("images-dtype-invalid", f"images have dtype {images.dtype}; give uint8, or floats in [0, 1]")
    if images.size == 0:
        return images.astype(np.uint8)  # refused by check_pixels, which says so better
    low, high = float(images.min()), float(images.max())
    if np.isnan(low) or np.isnan(high):
        raise GudaError("images-not-finite", "images contain NaN; clean them before use")
    if low < 0 or high > 1:
        raise GudaError(
            "images-range-invalid",
            f"float images must lie in [0, 1], found [{low:g}, {high:g}]; "
            "use (x + 1) / 2 for [-1, 1], or .astype(np.uint8) for 0..255",
        )
    return np.rint(images.astype(np.float32) * np.float32(255)).astype(np.uint8)


# What an index.json must hold before it is unpacked; everything finer is caught by the digest.
INDEX_TYPES: dict[str, Any] = {"ids": list, "name": str, "prompts": list | None, "contents": list | None}


@dataclass(frozen=True, eq=False, repr=False)
class ImageData:
    """Training images uint8 [n, C, H, W] (read-only), one id each, and their groups; `meta` says wherefrom.

    `contents`: what each image shows whatever its group (the object of a style x object set), where that is known;
    prompts are made of it. `digest` covers pixels, ids, groups and contents, in order; not `name` and `meta`, which
    change nothing computed.
    """

    images: np.ndarray
    ids: tuple[str, ...]
    groups: Groups
    name: str
    meta: dict[str, Any] = field(default_factory=dict)
    contents: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", check_pixels(self.images, "training images"))
        object.__setattr__(self, "ids", check_ids(self.ids, self.n, "training images"))
        if self.groups.n_images != self.n:
            raise GudaError(
                "labels-count-mismatch",
                f"{self.n} training images but group labels for {self.groups.n_images}; give one each",
            )
        if self.contents is not None:
            object.__setattr__(self, "contents", _check_contents(self.contents, self.ids))
        try:
            object.__setattr__(self, "meta", json.loads(files.canonical(self.meta)))
        except (TypeError, ValueError) as e:
            raise GudaError("meta-not-json", f"meta of {self.name!r} must be plain JSON ({e})") from None

    @classmethod
    def from_arrays(
        cls,
        images: np.ndarray,
        labels: Sequence[Any] | Groups,
        ids: Sequence[str] | None = None,
        name: str = "arrays",
        layout: str | None = None,
    ) -> ImageData:
        """uint8, or floats in [0, 1]; NCHW, NHWC or NHW, told by the channel axis (1 or 3) or `layout`.

        `labels`: one for every image, or a list of several; or Groups, which may be a tree."""
        pixels = as_pixels(images, layout)
        ids = [f"image-{i:06d}" for i in range(len(pixels))] if ids is None else ids
        groups = labels if isinstance(labels, Groups) else Groups.from_labels(labels)
        return cls(pixels, tuple(ids), groups, name, {"source": "arrays"})

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        group_by: str | None = None,
        size: int | None = None,
        mode: str | None = None,
        content_by: str | None = None,
        skip_bad: bool = False,
    ) -> ImageData:
        """An image folder; groups, and contents where `content_by` says, are folders ("level:N"; groups: default the
        first) or a metadata column. Several of them with slashes between, from the top down, make a tree of groups; a
        list in metadata.jsonl puts an image in several.

        Images above the folders of the groups are in no group and left out; with `skip_bad` so are files that cannot be
        read. `meta["left_out"]` lists them with the code of the reason. `guda check FOLDER` shows every problem."""
        root = Path(path).expanduser()
        check_options(size, mode)
        found = list_folder(root)
        skip = f"; guda check {root} lists every problem, --skip-bad leaves such files out"
        if not skip_bad:
            refuse_files(root, found.refused, skip)
        out = dict.fromkeys(strays(found.files, group_by), "image-without-group")
        out |= {file: e.code for file, e in found.refused.items()}
        files = [file for file in found.files if file not in out] or no_images(root)
        paths = group_paths(root, files, group_by)  # before the slow part
        Groups.from_paths(paths)
        labels = None if content_by is None else image_labels(root, files, content_by)
        images, refused = decode(root, files, size, mode)
        if not skip_bad:
            refuse_files(root, refused, skip)
        out |= {file: e.code for file, e in refused.items()}
        kept = [i for i, file in enumerate(files) if file not in refused] or no_images(root)
        groups = Groups.from_paths([paths[i] for i in kept])
        contents = None if labels is None else tuple(labels[i] for i in kept)
        meta: dict[str, Any] = {"source": "folder", "path": str(path), "group_by": group_by, "size": size, "mode": mode}
        meta |= {} if content_by is None else {"content_by": content_by}
        out |= dict.fromkeys(found.empty, "folder-empty")
        meta |= ({"left_out": out} if out else {}) | ({"skip_bad": True} if skip_bad else {})
        return cls(images, tuple(files[i] for i in kept), groups, root.resolve().name, meta, contents)

    @property
    def left_out(self) -> dict[str, str]:
        """Files of the folder that are not among the images, and empty folders, with the code of the reason."""
        return dict(self.meta.get("left_out") or {})

    def __repr__(self) -> str:
        c, h, w = self.shape
        least, most = min(self.groups.sizes), max(self.groups.sizes)
        sizes = f"{least} images each" if least == most else f"{least} to {most} images each"
        kind = "grey" if c == 1 else "RGB"
        return f"<ImageData {self.name}: {self.n} {kind} images of {w}x{h}, {len(self.groups)} groups of {sizes}>"

    @property
    def n(self) -> int:
        return int(self.images.shape[0])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        c, h, w = self.images.shape[1:]
        return int(c), int(h), int(w)

    @cached_property
    def digest(self) -> str:
        parts = [files.digest_arrays(self.images), list(self.ids), self.groups.to_json()]
        parts += [] if self.contents is None else [list(self.contents)]
        return files.digest(parts, length=64)

    def take(self, indices: np.ndarray) -> ImageData:
        """The selected images, in the order of `indices`; every group must keep at least one."""
        ids = tuple(self.ids[int(i)] for i in indices)
        contents = None if self.contents is None else tuple(self.contents[int(i)] for i in indices)
        return replace(self, images=self._pixels(indices), ids=ids, groups=self.groups.take(indices), contents=contents)

    def only(self, names: Sequence[str]) -> ImageData:
        """The images of these groups, the others forgotten; images and groups keep their order."""
        return self._select(*self.groups.only(names))

    def branches(self, names: Sequence[str]) -> ImageData:
        """The same, of a tree with what is above and below these groups."""
        return self._select(*self.groups.branches(names))

    def _select(self, groups: Groups, kept: np.ndarray) -> ImageData:
        contents = None if self.contents is None else tuple(self.contents[i] for i in kept)
        ids = tuple(self.ids[i] for i in kept)
        return replace(self, images=self._pixels(kept), ids=ids, groups=groups, contents=contents)

    def _pixels(self, indices: np.ndarray) -> np.ndarray:
        """A selection that nobody else holds, so it need not be copied a second time to be frozen."""
        images = self.images[indices]
        images.setflags(write=False)
        return images

    def summary(self) -> list[tuple[str, int, float]]:
        """(group, number of images, share of all images) per group, for display."""
        pairs = zip(self.groups.names, self.groups.sizes, strict=True)
        return [(name, size, size / self.n) for name, size in pairs]

    def save(self, folder: str | Path) -> None:
        index = {"ids": list(self.ids), "groups": self.groups.to_json(), "name": self.name, "meta": self.meta}
        index |= {} if self.contents is None else {"contents": list(self.contents)}
        write_stack(Path(folder), "images", self.images, index, self.digest)

    @classmethod
    def load(cls, folder: str | Path) -> ImageData:
        images, index = read_stack(Path(folder), "images", {"ids", "groups", "name", "meta"})
        groups = Groups.from_json(index["groups"])
        contents = None if index.get("contents") is None else tuple(index["contents"])
        data = cls(images, tuple(index["ids"]), groups, index["name"], index["meta"], contents)
        check_digest(Path(folder), data.digest, index["digest"])
        return data


def _check_contents(contents: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
    if isinstance(contents, str) or len(contents) != len(ids):
        raise GudaError(
            "contents-count-mismatch", f"{len(ids)} training images need {len(ids)} contents, one each, in a list"
        )
    for name, content in zip(ids, contents, strict=True):
        if not isinstance(content, str) or not content.strip():
            raise GudaError(
                "content-invalid", f"the content of image {name!r} is {content!r}; contents are non-empty texts"
            )
    return tuple(str(c) for c in contents)


def check_ids(ids: Sequence[str], n: int, what: str) -> tuple[str, ...]:
    """`n` different non-empty texts, as plain str."""
    if isinstance(ids, str):
        raise GudaError("ids-not-list", f"ids of {what} must be a list with one id per image, not the text {ids!r}")
    if len(ids) != n:
        raise GudaError("ids-count-mismatch", f"{n} {what} but {len(ids)} ids; give one id per image")
    seen: set[str] = set()
    for i, name in enumerate(ids):
        if not isinstance(name, str) or not name.strip():
            raise GudaError("id-invalid", f"id {i} of {what} is {name!r}; ids are non-empty texts")
        if name in seen:
            raise GudaError("id-duplicate", f"id {name!r} of {what} occurs twice; ids must differ")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise GudaError("id-encoding", f"id {name!a} of {what} is not valid Unicode; rename it") from None
        seen.add(name)
    return tuple(str(name) for name in ids)


def write_stack(folder: Path, kind: str, images: np.ndarray, index: dict[str, Any], digest: str) -> None:
    """images.safetensors, then index.json: a kill in between leaves a pair whose digest does not match."""
    import torch

    with warnings.catch_warnings():  # that the array is read-only; nobody writes to the tensor
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(images)
    files.write_tensors(folder / "images.safetensors", {"images": tensor})
    files.write_json(folder / "index.json", {"kind": kind, "digest": digest, **index})


def read_stack(folder: Path, kind: str, keys: set[str]) -> tuple[np.ndarray, dict[str, Any]]:
    """What write_stack wrote, the digest not yet checked."""
    index = files.read_json(folder / "index.json")
    if isinstance(index, dict) and index.get("kind", kind) != kind:
        raise GudaError(
            "stored-images-kind",
            f"{folder} holds {index['kind']}, not {kind}; give the folder the {kind} were saved to",
        )
    whole = isinstance(index, dict) and {"kind", "digest", *keys} <= index.keys()
    if not whole or not all(isinstance(index.get(key), kinds) for key, kinds in INDEX_TYPES.items()):
        raise GudaError(
            "stored-index-invalid", f"{folder / 'index.json'} is not an index of stored {kind}; save the {kind} again"
        )
    tensors, _ = files.read_tensors(folder / "images.safetensors")
    if set(tensors) != {"images"}:
        raise GudaError(
            "stored-images-invalid",
            f"{folder / 'images.safetensors'} holds {sorted(tensors)}, not images; save them again",
        )
    images = tensors["images"].numpy()
    images.setflags(write=False)  # nobody else holds it, so it need not be copied
    return images, index


def check_digest(folder: Path, found: str, recorded: str) -> None:
    if found != recorded:
        raise Mismatch(
            "stored-images-changed",
            f"{folder} has changed since it was saved (digest)",
            found,
            recorded,
            "save it again",
        )
