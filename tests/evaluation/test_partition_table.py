"""Clean against noisy: the change's interval, which rows are compared, and the two panels."""

from __future__ import annotations

import numpy as np
import pytest

from guda.errors import GudaError
from guda.evaluation.ceiling import Reliability
from guda.evaluation.intervals import bootstrap_mean
from guda.evaluation.metrics import SIX
from guda.evaluation.partition import (
    PartitionFile,
    independent_difference,
    partition_markdown,
    partition_note,
    partition_table,
)
from guda.evaluation.results import DatasetEntry, Figure, MethodEntry


def figures(mean: float, arm: float = 0.03) -> dict[str, Figure]:
    return {m: Figure(mean=mean, lo=mean - arm, hi=mean + arm) for m in SIX}


def entry(ceiling: float, **methods: float) -> DatasetEntry:
    found = {m: MethodEntry(metrics=figures(x)) for m, x in {"logo": ceiling, **methods}.items()}
    return DatasetEntry(
        n_queries=100, seeds=[1, 2], ceiling=figures(ceiling), n_groups=10, estimand="ELBO", methods=found,
        reliability=Reliability(one_seed=ceiling, mean_of_seeds=ceiling + 0.1),
    )  # fmt: skip


def test_arms_add_in_squares() -> None:
    found = independent_difference(Figure(mean=0.5, lo=0.47, hi=0.54), Figure(mean=0.6, lo=0.57, hi=0.64))
    assert found.mean == pytest.approx(-0.1)
    assert found.lo == pytest.approx(-0.1 - 0.05)  # arms 0.03 below and 0.04 above
    assert found.hi == pytest.approx(-0.1 + 0.05)


def test_the_interval_is_that_of_two_bootstraps_drawn_apart() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.beta(2, 5, 300), rng.beta(5, 2, 150)
    whole = [a[rng.integers(0, 300, 300)].mean() - b[rng.integers(0, 150, 150)].mean() for _ in range(4000)]
    one, two = bootstrap_mean(a), bootstrap_mean(b)
    found = independent_difference(
        Figure(mean=one.mean, lo=one.lo, hi=one.hi), Figure(mean=two.mean, lo=two.lo, hi=two.hi)
    )
    assert [found.lo, found.hi] == pytest.approx(np.quantile(whole, [0.025, 0.975]).tolist(), abs=0.004)


def test_rows_are_the_ceiling_and_the_methods_of_both() -> None:
    found = partition_table(entry(0.7, shift=0.8, clip=0.6, gone=0.1), entry(0.69, clip=0.5, shift=0.7, new=0.2))
    assert [r.method for r in found] == ["logo", "shift", "clip"]
    assert found[1].change["top1"].mean == pytest.approx(-0.1)
    assert found[0].separated == ()  # 0.01 within 0.03 sqrt 2
    assert found[1].separated == SIX


def test_what_cannot_be_compared_is_refused() -> None:
    clean = entry(0.7, shift=0.8)
    for change, message in (({"n_groups": 9}, "10 groups and the noisy one 9"), ({"estimand": "x"}, "evaluate both"),
                            ({"seeds": [1]}, "same number")):  # fmt: skip
        with pytest.raises(GudaError, match=message):
            partition_table(clean, clean.model_copy(update=change))


def test_markdown_says_not_separated_and_how_the_oracle_changed() -> None:
    clean, noisy = entry(0.7, shift=0.8), entry(0.69, shift=0.7)
    rows = partition_table(clean, noisy)
    found = PartitionFile(
        fraction=0.05, seed=42, moved_per_group=250, clean=clean, noisy=noisy, rows=rows, oracle=figures(0.9),
        note=partition_note(rows),
    )  # fmt: skip
    text = partition_markdown(found)
    assert "250 images of every group (5%, seed 42)" in text
    lines = text.splitlines()
    assert next(line for line in lines if "-0.01 [-0.05, +0.03]" in line).endswith("| not separated |")
    assert "Top-1, MRR, NDCG@3, Top-3, RBO, Spearman |" in next(
        line for line in lines if "-0.10 [-0.14, -0.06]" in line
    )
    assert "clean 0.70 for one seed, 0.80 for their mean; noisy 0.69 for one seed" in text
    assert "on the same pictures: Top-1 0.90 [0.87, 0.93]" in text
    assert "Top-1 of shift changed" in text
    assert "the noise of retraining is not in the interval" in text
    apart = found.model_copy(update={"oracle": None})
    assert "drew other pictures" in partition_markdown(apart)
    assert PartitionFile.model_validate(found.model_dump(mode="json")) == found
