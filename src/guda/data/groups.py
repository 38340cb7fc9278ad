"""Groups: which training image belongs to which artist, style, class, licence, vendor.

Membership is a boolean matrix, images x groups. Three shapes of it, all with the same meaning (what would be lost
without the images of group k?):

    partition   every image in one group, D = D_1 .. D_N
    cover       an image may be in several groups. Taking out k takes out all images of k, those it shares as well, so
                the scores of groups that share images count those images in each of them and do not add up
    tree        a cover with parents: a movement is a group too, and holds the images of its artists. Groups without
                children are the leaves; rankings compare leaves unless others are asked for, never a group with its
                own part
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from guda.errors import GudaError, choices, suggestion

Path = tuple[str, ...]  # names from the top of a tree down; of a partition, one name


def natural(text: str) -> tuple[Any, ...]:
    """A sort key under which "2" < "10"; equal only for equal texts."""
    parts: list[Any] = re.split(r"([0-9]+)", text)  # odd positions are the numbers
    for i in range(1, len(parts), 2):
        number = parts[i].lstrip("0")
        parts[i] = (len(number), number)
    return (parts, text)


@dataclass(frozen=True, eq=False, repr=False)
class Groups:
    """At least two named groups of n images; `membership` is bool [n_images, n_groups].

    `parents`: of a tree, the number of the group above each, which comes before it, or None at the top."""

    names: tuple[str, ...]
    membership: np.ndarray
    parents: tuple[int | None, ...] | None = None

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} ({size})" for name, size in zip(self.names[:5], self.sizes, strict=False))
        more = f", ... {len(self.names) - 5} more" if len(self.names) > 5 else ""
        return f"<Groups of {self.n_images} images: {shown}{more}>"

    def __post_init__(self) -> None:
        names, m = tuple(self.names), np.array(self.membership)
        for name in names:
            if not isinstance(name, str) or not name.strip():
                raise GudaError(
                    "group-name-invalid", f"group name {name!r} is empty or not text; give every group a name"
                )
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise GudaError("group-name-duplicate", f"group name {twice!r} occurs twice; group names must differ")
        if m.dtype != np.bool_ or m.ndim != 2 or m.shape[1] != len(names):
            raise GudaError(
                "group-membership-invalid",
                f"group membership must be bool [n_images, {len(names)}], it is {m.dtype} {list(m.shape)}",
            )
        if len(names) < 2:
            only = f" (only {names[0]!r})" if names else ""
            raise GudaError(
                "groups-too-few",
                f"attribution compares groups and needs at least two, found {len(names)}{only}; "
                "label the images with two or more groups",
            )
        homeless = np.flatnonzero(~m.any(axis=1))
        if homeless.size:
            raise GudaError(
                "image-without-group", f"image {int(homeless[0])} is in no group; every image must be in one at least"
            )
        sizes = m.sum(axis=0)
        for name, size in zip(names, sizes, strict=True):
            if size == 0:
                raise GudaError("group-empty", f"group {name!r} has no images; drop it or add images to it")
        m.setflags(write=False)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "membership", m)
        object.__setattr__(self, "parents", _check_parents(names, m, self.parents))

    @classmethod
    def from_labels(cls, labels: Sequence[Any]) -> Groups:
        """A label per image, or a list of labels where an image is in several groups; whole numbers are taken as their
        decimal text, names are sorted naturally."""
        if isinstance(labels, str):
            raise GudaError(
                "labels-not-list", f"labels must be a list with one label per image, not the text {labels!r}"
            )
        paths: list[list[Path]] = []
        for i, label in enumerate(labels):
            several = label if isinstance(label, list | tuple | set | frozenset) else [label]
            if not several:
                raise GudaError(
                    "label-empty",
                    f"the labels of image {i} are an empty list; every image must be in one group at least",
                )
            for one in several:
                if isinstance(one, bool | np.bool_) or not isinstance(one, str | int | np.integer):
                    raise GudaError(
                        "label-invalid", f"the label of image {i} is {one!r}; labels must be text or whole numbers"
                    )
                if not str(one).strip():
                    raise GudaError(
                        "label-empty", f"the label of image {i} is empty; every image must be in one group at least"
                    )
            paths.append([(str(one),) for one in several])
        return cls.from_paths(paths)

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[Path]]) -> Groups:
        """Of every image its groups, each by the names from the top of the tree down to it. A group is called by its
        last name where that is the only one, else by its whole path, joined by slashes."""
        nodes = sorted(
            {path[: d + 1] for of_image in paths for path in of_image for d in range(len(path))},
            key=lambda node: [natural(part) for part in node],
        )
        alike = Counter(node[-1] for node in nodes)
        names = tuple(node[-1] if alike[node[-1]] == 1 else "/".join(node) for node in nodes)
        column = {node: k for k, node in enumerate(nodes)}
        membership = np.zeros((len(paths), len(nodes)), dtype=bool)
        for i, of_image in enumerate(paths):
            for path in of_image:
                membership[i, [column[path[: d + 1]] for d in range(len(path))]] = True
        parents = tuple(column[node[:-1]] if len(node) > 1 else None for node in nodes)
        return cls(names, membership, parents)

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
        """The one group of every image (of a tree, its leaf), int64 [n_images]; refused where there are several."""
        leaves = np.array(self.leaves)
        inside = self.membership[:, leaves]
        if not self.disjoint:
            i = int(np.flatnonzero(inside.sum(axis=1) != 1)[0])
            where = choices(self.names[leaves[k]] for k in np.flatnonzero(inside[i])) or "no leaf of the tree"
            raise GudaError(
                "groups-overlap",
                f"image {i} is in {where}, and prompts, labels of a conditional model and noisy partitions need one "
                "group for every image; use a method without them, or give each image one group",
            )
        labels = leaves[inside.argmax(axis=1)].astype(np.int64)
        labels.setflags(write=False)
        return labels

    @cached_property
    def homes(self) -> np.ndarray:
        """A group that each image is counted under where it must count once, int64 [n_images]: the first of the deepest
        it is in. Of a partition, its group."""
        depth = np.array([len(self.above(k)) for k in range(len(self))])
        homes = np.where(self.membership, depth, -1).argmax(axis=1).astype(np.int64)
        homes.setflags(write=False)
        return homes

    @cached_property
    def atoms(self) -> tuple[np.ndarray, np.ndarray]:
        """Images that share all their groups: (the atom of each image, int64 [n_images]; bool [atoms, groups], which
        atoms a group is made of). Of a partition, the groups themselves."""
        rows, labels = np.unique(~self.membership, axis=0, return_inverse=True)  # ~: the first group's atoms come first
        return labels.reshape(-1).astype(np.int64), ~rows

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Groups that are nobody's parent: all of them, unless there is a tree."""
        above = set() if self.parents is None else set(self.parents)
        return tuple(k for k in range(len(self)) if k not in above)

    @property
    def leaf_names(self) -> tuple[str, ...]:
        return tuple(self.names[k] for k in self.leaves)

    @cached_property
    def disjoint(self) -> bool:
        """Whether every image is in exactly one leaf."""
        return bool((self.membership[:, list(self.leaves)].sum(axis=1) == 1).all())

    def above(self, k: int) -> tuple[int, ...]:
        """The groups that hold group k, from the top down."""
        parent = None if self.parents is None else self.parents[self._column(k)]
        return () if parent is None else (*self.above(parent), parent)

    def levels(self, asked: Sequence[int]) -> list[tuple[int, ...]]:
        """The way down to `asked`, level by level: the groups of that depth that are asked or above one that is, and
        those asked whose branch has ended. The last level is `asked`."""
        chains = [(*self.above(k), k) for k in asked]
        return [
            tuple(sorted({chain[min(d, len(chain) - 1)] for chain in chains}))
            for d in range(max(len(chain) for chain in chains))
        ]

    def check_rest(self) -> None:
        """Refuse a group without which nothing would be left to train on."""
        for name, size in zip(self.names, self.sizes, strict=True):
            if size == self.n_images:
                raise GudaError(
                    "group-covers-all", f"group {name!r} holds every image: without it nothing is left; drop it"
                )

    def check_apart(self, asked: Sequence[int]) -> None:
        """Refuse to rank a group against its own part."""
        for k in asked:
            if inside := [j for j in self.above(k) if j in asked]:
                raise GudaError(
                    "groups-nested",
                    f"{self.names[k]!r} is a part of {self.names[inside[-1]]!r}, so the two cannot be ranked against "
                    "each other; ask for one of them",
                )

    def index(self, name: str) -> int:
        try:
            return self.names.index(name)
        except ValueError:
            raise GudaError(
                "group-unknown",
                f"unknown group {name!r}{suggestion(name, self.names)}; the groups are {choices(self.names)}",
            ) from None

    def listed(self, text: str) -> list[str]:
        """The names of a list that a command line gives, `Monet,Klimt`. Names may contain commas themselves ("Doe,
        Jane"): the longest run of parts that is a group counts as one name. Unknown names stay in the list."""
        parts, names = text.split(","), []
        longest = 1 + max(name.count(",") for name in self.names)
        while parts:
            runs = [(n, ",".join(parts[:n])) for n in range(min(longest, len(parts)), 0, -1)]
            fits = [(n, name) for n, run in runs for name in (run, run.strip()) if name in self.names]
            n, name = fits[0] if fits else (1, parts[0].strip())
            names.append(name)
            parts = parts[n:]
        return names

    def of_image(self, image: int, among: Sequence[str] = ()) -> str:
        """The groups of one image, joined by " + ": those `among` these, or else the leaves."""
        its = [self.names[k] for k in np.flatnonzero(self.membership[image])]
        return " + ".join([n for n in its if n in among] or [n for n in its if n in self.leaf_names] or its)

    def members(self, k: int) -> np.ndarray:
        """Indices of the images in group k: D_k, the forget set."""
        return np.flatnonzero(self.membership[:, self._column(k)])

    def without(self, k: int) -> np.ndarray:
        """Indices of the images outside group k: the retain set."""
        return np.flatnonzero(~self.membership[:, self._column(k)])

    def take(self, indices: np.ndarray) -> Groups:
        """The groups of a selection of images, under the same names."""
        return Groups(self.names, self.membership[indices], self.parents)

    def only(self, names: Sequence[str]) -> tuple[Groups, np.ndarray]:
        """Exactly these groups, in the old order, of the images in any of them; and which images those are."""
        order = sorted({self.index(name) for name in names})
        return self._cut(order, np.flatnonzero(self.membership[:, order].any(axis=1)))

    def branches(self, names: Sequence[str]) -> tuple[Groups, np.ndarray]:
        """These groups with those below and above them, of the images in these; and which images those are. A group
        that would hold all that is left says nothing and goes."""
        wanted = {self.index(name) for name in names}
        wanted |= {k for k in range(len(self)) if wanted & set(self.above(k))}
        kept = np.flatnonzero(self.membership[:, sorted(wanted)].any(axis=1))
        wanted |= {j for k in wanted for j in self.above(k)}
        return self._cut([k for k in sorted(wanted) if not self.membership[kept, k].all()], kept)

    def _cut(self, order: Sequence[int], kept: np.ndarray) -> tuple[Groups, np.ndarray]:
        place = {k: i for i, k in enumerate(order)}
        parents = tuple(next((place[j] for j in reversed(self.above(k)) if j in place), None) for k in order)
        names = tuple(self.names[k] for k in order)
        return Groups(names, self.membership[kept][:, list(order)], parents), kept

    def joined(self, *ks: int, name: str) -> Groups:
        """Several groups as one called `name`, which comes first; the others as they are, without a tree."""
        rest = [k for k in range(len(self)) if k not in {self._column(k) for k in ks}]
        union = self.membership[:, list(ks)].any(axis=1, keepdims=True)
        names = (name, *(self.names[k] for k in rest))
        return Groups(names, np.concatenate([union, self.membership[:, rest]], axis=1))

    def to_json(self) -> dict[str, Any]:
        members = [self.members(k).tolist() for k in range(len(self))]
        tree = {} if self.parents is None else {"parents": list(self.parents)}
        return {"n_images": self.n_images, "names": list(self.names), "members": members, **tree}

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
            parents = None if value.get("parents") is None else tuple(value["parents"])
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise GudaError("groups-damaged", f"stored groups are damaged ({e!r}); write them again") from None
        return cls(names, membership, parents)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Groups):
            return NotImplemented
        same = self.names == other.names and self.parents == other.parents
        return same and np.array_equal(self.membership, other.membership)

    def __hash__(self) -> int:
        return hash((self.names, self.parents, self.membership.tobytes()))

    def _column(self, k: int) -> int:
        if not 0 <= k < len(self):  # -1 would silently be the last group
            raise GudaError(
                "group-number-unknown", f"there is no group number {k}; the {len(self)} groups are numbered from 0"
            )
        return int(k)


def _check_parents(
    names: tuple[str, ...], m: np.ndarray, parents: Sequence[int | None] | None
) -> tuple[int | None, ...] | None:
    """As plain numbers; None where no group has a parent."""
    if parents is None or all(p is None for p in parents):
        return None
    if len(parents) != len(names):
        raise GudaError(
            "group-parents-mismatch",
            f"{len(names)} groups but parents for {len(parents)}; give one each, or None at the top",
        )
    for k, p in enumerate(parents):
        if p is None:
            continue
        if isinstance(p, bool) or not isinstance(p, int | np.integer) or not 0 <= p < k:
            raise GudaError(
                "group-parent-invalid",
                f"the parent of group {names[k]!r} is {p!r}; it must be the number of a group before it",
            )
        if (m[:, k] & ~m[:, p]).any():
            i = int(np.flatnonzero(m[:, k] & ~m[:, p])[0])
            raise GudaError(
                "group-parent-membership",
                f"image {i} is in {names[k]!r} but not in {names[p]!r}, which is above it; add it there",
            )
    return tuple(None if p is None else int(p) for p in parents)
