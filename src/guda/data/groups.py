"""Groups: which training image belongs to which artist, style, class, licence, vendor.

Membership is a boolean matrix, images x groups, so that overlapping groups can come later without changing a
file format; today the groups are a partition (D = D_1 .. D_N, SPEC section 1) and anything else is refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from guda.errors import GudaError


def natural(text: str) -> tuple[Any, ...]:
    """A sort key under which "2" < "10"; equal only for equal texts."""
    parts: list[Any] = re.split(r"([0-9]+)", text)  # odd positions are the numbers
    for i in range(1, len(parts), 2):
        number = parts[i].lstrip("0")
        parts[i] = (len(number), number)
    return (parts, text)


def choices(names: Iterable[str], limit: int = 20) -> str:
    """The known names, for an error message; a long list is cut, saying so."""
    names = list(names)
    more = f", ... and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def suggestion(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" or nothing, to end an error message about an unknown name."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


@dataclass(frozen=True, eq=False)
class Groups:
    """A partition of n images into at least two named groups; `membership` is bool [n_images, n_groups]."""

    names: tuple[str, ...]
    membership: np.ndarray

    def __post_init__(self) -> None:
        names, m = tuple(self.names), np.array(self.membership)
        for name in names:
            if not isinstance(name, str) or not name.strip():
                raise GudaError(f"group name {name!r} is empty or not text; give every group a name")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise GudaError(f"group name {twice!r} occurs twice; group names must differ")
        if m.dtype != np.bool_ or m.ndim != 2 or m.shape[1] != len(names):
            raise GudaError(f"group membership must be bool [n_images, {len(names)}], it is {m.dtype} {list(m.shape)}")
        if len(names) < 2:
            only = f" (only {names[0]!r})" if names else ""
            raise GudaError(
                f"attribution compares groups and needs at least two, found {len(names)}{only}; "
                "label the images with two or more groups"
            )
        wrong = np.flatnonzero(m.sum(axis=1) != 1)
        if wrong.size:
            i = int(wrong[0])
            inside = [names[k] for k in np.flatnonzero(m[i])]
            where = f"groups {choices(inside)}" if inside else "no group"
            raise GudaError(f"image {i} is in {where}; every image must be in exactly one group")
        empty = [name for name, size in zip(names, m.sum(axis=0), strict=True) if size == 0]
        if empty:
            raise GudaError(f"group {empty[0]!r} has no images; drop it or add images to it")
        m.setflags(write=False)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "membership", m)

    @classmethod
    def from_labels(cls, labels: Sequence[str]) -> Groups:
        """One label per image; whole numbers are taken as their decimal text, names are sorted naturally."""
        if isinstance(labels, str):
            raise GudaError(f"labels must be a list with one label per image, not the text {labels!r}")
        texts = []
        for i, label in enumerate(labels):
            if isinstance(label, bool | np.bool_) or not isinstance(label, str | int | np.integer):
                raise GudaError(f"the label of image {i} is {label!r}; labels must be text or whole numbers")
            if not str(label).strip():
                raise GudaError(f"the label of image {i} is empty; every image must be in exactly one group")
            texts.append(str(label))
        names = tuple(sorted(set(texts), key=natural))
        column = {name: k for k, name in enumerate(names)}
        membership = np.zeros((len(texts), len(names)), dtype=bool)
        membership[np.arange(len(texts)), np.array([column[t] for t in texts], dtype=np.intp)] = True
        return cls(names, membership)

    @property
    def n_images(self) -> int:
        return int(self.membership.shape[0])

    def __len__(self) -> int:
        """Number of groups."""
        return len(self.names)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.membership.sum(axis=0))

    @cached_property
    def labels(self) -> np.ndarray:
        """Group number of every image, int64 [n_images]; defined because groups are disjoint."""
        labels = self.membership.argmax(axis=1).astype(np.int64)
        labels.setflags(write=False)
        return labels

    def index(self, name: str) -> int:
        try:
            return self.names.index(name)
        except ValueError:
            raise GudaError(
                f"unknown group {name!r}; the groups are {choices(self.names)}{suggestion(name, self.names)}"
            ) from None

    def members(self, k: int) -> np.ndarray:
        """Indices of the images in group k: D_k, the forget set."""
        return np.flatnonzero(self.membership[:, self._column(k)])

    def without(self, k: int) -> np.ndarray:
        """Indices of the images outside group k: the retain set."""
        return np.flatnonzero(~self.membership[:, self._column(k)])

    def take(self, indices: np.ndarray) -> Groups:
        """The groups of a selection of images, under the same names."""
        return Groups(self.names, self.membership[indices])

    def joined(self, *ks: int, name: str) -> Groups:
        """Several groups as one called `name`, which comes first; the others as they are."""
        rest = [k for k in range(len(self)) if k not in {self._column(k) for k in ks}]
        union = self.membership[:, list(ks)].any(axis=1, keepdims=True)
        names = (name, *(self.names[k] for k in rest))
        return Groups(names, np.concatenate([union, self.membership[:, rest]], axis=1))

    def to_json(self) -> dict[str, Any]:
        members = [self.members(k).tolist() for k in range(len(self))]
        return {"n_images": self.n_images, "names": list(self.names), "members": members}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Groups:
        try:
            names = tuple(value["names"])
            membership = np.zeros((int(value["n_images"]), len(names)), dtype=bool)
            for k, (_, members) in enumerate(zip(names, value["members"], strict=True)):
                rows = np.array(members, dtype=np.int64)
                if rows.size and rows.min() < 0:  # would count from the end
                    raise IndexError(f"negative image index {rows.min()}")
                membership[rows, k] = True
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise GudaError(f"stored groups are damaged ({e!r}); write them again") from None
        return cls(names, membership)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Groups):
            return NotImplemented
        return self.names == other.names and np.array_equal(self.membership, other.membership)

    def __hash__(self) -> int:
        return hash((self.names, self.membership.tobytes()))

    def _column(self, k: int) -> int:
        if not 0 <= k < len(self):  # -1 would silently be the last group
            raise GudaError(f"there is no group number {k}; the {len(self)} groups are numbered from 0")
        return int(k)
