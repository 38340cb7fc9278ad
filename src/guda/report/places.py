"""Names of places on the page, so that links land: `#s1-00287` is a picture's card, `#group-monet` a group.

An id of a picture may be any text; a place is made of its letters, digits, `.`, `_` and `-`, and is the id itself where
it has nothing else. Two that would be the same get a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

GROUP = "group-"

TAKEN = (  # ids of the page itself
    "about", "answers", "averages", "calibration", "cards", "coalitions", "controls", "cost", "count",
    "counterfactuals", "data", "drawings", "group", "groups", "headline", "health", "kind", "limits", "method",
    "methods", "nothing", "null-key", "order", "pictures", "provenance", "read", "scale", "search", "short", "sort",
    "tally", "trust", "view",
)  # fmt: skip

SYMBOL = re.compile(r"x\d+")  # of an image that is used in several places


def places(names: Iterable[str], prefix: str = "", taken: Iterable[str] = TAKEN) -> list[str]:
    """One place for each name, in order; all differ from each other and from `taken`."""
    used, chosen = set(taken), []
    for name in names:
        plain = prefix + (re.sub(r"[^\w.-]+", "-", name).strip("-") or "x")
        if plain in used or SYMBOL.fullmatch(plain) or (not prefix and plain.startswith((GROUP, "heat-"))):
            plain = next(p for n in range(1, len(used) + 2) if (p := f"picture-{plain}-{n}") not in used)
        used.add(plain)
        chosen.append(plain)
    return chosen
