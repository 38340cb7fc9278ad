"""ImageData: the training set, pixels with ids and groups, and how a stack of images is kept on disk."""

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
from guda.data.folder import check_options, image_files, read_images
from guda.data.groups import Groups
from guda.data.labels import group_paths, image_labels
from guda.data.pixels import as_pixels, check_pixels
from guda.errors import GudaError, Mismatch

# What an index.json must hold before it is unpacked; everything finer is caught by the digest.
INDEX_TYPES: dict[str, Any] = {"ids": list, "name": str, "prompts": list | None, "contents": list | None}


@dataclass(frozen=True, eq=False)
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
    ) -> ImageData:
        """An image folder; groups, and contents where `content_by` says, are folders ("level:N"; groups: default the
        first) or a metadata column. Several of them with slashes between, from the top down, make a tree of groups; a
        list in metadata.jsonl puts an image in several."""
        root = Path(path).expanduser()
        check_options(size, mode)
        files = image_files(root)
        groups = Groups.from_paths(group_paths(root, files, group_by))  # before the slow part
        contents = None if content_by is None else tuple(image_labels(root, files, content_by))
        meta = {"source": "folder", "path": str(path), "group_by": group_by, "size": size, "mode": mode}
        meta |= {} if content_by is None else {"content_by": content_by}
        return cls(read_images(root, files, size, mode), tuple(files), groups, root.resolve().name, meta, contents)

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
