"""Numbers as printed: two digits of the error decide the decimals, and only zero reads as zero."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import guda.report
from guda.scoring.scores import GroupScore, Scores
from guda.table import error_decimals, measured, nonzero, plus_minus

SIZES = st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: 0.0 if abs(v) < 1e-12 else v)


def read(text: str) -> float:
    return float(text.replace(",", "").replace("\N{MINUS SIGN}", "-"))


def read_interval(text: str) -> tuple[float, float]:
    lo, hi = text.strip("[]").split(", ")
    return read(lo), read(hi)


@pytest.mark.parametrize(
    ("score", "lo", "hi", "expected"),
    [
        (12.34, 10.94, 13.74, "+12.3 [10.9, 13.7]"),
        (0.01234, 0.00894, 0.01574, "+0.0123 [0.0089, 0.0157]"),
        (-1234.5, -1300.0, -1169.0, "−1,234 [−1,300, −1,169]"),
        (1.24, 0.003, 2.48, "+1.2 [0.003, 2.5]"),  # not "[0.0, 2.5]": it is clear of zero
        (1.24, -0.003, 2.48, "+1.2 [−0.003, 2.5]"),
        (1.24, 0.0, 2.48, "+1.2 [0.0, 2.5]"),
        (0.004, -1.2, 1.2, "0.0 [−1.2, 1.2]"),
        (0.03, 0.002, 4.0, "+0.03 [0.002, 4.0]"),
        (2.5, 2.5, 2.5, "+2.500 [2.500, 2.500]"),  # no error: the given decimals
        (2.5, None, None, "+2.500 "),
        (2.5, math.nan, math.nan, "+2.500 "),
    ],
)
def test_two_digits_of_the_error_decide(score: float, lo: float | None, hi: float | None, expected: str) -> None:
    assert " ".join(measured(score, lo, hi, 3)) == expected


def test_decimals_of_an_error() -> None:
    found = [error_decimals(e) for e in (1.4, 0.0034, 12.0, 1200.0, 9.97, 0.0996, 0.0, math.inf, math.nan)]
    assert found == [1, 4, 0, 0, 0, 2, None, None, None]
    assert plus_minus(12.345, 1.449, 3) == "+12.3 ± 1.4"
    assert plus_minus(12.345, 0.0, 3) == "+12.345 ± 0.000"
    assert nonzero(-0.00007, 1) == "−0.00007"


@given(values=st.tuples(SIZES, SIZES, SIZES).map(sorted))
def test_printed_intervals_contain_printed_scores_and_zero_is_zero(values: list[float]) -> None:
    lo, score, hi = values
    text, between = measured(score, lo, hi, 3)
    a, b = read_interval(between)
    assert a <= read(text) <= b
    assert (a == 0) == (lo == 0)
    assert (b == 0) == (hi == 0)
    assert (a > 0) == (lo > 0)  # whether it is clear of zero can be read
    assert (b < 0) == (hi < 0)
    half = (hi - lo) / 2
    if half > 0:
        assert abs(read(text) - score) <= 0.051 * half + 1e-9 * abs(score)  # nothing that the error resolves is lost


def test_scores_print_by_their_own_errors() -> None:
    large = GroupScore("a", 12.34, 10.94, 13.74, 1, "nats")
    assert str(large) == "1. a: +12.3 [10.9, 13.7] nats"
    assert str(GroupScore("b", 0.0123456, None, None, 2, "cosine")) == "2. b: +0.0123 cosine"
    small = [0.01234, 0.00894, 0.01574]
    arrays = [np.array([[x, y]]) for x, y in zip([12.34, 10.94, 13.74], small, strict=True)]
    scores = Scores("m", "nats", "e", ("q",), ("a", "b"), arrays[0], 1, lo=arrays[1], hi=arrays[2])
    assert str(scores["q"]).splitlines()[1:] == [f"  {large}", "  2. b: +0.0123 [0.0089, 0.0157] nats"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_browser_prints_the_same() -> None:
    script = Path(guda.report.__file__).with_name("page.js").read_text("utf-8")
    found = re.search(r"  const plain = .*?(?=\n  // The same as times)", script, re.DOTALL)
    assert found is not None
    rng = np.random.default_rng(0)
    centre = rng.normal(size=300) * 10.0 ** rng.integers(-4, 4, 300)
    half = np.abs(rng.normal(size=300)) * 10.0 ** rng.integers(-4, 3, 300)
    cases = [[float(c), float(c - h), float(c + h)] for c, h in zip(centre, half, strict=True)]
    cases += [[0.03, 0.002, 4.0], [0.0, 0.0, 0.0], [1.24, -0.003, 2.48]]
    program = f"{found[0]}\nconsole.log(JSON.stringify({json.dumps(cases)}.map((c) => measured(...c, 3))))"
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert [tuple(x) for x in json.loads(done.stdout)] == [measured(*c, 3) for c in cases]
