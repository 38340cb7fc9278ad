"""Scores as a sequence of pictures, and how they are shown."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from guda.errors import GudaError
from guda.scoring.scores import Scores


@pytest.fixture
def scores() -> Scores:
    score = np.array([[10.0, 1.0], [-1.0, 2.0], [0.5, 0.4]])
    return Scores(
        method="retrack", unit="nats", estimand="ELBO: sum over 1 <= t <= 99", queries=("x", "y", "z"),
        groups=("a", "<b>"), score=score, n_evals=48, stderr=np.ones((3, 2)), lo=score - 2, hi=score + 2,
        rank_lo=np.array([[1.0, 2], [1, 1], [1, 1]]), rank_hi=np.array([[1.0, 2], [2, 2], [2, 2]]),
        p_first=np.array([[0.99, 0.01], [0.1, 0.9], [0.5, 0.5]]),
    )  # fmt: skip


def test_it_is_a_sequence_of_pictures(scores: Scores) -> None:
    assert len(scores) == 3
    assert [p.query for p in scores] == ["x", "y", "z"]
    assert "x" in scores
    assert "a" not in scores
    assert scores[1] == scores["y"] == scores[-2]
    with pytest.raises(IndexError):
        scores[3]
    with pytest.raises(GudaError) as e:
        scores["w"]
    assert e.value.code == "query-unknown"


def test_a_slice_is_scores_of_those_pictures(scores: Scores) -> None:
    some = scores[1:]
    assert isinstance(some, Scores)
    assert some.queries == ("y", "z")
    assert some["y"].ranked == scores["y"].ranked
    assert some.n_evals == 48
    np.testing.assert_array_equal(some.lo, scores.lo[1:])  # type: ignore[index, arg-type]
    assert scores.to_pandas().iloc[2:].reset_index(drop=True).equals(some.to_pandas())


def test_top_and_verdict(scores: Scores) -> None:
    assert [g.group for g in scores["y"].top()] == ["<b>"]
    assert {q: top[0].group for q, top in scores.top(1).items()} == {"x": "a", "y": "<b>", "z": "a"}
    assert {q: v.kind for q, v in scores.verdict().items()} == {"x": "stands-out", "y": "nothing", "z": "nothing"}
    above = replace(scores, floor=9.0)
    assert above["x"].verdict().kind == above[:1].verdict()["x"].kind == "nothing"
    assert "group a stands out" in scores["x"].verdict().text


def test_it_is_shown_briefly_and_with_the_reports_bars(scores: Scores) -> None:
    assert repr(scores) == "<Scores by retrack: 3 pictures x 2 groups, nats; ELBO: sum over 1 <= t <= 99>"
    page = scores._repr_html_()
    assert page.count('<ol class="bars">') == 3
    assert "&lt;b&gt;" in page
    assert "<b>:" not in page
    assert ":root" not in page  # colours and rules stay inside the output
    assert "group a stands out" in page
    assert scores[:0]._repr_html_() == repr(scores[:0])


def test_plot(scores: Scores) -> None:
    pytest.importorskip("matplotlib")
    axes = scores.plot(2).axes
    assert [a.get_title(loc="left").split(",")[0] for a in axes] == ["x", "y"]
    assert axes[0].get_xlabel().startswith("nats (positive = the group mattered")


def test_to_xarray(scores: Scores, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "xarray", None)
        with pytest.raises(GudaError) as e:
            scores.to_xarray()
        assert e.value.code == "package-missing"
    stand_in = ModuleType("xarray")
    stand_in.Dataset = lambda data, coords, attrs: SimpleNamespace(data=data, coords=coords, attrs=attrs)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xarray", stand_in)
    found = scores.to_xarray()
    assert found.coords == {"query": ["x", "y", "z"], "group": ["a", "<b>"]}
    assert found.data["score"][0] == ("query", "group")
    assert found.data["n_evals"][1].shape == (3, 2)
    assert found.attrs["unit"] == "nats"
