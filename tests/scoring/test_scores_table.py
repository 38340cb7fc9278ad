"""The result table: what is written is what is read, ranks are by score then group order, NaN is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from guda.scoring.scores import SIGN, Scores
from refusals import refused


def scores(**values: Any) -> Scores:
    score = np.array([[0.1, -2.0, 3.5], [1 / 3, 1 / 3, 1 / 3]])
    fields = {
        "method": "retrack", "unit": "nats", "estimand": "ELBO: sum over 1 <= t <= 996",
        "queries": ("s0-00001", "s0-00002"),
        "groups": ("cat", "dog", "ünïcode, \"quoted\""), "score": score, "n_evals": 240,
        "stderr": abs(score) / 7, "lo": score - 0.1, "hi": score + np.pi,
    }  # fmt: skip
    return Scores(**(fields | values))


def test_parquet_round_trip_is_exact(tmp_path: Path) -> None:
    one = scores()
    one.write(tmp_path / "s.parquet")
    again = Scores.read(tmp_path / "s.parquet")
    for name in ("method", "unit", "estimand", "queries", "groups"):
        assert getattr(again, name) == getattr(one, name)
    assert (again.n_evals == one.n_evals).all()
    for name in ("score", "stderr", "lo", "hi", "rank"):
        np.testing.assert_array_equal(getattr(again, name), getattr(one, name))


def test_methods_without_an_error_model_have_nulls_not_nans(tmp_path: Path) -> None:
    one = scores(method="similarity-pixel", unit="cosine", stderr=None, lo=None, hi=None, n_evals=0)
    one.write(tmp_path / "s.parquet")
    table = pq.read_table(tmp_path / "s.parquet")
    assert all(table[name].null_count == 6 for name in ("stderr", "lo", "hi"))
    again = Scores.read(tmp_path / "s.parquet")
    assert again.stderr is again.lo is again.hi is None
    assert again.unit == "cosine"
    assert again["s0-00001"].top(1)[0].lo is None
    assert str(again["s0-00001"].top(1)[0]).endswith("+3.50 cosine")


def test_writes_are_byte_identical_and_self_describing(tmp_path: Path) -> None:
    scores().write(tmp_path / "a.parquet")
    scores().write(tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    Scores.read(tmp_path / "a.parquet").write(tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.schema.metadata[b"sign"].decode() == SIGN == "positive = the group mattered"
    assert b"t <= 996" in table.schema.metadata[b"estimand"]
    assert set(table["unit"].to_pylist()) == {"nats"}


def test_ranks_go_by_score_and_ties_by_group_order() -> None:
    assert scores().rank.tolist() == [[2, 3, 1], [1, 2, 3]]
    assert [g.group for g in scores()["s0-00002"].ranked] == ["cat", "dog", 'ünïcode, "quoted"']
    assert [g.rank for g in scores()["s0-00001"].top(2)] == [1, 2]


@given(arrays(np.float64, (3, 4), elements=st.sampled_from([-1.0, 0.0, -0.0, 0.5, 2.0])))
def test_ranks_are_a_permutation_that_sorts_stably(score: np.ndarray) -> None:
    found = Scores("m", "u", "e", ("a", "b", "c"), ("w", "x", "y", "z"), score, 0).rank
    for row, values in zip(found, score, strict=True):
        assert sorted(row) == [1, 2, 3, 4]
        best_first = sorted(range(4), key=lambda g: (-values[g], g))
        assert [int(row[g]) for g in best_first] == [1, 2, 3, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_not_a_number_is_refused_by_name(bad: float) -> None:
    with refused("score-not-finite", match="score of 'dog' for 's0-00002' is not a number"):
        scores(score=np.array([[1.0, 2.0, 3.0], [1.0, bad, 3.0]]))


def test_a_table_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 2\)"):
        scores(score=np.zeros((3, 2)))


def test_an_unknown_query_is_answered_with_the_nearest() -> None:
    with refused("query-unknown", match=r"no query 's0-0001' among the 2 scored \(did you mean 's0-00001'"):
        _ = scores()["s0-0001"]


def test_pandas_has_one_row_per_query_and_group() -> None:
    frame = scores().to_pandas()
    assert list(frame.columns) == ["query", "group", "score", "unit", "stderr", "lo", "hi", "rank", "rank_lo",
                                   "rank_hi", "p_first", "n_evals", "method"]  # fmt: skip
    assert len(frame) == 6
    row = frame[(frame["query"] == "s0-00001") & (frame["group"] == "dog")].iloc[0]
    assert (row["score"], row["rank"]) == (-2.0, 3)


def test_a_file_that_is_no_score_table_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"query": ["a"], "x": [1]}), tmp_path / "other.parquet")
    with refused("scores-file-invalid", match="not a table of scores: it has no 'group'"):
        Scores.read(tmp_path / "other.parquet")
    (tmp_path / "junk.parquet").write_bytes(b"junk")
    with refused("file-damaged"):
        Scores.read(tmp_path / "junk.parquet")


def test_ranks_of_a_race_cells_without_error_and_evaluations_per_cell_survive_the_file(tmp_path: Path) -> None:
    ranks = np.array([[3, 1, 2], [1, 3, 2]])
    stderr = np.array([[0.5, np.nan, 0.25], [1.0, 1.0, np.nan]])
    evals = np.arange(6).reshape(2, 3)
    one = scores(ranks=ranks, stderr=stderr, lo=-stderr, hi=stderr, n_evals=evals, rank_lo=ranks, rank_hi=ranks + 1,
                 p_first=np.full((2, 3), 1 / 3))  # fmt: skip
    one.write(tmp_path / "s.parquet")
    assert pq.read_table(tmp_path / "s.parquet")["stderr"].null_count == 2
    again = Scores.read(tmp_path / "s.parquet")
    np.testing.assert_array_equal(again.rank, ranks)
    assert [g.group for g in again["s0-00001"].ranked] == ["dog", 'ünïcode, "quoted"', "cat"]
    for name in ("stderr", "lo", "hi", "n_evals", "rank_lo", "rank_hi", "p_first"):
        np.testing.assert_array_equal(getattr(again, name), getattr(one, name))
    assert again["s0-00001"].top(1)[0].lo is None
    again.write(tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").read_bytes() == (tmp_path / "s.parquet").read_bytes()
