"""The findings page follows the results: another figure is another page, a missing one is an error."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from findings import findings_markdown
from results_pages import RESULTS, ROOT


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    for path in [*RESULTS.glob("*.json"), *RESULTS.glob("*.recipe.yaml")]:
        shutil.copy(path, folder)
    return folder


def change(path: Path, dataset: str, figure: str, value: float | None) -> None:
    whole = json.loads(path.read_text())
    figures = whole["datasets"][dataset]["figures"]
    for name in (figure, f"{figure}.lo", f"{figure}.hi"):
        if value is None:
            figures.pop(name)
        else:
            figures[name] = value
    path.write_text(json.dumps(whole))


def test_every_figure_is_that_of_a_file(results: Path) -> None:
    before = findings_markdown(results)
    assert before == findings_markdown()
    assert "0.123 " not in before
    change(results / "path.json", "digits", "reliability_top1.path-excess", 0.1234)
    after = findings_markdown(results)
    assert after != before
    assert "0.12 [0.12, 0.12]" in after


def test_a_figure_that_is_missing_is_an_error(results: Path) -> None:
    change(results / "trust.json", "digits", "foreign_caught", None)
    with pytest.raises(KeyError, match="foreign_caught"):
        findings_markdown(results)


def test_sentences_follow_the_intervals(results: Path) -> None:
    assert "is not separated from unlearning" in findings_markdown(results)
    whole = json.loads((results / "baselines.json").read_text())
    whole["datasets"]["digits"]["figures"] |= {f"dtrak_minus_retrack.{k}": 0.5 for k in ("mean", "lo", "hi")}
    (results / "baselines.json").write_text(json.dumps(whole))
    assert "On digits it is separated from unlearning" in findings_markdown(results)


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\(([^)#:]+\.json)\)", findings_markdown()):
        assert (ROOT / "docs" / target).is_file()
