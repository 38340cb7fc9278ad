"""What scores say in words: by unit and sign, the factor behind a log ratio, and the direction a divergence lacks."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from guda.scoring.reading import (
    EXCESS_SIGN,
    LOG_UNIT,
    PATH_SIGN,
    READINGS,
    SIGN,
    direction,
    reading,
    times,
    value,
    verdict,
)
from guda.scoring.scores import GroupScore, Scores


@pytest.mark.parametrize(
    ("unit", "sign", "kind"),
    [
        ("nats", SIGN, "elbo"),
        ("nats", EXCESS_SIGN, "elbo-excess"),
        ("nats", PATH_SIGN, "path"),
        (LOG_UNIT, PATH_SIGN, "path-excess"),
        ("cosine", SIGN, "own"),
    ],
)
def test_unit_and_sign_decide_what_a_score_says(unit: str, sign: str, kind: str) -> None:
    assert reading(unit, sign).kind == kind


def test_no_path_score_claims_a_direction() -> None:
    for kind in ("path", "path-excess"):
        found = READINGS[kind]
        told = " ".join([found.question, *found.legend])
        assert "explain" not in told
        assert "likely" not in told


@pytest.mark.parametrize(
    ("factor", "text"), [(6.0, "6.0"), (21.4, "21"), (148.0, "148"), (1.0, "1.0"), (0.25, "0.25"), (0.0123, "0.012")]
)
def test_a_log_ratio_is_told_as_a_factor(factor: float, text: str) -> None:
    assert times(math.log(factor)).startswith(f"{text} times")


def test_other_units_are_told_as_they_are() -> None:
    assert value(12.3, 10.1, 14.5, 1, "nats") == "+12.3 [10.1, 14.5] nats"
    assert value(math.log(6), 1.61, 1.97, 1, LOG_UNIT) == "+1.79 [1.61, 1.97], 6.0 times the average picture"


def test_a_direction_is_told_only_beyond_two_standard_errors() -> None:
    assert [direction(e, 1.0) for e in (2.1, 2.0, -2.0, -2.1)] == ["worse", None, None, "better"]
    assert direction(None, None) is direction(5.0, None) is None


def ranked(unit: str, sign: str, *scores: float) -> list[GroupScore]:
    return [GroupScore("abc"[i], s, s - 1, s + 1, i + 1, unit, sign=sign) for i, s in enumerate(scores)]


def test_zero_denies_a_verdict_only_where_zero_says_something() -> None:
    assert verdict(ranked("nats", SIGN, 0.9, -5.0)).kind == "nothing"
    assert verdict(ranked(LOG_UNIT, PATH_SIGN, 0.9, -5.0)).kind == "nothing"
    assert verdict(ranked("nats", PATH_SIGN, 0.9, -5.0)).kind == "stands-out"
    assert verdict(ranked("nats", PATH_SIGN, 0.9, -5.0), floor=0.5).kind == "nothing"  # placebos say something


def test_directions_are_kept_with_the_scores(tmp_path: Path) -> None:
    score = np.array([[3.0, 1.0], [2.0, 4.0], [1.0, 0.0]])
    elbo = np.array([[5.0, -5.0], [0.5, -9.0], [np.nan, 1.0]])
    scores = Scores("m", "nats", "path", tuple("xyz"), tuple("ab"), score, 1, sign=PATH_SIGN, elbo=elbo,
                    elbo_stderr=np.ones_like(elbo))  # fmt: skip
    scores.write(tmp_path / "s.parquet")
    again = Scores.read(tmp_path / "s.parquet")
    np.testing.assert_array_equal(again.elbo, elbo)
    assert [p.top()[0].direction for p in again] == ["worse", "better", None]
    assert [p.top()[0].direction for p in again[1:]] == ["better", None]
    assert again.to_pandas()["elbo"].isna().sum() == 1
    replace(scores, elbo=None, elbo_stderr=None).write(tmp_path / "t.parquet")
    assert Scores.read(tmp_path / "t.parquet").elbo is None
