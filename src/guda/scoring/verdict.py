"""The verdict on one picture, in plain language, from its groups' intervals and ranks.

The first group stands out only if its whole interval is above the floor, and no other group may be ahead of it. The
floor is zero (for excess scores the average picture; path divergences have none), or what 95 % of placebo groups score,
where that is more. Who may be ahead is told by the rank intervals: differences between groups scored with the same
draws, all comparisons held together at 95 % (scoring/estimate.py), or a race settled with at least that confidence,
among the groups that raced. Where there are none, and among the first of a race that settled several together, two
groups count as separated only if their intervals do not overlap, which is stricter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from guda.scoring.reading import reading, value
from guda.table import signed

if TYPE_CHECKING:
    from guda.scoring.scores import GroupScore

Kind = Literal["clear", "tied", "none", "unmeasured"]

LABELS: dict[Kind, str] = {
    "clear": "One group stands out",
    "tied": "First groups not separated",
    "none": "Nothing stands out",
    "unmeasured": "No interval, no verdict",
}

NAMED = 3  # groups of a tie that are named; the others are counted


@dataclass(frozen=True)
class Verdict:
    kind: Kind
    headline: str
    detail: str

    @property
    def text(self) -> str:
        return f"{self.headline} ({self.detail})"


def verdict(ranked: Sequence[GroupScore], digits: int = 1, floor: float = 0.0) -> Verdict:
    """`ranked`: all groups of one picture, best first; scores must be above `floor` to count."""
    first = ranked[0]
    told, read = value(first.score, first.lo, first.hi, digits, first.unit), reading(first.unit, first.sign)
    if first.lo is None:
        return Verdict("unmeasured", f"group {first.group} is first", f"{told}; no interval, so no verdict")
    clears = read.zero if floor <= 0 else f"what placebo groups score ({signed(floor, digits)})"
    bar = max(floor, 0.0) if read.has_zero or floor > 0 else -math.inf  # path divergences are never zero
    if not any(g.lo is not None and g.lo > bar for g in ranked):
        return Verdict("none", "nothing stands out", f"no interval clears {clears}; first is {first.group}, {told}")
    may = [g for g in ranked[1:] if g.rank_lo in (None, 1)]
    if first.rank_hi is not None and first.p_first is not None:
        rivals = [] if first.rank_hi == 1 else [g.group for g in may]
        why = "their differences are within the error; the first is"
    else:  # no ranks, or those of a race, which says nothing about the order of the first few
        rivals = [] if first.rank_hi == 1 else [g.group for g in may if g.hi is not None and g.hi >= first.lo]
        why = "their intervals overlap that of the first:"
    tied = [first.group, *rivals]
    if len(tied) > 1:
        rest = len(tied) - NAMED
        names = f"{', '.join(tied[:NAMED])} and {rest} more" if rest > 0 else f"{', '.join(tied[:-1])} and {tied[-1]}"
        return Verdict("tied", f"groups {names} not separated", f"{why} {told}")
    once = 0 if first.rank_hi == 1 else sum(g.lo is None for g in may)
    if once:
        seen = "1 group has" if once == 1 else f"{once} groups have"
        why = f"{told}; {seen} no interval (seen only once, or not at all), so its first place is not tested"
        return Verdict("unmeasured", f"group {first.group} is first", why)
    if first.lo <= bar:
        return Verdict("none", "nothing stands out", f"the first, {first.group}, does not clear {clears}: {told}")
    left = sum(g.rank_lo is None for g in ranked[1:]) if first.rank_hi == 1 else 0  # those that a screen left out
    among = f" of the {len(ranked) - left} that were raced" if left else ""
    return Verdict("clear", f"group {first.group} stands out", f"{told}; clear of the next group{among}")
