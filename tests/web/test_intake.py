"""Uploads: refused by what they are before a pixel is decoded, kept under a name made of their content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tinyrun import copy_run
from uploads import grey, png_header

from guda import steps
from guda.data.queries import Queries
from guda.run.run import UPLOAD
from guda.web.uploads import LONGEST_PROMPT, MB, Limits, Refused, keep_upload, read_prompt, read_upload

LIMITS = Limits.model_validate({})
SHAPE = (1, 8, 8)


def refused(path: Path, limits: Limits = LIMITS) -> str:
    with pytest.raises(Refused) as e:
        read_upload(path, SHAPE, limits)
    assert "\n" not in str(e.value)
    assert str(path.parent) not in str(e.value)  # where the server keeps uploads is nobody's business
    return str(e.value)


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_a_picture_of_the_models_size_is_taken_as_it_is(tmp_path: Path, kind: str) -> None:
    path = grey(tmp_path / "own.png")
    pixels = np.array(Image.open(path))
    Image.fromarray(pixels).save(tmp_path / f"same.{kind}", lossless=True)
    found = read_upload(tmp_path / f"same.{kind}", SHAPE, LIMITS)
    assert found.note == ""
    np.testing.assert_array_equal(found.pixels, pixels[None])


def test_another_size_is_scaled_and_said(tmp_path: Path) -> None:
    Image.new("RGB", (40, 20), (200, 200, 200)).save(tmp_path / "wide.jpg", quality=95)
    found = read_upload(tmp_path / "wide.jpg", SHAPE, LIMITS)
    assert found.pixels.shape == SHAPE
    assert abs(int(found.pixels.mean()) - 200) <= 1
    assert "40 x 20" in found.note
    assert "8 x 8" in found.note
    assert "cut out" in found.note


def test_a_bomb_is_refused_by_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guda.web.uploads.read_image", lambda *a: pytest.fail("it was decoded"))
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png_header(10_000, 10_000))
    assert bomb.stat().st_size < 200
    assert "100 megapixels" in refused(bomb)
    bomb.write_bytes(png_header(100_000, 100_000))  # beyond Pillow's own limit
    assert "the limit is 25 megapixels" in refused(bomb)


def test_limits_are_limits(tmp_path: Path) -> None:
    path = grey(tmp_path / "p.png", (100, 100))
    read_upload(path, SHAPE, Limits(max_mb=1, max_megapixels=0.01, queue=1, uploads=100))
    assert "megapixels" in refused(path, Limits(max_mb=1, max_megapixels=0.0099, queue=1, uploads=100))
    size = path.stat().st_size
    assert "MB" in refused(path, Limits(max_mb=(size - 1) / MB, max_megapixels=1, queue=1, uploads=100))
    read_upload(path, SHAPE, Limits(max_mb=size / MB, max_megapixels=1, queue=1, uploads=100))


def test_the_name_does_not_decide(tmp_path: Path) -> None:
    (tmp_path / "script.png").write_text("<svg onload=alert(1)>")
    assert "we check the content" in refused(tmp_path / "script.png")
    Image.new("L", (8, 8)).save(tmp_path / "still.gif")
    (tmp_path / "still.gif").rename(tmp_path / "gif.png")
    assert "not a PNG, JPEG or WebP" in refused(tmp_path / "gif.png")
    grey(tmp_path / "picture.png").rename(tmp_path / "picture.txt")
    assert read_upload(tmp_path / "picture.txt", SHAPE, LIMITS).note == ""


def test_damaged_animated_and_empty_files(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    assert refused(tmp_path / "empty.png") == "empty.png is empty"
    whole = grey(tmp_path / "whole.png", (64, 64)).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    assert "cannot read image cut.png" in refused(tmp_path / "cut.png")
    (tmp_path / "head.png").write_bytes(whole[:20])
    assert "damaged" in refused(tmp_path / "head.png")
    (tmp_path / "none.png").write_bytes(png_header(0, 5))
    refused(tmp_path / "none.png")
    frames = [Image.new("L", (8, 8), v) for v in (0, 255)]
    for kind in ("png", "webp"):
        frames[0].save(tmp_path / f"moving.{kind}", save_all=True, append_images=frames[1:])
        assert "2 frames" in refused(tmp_path / f"moving.{kind}")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "deep.png")
    assert "16-bit" in refused(tmp_path / "deep.png")


def test_transparency_and_colour_come_down_to_grey(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (read_upload(tmp_path / "clear.png", SHAPE, LIMITS).pixels == 255).all()


def test_prompts() -> None:
    assert read_prompt(None, None) is None
    assert read_prompt("  a  cat\n", "prompt") == "a cat"
    for prompt, told in (("", "prompt"), ("  ", "prompt"), (None, "prompt"), ("a", None), ("x" * 2001, "prompt")):
        with pytest.raises(Refused):
            read_prompt(prompt, told)
    assert LONGEST_PROMPT == 2000


def test_names_are_made_of_content(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    one, two = (np.full(SHAPE, v, np.uint8) for v in (1, 2))
    name = keep_upload(run, one)
    assert name == keep_upload(run, one.copy())
    assert len({name, keep_upload(run, two), keep_upload(run, one, "a"), keep_upload(run, one, "b")}) == 4
    stored = Queries.load(run.path("queries", name))
    assert stored.ids == (name,)
    assert name in run.query_sets()
    np.testing.assert_array_equal(stored.images[0], one)


def test_uploads_do_not_change_which_queries_are_meant(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    run.update(run.recipe.model_copy(update={"queries": run.recipe.queries.model_copy(update={"seed": 9})}))
    before = steps.choose_queries(run)  # the only set there is
    upload = run.path("queries", f"{UPLOAD}0123456789ab")
    Queries(("x",), np.zeros((1, 1, 8, 8), np.uint8), None, upload.name).save(upload)
    assert upload.name in run.query_sets()
    assert steps.choose_queries(run) == before
    assert steps.choose_queries(run, upload.name) == upload.name
