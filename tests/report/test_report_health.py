"""The section on the counterfactuals: there when the run has the data, saying what the data say."""

from pathlib import Path

import numpy as np
import pytest
from test_report_page import EVIL, SET, Page, add_scores, embedded, evaluate, make_run

from guda.errors import GudaError
from guda.files import write_json
from guda.methods.base import get_method
from guda.methods.health import NOTE, SIGN, BandDrift, DriftFigure, Health, health_path, leakage
from guda.report.page import render
from guda.run.run import Run
from guda.scoring.reference import measure_drift
from guda.scoring.scores import Scores

TITLE = "How far to trust the counterfactuals"


def figures(score: np.ndarray, group: np.ndarray) -> list[DriftFigure]:
    found = measure_drift(score, group[:, None] != np.arange(score.shape[1]))
    columns = np.stack([found.mean, found.stderr, found.mean - found.reach, found.mean + found.reach], axis=1)
    return [DriftFigure(mean=m, stderr=s, lo=lo, hi=hi) for m, s, lo, hi in columns.tolist()]


def add_health(run: Run, method: str, drift: float = 4.0, own: float = 90.0) -> Health:
    groups = list(run.info["groups"])
    n = len(groups)
    group = np.repeat(np.arange(n), 4)
    score = np.random.default_rng(0).normal(drift, 1, (4 * n, n)) + own * (group[:, None] == np.arange(n))
    mean, error = leakage(score, group, n)
    found = Health(
        method=method, artifact="a", unit="nats", sign=SIGN, note=NOTE, estimand="ELBO", reference="reference-n4-s0",
        images=[4] * n, groups=groups, matrix=mean.tolist(), stderr=error.tolist(), drift=figures(score, group),
        bands=[BandDrift(low=0, high=1000, drift=figures(score, group))],
    )  # fmt: skip
    write_json(run.path(health_path(get_method(run, method))), found.model_dump(mode="json"))
    return found


def add_placebos(run: Run, method: str, score: float | np.ndarray) -> Scores:
    scores = Scores.read(run.path("scores", SET, f"{method}.parquet"))
    values = np.broadcast_to(score, (len(scores.queries), 3)).astype(np.float64)
    names = tuple(f"placebo-{i}" for i in range(3))
    found = Scores(f"{method}-placebo", "nats", scores.estimand, scores.queries, names, values, 1)
    found.write(run.path("scores", SET, f"{method}-placebo.parquet"))
    return scores


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = make_run(tmp_path / "run")
    add_scores(run, "retrack", 1)
    return run


def test_nothing_is_said_of_what_was_not_measured(run):
    add_scores(run, "logo", 2)
    html = render(run, SET)
    assert TITLE not in Page(html).text
    assert "placebo" not in Page(html).text.replace("placebos: 0", "")  # the recipe, which names its settings
    assert "--null" not in html.partition("<script")[0]
    assert all(m["null"] is None for m in embedded(html)["methods"])


def test_verdicts_of_counterfactuals_are_shown_and_warned_of(run):
    add_health(run, "retrack")
    text = Page(render(run, SET)).text
    assert "All counterfactuals are sound." in text
    assert "Warning" not in text
    add_health(run, "retrack", drift=45.0)
    text = Page(render(run, SET)).text
    assert "Warning: retrack: 3 of 3 counterfactuals are not sound (drifts: " in text
    assert text.count("drifts") >= 3 + 2


def test_the_matrix_and_the_drift_are_shown(run):
    found = add_health(run, "retrack")
    html = render(run, SET)
    page = Page(html)
    assert TITLE in page.text
    cells = [a for t, a in page.tags if t == "td" and "--v" in (a.get("style") or "")]
    assert len(cells) == 9
    assert [a["class"] for a in cells].count("pos own") == 3
    strengths = [float(a["style"].removeprefix("--v:")) for a in cells]
    largest = np.array(found.matrix).max()
    np.testing.assert_allclose(strengths, 0.5 * np.sqrt(np.abs(found.matrix) / largest).ravel(), atol=6e-4)
    assert f"without b & c, images of d: +{found.matrix[1][2]:.2f} ± {found.stderr[1][2]:.2f}" in cells[5]["title"]
    assert f"+{found.drift[2].mean:.2f} [{found.drift[2].lo:.2f}, {found.drift[2].hi:.2f}]" in page.text
    assert "the full model was trained on them" in page.text
    assert "real retraining:" not in page.text
    assert "The drift is part of every score on this page" in page.text
    assert EVIL not in html
    assert "Placebo groups" not in page.text
    assert render(run, SET) == html


