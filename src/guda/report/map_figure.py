"""Maps as pictures: cells in colour over the picture in grey, with a scale in nats.

Cells that are not above the noise floor (scoring/maps.py) stay grey. Path divergences go from yellow to dark red; ELBO
differences are red where the picture is explained worse without the group and blue where better. Latent cells are
enlarged to the picture, for display only. The same map and the same Pillow give identical bytes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from guda.files import write_bytes
from guda.scoring.bands import default_edges
from guda.scoring.maps import PictureMap, ScoreMap
from guda.table import MINUS, plain, signed

HEAT = ((255, 247, 188), (254, 196, 79), (236, 112, 20), (153, 20, 4))  # light yellow to dark red

COOL = ((222, 235, 247), (158, 202, 225), (66, 146, 198), (8, 48, 107))

OPACITY = 0.85

SIDE, GAP, MARGIN, FONT, BAR = 224, 28, 24, 15, 14  # pixels

READ_BANDS = ("low noise: texture", "middle: shapes", "high noise: layout")


def wide_edges(T: int, strata: Sequence[int] = ()) -> tuple[int, ...]:
    """Three bands of the noise-band view: low, middle and high noise. Given a plan's `strata`, the nearest of their
    edges: a stratum that lies in one band does not add to the noise of two."""
    edges = default_edges(T)
    if len(edges) < 7:
        return edges
    inner = [min(strata[1:-1], key=lambda s: (abs(s - e), s)) if len(strata) > 3 else e for e in (edges[2], edges[4])]
    return (0, *inner, T) if inner[0] < inner[1] else (0, edges[2], edges[4], T)


def band_name(number: int, of: int) -> str:
    return READ_BANDS[number] if of == len(READ_BANDS) else f"noise band {number + 1} of {of}"


def _ramp(anchors: Sequence[tuple[int, int, int]], share: np.ndarray) -> np.ndarray:
    at = np.linspace(0, 1, len(anchors))
    return np.stack([np.interp(share, at, [a[c] for a in anchors]) for c in range(3)], axis=-1)


def colours(nats: np.ndarray, top: float, signed: bool) -> np.ndarray:
    """uint8 [..., 3]; `top`: the nats of the strongest colour."""
    share = np.clip(np.abs(nats) / max(top, 1e-300), 0, 1)
    warm = _ramp(HEAT, share)
    return np.round(np.where((nats < 0)[..., None], _ramp(COOL, share), warm) if signed else warm).astype(np.uint8)


def top_of(maps: Sequence[ScoreMap]) -> float:
    """The end of a scale for these maps, nats per cell: the strongest clear cell."""
    return max((float(np.abs(m.nats[m.clear]).max()) for m in maps if m.clear.any()), default=0.0)


def _factor(size: int, side: int) -> int:
    return max(1, side // size)


def overlay(picture: np.ndarray, score_map: ScoreMap, top: float, side: int = SIDE) -> Any:
    """A PIL image of uint8 [C, H, W] in grey with the clear cells in colour; at least the picture's own size."""
    from PIL import Image

    height, width = picture.shape[1:]
    scale = _factor(max(height, width), side)
    grey = picture.astype(np.float64).mean(axis=0)
    base = np.repeat((110 + 0.5 * grey)[..., None], 3, axis=2)
    rows = np.arange(height) * score_map.nats.shape[0] // height  # the cell that each pixel lies in
    columns = np.arange(width) * score_map.nats.shape[1] // width
    cells, clear = score_map.nats[np.ix_(rows, columns)], score_map.clear[np.ix_(rows, columns)]
    colour = OPACITY * colours(cells, top, score_map.signed) + (1 - OPACITY) * base
    out = np.where(clear[..., None], colour, base).round().astype(np.uint8)
    return Image.fromarray(out.repeat(scale, axis=0).repeat(scale, axis=1))


def picture_image(picture: np.ndarray, side: int = SIDE) -> Any:
    """uint8 [C, H, W] as a PIL image, enlarged by a whole factor with hard edges."""
    from PIL import Image

    scale = _factor(max(picture.shape[1:]), side)
    pixels = picture.repeat(scale, axis=1).repeat(scale, axis=2)
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def difference_image(change: np.ndarray, side: int = SIDE) -> Any:
    """Without less with, float [C, H, W] in -255..255: grey where equal, lighter where brighter without the group."""
    return picture_image(np.clip(np.round(128 + change / 2), 0, 255).astype(np.uint8), side)


