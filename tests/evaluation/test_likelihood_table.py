"""Delta ELBO against delta log p: figures and resamples against scipy on the spelled-out cells."""

from importlib import import_module

import numpy as np
import pytest
from scipy import stats

from guda.evaluation.ceiling import Reliability
from guda.evaluation.intervals import query_counts
from guda.evaluation.metrics import ndcg3_linear, top1
from guda.steps.likelihood import LikelihoodFile, correlate, reliability_sentence, weighted_pearson, weighted_ranks
from refusals import refused


@pytest.fixture
def scores() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    gold = rng.normal(size=(12, 4)).round(1)  # rounded: some tie
    return (gold + rng.normal(size=gold.shape)).round(1), gold


def test_figures_are_scipys(scores: tuple[np.ndarray, np.ndarray]) -> None:
    s, g = scores
    found = correlate(s, g, n=20)
    assert found["pearson"].mean == pytest.approx(stats.pearsonr(s.ravel(), g.ravel()).statistic)
    assert found["spearman"].mean == pytest.approx(stats.spearmanr(s.ravel(), g.ravel()).statistic)
    assert found["top1"].mean == top1(s, g).mean()
    assert found["ndcg3_linear"].mean == pytest.approx(ndcg3_linear(s, g).mean())


def test_a_resample_draws_queries_whole_and_ranks_anew(scores: tuple[np.ndarray, np.ndarray]) -> None:
    s, g = scores
    (counts,) = query_counts(12, 30, seed=5)
    wanted = {"pearson": [], "spearman": []}
    for row in counts.astype(int):
        a, b = np.repeat(s, row, axis=0).ravel(), np.repeat(g, row, axis=0).ravel()
        wanted["pearson"].append(stats.pearsonr(a, b).statistic)
        wanted["spearman"].append(stats.spearmanr(a, b).statistic)
    found = correlate(s, g, n=30, seed=5)
    for name, values in wanted.items():
        np.testing.assert_allclose((found[name].lo, found[name].hi), np.quantile(values, [0.025, 0.975]), rtol=1e-9)
    w = np.repeat(counts, 4, axis=1)
    ranks = weighted_ranks(s.ravel(), w)
    inside = np.repeat(np.arange(48), w[0].astype(int))
    np.testing.assert_allclose(ranks[0, inside], stats.rankdata(s.ravel()[inside]))


def test_the_noise_of_the_probes_is_told_where_it_is_known() -> None:
    def file(seeds: int, **known: Reliability) -> LikelihoodFile:
        return LikelihoodFile(
            queries="q", n_queries=7, settings={"seeds": seeds}, estimand="log p", correlations={}, reliability=known,
            note="",
        )  # fmt: skip

    both = file(2, logo=Reliability(one_seed=0.5, mean_of_seeds=2 / 3))
    assert "logo 0.50 for one, 0.67 for the mean of 2." in reliability_sentence(both)
    assert "is not known" in reliability_sentence(file(1))
    assert reliability_sentence(file(2)) == ""  # a file from before it was measured


def test_many_cells_are_cut_into_pieces(scores: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = correlate(*scores, n=30)
    monkeypatch.setattr(import_module("guda.steps.likelihood"), "CHUNK", 100)  # `steps.likelihood` is a function
    assert correlate(*scores, n=30) == whole


def test_what_does_not_vary_does_not_correlate() -> None:
    w = np.ones((1, 6))
    assert weighted_pearson(np.full((1, 6), 2.5), np.arange(6.0)[None], w) == 0
    assert weighted_pearson(np.arange(6.0)[None], 3 - 2 * np.arange(6.0)[None], w) == pytest.approx(-1)


def test_one_query_has_no_interval() -> None:
    with refused("queries-too-few", match="at least 2 queries"):
        correlate([[1.0, 2.0]], [[1.0, 2.0]])
