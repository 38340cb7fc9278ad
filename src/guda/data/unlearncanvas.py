"""UnlearnCanvas: 60 styles x 20 objects x 20 images, the data of the paper's text-to-image experiments.

Published at https://huggingface.co/datasets/OPTML-Group/UnlearnCanvas; not downloaded here (its terms are accepted
there). The tree is `{style}/{object}/{1..20}.jpg`: group = style, content = object. The photographs that the styles
were painted from (`Seed_Images`) have no style and are no group. Every hole in the tree is named before a pixel is
read: a style with fewer images than the others would look less responsible for what the model learned.
"""

from __future__ import annotations

import os
from pathlib import Path

from guda.data.folder import check_options, read_images
from guda.data.groups import Groups, natural
from guda.data.images import ImageData
from guda.data.sources import DataSize, source
from guda.errors import GudaError, choices, suggestion

URL = "https://huggingface.co/datasets/OPTML-Group/UnlearnCanvas"

VARIABLE = "GUDA_UNLEARNCANVAS"  # the folder that holds the styles

SEEDS = "seed images"

IMAGES = 20  # of one object in one style

OBJECTS = (
    "Architectures", "Bears", "Birds", "Butterfly", "Cats", "Dogs", "Fishes", "Flame", "Flowers", "Frogs", "Horses",
    "Human", "Jellyfish", "Rabbits", "Sandwiches", "Sea", "Statues", "Towers", "Trees", "Waterfalls",
)  # fmt: skip

STYLES = (
    "Abstractionism", "Artist_Sketch", "Blossom_Season", "Blue_Blooming", "Bricks", "Byzantine", "Cartoon",
    "Cold_Warm", "Color_Fantasy", "Comic_Etch", "Crayon", "Crypto_Punks", "Cubism", "Dadaism", "Dapple",
    "Defoliation", "Dreamweave", "Early_Autumn", "Expressionism", "Fauvism", "Foliage_Patchwork", "French",
    "Glowing_Sunset", "Gorgeous_Love", "Greenfield", "Impasto", "Impressionism", "Ink_Art", "Joy", "Liquid_Dreams",
    "Magic_Cube", "Meta_Physics", "Meteor_Shower", "Monet", "Mosaic", "Neon_Lines", "On_Fire", "Palette_Knife",
    "Pastel", "Pencil_Drawing", "Picasso", "Pointillism", "Pop_Art", "Rainwash", "Realistic_Watercolor",
    "Red_Blue_Ink", "Rust", "Sketch", "Sponge_Dabbed", "Structuralism", "Superstring", "Surrealism", "Techno",
    "Ukiyoe", "Van_Gogh", "Vibrant_Flow", "Warm_Love", "Warm_Smear", "Watercolor", "Winter",
)  # fmt: skip


def _plain(name: str) -> str:
    """Copies of the data set write spaces or underscores."""
    return name.replace("_", " ").strip().lower()


def _folders(root: Path) -> list[str]:
    try:
        found = [e.name for e in os.scandir(root) if e.is_dir() and not e.name.startswith((".", "__"))]
    except OSError as e:
        raise GudaError("folder-unreadable", f"cannot list {root}: {e.strerror}") from None
    return sorted(found, key=natural)


def _expect(found: list[str], wanted: tuple[str, ...], what: str, where: Path) -> None:
    """The folders of `where` are these, each once."""
    have = {_plain(name) for name in found}
    missing = [name for name in wanted if _plain(name) not in have]
    if missing:
        raise GudaError(
            "unlearncanvas-incomplete",
            f"{where} lacks {len(missing)} of {len(wanted)} {what}: {choices(missing)}; they are at {URL}",
        )
    known = {_plain(name) for name in wanted}
    strange = [name for name in found if _plain(name) not in known]
    if strange:
        hint = suggestion(strange[0], wanted)
        raise GudaError(
            "unlearncanvas-name-unknown",
            f"{where} holds {strange[0]!r}, none of UnlearnCanvas's {len(wanted)} {what}{hint}; move it out",
        )
    if len(found) != len(wanted):
        raise GudaError(
            "unlearncanvas-name-duplicate",
            f"{where} holds one of the {what} twice, with spaces and with underscores; remove one",
        )


def tree(root: Path) -> list[tuple[str, str, str]]:
    """(style, object, file) of all images, or what is missing."""
    if not root.is_dir():
        raise GudaError(
            "unlearncanvas-missing",
            f"UnlearnCanvas is not at {root}; download it from {URL} and set {VARIABLE} to its folder",
        )
    styles = [name for name in _folders(root) if _plain(name) != SEEDS]
    _expect(styles, STYLES, "styles", root)
    found = []
    for style in styles:
        objects = _folders(root / style)
        _expect(objects, OBJECTS, "objects", root / style)
        for name in objects:
            files = {e.name for e in os.scandir(root / style / name) if not e.name.startswith(".")}
            wanted = [f"{i}.jpg" for i in range(1, IMAGES + 1)]
            missing = [file for file in wanted if file not in files]
            strange = sorted(files.difference(wanted), key=natural)
            if missing or strange:
                what = f"lacks {choices(missing)}" if missing else f"holds {strange[0]!r}, none of its {IMAGES} images"
                raise GudaError(
                    "unlearncanvas-incomplete", f"{root / style / name} {what}; get the whole set from {URL}"
                )
            found += [(style, name, file) for file in wanted]
    return found


@source("unlearncanvas", DataSize(len(STYLES), IMAGES * len(OBJECTS), (3, 512, 512), len(OBJECTS)))
def load_unlearncanvas(path: str | None = None, size: int | None = None) -> ImageData:
    """All styles at `size` pixels (default 512: 18.9 GB), RGB; `path`, or the environment, says where."""
    given = path or os.environ.get(VARIABLE)
    if not given:
        raise GudaError(
            "unlearncanvas-missing", f"where is UnlearnCanvas? download it from {URL} and set {VARIABLE} to its folder"
        )
    size = 512 if size is None else size
    check_options(size, None)
    root = Path(given).expanduser()
    images = tree(root)
    files = [f"{style}/{name}/{file}" for style, name, file in images]
    return ImageData(
        read_images(root, files, size, "RGB"),
        tuple(files),
        Groups.from_labels([style for style, _, _ in images]),
        "unlearncanvas",
        {"source": "unlearncanvas", "path": str(root), "size": size, "published": URL},
        tuple(name.replace("_", " ") for _, name, _ in images),
    )
