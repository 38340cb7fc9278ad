"""A run by its address: what a verb changes here is there when it ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commandline import Guda, refused

sys.path.insert(0, str(Path(__file__).parents[1] / "run"))
from tinyrun import digits_folder, tiny


@pytest.mark.slow
def test_a_changed_recipe_is_in_the_bucket_when_the_verb_ends(
    guda: Guda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("guda.run.remote._MIRRORS", {})
    url, bucket = f"file://{tmp_path}/bucket/run", tmp_path / "bucket" / "run"
    (tmp_path / "recipe.yaml").write_text(tiny(digits_folder()).to_yaml())
    assert guda("init", url, "--recipe", tmp_path / "recipe.yaml").code == 0
    assert (bucket / "run.json").is_file()
    before = (bucket / "recipe.yaml").read_text()
    assert guda("train", url, "--workers", 1).code == 0
    assert list((bucket / "models").rglob("*.safetensors"))
    assert guda("set", url, "queries.n=3").code == 0
    assert guda("sample", url, "--workers", 1).code == 0
    assert (bucket / "recipe.yaml").read_text() != before
    assert any("samples" in p.parent.name for p in (bucket / "queries").rglob("index.json"))
    refused(guda("status", f"file://{tmp_path}/bucket/other"), "bucket/other", "guda init")
