"""`guda figure`: every name writes a file, the same bytes twice; what cannot be drawn is one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commandline import Guda, refused
from PIL import Image
from tinyrun import SET, Inline, copy_run

from guda import steps
from guda.report import catalogue, figures
from guda.report.catalogue import FIGURES, figure
from guda.run.run import Run
from guda.scoring.scores import Scores

QUERY = "s0-00003"
VECTOR = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The tiny run with likelihoods and with its pictures from the same noise drawn."""
    found = copy_run(tmp_path_factory.mktemp("figure") / "run")
    steps.likelihood(found, SET, Inline(), ["logo"], n=4, steps=3, seeds=1)
    figure(found, "same-noise", Inline(), method="retrack")
    return found


@pytest.mark.parametrize("end", VECTOR)
@pytest.mark.parametrize("name", FIGURES)
def test_every_name_writes_a_file_of_the_same_bytes_twice(run: Run, guda: Guda, tmp_path: Path, name: str, end: str):
    more = ["--query", QUERY] if name == "ranking" else ["--method", "retrack"] if name == "same-noise" else []
    out = tmp_path / "new folder" / f"x.{end}"
    if end not in FIGURES[name].ends:
        return refused(guda("figure", name, run.root, "--out", out, *more), "grid of pictures", "as .png, not as x.")
    answer = guda("figure", name, run.root, "--out", out, "--json", *more)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out) == {"figure": str(out)}
    first = out.read_bytes()
    assert first.startswith(VECTOR[end])
    assert b"CreationDate" not in first
    assert b"dc:date" not in first
    out.unlink()
    assert guda("figure", name, run.root, "--out", out, *more).code == 0
    assert out.read_bytes() == first
    assert [p.name for p in out.parent.iterdir()] == [out.name]


def test_without_out_it_goes_into_the_run_under_a_name_that_says_what_it_is(run: Run, guda: Guda) -> None:
    for args, name in (
        (["heat-map"], "scores-retrack.svg"),
        (["heat-map", "-m", "logo"], "scores-logo.svg"),
        (["heat-map", "-m", "logo", "-q", SET], f"scores-logo-{SET}.svg"),
        (["ranking", "--query", QUERY], f"ranking-retrack-{QUERY}.svg"),
        (["likelihood"], "elbo-likelihood.svg"),
        (["exemplars"], "exemplars.png"),
        (["same-noise"], "same-noise-retrack.png"),
    ):
        answer = guda("figure", args[0], run.root, *args[1:])
        assert answer.out == f"Figure: {run.path('figures', name)}\n", answer
        assert run.path("figures", name).is_file()


def test_the_list_says_each_in_one_line(guda: Guda) -> None:
    lines = guda("figure", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)
    assert {"heat-map", "cost-fidelity", "likelihood", "timing", "exemplars", "same-noise", "ranking"} <= set(FIGURES)
    assert all(len(line) < 100 for line in lines)
    assert json.loads(guda("figure", "--list", "--json").out)["timing"] == FIGURES["timing"].about


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["heatmap"], ["no figure 'heatmap'", "cost-fidelity", "guda figure --list", "did you mean 'heat-map'?"]),
        (["heat-map", "-m", "retrak"], ["unknown method 'retrak'", "did you mean 'retrack'?"]),
        (["heat-map", "-m", "ascent"], ["no scores of", "by 'ascent'", "scores by logo, retrack, similarity-pixel"]),
        (["heat-map", "-q", "other"], ["no query set 'other'", SET]),
        (["heat-map", "--out", "x.gif"], ["the figure heat-map is written as .svg, .pdf or .png, not as x.gif"]),
        (["heat-map", "--out", "x"], ["not as x"]),
        (["ranking"], ["is of one picture", "--query s0-00000"]),
        (["ranking", "--query", "s0-0003"], ["no query 's0-0003'", "did you mean"]),
        (["timing", "-m", "retrack"], ["the figure timing takes no --method"]),
        (["exemplars", "-q", SET], ["the figure exemplars takes no --queries"]),
        (["heat-map", "--query", QUERY], ["the figure heat-map takes no --query"]),
        (["likelihood", "-m", "retrack"], ["no likelihoods of", "guda likelihood", "--method retrack"]),
        (["same-noise", "-m", "similarity-pixel"], ["has no counterfactual models"]),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    run: Run, guda: Guda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(guda("figure", args[0], run.root, *args[1:]), *parts)
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_one_line(run: Run, guda: Guda, tmp_path: Path) -> None:
    refused(guda("figure"), "guda figure NAME RUN")
    refused(guda("figure", "timing"), "guda figure NAME RUN")
    refused(guda("figure", "timing", tmp_path / "nowhere"), "nowhere")
    bare = Run.open(shutil.copytree(run.root, tmp_path / "bare"))
    bare.path("scores", SET, "evaluation.json").unlink()
    for name in ("cost-fidelity", "timing"):
        refused(guda("figure", name, bare.root), "not evaluated", f"guda evaluate {bare.root} --queries {SET}")
    shutil.rmtree(bare.path("scores"))
    refused(guda("figure", "heat-map", bare.root), "no scores of", f"guda score {bare.root}")


def test_a_ranking_shows_the_picture_and_its_groups(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bars are the scores in rank order, lines their intervals, the diamond is the oracle's first."""
    drawn = []
    original = figures.drawing

    class Keeping:
        def __init__(self, *args):
            self.inner = original(*args)

        def __enter__(self):
            drawn.append(self.inner.__enter__())
            return drawn[-1]

        def __exit__(self, *error):
            return self.inner.__exit__(*error)

    monkeypatch.setattr(figures, "drawing", Keeping)
    figure(run, "ranking", Inline(), tmp_path / "x.svg", query=QUERY)
    scores, logo = (Scores.read(run.path("scores", SET, f"{m}.parquet")) for m in ("retrack", "logo"))
    ranked = scores[QUERY].ranked
    left, axis = drawn[0].axes
    assert [bar.get_width() for bar in axis.patches] == [g.score for g in ranked]
    lines = [line.get_xdata() for line in axis.lines if line.get_marker() == "|"]
    np.testing.assert_array_equal(lines, [[g.lo, g.hi] for g in ranked])
    first = logo[QUERY].ranked[0].group
    expected = [f"◆ {g.group}" if g.group == first else g.group for g in ranked]
    assert [t.get_text() for t in axis.get_yticklabels()] == expected
    queries = catalogue.load_queries(run, SET)
    np.testing.assert_array_equal(left.images[0].get_array(), queries.images[queries.ids.index(QUERY)][0])
    assert "nats" in axis.get_xlabel()


def test_pictures_are_pictures(run: Run, tmp_path: Path) -> None:
    """A grid has a row for every group at least."""
    path = figure(run, "exemplars", Inline(), tmp_path / "x.png")
    assert Image.open(path).size[1] > 3 * 72
