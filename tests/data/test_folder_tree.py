"""Folders and metadata that say several groups, or groups of groups."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from guda.data.images import ImageData
from guda.errors import GudaError
from refusals import refused

FILES = ("fr/monet/1.png", "fr/monet/2.png", "fr/renoir/1.png", "es/goya/1.png")


def folder(root: Path, rows: list[dict[str, object]] | None = None) -> Path:
    for i, file in enumerate(FILES):
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(path)
    if rows is not None:
        lines = [json.dumps({"file_name": file} | row) for file, row in zip(FILES, rows, strict=True)]
        (root / "metadata.jsonl").write_text("\n".join(lines))
    return root


def test_folder_levels_make_a_tree(tmp_path: Path) -> None:
    data = ImageData.from_folder(folder(tmp_path), group_by="level:1/level:2")
    assert data.groups.names == ("es", "goya", "fr", "monet", "renoir")
    assert data.groups.parents == (None, 0, None, 2, 2)
    assert data.groups.sizes == (1, 1, 3, 2, 1)
    assert ImageData.from_folder(tmp_path, group_by="1/2").digest == data.digest
    stored = tmp_path / "stored"
    data.save(stored)
    assert ImageData.load(stored).groups == data.groups


def test_columns_make_a_tree_and_lists_share(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"land": "fr", "tags": ["sea", "oil"]}, {"land": "fr", "tags": "oil"}, {"land": "fr", "tags": ["sea"]},
        {"land": "es", "tags": [3, "oil"]},
    ]  # fmt: skip
    flat = ImageData.from_folder(folder(tmp_path, rows), group_by="tags")
    assert flat.groups.names == ("3", "oil", "sea")
    assert flat.groups.sizes == (1, 3, 2)
    both = ImageData.from_folder(tmp_path, group_by="land/tags")
    assert both.groups.names == ("es", "3", "es/oil", "fr", "fr/oil", "sea")
    assert both.groups.sizes == (1, 1, 1, 3, 2, 2)


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("level:1/", "has an empty part"),
        ("level:1/level:1", "'level:1' twice"),
        ("level:1/level:4", "has 2 folders above it"),
        ("same/tags", "are in one group, 'x'.* than same"),
        ("none", "'none' is an empty list"),
        ("twice", r"names a group twice \(a, a\)"),
        ("deep", "a group is text or a whole number"),
    ],
)
def test_what_cannot_be_grouped(tmp_path: Path, by: str, message: str) -> None:
    row: dict[str, object] = {"same": "x", "tags": "a", "none": [], "twice": ["a", "a"], "deep": [["a"]]}
    rows = [row | {"tags": str(i)} for i in range(len(FILES))]
    with pytest.raises(GudaError, match=message):
        ImageData.from_folder(folder(tmp_path, rows), group_by=by)


def test_what_an_image_shows_is_one_thing(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"tags": ["a", "b"]} for _ in FILES]
    with refused("metadata-group-invalid"):
        ImageData.from_folder(folder(tmp_path, rows), content_by="tags")
