"""Figures show the numbers they are given, name units and signs, and are the same bytes every time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from guda.data.images import ImageData
from guda.evaluation.metrics import SIX
from guda.evaluation.results import DatasetEntry, Figure, MethodEntry
from guda.evaluation.timing import Timing
from guda.report import figures, pictures
from guda.report.figures import MARKERS, OKABE_ITO, look
from guda.scoring.scores import Scores
from refusals import refused


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures that were drawn."""
    kept: list[Any] = []
    original = figures.drawing

    @contextmanager
    def watching(*args: Any) -> Iterator[Any]:
        with original(*args) as figure:
            kept.append(figure)
            yield figure

    monkeypatch.setattr(figures, "drawing", watching)
    return kept


def method(mean: float, fit: float | None, score: float | None) -> MethodEntry:
    value = Figure(mean=mean, lo=mean - 0.05, hi=mean + 0.05)
    return MethodEntry(metrics=dict.fromkeys(SIX, value), fit_evals=fit, score_evals=score)


def entry() -> DatasetEntry:
    ceiling = Figure(mean=0.8, lo=0.75, hi=0.85)
    return DatasetEntry(
        n_queries=100, seeds=[1, 2], n_groups=10, ceiling=dict.fromkeys(SIX, ceiling),
        methods={"logo": method(0.8, 1e6, 80), "retrack": method(0.7, 1e4, 40), "shift": method(0.7, 1e4, 40),
                 "pixel": method(0.3, 0, 0), "uncounted": method(0.1, None, None)},
    )  # fmt: skip


def scores() -> Scores:
    values = np.random.default_rng(0).normal(0, 3, (40, 4))
    return Scores("retrack", "nats", "ELBO: sum", tuple(f"q{i}" for i in range(40)), ("a", "b", "c", "d"), values, 1)


LINES = [
    Timing(method="logo", n_groups=10, n_queries=100, fit_seconds=400, query_seconds=0.1),
    Timing(method="das", n_groups=10, n_queries=100, fit_seconds=10, query_seconds=0.2),
    Timing(method="pixel", n_groups=10, n_queries=100, fit_seconds=1),
]
LOG_P = np.random.default_rng(1).normal(size=(40, 4))
DRAW: dict[str, Callable[[Path], Path]] = {
    "cost": lambda path: figures.cost_fidelity("digits", entry(), path),
    "heat": lambda path: figures.heatmap(scores(), path),
    "elbo": lambda path: figures.elbo_vs_likelihood("digits", scores().score, LOG_P, path),
    "timing": lambda path: figures.timing("digits", LINES, path),
}


@pytest.mark.parametrize("kind", ["svg", "png"])
@pytest.mark.parametrize("name", DRAW)
def test_the_same_numbers_give_the_same_bytes(name: str, kind: str, tmp_path: Path) -> None:
    one, two = (DRAW[name](tmp_path / folder / f"x.{kind}").read_bytes() for folder in ("one", "two"))
    assert one == two
    assert b"<dc:date>" not in one
    assert len(one) > 2000


def test_cost_points_are_where_their_costs_are(drawn: list[Any], tmp_path: Path) -> None:
    figures.cost_fidelity("digits", entry(), tmp_path / "x.svg")
    for axis, retrack, logo in zip(drawn[0].axes, (1e5, 1e5 + 4e3), (1e7, 1e7 + 4e3), strict=True):
        points = [tuple(float(v) for v in line.get_xydata()[0]) for line in axis.lines if len(line.get_xydata()) == 1]
        assert (pytest.approx(math.log10(retrack)), 0.7) in points  # one of the two equals keeps its place
        assert (pytest.approx(math.log10(logo)), 0.8) in points  # LOGO's queries are charged for one seed
        zero = next(x for x, y in points if y == 0.3)
        assert zero < min(x for x, y in points if y != 0.3)
        assert "0" in [t.get_text() for t in axis.get_xticklabels()]
        assert any(line.get_ydata()[0] == 0.8 and line.get_linestyle() == "--" for line in axis.lines)
        assert "of the diffusion network alone" in axis.get_xlabel()
    line = Timing(method="logo", n_groups=10, n_queries=100, query_evals=55)
    figures.cost_fidelity("digits", entry(), tmp_path / "z.svg", timings=[line])
    points = [line.get_xydata()[0] for line in drawn[1].axes[1].lines if len(line.get_xydata()) == 1]
    assert any(x == pytest.approx(math.log10(1e7 + 5500)) and y == 0.8 for x, y in points)
    named = [t.get_text() for t in drawn[0].legends[0].get_texts()]
    assert named == ["LOGO, one retraining (ceiling)", "retrack", "shift", "pixel"]
    with refused("figure-costs-missing", match="no method has both Top-1 and a cost"):
        figures.cost_fidelity("d", entry().model_copy(update={"methods": {}}), tmp_path / "y.svg")


def test_points_in_the_way_of_each_other_step_aside_and_others_stay() -> None:
    rng = np.random.default_rng(0)
    names = [f"m{i}" for i in range(30)]
    places = {m: float(x) for m, x in zip(names, rng.choice([1.0, 1.001, 5.0], 30), strict=True)}
    heights = {m: float(y) for m, y in zip(names, rng.uniform(0, 1, 30), strict=True)}
    found = figures._swarm(places, heights, width=10.0)
    gap, tall = (share * size for share, size in zip(figures.APART, (10.0, 1.0), strict=True))
    for i, m in enumerate(names):
        for other in names[:i]:
            if abs(heights[m] - heights[other]) < 0.9 * tall:
                assert abs(found[m] - found[other]) > 0.9 * gap
    alone = {"a": 1.0, "b": 2.0, "c": 9.0}
    assert figures._swarm(alone, dict.fromkeys(alone, 0.5), 10.0) == alone


