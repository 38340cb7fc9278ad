"""Sanity of pictures whose group is known: counts by hand."""

import numpy as np
import pytest

from guda.evaluation.intervals import clopper_pearson
from guda.evaluation.sanity import Right, Sanity, measure, table, verdict_lines
from guda.scoring.origin import Origin
from guda.scoring.scores import Scores

GROUPS = ("a", "b", "c", "d")
# right first and clear; right second; right third, a wrong one clear; one of two right groups first
SCORE = np.array([[9.0, 1, 2, 3], [5, 4, 1, 0], [1, 8, 3, 2], [1, 2, 3, 4]])
HALF = np.array([[1.0] * 4, [3.0] * 4, [1.0] * 4, [0.1] * 4])
KNOWN = {"q0": ("a",), "q1": ("b",), "q2": ("d",), "q3": ("a", "d")}
P_FIRST = np.array([[0.99, 0, 0, 0.01], [0.6, 0.4, 0, 0], [0.001, 0.999, 0, 0], [0, 0, 0.04, 0.96]])


def scores(**more: object) -> Scores:
    usual: dict[str, object] = {"lo": SCORE - HALF, "hi": SCORE + HALF, "p_first": P_FIRST}
    return Scores("m", "nats", "e", tuple(KNOWN), GROUPS, SCORE, 1, **(usual | more))  # type: ignore[arg-type]


def test_counts_shares_ranks_and_claims() -> None:
    given = scores()
    found = measure(given, KNOWN, given.verdict())
    assert (found.first.n, found.first.right) == (4, 2)
    assert (found.first.lo, found.first.hi) == clopper_pearson(2, 4)
    assert found.chance == pytest.approx((3 * 1 / 4 + 2 / 4) / 4)
    assert found.mean_rank == (1 + 2 + 3 + 1) / 4
    assert found.chance_rank == pytest.approx((3 * 2.5 + 5 / 3) / 4)  # the better of two of four ranks
    assert sum(found.verdicts.values()) == 4
    assert found.verdicts["stands-out"] == found.stands_out.n == 3
    assert found.stands_out.right == 2
    assert found.sure is not None
    assert (found.sure.n, found.sure.right) == (3, 2)


def test_nothing_is_claimed_of_a_foreign_picture_or_without_probabilities() -> None:
    foreign = (Origin(), Origin(), Origin(typical_p=0.001), Origin())
    given = scores(origins=foreign)
    found = measure(given, KNOWN, given.verdict())
    assert found.verdicts["foreign"] == 1
    assert (found.stands_out.n, found.stands_out.right) == (2, 2)
    assert found.sure is not None
    assert (found.sure.n, found.sure.right) == (2, 2)
    assert found.first.right == 2  # ranks are still compared
    bare = scores(lo=None, hi=None, p_first=None)
    without = measure(bare, KNOWN, bare.verdict())
    assert without.sure is None
    assert without.stands_out == Right(n=0, right=0)
    assert without.verdicts == {"unmeasured": 4}


def test_calibrated_claims_are_answer_sets_and_no_probability() -> None:
    sets = np.array([[1.0, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    given = scores(answer=sets)
    found = measure(given, KNOWN, given.verdict())
    assert found.sure is None
    assert found.in_set is not None
    assert (found.in_set.n, found.in_set.right, found.set_size) == (4, 3, 7 / 4)
    assert (found.stands_out.n, found.stands_out.right) == (1, 1)
    foreign = scores(answer=sets, origins=(Origin(), Origin(typical_p=0.001), Origin(), Origin()))
    without = measure(foreign, KNOWN, foreign.verdict())
    assert without.in_set is not None
    assert (without.in_set.n, without.in_set.right) == (3, 2)


def test_chance_by_brute_force_over_all_rankings() -> None:
    from itertools import permutations

    ranks = np.array([np.argsort(p) + 1 for p in permutations(range(4))])
    right = np.array([g in KNOWN["q3"] for g in GROUPS])
    best = np.where(right, ranks, 9).min(axis=1)
    given = scores()[3:]
    found = measure(given, KNOWN, given.verdict())
    assert found.chance_rank == pytest.approx(best.mean())
    assert found.chance == pytest.approx((best == 1).mean())


def test_a_table_for_people() -> None:
    given = scores()
    bare = scores(lo=None, hi=None, p_first=None)
    methods = {"m": measure(given, KNOWN, given.verdict()), "bare": measure(bare, KNOWN, bare.verdict())}
    found = Sanity(queries="heldout-x", estimand="e", pictures={"a": 2, "b": 1, "d": 2}, methods=methods)
    assert Sanity.model_validate_json(found.model_dump_json()) == found
    first, second = table(found).texts()
    lo, hi = clopper_pearson(2, 4)
    assert first[:3] == ("m", f"2 of 4: 0.50 [{lo:.2f}, {hi:.2f}]", "31 %")
    assert second[5] == "no picture"
    assert verdict_lines(found)[1] == "bare: 4 no interval, no verdict"
    with pytest.raises(ValueError, match="none of the groups of 'q1'"):
        measure(given, KNOWN | {"q1": ("e",)}, given.verdict())
