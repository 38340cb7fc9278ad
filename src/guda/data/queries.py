"""Queries: the generated samples to attribute, each under a stable id.

The id keys the noise a query is scored with, so queries are always held in plain sorted
order of their ids: the order they were given in cannot reach a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from guda import files
from guda.data.folder import image_files, read_images, read_rows
from guda.data.images import as_pixels, check_digest, check_ids, check_pixels, read_stack, write_stack
from guda.errors import GudaError, suggestion


@dataclass(frozen=True, eq=False, repr=False)
class Queries:
    """Images uint8 [n, C, H, W] (read-only), sorted by id; prompts for all of them or for none.

    `digest` covers ids, pixels and prompts; not `name`.
    """

    ids: tuple[str, ...]
    images: np.ndarray
    prompts: tuple[str, ...] | None = None
    name: str = "queries"

    def __post_init__(self) -> None:
        images = check_pixels(self.images, "query images")
        ids = check_ids(self.ids, len(images), "query images")
        prompts = self.prompts
        if prompts is not None:
            if isinstance(prompts, str) or len(prompts) != len(ids):
                raise GudaError(
                    "prompts-count-mismatch", f"{len(ids)} query images need {len(ids)} prompts, one each, in a list"
                )
            for name, prompt in zip(ids, prompts, strict=True):
                if not isinstance(prompt, str):
                    raise GudaError("prompt-invalid", f"the prompt of query {name!r} is {prompt!r}; prompts are texts")
        order = sorted(range(len(ids)), key=ids.__getitem__)
        if order != list(range(len(ids))):
            images = images[order]
            images.setflags(write=False)
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "ids", tuple(ids[i] for i in order))
        object.__setattr__(self, "prompts", None if prompts is None else tuple(str(prompts[i]) for i in order))

    @classmethod
    def from_arrays(
        cls,
        images: np.ndarray,
        ids: Sequence[str] | None = None,
        prompts: Sequence[str] | None = None,
        name: str = "arrays",
        layout: str | None = None,
    ) -> Queries:
        """As ImageData.from_arrays; default ids are query-000000, query-000001, ..."""
        pixels = as_pixels(images, layout)
        ids = [f"query-{i:06d}" for i in range(len(pixels))] if ids is None else ids
        if isinstance(prompts, str):
            raise GudaError(
                "prompts-not-list", f"prompts must be a list with one text per image, not the text {prompts!r}"
            )
        return cls(tuple(ids), pixels, None if prompts is None else tuple(prompts), name)

    @classmethod
    def from_folder(cls, path: str | Path, size: int | None = None, mode: str | None = None) -> Queries:
        """All images below `path`; ids are relative paths without extension; reads prompts.jsonl if there."""
        root = Path(path).expanduser()
        files = image_files(root)
        prompts = _read_prompts(root / "prompts.jsonl", files)
        return cls(file_ids(files), read_images(root, files, size, mode), prompts, root.resolve().name)

    def __repr__(self) -> str:
        c, h, w = self.shape
        told = "" if self.prompts is None else " with prompts"
        return f"<Queries {self.name}: {self.n} {'grey' if c == 1 else 'RGB'} pictures of {w}x{h}{told}>"

    @property
    def n(self) -> int:
        return len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        c, h, w = self.images.shape[1:]
        return int(c), int(h), int(w)

    @cached_property
    def digest(self) -> str:
        prompts = None if self.prompts is None else list(self.prompts)
        return files.digest([files.digest_arrays(self.images), list(self.ids), prompts], length=64)

    def subset(self, ids: Sequence[str]) -> Queries:
        """The queries of these ids, each at most once."""
        if isinstance(ids, str):
            raise GudaError("ids-not-list", f"subset takes a list of query ids, not the text {ids!r}")
        if len(ids) == 0:
            raise GudaError("ids-empty", "subset got no query ids; give at least one")
        position = {name: i for i, name in enumerate(self.ids)}
        for name in ids:
            if name not in position:
                raise GudaError(
                    "query-unknown",
                    f"there is no query {name!r} among the {self.n} of {self.name!r}{suggestion(name, self.ids)}",
                )
        return self._take([position[name] for name in ids])

    def find(self, images: np.ndarray, prompts: Sequence[str] | None = None) -> np.ndarray:
        """int64 [Q]: where each of `images` is among these, by its pixels and prompt (spaces apart); -1: nowhere."""

        def keys(pixels: np.ndarray, texts: Sequence[str] | None) -> list[tuple[bytes, str | None]]:
            texts = None if texts is None else [" ".join(text.split()) for text in texts]
            return [(image.tobytes(), None if texts is None else texts[n]) for n, image in enumerate(pixels)]

        place = {key: n for n, key in enumerate(keys(self.images, self.prompts))}
        return np.array([place.get(key, -1) for key in keys(images, prompts)], np.int64)

    def shards(self, size: int) -> list[Queries]:
        """Consecutive pieces of at most `size` queries, in id order."""
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise GudaError("shard-size-invalid", f"shard size must be a whole number, at least 1, got {size!r}")
        return [self._take(range(i, min(i + size, self.n))) for i in range(0, self.n, size)]

    def check_shape(self, shape: Sequence[int]) -> None:
        """Refuse queries of another (C, H, W) than the model's."""
        c, h, w = (int(v) for v in shape)
        qc, qh, qw = self.shape
        if (qh, qw) != (h, w):
            raise GudaError(
                "query-size-mismatch",
                f"queries {self.name!r} are {qw}x{qh} pixels, the model takes {w}x{h}; scale them first "
                "(better: generate them at the model's own size)",
            )
        if qc != c:
            fix = {1: "read them with mode L (grey)", 3: "read them with mode RGB"}.get(c, "use another model")
            raise GudaError(
                "query-channels-mismatch", f"queries {self.name!r} have {qc} channels, the model takes {c}; {fix}"
            )

    def save(self, folder: str | Path) -> None:
        prompts = None if self.prompts is None else list(self.prompts)
        index = {"ids": list(self.ids), "prompts": prompts, "name": self.name}
        write_stack(Path(folder), "queries", self.images, index, self.digest)

    @classmethod
    def load(cls, folder: str | Path) -> Queries:
        images, index = read_stack(Path(folder), "queries", {"ids", "prompts", "name"})
        prompts = None if index["prompts"] is None else tuple(index["prompts"])
        queries = cls(tuple(index["ids"]), images, prompts, index["name"])
        check_digest(Path(folder), queries.digest, index["digest"])
        return queries

    def _take(self, positions: Sequence[int]) -> Queries:
        prompts = None if self.prompts is None else tuple(self.prompts[i] for i in positions)
        ids = tuple(self.ids[i] for i in positions)
        return Queries(ids, self.images[list(positions)], prompts, self.name)


def file_ids(files: Sequence[str]) -> tuple[str, ...]:
    """Paths without extension; where two would be equal, both keep it."""
    kept: set[str] = set()  # files that keep their extension
    while True:
        ids = {f: f if f in kept else str(PurePosixPath(f).with_suffix("")) for f in files}
        count = Counter(ids.values())
        clashing = {f for f in files if count[ids[f]] > 1} - kept
        if not clashing:
            return tuple(ids[f] for f in files)
        kept |= clashing  # again: "a.png" kept whole may now clash with "a.png.jpg" cut short


def _read_prompts(path: Path, files: Sequence[str]) -> tuple[str, ...] | None:
    if not path.exists():
        return None
    rows = read_rows(path, files)
    for row in rows:
        if not isinstance(row.values.get("prompt"), str):  # "" is a prompt: the unconditional one
            raise GudaError(
                "metadata-prompt-missing", f'{row.where}: no prompt; every row is {{"file_name": ..., "prompt": ...}}'
            )
    return tuple(row.values["prompt"] for row in rows)
