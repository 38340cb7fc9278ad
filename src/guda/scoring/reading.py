"""How a score is read: what its unit and its sign say in words, the same in the report, on the page and in a terminal.

ELBO difference      nats        positive: the model explains the picture worse without the group
its excess           nats        positive: more so than for the average picture
path divergence      nats        never negative; any two trainings differ a little, so zero means nothing
its excess           log ratio   positive: the model changes more than for the average picture; log 6 = 6 times
other                own unit    says nothing about a model without the group
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from guda.table import measured, plain

NATS, LOG_UNIT = "nats", "log ratio"

SIGN = "positive = the group mattered"

EXCESS_SIGN = "positive = the group mattered more than for the average picture"

PATH_SIGN = "larger = the model changes more without the group"

AVERAGE = "the average picture"

SURE = 2.0  # standard errors beyond which the sign of an ELBO difference is told


@dataclass(frozen=True)
class Reading:
    kind: str  # elbo, elbo-excess, path, path-excess, own
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


ASKED = "if the model had never seen this group’s images, how"

NO_SIGN = "It shows how much the model changes, and not whether it explains the picture worse or better."

READINGS = {
    "elbo": Reading(
        "elbo", f"{ASKED} much less likely would it find this picture?",
        "The score is in nats (natural-log units of likelihood). Positive: the group mattered. The model explains the "
        "picture worse without it. Close to zero: leaving the group out makes no measurable difference. Negative: the "
        "model explains the picture better without it.",
        "zero", ("mattered: interval above zero", "interval includes zero", "explained better without it"), "",
    ),
    "elbo-excess": Reading(
        "elbo-excess", f"{ASKED} much less likely would it find this picture, compared with its average picture?",
        "The score is in nats, less what the average picture of this model scores. Positive: the group mattered more "
        "than for the average picture. Zero: as much as for the average picture. Negative: less.",
        AVERAGE, ("more than for the average picture", "not told apart from the average picture",
                  "less than for the average picture"), "0 = the average picture",
    ),
    "path": Reading(
        "path", f"{ASKED} differently would it make this picture?",
        "The score is a path divergence in nats: how far the model’s denoising steps along this picture would move. "
        "Larger: the model changes more without the group. It is never negative, and zero is not the mark for “no "
        f"effect”, because any two trainings differ a little. Compare groups with each other. {NO_SIGN}",
        "zero", ("size of the change", "interval includes zero", ""), "",
    ),
    "path-excess": Reading(
        "path-excess", f"{ASKED} differently would it make this picture, compared with its average picture?",
        "The score is a log ratio of path divergences: +1.8 means that leaving the group out changes the model 6 times "
        "as much for this picture as for the average picture of this model (e to the power of 1.8). Zero: as much as "
        f"for the average picture. Negative: less. {NO_SIGN}",
        AVERAGE, ("changes more than for the average picture", "not told apart from the average picture",
                  "changes less than for the average picture"), "0 = the average picture",
    ),
    "own": Reading(
        "own", "how alike are they?",
        "It does not measure what the model would do without the group. Higher means more alike.",
        "zero", ("interval above zero", "interval includes zero", "interval below zero"), "",
    ),
}  # fmt: skip


def reading(unit: str, sign: str) -> Reading:
    if unit == LOG_UNIT:
        return READINGS["path-excess"]
    if unit != NATS:
        return READINGS["own"]
    return READINGS["path" if sign == PATH_SIGN else "elbo-excess" if sign == EXCESS_SIGN else "elbo"]


def times(score: float) -> str:
    """A log ratio as a factor, with two significant digits or more: 6.0 times, 0.25 times, 148 times."""
    factor = math.exp(min(score, 50.0))
    digits = 1 if factor >= 1 else 2 if factor >= 0.095 else 3
    return f"{plain(factor, digits if factor < 10 else 0)} times {AVERAGE}"


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
    return "" if way is None else f"without {group} the picture is explained {way}"
