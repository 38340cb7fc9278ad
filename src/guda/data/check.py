"""Look at an image folder before anything depends on it: every problem at once, in the words that `guda init` would
use.

    refused    `guda init` refuses the folder because of it, or leaves the file out with --skip-bad
    noticed    nothing is refused, but an attribution may suffer: duplicates in two groups, tiny groups, odd files

Two images are near-duplicates if their 16x16 grey thumbnails a, b (mean removed) have a correlation of at least 0.98
and differ by less than 6 grey levels on average. An image that is in two groups makes each of them look replaceable:
without one, the model has still seen it in the other.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guda.data.decoded import Decoded
from guda.data.folder import (
    check_options,
    group_paths,
    image_labels,
    list_folder,
    no_images,
    open_image,
    strays,
    to_pixels,
)
from guda.data.groups import Groups
from guda.errors import GudaError, choices

if TYPE_CHECKING:
    from PIL import Image

SIDE = 16  # pixels of a thumbnail

ALIKE = 0.98  # correlation of two thumbnails

APART = 6.0  # grey levels

TINY = 10  # images; an unlearned group needs some to be forgotten by

USUAL = ("L", "RGB")  # modes of files

MOST = 20_000  # images that are compared with each other


@dataclass(frozen=True)
class Problem:
    code: str
    text: str  # one line, with what to do about it
    files: tuple[str, ...]  # or folders, or groups: what it is about
    refused: bool


@dataclass(frozen=True)
class Inspection:
    """What is in an image folder, and what is wrong with it."""

    root: str
    images: int  # that can be used
    groups: dict[str, int]
    sizes: dict[str, int]  # "640x480" -> how many images
    problems: tuple[Problem, ...]

    @property
    def refused(self) -> bool:
        """Whether `guda init` would refuse the folder."""
        return any(p.refused for p in self.problems)

    @property
    def skippable(self) -> bool:
        """Whether --skip-bad is enough."""
        return all(p.code in SKIPPED for p in self.problems if p.refused)

    def to_json(self) -> dict[str, Any]:
        problems = [
            {"code": p.code, "refused": p.refused, "text": p.text, "files": list(p.files)} for p in self.problems
        ]
        return {"folder": self.root, "images": self.images, "groups": self.groups, "sizes": self.sizes,
                "refused": self.refused, "problems": problems}  # fmt: skip


SKIPPED = frozenset({
    "image-unreadable", "image-depth-unsupported", "image-animated", "image-too-large", "image-type-unsupported",
    "file-name-encoding", "folder-link-cycle", "folder-unreadable", "folder-too-deep", "file-not-regular",
})  # fmt: skip


@dataclass
class _Seen:
    """What is noted of every image that can be read, in order."""

    files: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    thumbs: list[np.ndarray] = field(default_factory=list)

    def add(self, file: str, image: Image.Image) -> None:
        self.files.append(file)
        self.modes.append(image.info["stored"])
        self.sizes.append(image.size)
        self.hashes.append(hashlib.sha256(f"{image.size}{image.mode}".encode() + image.tobytes()).hexdigest())
        self.thumbs.append(np.asarray(image.convert("L").resize((SIDE, SIDE), 3), np.float32).reshape(-1))


def inspect_folder(
    path: str | Path,
    group_by: str | None = None,
    size: int | None = None,
    mode: str | None = None,
    content_by: str | None = None,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Inspection:
    """Decode everything below `path` and list what is wrong; only a folder that is not there is an error."""
    root = Path(path).expanduser()
    check_options(size, mode)
    found = list_folder(root)
    bad: dict[str, GudaError] = dict(found.refused)
    out = strays(found.files, group_by)
    files = [file for file in found.files if file not in set(out)]
    if not files and not bad:
        no_images(root)
    problems: list[Problem] = []
    labels: dict[str, tuple[str, ...]] = {}
    try:
        paths = group_paths(root, files, group_by) if files else []
        labels = {file: tuple("/".join(p) for p in of) for file, of in zip(files, paths, strict=True)}
        if content_by is not None and files:
            image_labels(root, files, content_by)
    except GudaError as e:
        problems.append(Problem(e.code, str(e), (), True))
    seen = _decode(root, files, size, mode, bad, tick)
    problems += _refused(bad)
    problems += _sizes(seen, size) + _modes(seen, mode) + _groups(seen, labels) + _duplicates(seen, labels)
    if out:
        text = f"in no group's folder; {_are(len(out))} left out. Move {_it(len(out))} into a group's folder to use"
        problems.append(Problem("image-without-group", text, tuple(out), False))
    if found.empty:
        problems.append(Problem("folder-empty", "no image in it; no group is made of it", tuple(found.empty), False))
    if others := [f for f in found.others if f not in ("metadata.jsonl", "metadata.csv")]:
        problems.append(Problem("file-not-image", "not an image by its name; it is ignored", tuple(others), False))
    problems.sort(key=lambda p: not p.refused)
    sizes = _counted(f"{w}x{h}" for w, h in seen.sizes)
    return Inspection(str(path), len(seen.files), _sized(seen, labels), sizes, tuple(problems))


def _are(n: int) -> str:
    return "it is" if n == 1 else "they are"


def _it(n: int) -> str:
    return "it" if n == 1 else "them"


def _decode(
    root: Path, files: Sequence[str], size: int | None, mode: str | None, bad: dict[str, GudaError],
    tick: Callable[[int, int], None],
) -> _Seen:  # fmt: skip
    """What is noted of every image; pixels at the wanted size are kept for the `guda init` that follows."""
    cache, seen, pixels = Decoded.load(root, files, size, mode), _Seen(), list[np.ndarray]()
    for number, file in enumerate(files):
        tick(number, len(files))
        try:
            image = open_image(root / file, mode)
        except GudaError as e:
            bad[file] = e
            continue
        seen.add(file, image)
        if size is not None and cache.path is not None:
            pixels.append(to_pixels(image, size))
            cache.note(file, pixels[-1].shape[0])
    tick(len(files), len(files))
    if pixels:
        channels = max(p.shape[0] for p in pixels)
        cache.save(seen.files, np.stack([np.repeat(p, channels // p.shape[0], axis=0) for p in pixels]))
    return seen


def _counted(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for name in names:
        counts[name] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _sized(seen: _Seen, labels: dict[str, tuple[str, ...]]) -> dict[str, int]:
    sizes: dict[str, int] = defaultdict(int)
    for file in seen.files:
        for group in labels.get(file, ()):
            sizes[group] += 1
    return dict(sizes)


def _refused(bad: dict[str, GudaError]) -> list[Problem]:
    return [Problem(e.code, str(e), (file,), True) for file, e in bad.items()]


def _sizes(seen: _Seen, size: int | None) -> list[Problem]:
    if size is None:
        if len(set(seen.sizes)) < 2:
            return []
        small, large = min(seen.sizes), max(seen.sizes)
        text = (
            f"images are of {len(set(seen.sizes))} sizes, from {small[0]}x{small[1]} to {large[0]}x{large[1]}; "
            "give --size N to scale and crop them all to N x N"
        )
        return [Problem("image-sizes-differ", text, (), True)]
    found = []
    if few := [f for f, (w, h) in zip(seen.files, seen.sizes, strict=True) if min(w, h) < size]:
        found.append(Problem("image-small", f"smaller than {size} pixels and enlarged", tuple(few), False))
    if cut := [f for f, (w, h) in zip(seen.files, seen.sizes, strict=True) if max(w, h) > 2 * min(w, h)]:
        found.append(
            Problem("image-cropped", "more than twice as long as wide; most of it is cropped off", tuple(cut), False)
        )
    return found


def _modes(seen: _Seen, mode: str | None) -> list[Problem]:
    found = []
    by_mode: dict[str, list[str]] = defaultdict(list)
    for file, stored in zip(seen.files, seen.modes, strict=True):
        by_mode[stored].append(file)
    for stored, files in by_mode.items():
        if stored in USUAL:
            continue
        told = "with transparency, shown on white" if stored in ("RGBA", "LA", "PA") else "and converted"
        found.append(Problem("image-mode-odd", f"stored as {stored} {told}", tuple(files), False))
    grey = [f for stored in ("1", "L", "LA") for f in by_mode.get(stored, ())]
    if mode is None and grey and len(grey) < len(seen.files):
        found.append(Problem("image-mode-mixed", "grey among colour images; it becomes colour", tuple(grey), False))
    return found


def _groups(seen: _Seen, labels: dict[str, tuple[str, ...]]) -> list[Problem]:
    if not labels:
        return []
    sizes, found = _sized(seen, labels), []
    for group in {g: None for of in labels.values() for g in of}:
        if group not in sizes:
            found.append(Problem("group-unreadable", "none of its images can be read", (group,), True))
    try:
        if seen.files:
            Groups.from_paths([[tuple(g.split("/")) for g in labels[f]] for f in seen.files])
    except GudaError as e:
        found.append(Problem(e.code, str(e), (), True))
    if tiny := [g for g, n in sizes.items() if n < TINY]:
        text = f"fewer than {TINY} images; expect no clear answer about it, or merge it with another group"
        found.append(Problem("group-tiny", text, tuple(tiny), False))
    return found


def _duplicates(seen: _Seen, labels: dict[str, tuple[str, ...]]) -> list[Problem]:
    same: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(seen.hashes):
        same[name].append(i)
    found, known = [], set[tuple[int, int]]()
    for rows in (rows for rows in same.values() if len(rows) > 1):
        files, groups = tuple(seen.files[i] for i in rows), {labels.get(seen.files[i], ()) for i in rows}
        known |= {(i, j) for i in rows for j in rows}
        if len(groups) > 1:
            text = f"the same picture in {len(groups)} groups; keep one, or let it belong to both (docs/groups.md)"
            found.append(Problem("image-duplicate-across", text, files, False))
        else:
            found.append(Problem("image-duplicate", f"the same picture {len(files)} times in a group", files, False))
    if len(seen.files) > MOST:
        text = f"more than {MOST:,} images: they were not compared for near-duplicates"
        return [*found, Problem("image-many", text, (), False)]
    for i, j in near_duplicates(seen.thumbs):
        if (i, j) not in known and labels.get(seen.files[i]) != labels.get(seen.files[j]):
            text = "nearly the same picture in two groups; keep one if it is"
            found.append(Problem("image-near-duplicate", text, (seen.files[i], seen.files[j]), False))
    return found


def near_duplicates(thumbs: Sequence[np.ndarray], block: int = 512) -> list[tuple[int, int]]:
    """Pairs i < j of nearly equal thumbnails; flat ones have no correlation and are compared by their difference."""
    if len(thumbs) < 2:
        return []
    plain = np.stack(thumbs)
    centred = plain - plain.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(centred, axis=1, keepdims=True)
    unit = np.where(norm > SIDE, centred / np.maximum(norm, 1e-6), 0.0)
    flat = norm[:, 0] <= SIDE
    pairs = []
    for start in range(0, len(plain), block):
        here = slice(start, start + block)
        alike = (unit[here] @ unit.T >= ALIKE) | (flat[here, None] & flat[None])
        for a, j in np.argwhere(alike):
            i = start + int(a)
            if i < j and float(np.abs(plain[i] - plain[j]).mean()) < APART:
                pairs.append((i, int(j)))
    return pairs


def problem_lines(found: Inspection, most: int = 8) -> list[str]:
    """For people: what is there, then every problem with its files, those that are refused first."""
    few = sorted(found.sizes.items(), key=lambda item: -item[1])[:3]
    sizes = ", ".join(f"{n} of {size}" for size, n in few) + (", ..." if len(found.sizes) > 3 else "")
    lines = [f"{found.root}: {found.images} images in {len(found.groups)} groups ({sizes})"]
    lines += [f"  {name:<20} {n:>7} images" for name, n in found.groups.items()]
    for title, refused in (("guda init refuses:", True), ("Worth knowing:", False)):
        chosen = [p for p in found.problems if p.refused == refused]
        lines += [title] if chosen else []
        for p in chosen:
            about = "" if p.refused and len(p.files) < 2 else f"{choices(p.files, most)}: "
            lines.append(f"  {about}{p.text} [{p.code}]")
    if not found.problems:
        return [*lines, "No problems found."]
    if found.refused and found.skippable:
        lines.append("guda init --skip-bad leaves the refused files out and records them in the run.")
    return lines
