"""A package of somebody else's (tests/plugin) is installed and used for everything: its own data, network, operator,
method and encoder, through the command line and through worker processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from guda.run.run import Run
from guda.scoring.scores import Scores
from guda.unlearning.bank import Card

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "tests" / "plugin"
METHODS = ("scramble", "brightness", "similarity-histogram")
RECIPE = {
    "name": "stripes",
    "data": {"source": "stripes", "options": {"per_group": 12}},
    "model": {"net": "pixelwise", "options": {"width": 8}, "scheduler": "squaredcos_cap_v2:50"},
    "training": {"steps": 20, "batch": 16, "warmup": 2},
    "methods": {
        "scramble": {"steps": 3, "batch_forget": 8, "batch_retain": 8, "strength": 0.5},
        "brightness": {},
        "similarity-histogram": {},
    },
    "queries": {"n": 4, "steps": 3},
    "scoring": {"strata": 4, "rounds": 2, "block": 16},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip installs the package, without a network and without touching this environment."""
    root = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(PLUGIN, root / "source")  # a build leaves files beside the sources
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", root / "site", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return root / "site"


# several commands in one process, because importing torch takes longer than all of them
PROGRAM = """
import json, sys
from guda.cli.main import main
for command in json.loads(sys.argv[1]):
    sys.argv = ["guda", *command, "--json"]
    try:
        main()
    except SystemExit as e:
        if e.code:
            raise
    print("\\0")
"""


def guda(site: Path, *commands: list[object]) -> list[Any]:
    """What each command prints."""
    paths = [str(site), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    program = [sys.executable, "-c", PROGRAM, json.dumps([[str(word) for word in command] for command in commands])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(program, capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    return [json.loads(text) for text in done.stdout.split("\0\n")[:-1]]


def test_a_plug_in_goes_all_the_way(site: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    folder = tmp_path / "run"
    known, _, _, sampled, _ = guda(
        site,
        ["methods"],
        ["init", folder, "--recipe", tmp_path / "recipe.yaml"],
        ["fit", folder, "--workers", 2],  # workers are processes of their own: they find the package too
        ["sample", folder, "--workers", 1],
        ["score", folder, "--workers", 1],
    )
    assert set(METHODS) <= known.keys()
    assert known["scramble"]["unit"] == "nats"
    assert known["scramble"]["summary"].startswith("unlearn by predicting unrelated noise")

    run = Run.open(folder)
    stored = {Card.read(p).group: Card.read(p).method for p in run.path("artifacts").glob("scramble-*/*.safetensors")}
    assert stored == dict.fromkeys(("across", "down", "diagonal"), "scramble")
    assert "Pixelwise" in next(run.path("models").rglob("config.json")).read_text()
    for method in METHODS:
        found = Scores.read(run.path("scores", sampled["queries"], f"{method}.parquet"))
        assert set(found.groups) == {"across", "down", "diagonal"}
        assert found.score.shape == (4, 3)


def test_contributing_shows_the_very_files() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = dict(re.findall(r"`(tests/plugin/[\w./]+)`[^\n]*\n\n```\w+\n(.*?)```\n", text, flags=re.DOTALL))
    files = [PLUGIN / "pyproject.toml", *sorted((PLUGIN / "guda_example").glob("[a-z]*.py"))]
    assert shown.keys() == {str(file.relative_to(ROOT)) for file in files}
    for file in files:
        assert shown[str(file.relative_to(ROOT))] == file.read_text(), f"{file} is another than CONTRIBUTING.md shows"
