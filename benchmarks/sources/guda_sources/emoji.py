"""Emoji: one object drawn in ten styles, from the npm packages `@iconify-json/*`, rendered by resvg.

A style x object set that is free to use and small enough for two cores: group = style (the drawing's maker), content
= object. The ten styles are those of twelve that share most objects (896 in the pinned versions; fxemoji and
streamline-emojis would leave some 120). `fluent-emoji` and `fluent-emoji-flat` are near-twins, the same outlines with
and without shading: what one of them taught a model the other could have, which is the hard case of attribution.
`emojione-monotone` and `fluent-emoji-high-contrast` are black on white.

Each set has its own licence and author; they travel with the images in `meta["licences"]`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from guda import files as store
from guda.data import npm
from guda.data.folder import check_options
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.sources import source
from guda.errors import GudaError

SETS = {
    "emojione": "1.2.3",
    "emojione-monotone": "1.2.1",
    "emojione-v1": "1.2.3",
    "fluent-emoji": "1.2.7",
    "fluent-emoji-flat": "1.2.6",
    "fluent-emoji-high-contrast": "1.2.6",
    "noto": "1.2.9",
    "noto-v1": "1.2.5",
    "openmoji": "1.2.29",
    "twemoji": "1.2.5",
}

SCOPE = "@iconify-json"

VARIABLE = "GUDA_EMOJI"  # a folder that holds the packages already, as .tgz files or unpacked

FINER = 4  # drawn at so many times the size, then averaged, so that touching shapes show no seams

TONE = re.compile(r"-(?:medium-light|medium-dark|light|medium|dark)(-skin-tone)?$")


# --- packages -------------------------------------------------------------------------------------
def cache_folder() -> Path:
    return npm.cache_folder("emoji")


def _package(name: str, version: str) -> Path:
    """The .tgz file, or the unpacked folder, of one set; downloaded only when it is nowhere."""
    file = f"{SCOPE.strip('@')}-{name}-{version}.tgz"
    if given := os.environ.get(VARIABLE):
        folder = Path(given).expanduser()
        places = [folder / file, folder / name, folder / SCOPE / name]
        for place in places:
            if place.is_file() or (place / "icons.json").is_file():
                return place
        raise GudaError(
            "emoji-package-missing",
            f"{VARIABLE}={given} has no {file} and no unpacked {name}/; npm pack {SCOPE}/{name}@{version}",
        )
    place = cache_folder() / file
    if not place.is_file():
        npm.fetch(f"{SCOPE}/{name}@{version}", place, VARIABLE, "the emoji come")
    return place


def _read(package: Path, *names: str) -> list[dict[str, Any]]:
    """JSON files of a package; nothing is unpacked to disk."""
    try:
        found = [json.loads(content) for content in npm.read(package, names, SCOPE)]
        if not all(isinstance(value, dict) for value in found):
            raise ValueError("a file is no JSON object")
    except ValueError as e:
        raise GudaError(
            "download-damaged", f"{package} is not a whole {SCOPE} package ({e}); delete it and fetch it again"
        ) from None
    return found


def _licence(name: str, info: Mapping[str, Any], package: Mapping[str, Any]) -> dict[str, str]:
    licence, author = info.get("license") or {}, info.get("author") or {}
    return {
        "licence": licence.get("spdx") or licence.get("title") or "unknown",
        "licence_url": licence.get("url", ""),
        "author": author.get("name", "unknown"),
        "url": author.get("url", ""),
        "package": f"{SCOPE}/{name}",
        "version": str(package.get("version", "")),
    }


def licences() -> dict[str, dict[str, str]]:
    """Of every style: licence (SPDX), its address, author, address of the originals, npm package and version."""
    return {n: _licence(n, *_read(_package(n, v), "info.json", "package.json")) for n, v in SETS.items()}


# --- drawings -------------------------------------------------------------------------------------
def drawings(icons: Mapping[str, Any]) -> dict[str, str]:
    """SVG text by icon name, from Iconify's icons.json; an alias is its parent's drawing, mirrored if it says so."""
    plain, aliases = icons.get("icons", {}), icons.get("aliases", {})
    found = {name: svg for name, icon in plain.items() if (svg := _svg(icon, icons))}
    for name in aliases:
        parent, flips, seen = name, {"hFlip": False, "vFlip": False}, set[str]()
        while parent in aliases and parent not in seen:
            seen.add(parent)
            alias = aliases[parent]
            if alias.get("rotate"):
                break
            flips = {key: value != bool(alias.get(key)) for key, value in flips.items()}
            parent = alias.get("parent", "")
        if parent in plain and (svg := _svg(plain[parent] | flips, icons)):
            found[name] = svg
    return found


def _svg(icon: Mapping[str, Any], defaults: Mapping[str, Any]) -> str | None:
    """A square picture: what is not square is centred. Drawings that refer to other files are not ours to open."""
    left, top, width, height = (
        icon.get(key, defaults.get(key, other))
        for key, other in (("left", 0), ("top", 0), ("width", 16), ("height", 16))
    )
    body = icon.get("body")
    if not isinstance(body, str) or "<image" in body or not all(isinstance(v, int | float) for v in (width, height)):
        return None
    if icon.get("hFlip") or icon.get("vFlip"):
        x, y = (-1 if icon.get("hFlip") else 1), (-1 if icon.get("vFlip") else 1)
        move = f"{2 * left + width if x < 0 else 0} {2 * top + height if y < 0 else 0}"
        body = f'<g transform="translate({move}) scale({x} {y})">{body}</g>'
    side = max(width, height)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{left} {top} {width} {height}" width="{side}" height="{side}">{body}</svg>'
    )


def shared(styles: Mapping[str, Mapping[str, str]], flags: set[str]) -> list[str]:
    """Names drawn in every style, sorted; without flags, skin tones, and second names of the same drawings."""
    names = set.intersection(*(set(found) for found in styles.values())) - flags
    names = {n for n in names if not n.startswith("flag-for-") and "skin-tone" not in n}
    known = set.union(*(set(found) for found in styles.values()))  # a street-light has no street-medium-dark beside it
    names = {n for n in names if not (TONE.search(n) and TONE.sub(r"-medium-dark\1", n) in known)}
    firsts: dict[tuple[str, ...], str] = {}
    for name in sorted(names):
        firsts.setdefault(tuple(found[name] for found in styles.values()), name)
    return list(firsts.values())


def _render(svg: str, size: int, name: str) -> np.ndarray:
    """uint8 [3, size, size] on white: drawn FINER times larger, then averaged over blocks."""
    import io

    import resvg_py
    from PIL import Image

    side = size * FINER
    try:
        png = resvg_py.svg_to_bytes(
            svg_string=svg, background="#ffffff", skip_system_fonts=True, width=side, height=side
        )
    except ValueError as e:
        raise GudaError(
            "emoji-undrawable", f"resvg cannot draw the {name} ({e}); delete the package and fetch it again"
        ) from None
    pixels = np.asarray(Image.open(io.BytesIO(bytes(png)), formats=("PNG",)).convert("RGB"))
    blocks = pixels.reshape(size, FINER, size, FINER, 3).mean(axis=(1, 3))
    return np.rint(blocks).astype(np.uint8).transpose(2, 0, 1)


# --- the data set ---------------------------------------------------------------------------------
def _flags(metadata: Mapping[str, Any]) -> set[str]:
    categories = metadata.get("categories")
    found = categories.items() if isinstance(categories, dict) else ()
    return {name for title, names in found if "flag" in str(title).lower() for name in names}


@source("emoji")
def load_emoji(size: int = 32) -> ImageData:
    """Every shared object in every style at `size` pixels, RGB; rendered once, then kept in the cache."""
    import torch

    check_options(size, None)
    try:
        import resvg_py
    except ImportError:
        raise GudaError(
            "package-missing", "the emoji are drawn by resvg-py, which is not installed; pip install resvg-py"
        ) from None
    styles, flags, terms = {}, set[str](), {}
    for name, version in SETS.items():
        files = ("icons.json", "info.json", "package.json", "metadata.json")
        icons, info, package, metadata = _read(_package(name, version), *files)
        styles[name], terms[name] = drawings(icons), _licence(name, info, package)
        flags |= _flags(metadata)
    objects = shared(styles, flags)
    pairs = [(style, name) for style in styles for name in objects]
    if not pairs:
        raise GudaError(
            "emoji-none-shared",
            f"the emoji sets {', '.join(SETS)} share no object; delete the packages and fetch them again",
        )
    text = hashlib.sha256("\0".join(styles[style][name] for style, name in pairs).encode()).hexdigest()
    renderer = f"resvg {resvg_py.__resvg_version__}"
    key = {"drawings": text, "size": size, "finer": FINER, "renderer": renderer}
    cached = cache_folder() / f"emoji-{size}-{store.digest(key)}.safetensors"
    if not cached.is_file():
        images = np.stack([_render(styles[style][name], size, f"{name} of {style}") for style, name in pairs])
        store.write_tensors(cached, {"images": torch.from_numpy(images)}, {"key": store.canonical(key)})
    images = store.read_tensors(cached)[0]["images"].numpy()
    drawn = (images != 255).any(axis=(1, 2, 3)).reshape(len(styles), len(objects)).all(axis=0)
    keep = np.tile(drawn, len(styles))
    pairs = [pair for pair, whole in zip(pairs, keep, strict=True) if whole]
    return ImageData(
        images if keep.all() else images[keep],
        tuple(f"{style}/{name}" for style, name in pairs),
        Groups.from_labels([style for style, _ in pairs]),
        "emoji",
        {"source": "emoji", "size": size, "renderer": renderer, "licences": terms},
        tuple(name.replace("-", " ") for _, name in pairs),
    )
