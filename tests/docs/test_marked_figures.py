"""Figures in the text of README and docs are those of benchmarks/results; to write the marked ones again:
python tools/site/figures.py"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from figures import INTERVAL, MARK, NUMBER, PAGES, entries, flat, with_figures
from results_pages import RESULTS, ROOT

TEXT = "<!-- figures: coalitions digits -->\n{}<!--= lds_ceiling --> and {}<!--= n_queries -->"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_marked_figures_are_those_of_the_files(page: Path) -> None:
    text = page.read_text()
    assert with_figures(text) == text


def test_a_section_that_names_its_file_marks_every_figure() -> None:
    """Two decimals make a figure; thresholds are written as 95 %, tables that a script includes are its own affair."""
    found = 0
    for page in PAGES:
        text = re.sub(r"<!-- begin .*?<!-- end ", "", page.read_text(), flags=re.S)
        for section in re.split(r"^## ", text, flags=re.M):
            if "<!-- figures: " in section:
                found += 1
                assert re.findall(r"\d\.\d\d+", MARK.sub("", section)) == [], page
    assert found >= 4


def test_every_interval_of_the_pages_was_measured() -> None:
    """`x [lo, hi]` is a figure of some file at the digits that are shown, or is in a table that a script wrote."""
    figures = [dict(flat(entry)) for entry in entries(RESULTS).values()]
    triples = {(v, f[f"{k}.lo"], f[f"{k}.hi"]) for f in figures for k, v in f.items() if f"{k}.hi" in f}
    at = {d: {tuple(round(v, d) for v in triple) for triple in triples} for d in range(4)}
    for table in RESULTS.rglob("*.md"):
        for _, shown in intervals(table):
            at[digits(shown)].add(numbers(shown))
    all_shown = [found for page in PAGES for found in intervals(page)]
    assert len(all_shown) > 200
    assert [f"{page}: {shown}" for page, shown in all_shown if numbers(shown) not in at[digits(shown)]] == []


def intervals(page: Path) -> list[tuple[str, str]]:
    return [(page.name, shown) for shown in re.findall(INTERVAL, page.read_text())]


def digits(shown: str) -> int:
    return len(shown.split()[0].partition(".")[2])


def numbers(shown: str) -> tuple[float, ...]:
    return tuple(float(n.replace(",", "")) for n in re.findall(NUMBER, shown))


def test_another_figure_is_another_page(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "coalitions.json", tmp_path)
    whole = json.loads((tmp_path / "coalitions.json").read_text())
    entry = whole["datasets"]["digits"]
    entry["n_queries"] = 12345
    entry["figures"] |= {"lds_ceiling": 0.5, "lds_ceiling.lo": -0.25, "lds_ceiling.hi": 0.75}
    (tmp_path / "coalitions.json").write_text(json.dumps(whole))
    for before, after in {
        ("0.91 [0.89, 0.93]", "300"): ("0.50 [-0.25, 0.75]", "12,345"),
        ("+0.9 [+0.8,\n  +0.9]", "3e+02"): ("+0.5 [-0.2,\n  +0.8]", "1e+04"),
        ("0.9123", "1"): ("0.5000", "12,345"),
    }.items():
        assert with_figures(TEXT.format(*before), tmp_path) == TEXT.format(*after)


@pytest.mark.parametrize("mark", ["0.91<!--= nothing -->", "0.9 [0.8, 1.0]<!--= n_queries -->", "1<!--= min no.* -->"])
def test_a_figure_that_is_missing_is_an_error(mark: str) -> None:
    with pytest.raises(KeyError, match=r"coalitions\.json has no figure"):
        with_figures(f"<!-- figures: coalitions digits -->\n{mark}")
