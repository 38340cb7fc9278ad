"""Fonts: the same 62 characters in many families, a real set of many groups; group = family, content = character.

The families and their files are pinned in fonts.yaml, from Debian's packages; fonts:FOLDER takes those of a folder
instead. Families whose letters are the same pictures are one group (the first by name). Those that are nearly the same
stay apart, the hard case of attribution, and are listed in meta["near"] with the share of ink in which they differ; of
the pinned ones Arimo and Liberation Sans, Cousine and Liberation Mono, Tinos and Liberation Serif, Hack and DejaVu Sans
Mono.

One rule of scale for all: the capital H is 9/16 of the picture high and capitals are centred between top and bottom,
so that neither the size nor the place of a letter, which differ between families for no reason of style, says whose it
is; x-height, width, weight and shape do. A family is drawn smaller only where its widest or tallest character would
not fit. Drawn FINER times larger and averaged over blocks, so that hinting, which differs between versions of FreeType
and snaps small letters to whole pixels, hardly matters. White on black, as the digits are.
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import Field

from guda import files as store
from guda.config import DataConfig
from guda.data import npm
from guda.data.folder import check_options
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.data.sources import DataSize, source
from guda.errors import GudaError
from guda_sources import debian
from guda_sources.faces import STYLES, families

CHARACTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits

TABLE = Path(__file__).with_name("fonts.yaml")

INSTALLED = Path("/")  # where the packages' files are once they are installed

VARIABLE = "GUDA_FONTS"  # a folder that holds the packages already, as .deb files or unpacked

FINER = 8  # drawn at so many times the size, then averaged

CAPITAL = 9 / 16  # height of H, of the picture's

ROOM = 1 / 16  # on each side: what a shift may take

SMALLER = (1.0, 0.95, 0.9, 0.85)  # sizes of the further images of a character

VARIANTS = 4

DIFFERENT = 50  # of 62 pictures: fewer, and the family has one case only, or no letters

NEAR = 0.15  # of the ink: families less apart than this are listed as near


class Pen:
    """One font file at one size of picture, scaled by the rule above."""

    def __init__(self, file: Path, size: int) -> None:
        from PIL import ImageFont

        self.file, self.side = file, size * FINER
        basic = ImageFont.Layout.BASIC  # no ligatures, and the same with or without libraqm
        self._at = cache(lambda em: ImageFont.truetype(str(file), em, layout_engine=basic))
        em = float(self.side)
        try:
            font = self._at(em)
        except OSError as e:
            raise GudaError("font-unreadable", f"{file} is not a font that can be drawn at any size ({e})") from None
        self.em = self.capital = 0.0
        capital = -font.getbbox("H", anchor="ls")[1]
        inks = [font.getmask(c).getbbox() for c in CHARACTERS]  # getbbox of the font counts the space around letters
        if capital > 0 and all(inks):
            lines = [font.getbbox(c, anchor="ls") for c in CHARACTERS]
            wide = max(right - left for left, _, right, _ in inks)
            tall = max(max(bottom + capital / 2, -top - capital / 2) for _, top, _, bottom in lines)  # from the middle
            room = self.side * (1 - 2 * ROOM)
            fits = min(CAPITAL * self.side / capital, room / wide, room / 2 / tall)
            self.em, self.capital = em * fits, capital * fits

    @property
    def shrunk(self) -> float:
        """Its height against that of other families: 1, unless a character would not fit."""
        return self.capital / (CAPITAL * self.side)

    def lacks(self) -> list[str]:
        """Characters without a glyph: nothing is drawn, or the box that stands for a missing one."""
        font = self._at(float(self.side))
        empty = bytes(font.getmask("\U0010fffe"))
        drawn = {c: bytes(font.getmask(c)) for c in CHARACTERS}
        return [c for c, pixels in drawn.items() if not any(pixels) or pixels == empty]

    def draw(self, character: str, smaller: float = 1.0, shift: tuple[int, int] = (0, 0)) -> np.ndarray:
        """uint8 [size, size]; `shift` (right, down) in pixels of the finer grid."""
        from PIL import Image, ImageDraw

        wide = Image.new("L", (3 * self.side, self.side))  # drawn in its middle, with room for whatever hangs out
        y = (self.side + round(self.capital * smaller)) // 2 + shift[1]
        font = self._at(self.em * smaller)
        ImageDraw.Draw(wide).text((self.side, y), character, fill=255, font=font, anchor="ls")
        left, _, right, _ = wide.getbbox() or (0, 0, 0, 0)
        start = left - (self.side - (right - left)) // 2 - shift[0]
        canvas = wide.crop((start, 0, start + self.side, self.side))
        size = self.side // FINER
        blocks = np.asarray(canvas).reshape(size, FINER, size, FINER).mean(axis=(1, 3))
        return np.rint(blocks).astype(np.uint8)


def jitter(character: str, variant: int, size: int) -> tuple[float, tuple[int, int]]:
    """Size and shift of a further image, by (character, variant) alone: the same in every family, so they tell nothing
    of it. Variant 0 is plain."""
    if variant == 0:
        return 1.0, (0, 0)
    number = int(store.digest(["fonts", character, variant], 15), 16)
    reach = max(1, round(size * FINER * ROOM))
    number, which = divmod(number, len(SMALLER))
    number, right = divmod(number, 2 * reach + 1)
    return SMALLER[which], (right - reach, number % (2 * reach + 1) - reach)


def draw_family(files: Sequence[Path], size: int, variants: int) -> np.ndarray:
    """uint8 [62 * variants, size, size], variant after variant; styles take turns."""
    pens = [Pen(file, size) for file in files]
    return np.stack(
        [pens[v % len(pens)].draw(c, *jitter(c, v, size)) for v in range(variants) for c in CHARACTERS]
    )  # fmt: skip


def why_not(file: Path) -> str | None:
    """Why a family cannot be a group; None if its file draws all 62 characters."""
    pen = Pen(file, 16)
    if missing := pen.lacks():
        return f"no {' '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}"
    different = len({pen.draw(c).tobytes() for c in CHARACTERS})
    return f"only {different} different pictures of {len(CHARACTERS)} characters" if different < DIFFERENT else None


# --- families that look alike ---------------------------------------------------------------------
def apart(one: np.ndarray, two: np.ndarray) -> float:
    """Share of the ink in which two sets of the same characters differ: 0 the same, 1 and more nothing in common."""
    a, b = one.astype(np.float64), two.astype(np.float64)
    return float(np.abs(a - b).sum() / max(1.0, np.maximum(a, b).sum()))


def alike(plain: Mapping[str, np.ndarray]) -> tuple[dict[str, str], list[tuple[str, str, float]]]:
    """(families that are the same pictures as an earlier one -> that one, pairs that are NEAR and how far apart)."""
    same: dict[str, str] = {}
    first: dict[bytes, str] = {}
    for name in sorted(plain):
        found = first.setdefault(plain[name].tobytes(), name)
        same |= {} if found == name else {name: found}
    kept = [name for name in sorted(plain) if name not in same]
    pairs = ((a, b, apart(plain[a], plain[b])) for i, a in enumerate(kept) for b in kept[i + 1 :])
    near = [(a, b, round(d, 3)) for a, b, d in pairs if d < NEAR]
    return same, sorted(near, key=lambda pair: pair[2])


# --- where the files are --------------------------------------------------------------------------
def pinned() -> dict[str, Any]:
    """fonts.yaml: package -> {version, families: {family: {file below usr/share/fonts: sha256, shortened}}}."""
    return dict(yaml.safe_load(TABLE.read_text())["packages"])


def cache_folder() -> Path:
    return npm.cache_folder("fonts")


def _is(file: Path, sha: str) -> bool:
    return file.is_file() and store.digest_file(file).startswith(sha)


def _pinned_files(package: str, entry: Mapping[str, Any]) -> Iterable[tuple[str, list[Path]]]:
    """(family, files) of one package: installed if these very files are, else unpacked in the cache."""
    wanted = {file: sha for files in entry["families"].values() for file, sha in files.items()}
    given = os.environ.get(VARIABLE)
    root = INSTALLED
    if given or not all(_is(root / "usr/share/fonts" / file, sha) for file, sha in wanted.items()):
        hint = f"set {VARIABLE} to a folder with the .deb files, or take the fonts you have: fonts:/usr/share/fonts"
        folder = Path(given).expanduser() if given else None
        root = debian.unpacked(package, entry["version"], cache_folder(), folder, hint)
    for file, sha in wanted.items():
        if not _is(root / "usr/share/fonts" / file, sha):
            raise GudaError(
                "font-version-mismatch",
                f"{root / 'usr/share/fonts' / file} is not the file of {package} {entry['version']}, so letters may "
                "differ; get that version from https://snapshot.debian.org, or take fonts as they are: fonts:FOLDER",
            )
    for family, files in entry["families"].items():
        yield family, [root / "usr/share/fonts" / file for file in files]


def _of_folder(folder: Path) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """(family -> files, what is left out -> why)."""
    if not folder.is_dir():
        raise GudaError(
            "font-folder-missing", f"fonts:{folder}: there is no such folder; give one that holds .ttf or .otf files"
        )
    found, skipped = families(folder)
    if not found:
        raise GudaError(
            "font-folder-empty", f"fonts:{folder} holds no .ttf or .otf file that can be read; give a folder of fonts"
        )
    kept: dict[str, list[Path]] = {}
    for family in found:
        if reason := why_not(family.files[0]):
            skipped[family.name] = reason
        else:
            kept[family.name] = [file for file in family.files[:STYLES] if not Pen(file, 16).lacks()]
    return kept, skipped


# --- the data set ---------------------------------------------------------------------------------
def _size(config: DataConfig) -> DataSize:
    families = sum(len(package["families"]) for package in pinned().values())
    return DataSize(families, len(CHARACTERS) * (config.variants or VARIANTS), (1, 16, 16), len(CHARACTERS))


@source("fonts", _size)
def load_fonts(path: str | None = None, size: int = 16, variants: Annotated[int, Field(gt=0)] = VARIANTS) -> ImageData:
    """Every character of every family, `variants` images of each at `size` pixels, grey.

    Variant 0 is the first style, plain; the others take the family's styles in turn, a little smaller and shifted.
    """
    check_options(size, None)
    skipped: dict[str, str] = {}
    if path is None:
        table = pinned()
        files = {name: found for package in table for name, found in _pinned_files(package, table[package])}
    else:
        files, skipped = _of_folder(Path(path).expanduser())
    names = sorted(files)
    images = _drawn({name: files[name] for name in names}, size, variants)
    plain = {name: stack[: len(CHARACTERS)] for name, stack in images.items()}
    same, near = alike(plain)
    names = [name for name in names if name not in same]
    if len(names) < 2:
        left = "; ".join(f"{name}: {why}" for name, why in list(skipped.items())[:3])
        raise GudaError(
            "font-families-too-few",
            f"fonts{':' + path if path else ''}: {len(names)} famil{'y' if len(names) == 1 else 'ies'} to tell apart, "
            f"and groups are two at least{f' ({left})' if left else ''}; give a folder with more fonts",
        )
    kinds = [(name, v, c) for name in names for v in range(variants) for c in CHARACTERS]
    meta = {"source": "fonts", "size": size, "variants": variants, "renderer": _renderer(), "near": near}
    meta |= {"same": same, "skipped": skipped} if path is not None else {"packages": len(pinned())}
    return ImageData(
        np.concatenate([images[name] for name in names])[:, None],
        tuple(f"{name}/{c}-{v}" for name, v, c in kinds),
        Groups.from_labels([name for name, _, _ in kinds]),
        "fonts",
        meta,
        tuple(c for _, _, c in kinds),
    )


def _renderer() -> str:
    from PIL import __version__, features

    return f"pillow {__version__}, freetype {features.version('freetype2')}"


def _drawn(files: Mapping[str, Sequence[Path]], size: int, variants: int) -> dict[str, np.ndarray]:
    """Drawn once, then kept in the cache."""
    import torch

    digests = {name: [store.digest_file(f)[:16] for f in found] for name, found in files.items()}
    rule = ["ink centred", FINER, CAPITAL, ROOM, SMALLER, CHARACTERS]
    key = {"files": digests, "size": size, "variants": variants, "rule": rule, "renderer": _renderer()}
    cached = cache_folder() / f"fonts-{size}x{variants}-{store.digest(key)}.safetensors"
    if not cached.is_file():
        images = np.stack([draw_family(files[name], size, variants) for name in files])
        store.write_tensors(cached, {"images": torch.from_numpy(images)}, {"key": store.canonical(key)})
    return dict(zip(files, store.read_tensors(cached)[0]["images"].numpy(), strict=True))
