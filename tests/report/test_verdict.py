"""The verdict rule: strict, and silent where there is nothing to go by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from guda.scoring.origin import Origin
from guda.scoring.reading import NOT_VALIDATED, verdict
from guda.scoring.scores import GroupScore


def ranked(*groups: tuple[str, float, float | None, float | None]) -> list[GroupScore]:
    return [GroupScore(name, score, lo, hi, i, "nats") for i, (name, score, lo, hi) in enumerate(groups, 1)]


def test_stands_out_when_above_zero_and_clear_of_all_others():
    found = verdict(ranked(("3", 12.3, 10.1, 14.5), ("8", 4.0, 2.0, 6.0), ("1", -1.0, -2.0, 0.0)))
    assert found.kind == "stands-out"
    assert found.text == f"group 3 stands out (+12.3 [10.1, 14.5] nats; clear of the next group; {NOT_VALIDATED})"


def test_overlap_with_the_second_is_not_separated():
    found = verdict(ranked(("3", 12.3, 10.1, 14.5), ("8", 9.0, 7.0, 11.0), ("1", 0.0, -1.0, 1.0)))
    assert found.kind == "close"
    assert found.headline == "groups 3 and 8 not separated"


def test_touching_intervals_are_not_separated():
    assert verdict(ranked(("a", 5.0, 4.0, 6.0), ("b", 3.0, 2.0, 4.0))).kind == "close"


def test_a_wide_third_interval_also_denies_a_clear_verdict():
    found = verdict(ranked(("a", 5.0, 4.0, 6.0), ("b", 2.0, 1.0, 3.0), ("c", 1.0, -4.0, 6.0)))
    assert found.kind == "close"
    assert "a and c" in found.headline


def test_many_tied_groups_are_counted():
    found = verdict(ranked(*((name, 5.0, 4.0, 6.0) for name in "abcde")))
    assert found.headline == "groups a, b, c and 2 more not separated"


def test_nothing_stands_out_when_no_interval_clears_zero():
    found = verdict(ranked(("a", 2.0, -1.0, 5.0), ("b", -4.0, -6.0, -2.0)))
    assert found.kind == "nothing"
    assert found.text.startswith("nothing stands out (no interval clears zero")


def test_zero_itself_does_not_clear_zero():
    assert verdict(ranked(("a", 2.0, 0.0, 4.0), ("b", -4.0, -6.0, -2.0))).kind == "nothing"


def test_first_not_above_zero_but_second_is():
    assert verdict(ranked(("a", 5.0, -1.0, 11.0), ("b", 4.0, 3.0, 5.0))).kind == "close"


def placed(*groups: tuple[str, float, float | None, float | None, int | None, int | None]) -> list[GroupScore]:
    return [
        GroupScore(name, score, lo, hi, i, "nats", rank_lo, rank_hi, None if rank_lo is None else 0.5)
        for i, (name, score, lo, hi, rank_lo, rank_hi) in enumerate(groups, 1)
    ]


def test_ranks_separate_what_overlapping_intervals_would_not():
    found = verdict(placed(("a", 5.0, 3.0, 7.0, 1, 1), ("b", 4.0, 2.0, 6.0, 2, 3), ("c", 1.0, -1.0, 3.0, 2, 3)))
    assert (found.kind, found.headline) == ("stands-out", "group a stands out")


def test_ranks_name_those_that_may_be_first():
    found = verdict(placed(("a", 5.0, 4.9, 5.1, 1, 2), ("b", 4.0, 3.9, 4.1, 1, 2), ("c", 1.0, 0.9, 1.1, 3, 3)))
    assert (found.kind, found.headline) == ("close", "groups a and b not separated")


def test_a_first_group_below_the_placebos_does_not_stand_out():
    groups = placed(("a", 5.0, 4.0, 6.0, 1, 1), ("b", 1.0, 0.5, 1.5, 2, 2))
    assert verdict(groups, floor=3.0).kind == "stands-out"
    found = verdict(groups, floor=4.5)
    assert found.kind == "nothing"
    assert "no interval clears what placebo groups score (+4.5)" in found.detail


def test_a_negative_placebo_line_leaves_zero_in_force():
    assert verdict(placed(("a", -1.0, -1.5, -0.5, 1, 1), ("b", -4.0, -5.0, -3.0, 2, 2)), floor=-2.0).kind == "nothing"


def raced(*groups: tuple[str, float, float | None, float | None, int | None, int | None]) -> list[GroupScore]:
    """A race tells no probability of being first."""
    return [replace(g, p_first=None) for g in placed(*groups)]


def test_a_settled_race_needs_no_interval_of_a_group_that_left_at_once():
    assert verdict(raced(("a", 5.0, 3.0, 7.0, 1, 1), ("b", 1.0, None, None, 2, 2))).kind == "stands-out"
    found = verdict(raced(("a", 5.0, 3.0, 7.0, None, None), ("b", 1.0, None, None, None, None)))
    assert found.kind == "unmeasured"
    assert "1 group has no interval (seen only once, or not at all)" in found.detail


def test_a_race_among_some_says_so():
    ranked = raced(("a", 5.0, 3.0, 7.0, 1, 1), ("b", 1.0, 0.5, 1.5, 2, 2), ("c", 9.0, None, None, None, None))
    assert verdict(ranked).kind == "stands-out"
    assert verdict(ranked).detail.endswith("clear of the next group of the 2 that were raced")


def test_groups_seen_once_do_not_hide_a_tie_or_that_nothing_stands_out():
    once = ("c", 0.5, None, None, None, None)
    assert verdict(raced(("a", 5.0, 3.0, 7.0, None, None), ("b", 4.0, 2.0, 6.0, None, None), once)).kind == "close"
    assert verdict(raced(("a", 1.0, -1.0, 3.0, None, None), ("b", 0.6, -2.0, 3.0, None, None), once)).kind == "nothing"


def test_a_race_that_settled_three_together_says_nothing_of_their_order():
    b, c, d = ("b", 10.0, 9.0, 11.0, 1, 3), ("c", 9.0, 8.0, 10.0, 1, 3), ("d", 1.0, 0.0, 2.0, 4, 4)
    far = raced(("a", 60.0, 59.0, 61.0, 1, 3), b, c, d)
    assert verdict(far).kind == "stands-out"
    near = raced(("a", 10.0, 9.0, 11.0, 1, 2), ("b", 9.5, 8.5, 10.5, 1, 2), ("c", 9.4, 8.4, 10.4, 3, 3))
    assert verdict(near).headline == "groups a and b not separated"


def test_no_interval_no_verdict():
    found = verdict(ranked(("a", 0.9, None, None), ("b", 0.1, None, None)), digits=3)
    assert found.kind == "unmeasured"
    assert found.text == "group a is first (+0.900 nats; no interval, so no verdict)"


@pytest.mark.parametrize("shift", [-100.0, -3.0, 0.0, 3.0, 100.0])
def test_kind_depends_on_the_zero_line_only_through_the_first_rule(shift):
    groups = ranked(("a", 10 + shift, 8 + shift, 12 + shift), ("b", 1 + shift, -1 + shift, 3 + shift))
    assert verdict(groups).kind == ("stands-out" if 8 + shift > 0 else "nothing")


def answered(*groups: tuple[str, float, float, float, bool], rank_hi: int = 3) -> list[GroupScore]:
    return [
        GroupScore(g, score, lo, hi, i + 1, "nats", 1, rank_hi, 0.5, answer=inside)
        for i, (g, score, lo, hi, inside) in enumerate(groups)
    ]


def test_a_calibrated_set_decides_who_may_be_ahead() -> None:
    alone = answered(("a", 5.0, 4.0, 6.0, True), ("b", 4.5, 3.5, 5.5, False), ("c", 0.0, -1.0, 1.0, False))
    found = verdict(alone, validation="compared with two retrainings")
    assert (found.kind, found.groups, found.note) == ("stands-out", ("a",), "compared with two retrainings")
    several = answered(("a", 5.0, 4.0, 6.0, True), ("b", 4.5, 3.5, 5.5, True), ("c", 0.0, -1.0, 1.0, False), rank_hi=1)
    assert (verdict(several).kind, verdict(several).groups) == ("close", ("a", "b"))
    low = answered(("a", 5.0, -1.0, 11.0, True), ("b", 1.0, 0.5, 1.5, False))
    assert verdict(low).kind == "nothing"


def test_a_foreign_picture_names_no_group_unless_accepted_and_a_copy_names_its_image() -> None:
    groups = answered(("a", 5.0, 4.0, 6.0, True), ("b", 1.0, 0.0, 2.0, False))
    found = verdict(groups, origin=Origin(typical_p=0.01))
    assert (found.kind, found.groups) == ("foreign", ())
    assert "a" not in found.headline.split()
    assert verdict(groups, origin=Origin(typical_p=0.01, accepted=True)).kind == "stands-out"
    copied = verdict(groups, origin=Origin(typical_p=0.01, copy_of="image-7", copy_group="b"))
    assert (copied.kind, copied.groups) == ("copy", ("b",))
    assert "image-7" in copied.headline


def test_a_verdict_says_that_it_was_not_validated() -> None:
    assert verdict(placed(("a", 5.0, 4.0, 6.0, 1, 1), ("b", 1.0, 0.0, 2.0, 2, 2))).note == NOT_VALIDATED
