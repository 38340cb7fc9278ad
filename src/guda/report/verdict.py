"""The verdict on one picture, in plain language, from its groups' intervals.

The rule is conservative: the first group stands out only if its whole interval is above zero and above the whole
interval of every other group. Two 95 % intervals may overlap although the difference of their scores is significant;
such a pair is called not separated here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from guda.report.numbers import interval, signed
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


def verdict(ranked: Sequence[GroupScore], digits: int = 1) -> Verdict:
    """`ranked`: all groups of one picture, best first; either all have intervals or none has."""
    first = ranked[0]
    value = f"{signed(first.score, digits)} {interval(first.lo, first.hi, digits)}".strip() + f" {first.unit}"
    if first.lo is None or any(g.lo is None or g.hi is None for g in ranked):
        return Verdict("unmeasured", f"group {first.group} is first", f"{value}; no interval, so no verdict")
    if not any(g.lo is not None and g.lo > 0 for g in ranked):
        return Verdict("none", "nothing stands out", f"no interval clears zero; first is {first.group}, {value}")
    rivals = [g.group for g in ranked[1:] if g.hi is not None and g.hi >= first.lo]
    if first.lo > 0 and not rivals:
        return Verdict("clear", f"group {first.group} stands out", f"{value}; clear of the next group")
    tied = [first.group, *rivals]
    rest = len(tied) - NAMED
    names = f"{', '.join(tied[:NAMED])} and {rest} more" if rest > 0 else f"{', '.join(tied[:-1])} and {tied[-1]}"
    return Verdict("tied", f"groups {names} not separated", f"their intervals overlap that of the first: {value}")
