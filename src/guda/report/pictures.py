"""Pictures as PNG: grids with names beside their rows and above their columns, and small ones inside the page.

In a grid every pixel is a picture's own. Small pictures are enlarged by whole factors without smoothing, large ones
shrunk. The same pictures and the same Pillow give identical bytes.

The page holds data URIs, each different exemplar once. Queries are many, so their size is chosen such that even
incompressible colour pictures stay within a budget. Exemplars are shown again and again, so they are SVG symbols that
any place of the page may `use`.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from guda.data.images import ImageData
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.files import write_bytes
from guda.run.run import Run

CELL, GAP, MARGIN, FONT = 72, 4, 10, 13  # pixels: a picture is at least about CELL and at most 2 CELL wide


def _picture(image: np.ndarray, side: int) -> Any:
    """uint8 [C, H, W] as a PIL image of `side` pixels."""
    from PIL import Image

    picture = Image.fromarray(image[0] if image.shape[0] == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
    smooth = Image.Resampling.LANCZOS if side < max(picture.size) else Image.Resampling.NEAREST
    scale = side / max(picture.size)
    return picture.resize((round(picture.width * scale), round(picture.height * scale)), smooth)


def _side(size: int) -> int:
    return min(size, 2 * CELL) if size >= CELL else size * -(-CELL // size)


def grid(
    rows: Sequence[np.ndarray], path: Path, row_names: Sequence[str], column_names: Sequence[str] = (), title: str = ""
) -> Path:
    """`rows`: uint8 [n, C, H, W] each; short rows end early. Names that are long are cut with an ellipsis."""
    from PIL import Image, ImageDraw, ImageFont

    if len(rows) != len(row_names) or not rows:
        raise GudaError("row-names-mismatch", f"{len(row_names)} names for {len(rows)} rows of pictures")
    font: Any = ImageFont.load_default(FONT)
    side = _side(max(rows[0].shape[-2:]))
    n = max(map(len, rows))
    measure = ImageDraw.Draw(Image.new("L", (1, 1)))

    def width(text: str) -> int:
        return int(measure.textlength(text, font=font)) + 1

    def cut(text: str, most: int) -> str:
        if width(text) <= most:
            return text
        while text and width(text + "...") > most:
            text = text[:-1]
        return text.rstrip() + "..."

    left = MARGIN + min(260, max(map(width, row_names))) + MARGIN
    lines = [word for word in title.split("\n") if word]
    line = FONT + 6
    top = MARGIN + line * len(lines) + (line if column_names else 0)
    total = max(left + n * (side + GAP) + MARGIN, MARGIN * 2 + max(map(width, lines), default=0))
    canvas = Image.new("RGB", (total, top + len(rows) * (side + GAP) + MARGIN), "white")
    draw = ImageDraw.Draw(canvas)
    for i, text in enumerate(lines):
        draw.text((MARGIN, MARGIN + i * line), text, fill="black", font=font)
    for c, name in enumerate(column_names):
        shown = cut(name, side)
        at = left + c * (side + GAP) + (side - width(shown)) // 2
        draw.text((at, top - line + 2), shown, fill="black", font=font)
    for r, (images, name) in enumerate(zip(rows, row_names, strict=True)):
        y = top + r * (side + GAP)
        shown = cut(name, left - 2 * MARGIN)
        draw.text((left - MARGIN - width(shown), y + (side - FONT) // 2), shown, fill="black", font=font)
        for c, image in enumerate(images):
            canvas.paste(_picture(image, side), (left + c * (side + GAP), y))
    buffer = io.BytesIO()
    canvas.save(buffer, "PNG", optimize=True)
    write_bytes(path, buffer.getvalue())
    return path


def exemplars(
    data: ImageData, path: Path, groups: Sequence[str] | None = None, n: int = 10, seed: int = 0, title: str = ""
) -> Path:
    """`n` training images of every group, drawn by (seed, group)."""
    names = tuple(groups) if groups is not None else data.groups.names
    rows = []
    for name in names:
        members = np.asarray(data.groups.members(data.groups.index(name)))
        chosen = generator(seed, "exemplars", name).permutation(len(members))[:n]
        rows.append(data.images[members[np.sort(chosen)]])
    sizes = [int(data.groups.sizes[data.groups.index(name)]) for name in names]
    row_names = [f"{name} ({size:,})" for name, size in zip(names, sizes, strict=True)]
    return grid(rows, path, row_names, title=title or "Training images of every group (how many it has)")


def write_samples(run: Run, queries: str, n: int = 12) -> Path:
    """Some pictures of a query set as PNG files at their own size, evenly spread: RUN/pictures/<id>.png."""
    from PIL import Image

    from guda.methods.terms import load_queries

    loaded = load_queries(run, queries)
    for q in range(loaded.n)[:: max(1, loaded.n // n)][:n]:
        image, buffer = loaded.images[q], io.BytesIO()
        picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
        picture.save(buffer, "PNG", optimize=True)
        write_bytes(run.path("pictures", f"{loaded.ids[q].replace('/', '_')}.png"), buffer.getvalue())
    return run.path("pictures")


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
    """Exemplars by content: equal pictures share one symbol. `prefix`: for pieces of pages that share a document."""

    prefix: str = "x"
    uris: dict[str, int] = field(default_factory=dict)

    def add(self, image: np.ndarray, side: int = EXEMPLAR) -> str:
        """The symbol's id."""
        return f"{self.prefix}{self.uris.setdefault(data_uri(image, side), len(self.uris))}"

    def add_png(self, data: bytes) -> str:
        """The symbol of a PNG as it is."""
        uri = "data:image/png;base64," + base64.b64encode(data).decode()
        return f"{self.prefix}{self.uris.setdefault(uri, len(self.uris))}"

    def items(self) -> list[tuple[str, str]]:
        return [(f"{self.prefix}{number}", uri) for uri, number in self.uris.items()]
