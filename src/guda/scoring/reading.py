"""How a score is read: what its unit and its sign say in words, the same in the report, on the page and in a terminal.

ELBO difference      nats        positive: the model explains the picture worse without the group
its excess           nats        positive: more so than for the average picture
path divergence      nats        never negative; any two trainings differ a little, so zero means nothing
its excess           log ratio   positive: the model changes more than for the average picture; log 6 = 6 times
datamodel            nats        positive: models of random halves explain the picture better with the group
other                own unit    says nothing about a model without the group

The verdict on one picture, in plain language, from where it comes from and its groups' intervals and ranks.

A picture that the model does not make is `foreign`: no group is named. One that nearly repeats a training image is a
`copy` of it (scoring/origin.py). Of other pictures the first group stands out only if its whole interval is above the
floor, and no other group may be ahead of it. The floor is zero (for excess scores the average picture; path divergences
have none), or what 95 % of placebo groups score, where that is more. Who may be ahead is told by the rank intervals:
differences between groups scored with the same draws, all comparisons held together at 95 % (scoring/estimate.py), or a
race settled with at least that confidence, among the groups that raced. Where there are none, and among the first of a
race that settled several together, two groups count as separated only if their intervals do not overlap, which is
stricter.

All of that is about the noise of scoring. Where answers were compared with retraining, each picture has an answer set
that contains retraining's first group for 95 % of pictures (scoring/answer_set.py), whatever the reason for an error.
Then the set decides who may be ahead: a group stands out if the set has no other, and several are `close`. Where
answers were not compared, the verdict says so. Those of a race never were: the calibration's pictures are scored with
all rounds, and a race stops as soon as its rule is met.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from guda.config import ScoringConfig
from guda.language import mark, tr
from guda.scoring.origin import UNKNOWN, Origin
from guda.table import measured, plain, signed

if TYPE_CHECKING:
    from guda.scoring.scores import GroupScore


NATS, LOG_UNIT = "nats", "log ratio"

SIGN = "positive = the group mattered"

EXCESS_SIGN = "positive = the group mattered more than for the average picture"

PATH_SIGN = "larger = the model changes more without the group"

HALF_SIGN = "positive = models of random halves of the groups explain the picture better with the group"

HALF_EXCESS_SIGN = f"{HALF_SIGN}, more than for the average picture"

CLOSER_SIGN = "positive = models of random halves of the groups come closer to the full model with the group"

CLOSER_EXCESS_SIGN = f"{CLOSER_SIGN}, more than for the average picture"

AVERAGE = mark("the average picture")

SURE = 2.0  # standard errors beyond which the sign of an ELBO difference is told


@dataclass(frozen=True)
class Reading:
    kind: str  # elbo, path, half, closer, each also with -excess; own
    question: str  # what is asked of every picture and group
    text: str  # of a score
    zero: str  # what an interval must be above for its group to count
    legend: tuple[str, str, str]  # interval above zero, including it, below it; empty: never
    axis: str  # behind the unit on an axis

    @property
    def models(self) -> bool:
        """Whether it compares models with and without the group."""
        return self.kind != "own"

    @property
    def has_zero(self) -> bool:
        """Whether zero says something: of path divergences it does not."""
        return self.kind != "path"

    @property
    def adds_up(self) -> bool:
        """Whether a score per image has a meaning."""
        return self.kind == "elbo"


READINGS = {
    "elbo": Reading(
        "elbo",
        mark("if the model had never seen this group’s images, how much less likely would it find this picture?"),
        mark("The score is in nats (natural-log units of likelihood). Positive: the group mattered. The model explains "
             "the picture worse without it. Close to zero: leaving the group out makes no measurable difference. "
             "Negative: the model explains the picture better without it."),
        mark("zero"),
        (mark("mattered: interval above zero"), mark("interval includes zero"), mark("explained better without it")),
        "",
    ),
    "elbo-excess": Reading(
        "elbo-excess",
        mark("if the model had never seen this group’s images, how much less likely would it find this picture, "
             "compared with its average picture?"),
        mark("The score is in nats, less what the average picture of this model scores. Positive: the group mattered "
             "more than for the average picture. Zero: as much as for the average picture. Negative: less."),
        mark(AVERAGE),
        (mark("more than for the average picture"), mark("not told apart from the average picture"),
         mark("less than for the average picture")),
        "0 = the average picture",
    ),
    "path": Reading(
        "path",
        mark("if the model had never seen this group’s images, how differently would it make this picture?"),
        mark("The score is a path divergence in nats: how far the model’s denoising steps along this picture would "
             "move. Larger: the model changes more without the group. It is never negative, and zero is not the mark "
             "for “no effect”, because any two trainings differ a little. Compare groups with each other. It shows how "
             "much the model changes, and not whether it explains the picture worse or better."),
        mark("zero"), (mark("size of the change"), mark("interval includes zero"), ""), "",
    ),
    "path-excess": Reading(
        "path-excess",
        mark("if the model had never seen this group’s images, how differently would it make this picture, compared "
             "with its average picture?"),
        mark("The score is a log ratio of path divergences: +1.8 means that leaving the group out changes the model 6 "
             "times as much for this picture as for the average picture of this model (e to the power of 1.8). Zero: "
             "as much as for the average picture. Negative: less. It shows how much the model changes, and not whether "
             "it explains the picture worse or better."),
        mark(AVERAGE),
        (mark("changes more than for the average picture"), mark("not told apart from the average picture"),
         mark("changes less than for the average picture")),
        "0 = the average picture",
    ),
    "half": Reading(
        "half",
        mark("if models of random halves of the groups had seen this group’s images, how much better would they "
             "explain this picture?"),
        mark("The score is in nats: how much more likely models that were trained on random halves of the groups find "
             "the picture if the half contains the group, on average (the Banzhaf value at one half). It is not the "
             "score of leaving the group out of the whole. Negative: they explain the picture better without it."),
        mark("zero"),
        (mark("contributes: interval above zero"), mark("interval includes zero"), mark("explained better without it")),
        "",
    ),
    "half-excess": Reading(
        "half-excess",
        mark("if models of random halves of the groups had seen this group’s images, how much better would they "
             "explain this picture, compared with the average picture?"),
        mark("The score is in nats: how much more likely models of random halves of the groups find the picture if the "
             "half contains the group, less the same of the average picture of this model. Zero: as much as for the "
             "average picture."),
        mark(AVERAGE),
        (mark("more than for the average picture"), mark("not told apart from the average picture"),
         mark("less than for the average picture")),
        "0 = the average picture",
    ),
    "closer": Reading(
        "closer",
        mark("if models of random halves of the groups had seen this group’s images, how much closer to the full model "
             "would they come along this picture?"),
        mark("The score is in nats of path divergence: how much nearer models of random halves of the groups come to "
             "the full model along this picture if the half contains the group, on average."),
        mark("zero"),
        (mark("contributes: interval above zero"), mark("interval includes zero"), mark("further away with it")), "",
    ),
    "closer-excess": Reading(
        "closer-excess",
        mark("if models of random halves of the groups had seen this group’s images, how much closer to the full model "
             "would they come, compared with the average picture?"),
        mark("The score is the change of the logarithm of a path divergence: by how much the distance of models of "
             "random halves from the full model shrinks along this picture if the half contains the group, less the "
             "same of the average picture of this model."),
        mark(AVERAGE),
        (mark("more than for the average picture"), mark("not told apart from the average picture"),
         mark("less than for the average picture")),
        "0 = the average picture",
    ),
    "own": Reading(
        "own", mark("how alike are they?"),
        mark("It does not measure what the model would do without the group. Higher means more alike."),
        mark("zero"),
        (mark("interval above zero"), mark("interval includes zero"), mark("interval below zero")), "",
    ),
}  # fmt: skip


def reading_of(scoring: ScoringConfig) -> Reading:
    """How the scores of models with and without a group are read under these settings."""
    kind = "path" if scoring.estimand == "path" else "elbo"
    return READINGS[f"{kind}-excess" if scoring.excess else kind]


BY_SIGN = {
    HALF_SIGN: "half",
    HALF_EXCESS_SIGN: "half-excess",
    CLOSER_SIGN: "closer",
    CLOSER_EXCESS_SIGN: "closer-excess",
}


def reading(unit: str, sign: str) -> Reading:
    if sign in BY_SIGN:
        return READINGS[BY_SIGN[sign]]
    if unit == LOG_UNIT:
        return READINGS["path-excess"]
    if unit != NATS:
        return READINGS["own"]
    return READINGS["path" if sign == PATH_SIGN else "elbo-excess" if sign == EXCESS_SIGN else "elbo"]


def times(score: float) -> str:
    """A log ratio as a factor, with two significant digits or more: 6.0 times, 0.25 times, 148 times."""
    factor = math.exp(min(score, 50.0))
    digits = 1 if factor >= 1 else 2 if factor >= 0.095 else 3
    return tr("{p} times the average picture", p=plain(factor, digits if factor < 10 else 0))


def value(score: float, lo: float | None, hi: float | None, digits: int, unit: str) -> str:
    """+12.3 [10.9, 13.7] nats; of a log ratio +1.79 [1.61, 1.97], 6.0 times the average picture. `digits`: decimals
    where there is no interval."""
    number = " ".join(measured(score, lo, hi, digits)).strip()
    return f"{number}, {times(score)}" if unit == LOG_UNIT else f"{number} {unit}"


def axis_label(unit: str, sign: str) -> str:
    """The unit, with what zero says where that is not obvious."""
    more = reading(unit, sign).axis
    return f"{unit}, {more}" if more else unit


def direction(elbo: float | None, stderr: float | None) -> str | None:
    """What a path divergence leaves out, given back by the ELBO difference: "worse", "better", or None if unsure."""
    if elbo is None or stderr is None or not abs(elbo) > SURE * stderr:
        return None
    return "worse" if elbo > 0 else "better"


def direction_text(group: str, way: str | None) -> str:
    if way is None:
        return ""
    if way == "worse":
        return tr("without {group} the picture is explained worse", group=group)
    return tr("without {group} the picture is explained better", group=group)


Kind = Literal["stands-out", "close", "nothing", "foreign", "copy", "unmeasured"]

LABELS: dict[Kind, str] = {
    "stands-out": mark("One group stands out"),
    "close": mark("Too close to call"),
    "nothing": mark("Nothing stands out"),
    "foreign": mark("Not a picture of this model"),
    "copy": mark("Near copy of a training image"),
    "unmeasured": mark("No interval, no verdict"),
}

NOT_VALIDATED = mark("not validated against retraining")

RACED = mark(
    "by a race, which stops early: scoring with all rounds may give another verdict; not validated against retraining"
)

NAMED = 3  # groups of a tie that are named; the others are counted


@dataclass(frozen=True)
class Verdict:
    kind: Kind
    headline: str
    detail: str
    groups: tuple[str, ...] = ()  # that the verdict names: the one that stands out, or those that are close
    note: str = ""  # how answers like this one were compared with retraining

    @property
    def text(self) -> str:
        return f"{self.headline} ({self.detail}{f'; {self.note}' if self.note else ''})"


def verdict(
    ranked: Sequence[GroupScore], digits: int = 1, floor: float = 0.0, origin: Origin = UNKNOWN, validation: str = ""
) -> Verdict:
    """`ranked`: all groups of one picture, best first; scores must be above `floor` to count. `validation`: how answers
    by this method were compared with retraining."""
    note = tr(validation or NOT_VALIDATED)
    if origin.copy_of is not None:
        return Verdict("copy", tr("nearly repeats the training image {image}", image=origin.copy_of), _alike(origin),
                       (origin.copy_group or "",))  # fmt: skip
    if origin.foreign:
        return Verdict("foreign", tr("this model does not make such pictures"), _unlike(origin))
    by_scores = _by_scores(ranked, digits, floor)
    return replace(by_scores, note=note) if by_scores.groups or note == tr(RACED) else by_scores


def _unlike(origin: Origin) -> str:
    return tr("fewer than {share} % of its own pictures are as unusual; no attribution",
              share=f"{100 * (origin.typical_p or 0):.2g}")  # fmt: skip


def _alike(origin: Origin) -> str:
    if origin.copy_distance is None:
        return tr("of group {group}", group=origin.copy_group)
    return tr("of group {group}, at {distance} of the usual distance", group=origin.copy_group,
              distance=f"{origin.copy_distance:.2g}")  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    if rest > 0:
        return tr("{names} and {n} more", names=", ".join(names[:NAMED]), n=rest)
    return names[0] if len(names) == 1 else tr("{names} and {last}", names=", ".join(names[:-1]), last=names[-1])


def _by_answers(answers: Sequence[str], score: str, clear: bool, clears: str) -> Verdict:
    """From the calibrated set, which errs by the noise of scoring too: the calibration's pictures were scored alike."""
    if len(answers) > 1:
        return Verdict("close", tr("one of the groups {groups}", groups=_listed(answers)),
                       tr("the first is {value}", value=score), tuple(answers))  # fmt: skip
    if not clear:
        return Verdict("nothing", tr("nothing stands out"), _unclear(answers[0], clears, score))
    return Verdict("stands-out", tr("group {group} stands out", group=answers[0]),
                   tr("{value}; alone in its answer set", value=score), (answers[0],))  # fmt: skip


