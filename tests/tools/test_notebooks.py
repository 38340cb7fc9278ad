"""Notebooks are executed as they are read: prints, values, pictures, commands; those of examples/ are executed."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "site"))

from notebook_pages import page, tutorial_pages
from notebooks import EXAMPLES, execute, notebook, text

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def code(source: str) -> dict:
    return {"cell_type": "code", "metadata": {}, "source": source, "outputs": [], "execution_count": None}


def test_cells_share_their_names_and_keep_what_they_show() -> None:
    class_ = "class Shown:\n    def _repr_html_(self):\n        return '<b>x</b>'\n"
    title = {"cell_type": "markdown", "source": "# t"}
    cells = [code("x = 20"), title, code("print(x)\nx + 1"), code(class_ + "Shown()"),
             code("!guda methods --json"), code("from PIL import Image\nImage.new('L', (2, 2))")]  # fmt: skip
    done = execute(cells)
    assert [c.get("execution_count") for c in done] == [1, None, 2, 3, 4, 5]
    assert done[0]["outputs"] == []
    assert done[2]["outputs"][0]["text"] == ["20\n"]
    assert done[2]["outputs"][1]["data"] == {"text/plain": ["21"]}
    assert done[3]["outputs"][0]["data"]["text/html"] == ["<b>x</b>"]
    assert "retrack" in json.loads("".join(done[4]["outputs"][0]["text"]))
    assert done[5]["outputs"][0]["data"]["image/png"].startswith("iVBOR")


def test_a_cell_that_fails_stops_everything() -> None:
    with pytest.raises(ZeroDivisionError):
        execute([code("1 / 0")])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_examples_are_executed_and_valid(path: Path) -> None:
    value = json.loads(path.read_text())
    assert {k: value[k] for k in ("nbformat", "nbformat_minor")} == {"nbformat": 4, "nbformat_minor": 5}
    cells = [c for c in value["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    assert any(c["outputs"] for c in cells)
    assert len({c["id"] for c in value["cells"]}) == len(value["cells"])
    for cell in cells:
        ast.parse("\n".join(line for line in text(cell).splitlines() if not line.startswith("!")))
    assert page(path).startswith("# ")
    assert value == notebook(value["cells"])


def test_every_example_is_a_page() -> None:
    assert len(NOTEBOOKS) == 3
    assert set(tutorial_pages()) == {f"tutorials/{p.stem}.md" for p in NOTEBOOKS}
