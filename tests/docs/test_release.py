"""What a reader of the repository is told about versions and figures is what the code and the results say."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml
from results_pages import readme_table, with_table

import guda

ROOT = Path(__file__).parents[2]


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == guda.__version__ == citation["version"]
    assert project["license"] == citation["license"]


def test_the_paper_is_named_and_linked() -> None:
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text())["preferred-citation"]
    shown = (ROOT / "README.md").read_text()
    assert f"]({paper['url']})" in shown
    assert paper["url"].rpartition("/")[2] in shown.partition("```bibtex")[2]
    assert paper["title"].partition(": ")[2] in shown
    assert paper["url"] in (ROOT / "docs" / "index.md").read_text()


def test_every_extra_is_documented() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = (ROOT / "docs" / "releasing.md").read_text()
    for extra in project["optional-dependencies"]:
        assert f"guda[{extra}]" in told, extra


def test_the_table_of_the_readme_is_that_of_the_results() -> None:
    """To write it again: python tools/site/results_pages.py --write"""
    readme = (ROOT / "README.md").read_text()
    assert with_table(readme, readme_table()) == readme
    assert readme != with_table(readme, "another table")
