"""From training images to groups: what a group's score is, given its images' scores.

    sum, mean, max, median, top<m>      of the images' scores; top<m>: the mean of the m highest, top1 = max

With groups of one size sum and mean order them alike; with others a sum favours large groups. A group of fewer than m
images gives the mean of all it has. Scores of images are asked for in blocks, so that no query-by-image matrix is held
(a median needs one group's whole row).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

PATTERN = r"^(sum|mean|max|median|top[1-9][0-9]*)$"

BLOCK = 4096  # training images whose scores are held at once, for all queries asked about

Influence = Callable[[np.ndarray], np.ndarray]  # positions of m training images -> scores float64 [Q, m]


def by_group(influence: Influence, groups: Sequence[np.ndarray], how: str, block: int = BLOCK) -> np.ndarray:
    """[Q, G] from the scores of each group's images (positions)."""
    return np.stack([aggregate(influence, members, how, block) for members in groups], axis=1)


def aggregate(influence: Influence, members: np.ndarray, how: str, block: int = BLOCK) -> np.ndarray:
    """[Q] of one group."""
    blocks = (influence(members[i : i + block]) for i in range(0, len(members), block))
    if how in ("sum", "mean"):
        total = np.sum([b.sum(axis=1) for b in blocks], axis=0)
        return total / len(members) if how == "mean" else total
    if how == "median":
        return np.median(np.concatenate(list(blocks), axis=1), axis=1)
    m = highest(how)
    if m is None:
        raise ValueError(f"no aggregate {how!r}")
    best: np.ndarray | None = None
    for b in blocks:
        held = b if best is None else np.concatenate([best, b], axis=1)
        best = held if held.shape[1] <= m else np.partition(held, held.shape[1] - m, axis=1)[:, -m:]
    assert best is not None
    # sorted, and laid out in one way: the sum must not depend on the blocks
    return np.ascontiguousarray(np.sort(best, axis=1)).mean(axis=1)


def highest(how: str) -> int | None:
    """m of top<m>; `max` is top1."""
    found = re.fullmatch(r"top([1-9][0-9]*)", "top1" if how == "max" else how)
    return int(found[1]) if found else None
