"""Methods against each other: what is compared, when two count as separated, and how it is told."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path

import numpy as np
import pytest

from guda.evaluation.ceiling import compare
from guda.evaluation.intervals import bootstrap_mean, holm, sign_flip_test
from guda.evaluation.metrics import top1
from guda.evaluation.results import DatasetEntry, PairFigure, dataset_entry, read_entry
from guda.evaluation.tables import comparison, pair_text, pairs_table, pairs_terminal, separation, told_apart

RNG = np.random.default_rng(0)
TRUTH = RNG.normal(size=(120, 6))
ORACLE = TRUTH + 0.4 * RNG.normal(size=(2, 120, 6))
GOOD, TWIN, BAD = TRUTH + 0.1, TRUTH + 0.05 * RNG.normal(size=(120, 6)), RNG.normal(size=(120, 6))


@functools.cache
def entry(reference: str | None = None) -> DatasetEntry:
    found = compare(ORACLE, {"good": GOOD, "twin": TWIN, "bad": BAD}, reference=reference, n=400)
    return dataset_entry(found, [1, 2], "ELBO", pairs=separation(found))


def test_all_pairs_with_the_ceiling_whatever_the_reference_is() -> None:
    names = [(p.a, p.b) for p in entry().pairs or ()]
    assert names == [("logo", "good"), ("logo", "twin"), ("logo", "bad"), ("good", "twin"), ("good", "bad"),
                     ("twin", "bad")]  # fmt: skip
    assert entry("bad").pairs == entry().pairs


def test_many_pairs_have_flips_enough_to_be_separated_at_all() -> None:
    found = compare(ORACLE, {"good": GOOD, "bad": BAD}, n=50)
    pairs = separation(found, flips=9)  # p of 9 flips is at least 0.1
    assert next(p for p in pairs if (p.a, p.b) == ("good", "bad")).metrics["top1"].separated


def test_figures_are_those_of_the_parts() -> None:
    d = np.stack([(top1(GOOD, gold) - top1(BAD, gold)) for gold in (ORACLE[1], ORACLE[0])])
    found = next(p for p in entry().pairs or () if (p.a, p.b) == ("good", "bad")).metrics["top1"]
    interval = bootstrap_mean(d, n=400)
    assert (found.mean, found.lo, found.hi) == pytest.approx((interval.mean, interval.lo, interval.hi))
    assert found.p == sign_flip_test(d.mean(axis=0))


def test_holm_covers_every_pair_in_every_metric_that_is_shown() -> None:
    cells = [f for p in entry().pairs or () for f in p.metrics.values()]
    assert len(cells) == 6 * 3
    assert [f.p_holm for f in cells] == pytest.approx(holm([f.p for f in cells]))
    worst = min(f.p for f in cells)
    assert min(f.p_holm for f in cells) == pytest.approx(min(1.0, 18 * worst))


def test_both_the_interval_and_p_must_say_so() -> None:
    def figure(lo: float, p: float) -> PairFigure:
        return PairFigure(mean=0.1, lo=lo, hi=0.2, p=p, p_holm=p)

    assert figure(0.01, 0.05).separated
    assert not figure(0.01, 0.051).separated
    assert not figure(-0.01, 0.001).separated
    assert not figure(0.0, 0.001).separated
    assert pair_text(figure(0.01, 0.02)) == "+0.100 [+0.010, +0.200] p 0.020"
    assert pair_text(figure(-0.01, 0.0001)) == "+0.100 [-0.010, +0.200] p < 0.001, not separated"


def test_twins_are_not_separated_and_noise_is() -> None:
    by_pair = {(p.a, p.b): p.metrics["top1"] for p in entry().pairs or ()}
    assert not by_pair["good", "twin"].separated
    assert by_pair["good", "bad"].separated
    text = told_apart(entry("bad"))
    assert text.startswith(
        "Top-1 (paired over queries, Holm-corrected over 6 pairs in 3 metrics): not separated from the best, "
    )
    best, other = ("good", "twin") if "the best, good" in text else ("twin", "good")
    assert f"not separated from the best, {best}: {other}; not separated from the ceiling: " in text
    assert "bad" not in text
    assert text in comparison("x", entry("bad")).markdown()


def test_nothing_is_said_of_pairs_that_were_not_tested() -> None:
    """An evaluation of an older guda tested each method against the reference alone."""
    every = entry().pairs or []
    some = entry().model_copy(update={"pairs": [p for p in every if p.b == "bad"]})
    text = told_apart(some)
    assert "Holm-corrected over 3 pairs" in text
    assert ": none (1 other not tested); not separated from the ceiling: none (2 others not tested)." in text
    assert pairs_table("x", some).title.startswith("x: pairs of methods, paired")
    assert told_apart(entry().model_copy(update={"pairs": None})) == ""


def test_tables_show_every_pair() -> None:
    from rich.console import Console

    table = pairs_table("digits", entry())
    assert table.header == ("a - b", "Top-1", "MRR", "Spearman")
    assert table.texts()[0][0] == "LOGO (ceiling) - good"
    text = table.markdown()
    assert len([line for line in text.splitlines() if line.startswith("|")]) == 2 + 6
    assert "digits: every pair of methods, paired over 120 queries, 6 comparisons" in text
    assert "Holm-corrected" in text
    out = io.StringIO()
    Console(file=out, width=120).print(pairs_terminal("digits", entry()))
    assert "- twin" in out.getvalue()
    assert "not separated" in out.getvalue()


def test_files_without_pairs_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.json"
    value = entry().model_dump(mode="json")
    path.write_text(json.dumps(value))
    assert read_entry(path) == entry()
    del value["pairs"]
    path.write_text(json.dumps(value))
    assert read_entry(path).pairs is None


def test_one_method_and_one_seed_have_nothing_to_compare() -> None:
    found = compare(ORACLE[:1], {"good": GOOD}, n=50)
    assert separation(found) == []
    assert dataset_entry(found, [1], "ELBO", pairs=separation(found)).pairs is None
