"""The query-noise floor: halves of the rounds against each other, by brute force and in the limits."""

from __future__ import annotations

import json
from math import comb
from pathlib import Path

import numpy as np
import pytest

from guda.evaluation.ceiling import MOST, compare, query_noise_floor, splits
from guda.evaluation.metrics import METRICS, mrr, random_baseline, top1
from guda.evaluation.results import dataset_entry, read_entry
from guda.evaluation.tables import footer
from refusals import refused

RNG = np.random.default_rng(0)


def test_every_split_once_and_keyed_beyond() -> None:
    assert splits(2) == [(0,), (1,)]
    assert splits(3) == [(0,), (1,), (2,)]
    assert [len(splits(r)) for r in (4, 5, 8)] == [comb(4, 2), comb(5, 2), comb(8, 4)]
    many = splits(11, seed=1)
    assert len(many) == MOST
    assert all(len(set(s)) == 5 and max(s) < 11 for s in many)
    assert many == splits(11, seed=1) != splits(11, seed=2)


def test_three_rounds_by_hand() -> None:
    rounds = RNG.normal(size=(3, 30, 5)) + 2 * RNG.normal(size=(30, 5))
    a, b, c = rounds
    found = query_noise_floor(rounds, n=50)
    assert (found.rounds, found.half) == (3, 1)
    for name, metric in (("top1", top1), ("mrr", mrr)):
        byhand = np.mean([metric(a, (b + c) / 2), metric(b, (a + c) / 2), metric(c, (a + b) / 2)])
        assert found.metrics[name].mean == pytest.approx(byhand)


def test_without_noise_it_is_one_and_with_nothing_else_it_is_chance() -> None:
    still = np.repeat(RNG.normal(size=(1, 20, 6)), 2, axis=0)
    found = query_noise_floor(still, n=20)
    assert found.metrics["top1"].mean == found.metrics["spearman"].mean == pytest.approx(1.0)
    assert found.mean_of_rounds == pytest.approx(1.0)
    noise = query_noise_floor(RNG.normal(size=(4, 3000, 6)), n=20)
    chance = random_baseline(6)
    for metric in METRICS:
        assert noise.metrics[metric].mean == pytest.approx(chance[metric], abs=0.02)


def test_reliability_is_the_share_of_variance_that_is_signal() -> None:
    signal, noise = 2.0, 1.5
    rounds = signal * RNG.normal(size=(4000, 8)) + noise * RNG.normal(size=(3, 4000, 8))
    found = query_noise_floor(rounds, n=10)
    one = signal**2 / (signal**2 + noise**2)
    assert found.one_round == pytest.approx(one, abs=0.01)
    assert found.mean_of_rounds == pytest.approx(signal**2 / (signal**2 + noise**2 / 3), abs=0.01)


def test_one_round_has_no_floor() -> None:
    with refused("rounds-too-few", match="at least 2 rounds"):
        query_noise_floor(np.zeros((1, 5, 3)))


def test_it_is_told_in_the_footer_and_files_without_it_are_read(tmp_path: Path) -> None:
    oracle = RNG.normal(size=(2, 20, 4))
    found = compare(oracle, {"x": oracle[0]}, n=20)
    entry = dataset_entry(found, [1, 2], "ELBO", floor=query_noise_floor(np.stack([oracle[0]] * 3), n=20))
    assert "Query-noise floor (LOGO against itself, same models, 1 round of noise against 2 other): " in footer(entry)
    assert "other): Top-1 1.00 [1.00, 1.00], NDCG@3 1.00" in footer(entry)
    assert "reliability 1.00 for all 3 rounds" in footer(entry)
    value = entry.model_dump(mode="json")
    path = tmp_path / "x.json"
    path.write_text(json.dumps(value))
    assert read_entry(path) == entry
    del value["floor"]
    path.write_text(json.dumps(value))
    assert read_entry(path).floor is None
    assert "floor" not in footer(read_entry(path))
