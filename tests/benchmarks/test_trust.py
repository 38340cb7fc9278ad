"""The tables of docs/trust.md and of benchmarks/results/trust.md are those of trust.json."""

import sys
from pathlib import Path

import pytest

from guda.evaluation.results import read_results

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import trust_table

    yield trust_table
    sys.modules.pop("trust_table")


def test_the_page_shows_what_was_measured(tables):
    written = tables.markdown(read_results(tables.FILE).datasets)
    assert tables.FILE.with_suffix(".md").read_text() == written
    assert tables.included((ROOT / "docs" / "trust.md").read_text()) == written


def test_including_again_replaces_what_was_there(tables, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tables.BEGIN}old\n{tables.END}after\n")
    for text in ("one\n", "two\n"):
        tables.include(page, text)
        assert page.read_text() == f"before\n{tables.BEGIN}{text}{tables.END}after\n"
    page.write_text("no marks\n")
    with pytest.raises(SystemExit):
        tables.include(page, "three\n")
    assert page.read_text() == "no marks\n"