def test_retraining_stands_beside_it(run):
    add_scores(run, "logo", 2)
    add_health(run, "retrack")
    oracle = add_health(run, "logo", drift=-1, own=30)
    text = Page(render(run, SET)).text
    drift = np.mean([d.mean for d in oracle.drift])
    assert f"real retraining: −{abs(drift):.2f})." in text
    assert "The same table for logo (retraining, the oracle)" in text


def test_subtracted_drift_is_said_to_be_subtracted(run):
    add_health(run, "retrack")
    path = run.path("scores", SET, "retrack.parquet")
    scores = Scores.read(path)
    object.__setattr__(scores, "estimand", "ELBO, drift subtracted")
    scores.write(path)
    text = Page(render(run, SET)).text
    assert "has been subtracted" in text
    assert "is part of every score" not in text


def test_many_groups_have_colours_and_tooltips(tmp_path):
    run = make_run(tmp_path / "run", n=2, labels=[f"g{i}" for i in range(20)])
    add_scores(run, "retrack")
    add_health(run, "retrack")
    html = render(run, SET)
    cells = [a for t, a in Page(html).tags if t == "td" and "--v" in (a.get("style") or "")]
    assert len(cells) == 400
    assert 'class="heat dense"' in html
    assert "nats" in cells[0]["title"]


def test_the_placebo_line_and_its_verdict(run):
    scores = Scores.read(run.path("scores", SET, "retrack.parquet"))
    first = np.sort(scores.score.max(axis=1))
    line = (first[1] + first[2]) / 2
    add_placebos(run, "retrack", line)
    html = render(run, SET)
    page = Page(html)
    assert TITLE in page.text
    assert page.text.count("does not stand out from placebo groups") == 2 + 1  # two cards and the summary
    assert "above that line for 4 of 6 pictures; for the other 2 it does not stand out" in page.text
    assert f"up to {100 * (1 - 0.95**3):.0f} % of the pictures" in page.text
    method = embedded(html)["methods"][0]
    assert method["null"] == pytest.approx(line)
    assert [a > 0 for a in method["above"]] == (scores.score.max(axis=1) > line).tolist()
    assert [a == 2 for a in method["above"]] == ((scores.score - 2).max(axis=1) > line).tolist()
    cards = [a["style"] for t, a in page.tags if t == "li" and (a.get("class") or "").startswith("card ")]
    assert len(cards) == 6
    for q, style in enumerate(cards):  # the line is on the picture's own scale, and always on it
        ends = [0, line, *scores.lo[q], *scores.hi[q]]
        place = 100 * (line - min(ends)) / (max(ends) - min(ends))
        assert float(style.split("--null:")[1].rstrip("%")) == pytest.approx(place, abs=0.01)
    assert "Diagonal: forgetting" not in page.text  # no matrix was measured


def test_a_null_of_another_method_is_there_for_switching(run):
    add_scores(run, "shift", 3)
    add_placebos(run, "shift", 2.0)
    html = render(run, SET)
    assert TITLE not in Page(html).text
    assert [m["null"] for m in embedded(html)["methods"]] == [None, 2.0]
    hidden = [a for t, a in Page(html).tags if t == "p" and (a.get("class") or "").startswith("placebo-says")]
    assert len(hidden) == 6
    assert all("hidden" in a for a in hidden)


def test_what_is_damaged_or_of_other_pictures_is_refused(run):
    add_placebos(run, "retrack", 1.0)
    path = run.path("scores", SET, "retrack-placebo.parquet")
    Scores("p", "nats", "e", ("other",), ("placebo-0",), np.zeros((1, 1)), 1).write(path)
    with pytest.raises(GudaError, match="other pictures"):
        render(run, SET)
    path.unlink()
    write_json(run.path(health_path(get_method(run, "retrack"))), {"method": "retrack"})
    with pytest.raises(GudaError, match="guda health"):
        render(run, SET)


def test_the_whole_page_loads_nothing(run):
    evaluate(run)
    add_health(run, "retrack")
    add_placebos(run, "retrack", 1.0)
    html = render(run, SET)
    for _, attrs in Page(html).tags:
        for name in ("src", "href"):
            assert (attrs.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    assert "url(" not in html
