"""The wheel works where there is no repository: it is built, installed into a folder and used from an empty one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]

Python = Callable[..., str]

pytestmark = pytest.mark.slow


def run(*command: object, **options: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=1800, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(folder: Path) -> Path:
    """Without a network, as `make dist` builds it."""
    pytest.importorskip("hatchling")
    env = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    run(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, ROOT, env=env)
    (wheel,) = folder.glob("guda-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_every_file_that_the_code_reads(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src/guda").rglob("*.*") if p.suffix != ".pyc"}
    recipes = {f"guda/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "recipes").rglob("*.yaml")}
    assert package | recipes <= names
    assert "guda/py.typed" in names


def test_the_same_sources_give_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == wheel.read_bytes()


# `guda demo`, with the recipe of a smoke run: the whole of it takes minutes on a free machine
DEMO = """
import sys
from guda.cli.main import main
from guda.report.smoke import smoke_recipe
from guda.run import recipe
real = recipe.builtin_recipe
recipe.builtin_recipe = lambda name: smoke_recipe(real(name))
sys.argv = ["guda", "demo"]
main()
"""


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Run Python with the installed wheel, in a folder."""
    site = tmp_path_factory.mktemp("site")
    run(*PIP, "install", "--no-deps", "--no-index", "--target", site, wheel)
    env = os.environ | {"PYTHONPATH": str(site)}

    def python(folder: Path, *args: object) -> str:
        where = run(sys.executable, "-c", "import guda; print(guda.__file__)", cwd=folder, env=env)
        assert Path(where.strip()).is_relative_to(site)
        return run(sys.executable, *args, cwd=folder, env=env)

    return python


def test_commands_from_an_empty_folder(python: Python, tmp_path: Path) -> None:
    def guda(*args: object) -> str:
        return python(tmp_path, "-m", "guda", *args)

    assert guda("--version").startswith("guda ")
    assert len(json.loads(guda("init", "run", "--recipe", "digits", "--json"))["groups"]) == 10
    assert json.loads(guda("plan", "run", "--json"))
    assert "cifar10" in guda("reproduce", "cifar10", "--scale", "small", "--plan")


def test_the_demo_from_an_empty_folder(python: Python, tmp_path: Path) -> None:
    told = python(tmp_path, "-c", DEMO)
    assert "report.html" in told
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]
    for file in ("report.html", "evaluation.json", "recipe.yaml"):
        assert (tmp_path / "runs" / "demo" / file).is_file(), file
