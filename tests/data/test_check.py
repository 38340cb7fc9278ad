"""guda check: every problem of a folder at once, and what a run leaves out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from guda.data import decoded, folder
from guda.data.check import inspect_folder, near_duplicates, problem_lines
from guda.data.images import ImageData
from guda.data.queries import Queries
from refusals import refused


def picture(seed: int, size: int = 16, channels: int = 3) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size, size, channels), dtype=np.uint8).squeeze())


def art(root: Path, each: int = 12) -> Path:
    for g, group in enumerate(("klimt", "monet")):
        for i in range(each):
            path = root / group / f"{i:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(100 * g + i).save(path)
    return root


def codes(found) -> dict[str, set[str]]:
    told: dict[str, set[str]] = {}
    for p in found.problems:
        told.setdefault(p.code, set()).update(p.files)
    return told


def test_a_sound_folder_has_no_problems(tmp_path: Path) -> None:
    found = inspect_folder(art(tmp_path))
    assert found.problems == ()
    assert not found.refused
    assert found.groups == {"klimt": 12, "monet": 12}
    assert found.sizes == {"16x16": 24}
    assert problem_lines(found)[-1] == "No problems found."


def test_every_problem_is_listed_at_once(tmp_path: Path) -> None:
    root = art(tmp_path / "art")
    (root / "monet" / "bad.png").write_bytes(b"no image")
    (root / "klimt" / "worse.jpg").write_bytes(b"no image")
    (root / "klimt" / "x.heic").write_bytes(b"")
    Image.new("I;16", (16, 16)).save(root / "monet" / "deep.png")
    picture(3).save(root / "cover.png")
    picture(0).save(root / "monet" / "same.png")  # klimt/00.png
    brighter = np.clip(np.asarray(picture(1)).astype(int) + 2, 0, 255).astype(np.uint8)
    Image.fromarray(brighter).save(root / "monet" / "near.png")  # klimt/01.png
    picture(5, 16, 4).save(root / "monet" / "clear.png")
    picture(6, 24).save(root / "monet" / "large.png")
    (root / "notes.txt").write_text("x")
    (root / "none" / "inside").mkdir(parents=True)
    (root / "tiny").mkdir()
    picture(7, 16, 1).save(root / "tiny" / "1.png")
    found = inspect_folder(root)
    told = codes(found)
    assert {p.code for p in found.problems if p.refused} == {
        "image-unreadable", "image-type-unsupported", "image-depth-unsupported", "image-sizes-differ",
    }  # fmt: skip
    assert told["image-unreadable"] == {"monet/bad.png", "klimt/worse.jpg"}
    assert told["image-without-group"] == {"cover.png"}
    assert told["image-duplicate-across"] == {"klimt/00.png", "monet/same.png"}
    assert told["image-near-duplicate"] == {"klimt/01.png", "monet/near.png"}
    assert told["image-mode-odd"] == {"monet/clear.png"}
    assert told["image-mode-mixed"] == {"tiny/1.png"}
    assert told["folder-empty"] == {"none"}
    assert told["file-not-image"] == {"notes.txt"}
    assert told["group-tiny"] == {"tiny"}
    assert found.refused
    assert not found.skippable  # the sizes
    sized = inspect_folder(root, size=8)
    assert sized.skippable
    assert sized.groups == {"klimt": 12, "monet": 16, "tiny": 1}


def test_what_is_refused_says_how_to_see_the_rest(tmp_path: Path) -> None:
    root = art(tmp_path / "art")
    for name in ("a.png", "b.png"):
        (root / "monet" / name).write_bytes(b"no image")
    with refused("image-unreadable", match=r"a\.png.*1 more.*guda check .*--skip-bad"):
        ImageData.from_folder(root)
    with refused("image-unreadable", match="guda check"):
        Queries.from_folder(root)


def test_skipped_files_are_recorded_and_change_nothing_else(tmp_path: Path) -> None:
    plain = ImageData.from_folder(art(tmp_path / "art"))
    assert plain.left_out == {}
    (tmp_path / "art" / "monet" / "bad.png").write_bytes(b"no image")
    (tmp_path / "art" / "klimt" / "x.heic").write_bytes(b"")
    picture(3).save(tmp_path / "art" / "cover.png")
    (tmp_path / "art" / "none").mkdir()
    data = ImageData.from_folder(tmp_path / "art", skip_bad=True)
    assert data.digest == plain.digest
    assert data.left_out == {
        "monet/bad.png": "image-unreadable", "klimt/x.heic": "image-type-unsupported",
        "cover.png": "image-without-group", "none": "folder-empty",
    }  # fmt: skip
    data.save(tmp_path / "kept")
    assert ImageData.load(tmp_path / "kept").left_out == data.left_out


def test_a_group_of_bad_files_only_is_noticed(tmp_path: Path) -> None:
    root = art(tmp_path)
    (root / "gone").mkdir()
    (root / "gone" / "1.png").write_bytes(b"no image")
    assert codes(inspect_folder(root))["group-unreadable"] == {"gone"}
    assert ImageData.from_folder(root, skip_bad=True).groups.names == ("klimt", "monet")


def test_near_duplicates_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    thumbs = [rng.uniform(0, 255, 256).astype(np.float32) for _ in range(30)]
    thumbs += [thumbs[3] + 2, thumbs[4] + 40, np.full(256, 9.0, np.float32), np.full(256, 10.0, np.float32)]

    def alike(a: np.ndarray, b: np.ndarray) -> bool:
        if np.abs(a - b).mean() >= 6:
            return False
        flat = [np.linalg.norm(x - x.mean()) <= 16 for x in (a, b)]
        return all(flat) or (not any(flat) and np.corrcoef(a, b)[0, 1] >= 0.98)

    brute = [(i, j) for i in range(len(thumbs)) for j in range(i + 1, len(thumbs)) if alike(thumbs[i], thumbs[j])]
    assert near_duplicates(thumbs, block=7) == brute == [(3, 30), (32, 33)]


def test_decoded_images_are_kept_until_their_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(decoded, "LEAST", 1)
    root = art(tmp_path / "art", each=3)
    picture(50, 16, 1).save(root / "monet" / "grey.png")
    first = ImageData.from_folder(root, size=8)
    opened: list[str] = []
    real = folder.open_image
    monkeypatch.setattr(folder, "open_image", lambda path, mode=None: opened.append(path.name) or real(path, mode))
    again = ImageData.from_folder(root, size=8)
    assert opened == []
    assert again.digest == first.digest
    picture(77).save(root / "monet" / "01.png")
    os.utime(root / "monet" / "01.png", ns=(1, 1))
    assert ImageData.from_folder(root, size=8).digest != first.digest
    assert opened == ["01.png"]
    for path in (tmp_path / "cache" / "decoded").iterdir():
        path.write_bytes(b"damaged")
    other = ImageData.from_folder(root, size=8)
    assert len(opened) == 1 + 7
    assert other.images.shape == (7, 3, 8, 8)
    opened.clear()
    inspect_folder(root, size=4)  # what it decoded serves the next command
    ImageData.from_folder(root, size=4)
    assert opened == []  # check has an import of its own
    seen = []
    with decoded.watched(lambda done, total: seen.append((done, total))):
        ImageData.from_folder(root, size=8)
    assert seen[-1] == (7, 7)


def test_data_are_shown_in_a_line(tmp_path: Path) -> None:
    data = ImageData.from_folder(art(tmp_path, each=3))
    for shown in (repr(data), repr(data.groups), repr(Queries.from_folder(tmp_path))):
        assert len(shown) < 120
        assert "array" not in shown
    assert "6 RGB images of 16x16, 2 groups of 3 images each" in repr(data)
