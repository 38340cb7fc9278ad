"""Seeded choices among names: an order that is a function of a key and of the names, the same in every process.

Sorted by sha256 of (key, item), so one item's place among the others does not depend on which others there are.
(`diffusion/noise.py` has keyed numbers; it lies to the right of this package.)
"""

from __future__ import annotations

from collections.abc import Sequence

from guda.runs.store import digest


def ordered(items: Sequence[str], *key: str | int) -> list[str]:
    return sorted(items, key=lambda item: digest([*key, item], length=64))