def _unclear(group: str, clears: str, score: str) -> str:
    return tr("the first, {group}, does not clear {floor}: {value}", group=group, floor=clears, value=score)


def _by_scores(ranked: Sequence[GroupScore], digits: int, floor: float) -> Verdict:
    """What the noise of scoring allows to say."""
    first = ranked[0]
    score, read = value(first.score, first.lo, first.hi, digits, first.unit), reading(first.unit, first.sign)
    if first.lo is None:
        return Verdict("unmeasured", tr("group {group} is first", group=first.group),
                       tr("{value}; no interval, so no verdict", value=score))  # fmt: skip
    placebos = tr("what placebo groups score ({floor})", floor=signed(floor, digits))
    clears = tr(read.zero) if floor <= 0 else placebos
    bar = max(floor, 0.0) if read.has_zero or floor > 0 else -math.inf  # path divergences are never zero
    if not any(g.lo is not None and g.lo > bar for g in ranked):
        return Verdict("nothing", tr("nothing stands out"),
                       tr("no interval clears {floor}; first is {group}, {value}", floor=clears, group=first.group,
                          value=score))  # fmt: skip
    if answers := [g.group for g in ranked if g.answer]:
        return _by_answers(answers, score, first.lo > bar, clears)
    may = [g for g in ranked[1:] if g.rank_lo in (None, 1)]
    if first.rank_hi is not None and first.p_first is not None:
        rivals = [] if first.rank_hi == 1 else [g.group for g in may]
        why = tr("their differences are within the error; the first is {value}", value=score)
    else:  # no ranks, or those of a race, which says nothing about the order of the first few
        rivals = [] if first.rank_hi == 1 else [g.group for g in may if g.hi is not None and g.hi >= first.lo]
        why = tr("their intervals overlap that of the first: {value}", value=score)
    tied = [first.group, *rivals]
    if len(tied) > 1:
        return Verdict("close", tr("groups {groups} not separated", groups=_listed(tied)), why, tuple(tied))
    once = 0 if first.rank_hi == 1 else sum(g.lo is None for g in may)
    if once:
        why = tr("{value}; {n} group has no interval (seen only once, or not at all), so its first place is not tested",
                 value=score, n=1) if once == 1 else tr(
            "{value}; {n} groups have no interval (seen only once, or not at all), so its first place is not tested",
            value=score, n=once)  # fmt: skip
        return Verdict("unmeasured", tr("group {group} is first", group=first.group), why)
    if first.lo <= bar:
        return Verdict("nothing", tr("nothing stands out"), _unclear(first.group, clears, score))
    left = sum(g.rank_lo is None for g in ranked[1:]) if first.rank_hi == 1 else 0  # those that a screen left out
    why = tr("{value}; clear of the next group", value=score) if not left else tr(
        "{value}; clear of the next group of the {n} that were raced", value=score, n=len(ranked) - left)  # fmt: skip
    return Verdict("stands-out", tr("group {group} stands out", group=first.group), why, (first.group,))
