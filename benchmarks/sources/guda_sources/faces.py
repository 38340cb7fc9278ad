"""Faces: the font files of a folder, put together to families of a few styles each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".ttf", ".otf")

STYLES = 4  # files of one family that are drawn: plain, bold, italic, bold italic, as far as there are


# name table 1 puts a weight or width that is neither regular nor bold into the family's name
NO_FAMILY = {
    "thin", "hairline", "extralight", "ultralight", "light", "book", "regular", "medium", "demi", "demibold",
    "semibold", "bold", "extrabold", "ultrabold", "black", "heavy", "extrablack",
    "condensed", "cond", "semicondensed", "narrow",
}  # fmt: skip

PLAIN = {"regular", "book", "roman", "normal", "medium", "plain", "standard"}

SLANTED = ("italic", "oblique", "slanted", "kursiv")


@dataclass(frozen=True)
class Family:
    name: str
    files: tuple[Path, ...]  # the plainest first


def split_name(family: str, style: str) -> tuple[str, str]:
    """("Lato Black", "Italic") -> ("Lato", "Black Italic")."""
    words, moved = family.split(), list[str]()
    while len(words) > 1 and words[-1].lower() in NO_FAMILY:
        moved.insert(0, words.pop())
    return " ".join(words), " ".join([*moved, *style.split()])


def rank(style: str) -> tuple[int, str]:
    """Plain, bold, italic, bold italic, then the rest by name."""
    words = style.lower().split()
    slanted = any(mark in word for word in words for mark in SLANTED)
    rest = [w for w in words if w not in PLAIN and not any(mark in w for mark in SLANTED)]
    if rest in ([], ["bold"]):
        return len(rest) + 2 * slanted, style
    return 4, style


def families(folder: Path) -> tuple[list[Family], dict[str, str]]:
    """Families by name, and files that cannot be read -> why. One file per style: the first by path."""
    from PIL import ImageFont

    styles: dict[str, dict[str, Path]] = {}
    unreadable: dict[str, str] = {}
    for file in sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()):
        try:
            family, style = ImageFont.truetype(str(file), 16).getname()
        except (OSError, ValueError) as e:
            unreadable[str(file.relative_to(folder))] = str(e)
            continue
        name, style = split_name(family or file.stem, style or "Regular")
        styles.setdefault(name, {}).setdefault(style, file)
    found = [Family(name, tuple(by[s] for s in sorted(by, key=rank))) for name, by in sorted(styles.items())]
    return found, unreadable