def test_heat_map_groups_queries_under_their_top_group(drawn: list[Any], tmp_path: Path) -> None:
    figures.heatmap(scores(), tmp_path / "x.svg")
    axis, bar = drawn[0].axes
    shown = np.asarray(axis.images[0].get_array())
    assert sorted(map(tuple, shown)) == sorted(map(tuple, scores().score))
    top = shown.argmax(axis=1)
    assert (np.diff(top) >= 0).all()
    for k in range(4):
        assert (np.diff(shown[top == k].max(axis=1)) <= 0).all()
    low, high = axis.images[0].get_clim()
    assert low == -high  # white is 0
    assert "nats; positive = the group mattered" in bar.get_ylabel()


def test_timing_lines_are_the_lines_and_meet_where_they_cross(drawn: list[Any], tmp_path: Path) -> None:
    figures.timing("digits", LINES, tmp_path / "x.svg")
    lines = {str(line.get_label()): line for line in drawn[0].axes[0].lines}
    das = lines["das (meets logo at Q = 3.9 k)"]
    assert np.asarray(das.get_ydata()) == pytest.approx(10 + 0.2 * np.asarray(das.get_xdata()))
    assert np.asarray(lines["logo"].get_ydata())[0] == pytest.approx(400.1)
    dot = next(line for line in drawn[0].axes[0].lines if len(line.get_xdata()) == 1)
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (pytest.approx(3900), pytest.approx(790))
    assert drawn[0]._supxlabel.get_text() == "not timed: pixel"
    assert "seconds" in drawn[0].axes[0].get_ylabel()
    same = [t.model_copy(update={"query_evals": 40}) for t in LINES]
    figures.timing("digits", same, tmp_path / "z.svg")
    assert "das" in [str(line.get_label()) for line in drawn[1].axes[0].lines]
    with refused("figure-times-missing"):
        figures.timing("digits", LINES[2:], tmp_path / "y.svg")


def test_scatter_has_every_pair_once(drawn: list[Any], tmp_path: Path) -> None:
    figures.elbo_vs_likelihood("digits", scores().score, LOG_P, tmp_path / "x.svg", {"Pearson": 0.5})
    axis = drawn[0].axes[0]
    points = np.concatenate([np.asarray(c.get_offsets()) for c in axis.collections])
    wanted = np.stack([scores().score.ravel(), LOG_P.ravel()], axis=1)
    assert sorted(map(tuple, points)) == sorted(map(tuple, wanted))
    assert len(axis.collections[1].get_offsets()) == 40  # one top group each
    assert [t.get_text() for t in axis.texts] == ["Pearson 0.500"]
    assert "nats; positive" in axis.get_xlabel()
    assert "nats; positive" in axis.get_ylabel()
    with refused("scores-shape-mismatch"):
        figures.elbo_vs_likelihood("d", LOG_P, LOG_P[:3], tmp_path / "y.svg")


def test_series_look_different() -> None:
    assert len({tuple(look(i).values()) for i in range(49)}) == 49 == len(OKABE_ITO) * len(MARKERS)


def test_a_missing_matplotlib_and_other_endings_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("figure-type-unsupported"):
        figures.heatmap(scores(), tmp_path / "x.gif")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with refused("package-missing", match=r'pip install "guda\[figures\]"'):
        figures.heatmap(scores(), tmp_path / "x.svg")
    assert not list(tmp_path.iterdir())


def test_grid_keeps_the_pixels(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 3, 8, 8), dtype=np.uint8)
    names = ["one", "a very long name that goes on and on until nobody reads it any more and then some"]
    path = pictures.grid(list(images), tmp_path / "x.png", names, ["c", "d", "e"], "title")
    shown = np.asarray(Image.open(path))
    side, step = 72, 72 + pictures.GAP
    left, top = shown.shape[1] - pictures.MARGIN - 3 * step, shown.shape[0] - pictures.MARGIN - 2 * step
    for r in range(2):
        for c in range(3):
            cell = shown[top + r * step : top + r * step + side, left + c * step : left + c * step + side]
            assert np.array_equal(cell[4::9, 4::9], images[r, c].transpose(1, 2, 0))
    assert (
        path.read_bytes()
        == pictures.grid(list(images), tmp_path / "y.png", names, ["c", "d", "e"], "title").read_bytes()
    )
    with refused("row-names-mismatch", match="1 names for 2 rows"):
        pictures.grid(list(images), tmp_path / "z.png", ["one"])


def test_exemplars_are_of_their_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.repeat(np.arange(60, dtype=np.uint8), 64).reshape(60, 1, 8, 8)
    data = ImageData.from_arrays(images, ["even" if i % 2 == 0 else "odd" for i in range(60)], layout="NCHW")
    kept: dict[str, Any] = {}
    monkeypatch.setattr(pictures, "grid", lambda rows, path, names, **_: kept.update(rows=rows, names=names))
    pictures.exemplars(data, tmp_path / "x.png", n=5)
    assert kept["names"] == ["even (30)", "odd (30)"]
    for rest, row in enumerate(kept["rows"]):
        assert len(row) == len(set(row[:, 0, 0, 0])) == 5
        assert (row[:, 0, 0, 0] % 2 == rest).all()
    first = kept["rows"][1]
    pictures.exemplars(data, tmp_path / "x.png", groups=["odd"], n=5)  # the choice is the group's own
    assert np.array_equal(kept["rows"][0], first)
