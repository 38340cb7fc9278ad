"""Ranking metrics: hand-worked rows, scipy, the invariances a metric must have, and random rankings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from guda.evaluation.metrics import LABELS, LOWEST, METRICS, SIX, per_query, random_baseline
from refusals import refused

GOLD = np.array([[4.0, 3.0, 2.0, 1.0]])  # ranks 1 2 3 4, relevance 4 3 2 1
SCORES = np.array([[2.0, 4.0, 1.0, 3.0]])  # order: 1, 3, 0, 2


def test_hand_worked_query() -> None:
    found = {name: float(v[0]) for name, v in per_query(SCORES, GOLD).items()}
    discount = 1 / np.log2([2, 3, 4])
    rbo = 0.1 * (0 + 0.9 * 1 / 2 + 0.81 * 2 / 3 + 0.729 * 4 / 4)
    assert found == pytest.approx(
        {
            "top1": 0.0,
            "mrr": 1 / 3,
            "ndcg3": (discount @ [7, 1, 15]) / (discount @ [15, 7, 3]),
            "ndcg3_linear": (discount @ [3, 1, 4]) / (discount @ [4, 3, 2]),
            "top3": 2 / 3,
            "rbo": rbo,
            "rbo_normalised": rbo / (1 - 0.9**4),
            "spearman": 1 - 6 * (4 + 1 + 1 + 4) / (4 * 15),  # rank differences 2, -1, 1, -2
        }
    )


def test_queries_are_independent_rows() -> None:
    rng = np.random.default_rng(0)
    scores, gold = rng.normal(size=(2, 7, 5))
    together = per_query(scores, gold)
    for q in range(7):
        for name, value in per_query(scores[q : q + 1], gold[q : q + 1]).items():
            assert value[0] == pytest.approx(together[name][q])


def test_ties_go_to_the_earlier_group() -> None:
    flat, gold = np.zeros((2, 4)), np.array([[9.0, 0, 0, 0], [0, 0, 0, 9.0]])
    found = per_query(flat, gold)  # predicted order is 0 1 2 3 in both
    assert found["top1"].tolist() == [1, 0]
    assert found["mrr"].tolist() == [1, 0.25]
    assert found["top3"].tolist() == [1, 2 / 3]  # the second gold order is 3 0 1 2
    assert found["spearman"].tolist() == [0, 0]  # nothing is said about the order


def test_spearman_is_scipys_with_average_ranks() -> None:
    rng = np.random.default_rng(1)
    scores, gold = rng.integers(0, 6, (2, 50, 9)).astype(float)  # many ties
    expected = [spearmanr(s, g).statistic for s, g in zip(scores, gold, strict=True)]
    assert METRICS["spearman"](scores, gold) == pytest.approx(expected)


def test_reversed_ranking() -> None:
    gold = np.arange(10.0)[None]
    found = per_query(-gold, gold)
    assert found["spearman"] == pytest.approx(-1)
    assert found["mrr"] == pytest.approx(0.1)
    assert found["top1"] == found["top3"] == 0


def test_two_groups_use_a_top_two() -> None:
    found = per_query([[1.0, 2.0]], [[2.0, 1.0]])
    assert found["top3"] == 1  # both groups are in both top-2 sets
    assert found["ndcg3"] == pytest.approx((1 + 3 / np.log2(3)) / (3 + 1 / np.log2(3)))


def test_thousands_of_groups_do_not_overflow() -> None:
    gold = np.arange(3000.0)[None]
    assert METRICS["ndcg3"](gold, gold) == pytest.approx(1)
    assert 0 < random_baseline(3000)["ndcg3"] < 0.01


rankings = st.integers(2, 12).flatmap(
    lambda n: st.tuples(st.permutations(range(n)), st.permutations(range(n)), st.permutations(range(n)))
)


@settings(max_examples=60, deadline=None)
@given(rankings)
def test_invariances(drawn: tuple[list[int], list[int], list[int]]) -> None:
    scores, gold = (np.array(x, dtype=float)[None] for x in drawn[:2])
    shuffle = np.array(drawn[2])
    found = per_query(scores, gold)
    for name, value in found.items():
        metric = METRICS[name]
        assert metric(scores[:, shuffle], gold[:, shuffle]) == pytest.approx(value), "group order"
        assert metric(np.exp(scores) - 5, gold**3) == pytest.approx(value), "monotone transform"
        assert LOWEST[name] - 1e-12 <= value <= 1 + 1e-12
        perfect = 1 - 0.9 ** gold.shape[1] if name == "rbo" else 1
        assert metric(gold, gold) == pytest.approx(perfect)


@pytest.mark.parametrize(
    ("n", "published"),
    [
        (10, {"ndcg3": 0.29, "ndcg3_linear": 0.60, "mrr": 0.29, "top3": 0.30, "rbo": 0.30}),
        (16, {"ndcg3": 0.19, "ndcg3_linear": 0.56, "mrr": 0.21, "top3": 0.19, "rbo": 0.32}),
    ],
)
def test_random_rankings_match_the_specification(n: int, published: dict[str, float]) -> None:
    found = random_baseline(n)
    for name, value in published.items():  # two decimals of a simulation; exactly, ndcg3 of 16 is 0.1849
        assert found[name] == pytest.approx(value, abs=0.0055), name


@pytest.mark.parametrize("n", [2, 3, 10])
def test_random_rankings_match_simulation(n: int) -> None:
    rng = np.random.default_rng(2)
    simulated = per_query(rng.random((20_000, n)), rng.random((20_000, n)))
    for name, expected in random_baseline(n).items():
        error = simulated[name].std() / np.sqrt(20_000)
        assert abs(simulated[name].mean() - expected) <= 4 * error + 1e-12, name


def test_random_baseline_cannot_be_changed_by_its_caller() -> None:
    random_baseline(10)["top1"] = 7.0
    assert random_baseline(10)["top1"] == 0.1


def test_labels_cover_the_metrics() -> None:
    assert set(LABELS) == set(METRICS) == set(LOWEST)
    assert [LABELS[m] for m in SIX] == ["Top-1", "MRR", "NDCG@3", "Top-3", "RBO", "Spearman"]


@pytest.mark.parametrize("name", METRICS)
def test_what_has_no_ranking_is_refused(name: str) -> None:
    metric, good = METRICS[name], np.arange(6.0).reshape(2, 3)
    for bad in (np.nan, np.inf, -np.inf):
        broken = good.copy()
        broken[1, 2] = bad
        with refused("scores-not-finite", match=r"scores have NaN or infinity in 1 of 2 queries, first in row 1"):
            metric(broken, good)
        with refused("scores-not-finite"):
            metric(good, broken)
    with refused("scores-shape-mismatch"):
        metric(good, good.T)
    with refused("scores-shape-mismatch"):
        metric(good[0], good[0])
    with refused("ranking-too-small", match="2 groups"):
        metric(good[:, :1], good[:, :1])
    with refused("ranking-too-small", match="1 query"):
        metric(good[:0], good[:0])


def test_one_group_has_no_random_ranking() -> None:
    with refused("ranking-too-small", match="2 groups"):
        random_baseline(1)
