"""Pictures inside the page: small PNGs as data URIs, each different exemplar once.

Queries are many, so their size is chosen such that even incompressible colour pictures stay within a budget.
Exemplars are shown again and again, so they are SVG symbols that any place of the page may `use`.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass, field

import numpy as np

LARGEST, SMALLEST = 128, 32  # longer side, pixels

BUDGET = 20_000_000  # bytes of base64 for all queries together

EXEMPLAR = 96


def side_for(n: int, budget: int = BUDGET) -> int:
    """Longer side at which `n` raw RGB pictures, base64-encoded (4/3), fit the budget."""
    return max(SMALLEST, min(LARGEST, math.isqrt(max(budget, 0) // (4 * max(n, 1)))))


def data_uri(image: np.ndarray, side: int) -> str:
    """A PNG of uint8 [C, H, W], at most `side` pixels long; smaller pictures keep their own pixels."""
    from PIL import Image

    picture = Image.fromarray(image[0] if image.shape[0] == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
    if max(picture.size) > side:
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


@dataclass
class Symbols:
    """Exemplars by content: equal pictures share one symbol."""

    uris: dict[str, int] = field(default_factory=dict)

    def add(self, image: np.ndarray, side: int = EXEMPLAR) -> str:
        """The symbol's id."""
        return f"x{self.uris.setdefault(data_uri(image, side), len(self.uris))}"

    def items(self) -> list[tuple[str, str]]:
        return [(f"x{number}", uri) for uri, number in self.uris.items()]
