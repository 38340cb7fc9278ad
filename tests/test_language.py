"""Every text of the report and the page is in every catalogue, with the same placeholders and tags.

python tests/test_language.py        prints what a catalogue lacks, and what it has for nothing
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from guda.errors import GudaError
from guda.language import LANGUAGES, catalogue, preferred, speaking, spoken, tr
from guda.scoring.reading import verdict
from guda.scoring.scores import GroupScore

SOURCE = Path(__file__).parents[1] / "src" / "guda"


def of_python(path: Path) -> set[str]:
    calls = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)]
    named = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id in ("tr", "mark")]
    return {c.args[0].value for c in named if isinstance(c.args[0], ast.Constant)}


def of_template(path: Path) -> set[str]:
    from jinja2 import Environment, nodes

    calls = Environment().parse(path.read_text("utf-8")).find_all(nodes.Call)
    named = [c for c in calls if isinstance(c.node, nodes.Name) and c.node.name == "_"]
    return {c.args[0].value for c in named if isinstance(c.args[0], nodes.Const)}


def texts() -> set[str]:
    python = (p for p in SOURCE.rglob("*.py") if p.name != "language.py")
    return set().union(*map(of_python, python), *map(of_template, SOURCE.rglob("*.j2")))


OTHERS = [code for code in LANGUAGES if code != "en"]


@pytest.mark.parametrize("code", OTHERS)
def test_every_text_is_translated_and_none_too_many(code: str) -> None:
    english, known = texts(), catalogue(code)
    assert len(english) > 200
    assert (english - known.keys(), known.keys() - english) == (set(), set())
    for text, said in known.items():
        for what in (r"\{\w*\}", r"</?\w+", r'href="[^"]*"'):
            assert sorted(re.findall(what, text)) == sorted(re.findall(what, said)), text
        assert said.strip()
    same = [text for text, said in known.items() if said == text and len(text) > 25]
    assert same == []


@pytest.mark.parametrize("code", OTHERS)
def test_catalogues_are_sorted_files(code: str) -> None:
    text = (SOURCE / "languages" / f"{code}.json").read_text("utf-8")
    value = json.loads(text)
    assert text == json.dumps(dict(sorted(value.items())), indent=1, ensure_ascii=False) + "\n"


def test_a_language_holds_where_it_is_spoken() -> None:
    ranked = [GroupScore("5", 10.0, 9.0, 11.0, 1, "nats"), GroupScore("3", 1.0, 0.0, 2.0, 2, "nats")]
    plain = verdict(ranked)
    with speaking("de"):
        assert spoken() == "de"
        german = verdict(ranked)
        with speaking("fr"):
            french = verdict(ranked)
        assert verdict(ranked) == german
    assert (spoken(), verdict(ranked)) == ("en", plain)
    assert len({v.headline for v in (plain, german, french)}) == 3
    assert {v.kind for v in (plain, german, french)} == {"stands-out"}
    assert all("+10.0 [9.0, 11.0] nats" in v.detail for v in (plain, german, french))
    assert tr("a text {of} nobody", of="x") == "a text x nobody"  # plug-ins may say anything
    with pytest.raises(GudaError) as error, speaking("xx"):
        pass
    assert error.value.code == "language-unknown"


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "en"), ("", "en"), ("de", "de"), ("de-CH, en;q=0.5", "de"), ("ja, fr;q=0.3, de;q=0.2", "fr"),
        ("en-GB, de", "en"), ("de;q=0, fr;q=0.1", "fr"), ("*", "en"), ("de;q=x", "en"), ("," * 10_000, "en"),
    ],
)  # fmt: skip
def test_what_a_browser_prefers(header: str | None, code: str) -> None:
    assert preferred(header) == code


if __name__ == "__main__":
    for code in OTHERS:
        known = catalogue(code)
        print(json.dumps({text: known.get(text, "") for text in sorted(texts() - known.keys())}, indent=1,
                         ensure_ascii=False))  # fmt: skip
        print(code, "has for nothing:", sorted(known.keys() - texts()))
