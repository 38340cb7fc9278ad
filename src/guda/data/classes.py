"""Classes of a class-conditional model: what it is told of each training image, and what a group is to it.

The class of an image is what it shows (`data.content_by`), or its group where the data do not say. Its number is the
name itself where all names are whole numbers, else the name's place in sorted order, as image folders are usually read.
The model's last label is the null label where no class has it: guidance and dropped labels need one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.errors import GudaError


@dataclass(frozen=True)
class Classes:
    training: tuple[str, ...]  # the class of every training image: its number, as text
    names: dict[str, str]  # number -> name
    null: str | None  # the null label's number; None: the model has none

    @cached_property
    def numbers(self) -> np.ndarray:
        """int64 [n]."""
        return np.array([int(c) for c in self.training], np.int64)

    def of_group(self, groups: Groups, group: str) -> tuple[str, ...]:
        """The classes of a group's images."""
        return tuple(sorted({self.training[i] for i in groups.members(groups.index(group))}, key=int))

    def emptied(self, groups: Groups, group: str) -> tuple[str, ...]:
        """The classes that have no image left without the group."""
        left = {self.training[i] for i in groups.without(groups.index(group))}
        return tuple(c for c in self.of_group(groups, group) if c not in left)

    def are_groups(self, groups: Groups, names: Sequence[str]) -> bool:
        """Whether some of these groups hold a whole class: told that class, nothing is left of it without them."""
        return any(self.emptied(groups, name) for name in names)

    def group_of(self, groups: Groups, names: Sequence[str]) -> dict[str, str]:
        """The group that all images of a class are in, for classes that have one."""
        found: dict[str, str] = {}
        for name in names:
            found |= dict.fromkeys(self.emptied(groups, name), name)
        return found


def class_numbers(data: ImageData, n_classes: int) -> Classes:
    """The classes of the data, for a model of `n_classes` labels."""
    if data.contents is None and not data.groups.disjoint:
        raise GudaError(
            "classes-unknown",
            "the model is class-conditional and some images are in several groups; give the class of each image: "
            "data.content_by",
        )
    each = data.contents or tuple(data.groups.names[k] for k in data.groups.labels)
    named = sorted(set(each))
    numbers = {n: int(n) if all(map(str.isdecimal, named)) else i for i, n in enumerate(named)}
    if max(numbers.values()) >= n_classes:
        raise GudaError(
            "classes-mismatch",
            f"the images have the classes {named[0]} to {named[-1]} ({len(named)}), and the model has {n_classes} "
            "labels; give the class of each image by data.content_by, or a model with a label for each",
        )
    used = set(numbers.values())
    return Classes(
        tuple(str(numbers[n]) for n in each), {str(k): n for n, k in numbers.items()},
        None if n_classes - 1 in used else str(n_classes - 1),
    )  # fmt: skip