def scale_image(top: float, signed: bool, width: int = SIDE, height: int = BAR) -> Any:
    """The colours from 0 (or -top) to top."""
    from PIL import Image

    values = np.linspace(-top if signed else 0.0, top, width)
    row = np.full(3, 171.0) * (1 - OPACITY) + OPACITY * colours(values, top, signed)
    return Image.fromarray(np.repeat(row.round().astype(np.uint8)[None], height, axis=0))


def scale_ends(top: float, is_signed: bool) -> tuple[str, str]:
    """What stands at the ends of the scale, nats per cell; of a map without a clear cell it says so."""
    if not top:
        return "no cell above the noise floor", ""
    digits = 1 if top >= 10 else 2 if top >= 1 else 3 if top >= 0.1 else 4
    left, right = (signed(-top, digits), signed(top, digits)) if is_signed else ("0", plain(top, digits))
    return left, f"{right} nats"


def png(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def map_figure(
    picture: np.ndarray, picture_map: PictureMap, worse: PictureMap | None, edges: Sequence[int], title: str, path: Path
) -> Path:
    """The picture, its map and the signed one (`worse`) of a path divergence; below them the map by noise band, all
    bands on one scale."""
    from PIL import Image, ImageDraw, ImageFont

    font: Any = ImageFont.load_default(FONT)
    bands, line = picture_map.bands(edges), FONT + 6
    shown = picture_image(picture)
    width, height = shown.size
    strips: list[list[tuple[str, ScoreMap | None]]] = [
        [("the picture", None), (picture_map.whole.caption, picture_map.whole)],
        [(band_name(b, len(bands)), band) for b, band in enumerate(bands)],
    ]
    if worse is not None:
        strips[0].append((worse.whole.caption, worse.whole))
    columns = max(map(len, strips))
    panel = height + 2 * line + BAR + 2 * line
    total = max(2 * MARGIN + columns * width + (columns - 1) * GAP, 640)
    canvas = Image.new("RGB", (total, 2 * MARGIN + line + 2 * panel), "white")
    draw = ImageDraw.Draw(canvas)
    draw.text((MARGIN, MARGIN), title, fill="#111111", font=font)
    for r, strip in enumerate(strips):
        y = MARGIN + line + line // 2 + r * panel
        for c, (name, cells) in enumerate(strip):
            x = MARGIN + c * (width + GAP)
            draw.text((x, y), name, fill="#444444", font=font)
            if cells is None:
                canvas.paste(shown.convert("RGB"), (x, y + line))
                continue
            top = top_of(bands if cells.name else [cells])
            canvas.paste(overlay(picture, cells, top), (x, y + line))
            below = y + line + height + 8
            if top:
                canvas.paste(scale_image(top, cells.signed, width), (x, below))
            left, right = scale_ends(top, cells.signed)
            left = left.replace(MINUS, "-")  # Pillow's font has no minus sign
            for text, at in ((left, x), (right, x + width - draw.textlength(right, font=font))):
                draw.text((at, below + BAR + 3), text, fill="#444444", font=font)
            where = f"t {cells.name}; " if cells.name else ""
            sums = f"{where}sum {signed(cells.score, 2) if cells.signed else plain(cells.score, 2)} nats"
            draw.text((x, below + BAR + 3 + line), sums.replace(MINUS, "-"), fill="#444444", font=font)
    write_bytes(path, png(canvas))
    return path


def floor_sentence(score_map: ScoreMap) -> str:
    """What blank cells are."""
    cells = score_map.nats.size
    if score_map.stderr is None:
        return f"One draw per noise level: no noise floor is known, so all {cells:,} cells are shown."
    even = f"clearly above an even share of the score ({plain(score_map.score / cells, 4)} nats)"
    floor = "clearly different from zero" if score_map.signed else even
    count = int(score_map.clear.sum())
    return (
        f"Grey cells are not {floor} (t-test over the draws, false discovery rate 5 %). Coloured: {count:,} of "
        f"{cells:,} cells, {plain(score_map.shown, 2)} of {plain(score_map.score, 2)} nats."
    )
