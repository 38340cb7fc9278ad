"""README and the three ways to start, followed literally: every command of their code blocks, in order, at smoke size.

The folders have the names that the pages give them and hold tiny images and a tiny model; recipes are those of smoke
runs. Commands that need a GPU or data from elsewhere, and the server, are named here and only parsed
(test_commands.py).
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from inline_cli import guda
from test_commands import shown
from tiny_world import write_inputs

from guda.report.smoke import SUFFIX, smoke_recipe
from guda.run import recipe as recipes

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("guda serve", "guda reproduce cifar10", "guda reproduce unlearncanvas")
REPRODUCE = "guda reproduce digits"  # the whole experiment; run as its own smoke run


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """art/, generated/, heldout/, my-model/ in the current folder, and shipped recipes at smoke size."""
    write_inputs(tmp_path)
    shutil.move(tmp_path / "pictures", tmp_path / "generated")
    shutil.copy(tmp_path / "generated" / "q0.png", tmp_path / "generated" / "img_0007.png")
    shutil.copytree(tmp_path / "art", tmp_path / "heldout")
    shutil.move(tmp_path / "model", tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    real = recipes.builtin_recipe

    def small(name: str) -> recipes.Recipe:
        found = smoke_recipe(real(name))
        return found.model_copy(update={"name": found.name.removesuffix(SUFFIX)})

    monkeypatch.setattr(recipes, "builtin_recipe", small)
    return tmp_path


def commands(page: str) -> list[list[str]]:
    """Words after `guda` of every complete command of a page that can be run here."""
    lines = [line for line, complete in shown((ROOT / page).read_text()) if complete]
    assert lines, page
    return [shlex.split(line, comments=True)[1:] for line in lines if not line.startswith(ELSEWHERE)]


def follow(page: str) -> int:
    done = 0
    for words in commands(page):
        if words[:2] == ["reproduce", "digits"] and "--smoke" not in words and "--plan" not in words:
            words = [*words, "--smoke"]
        guda(*words)
        done += 1
    return done


def python_block(page: str) -> str:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.M | re.S)[0]


def test_the_readme(folders: Path) -> None:
    assert follow("README.md") >= 3
    assert (folders / "runs/art/report.html").is_file()


def test_attribute_my_pictures(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert follow("docs/start/attribute-my-pictures.md") >= 6
    assert (folders / "runs/art/report.html").is_file()
    exec(python_block("docs/start/attribute-my-pictures.md").replace('"retrack")', '"retrack", steps=2)'), {})
    assert capsys.readouterr().out.startswith("img_0007")


@pytest.mark.slow
def test_add_a_method(folders: Path) -> None:
    assert follow("docs/start/add-a-method.md") >= 6
    assert (folders / "runs/mine/evaluation.json").is_file()


@pytest.mark.slow
def test_reproduce_the_paper(folders: Path) -> None:
    assert follow("docs/start/reproduce-the-paper.md") >= 2
    assert list(folders.glob("runs/*-smoke/tables/*.md"))


def test_what_is_not_followed_is_on_the_pages() -> None:
    pages = ["README.md", *(f"docs/start/{p.name}" for p in (ROOT / "docs" / "start").glob("*.md"))]
    lines = [line for page in pages for line, complete in shown((ROOT / page).read_text()) if complete]
    for start in (*ELSEWHERE, REPRODUCE):
        assert any(line.startswith(start) for line in lines), start
