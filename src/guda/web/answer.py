"""The answer for one picture as HTML: the report's bars and verdict, plus the progress of the race."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from guda.data.images import ImageData
from guda.errors import GudaError
from guda.language import mark, tr
from guda.methods.terms import load_queries
from guda.report.cards import MethodView, Row, Scale
from guda.report.page import EXEMPLARS, PLACEBO_SAYS, TINY, environment
from guda.report.picture_cards import SHOWN
from guda.report.pictures import EXEMPLAR, LARGEST, data_uri
from guda.run.data import load_data
from guda.scoring.race import StopRule
from guda.scoring.reading import Verdict
from guda.web.job import Snapshot, address
from guda.web.service import Service

if TYPE_CHECKING:
    from jinja2 import Environment


TOP = 3

HERE, ELSEWHERE = mark("dashed line"), mark("dashed line: placebo groups on the run's own pictures")


@cache
def templates() -> Environment:
    return environment("guda.web", "guda.report")


def render(template: str, **context: Any) -> Markup:
    return Markup(templates().get_template(template).render(**context))


def macro(name: str, *values: Any, file: str = "widgets.html.j2") -> Markup:
    """What a macro of a template file gives."""
    return Markup(getattr(templates().get_template(file).module, name)(*values))


def refusal(error: GudaError, what: str | None = None) -> Markup:
    """One line, whatever the text holds."""
    return macro("refused", " ".join(str(error).split()), what or tr("Not accepted:"))


def waiting(ahead: int) -> Markup:
    if not ahead:
        return macro("empty", tr("Scoring starts now."))
    if ahead == 1:
        return macro("empty", tr("1 picture is ahead of this one in the queue."))
    return macro("empty", tr("{n} pictures are ahead of this one in the queue.", n=ahead))


class Held(MethodView):
    """The same bars on an axis that never shrinks during a race; otherwise narrowing intervals would not be visible."""

    held: Scale | None = None

    def scale(self, q: int) -> Scale:
        own = super().scale(q)
        return own if self.held is None else Scale(min(own.lo, self.held.lo), max(own.hi, self.held.hi))


def answer(service: Service, shot: Snapshot, note: str = "", held: Scale | None = None) -> tuple[Markup, Scale]:
    """(HTML, its axis, which the next call of the same race should keep)."""
    data, queries = service.data, load_queries(service.run, shot.queries)
    method = shot.scores.method
    view = Held(shot.scores, data.groups.sizes, service.about(method), service.floor(method, shot.queries))
    view.held = None if shot.final else held
    scale = view.scale(0)
    above = None if view.above is None or view.null is None else int(view.above[0])  # which of PLACEBO_SAYS
    where = HERE if service.floor_set(method, shot.queries) == shot.queries else ELSEWHERE
    foreign = shot.scores[0].origin.foreign
    html = render(
        "answer.html.j2",
        shot=shot,
        view=view,
        scale=scale,
        rows=_rows(shot, view),
        shown=SHOWN,
        tiny=max(data.shape[1:]) < TINY,
        image=data_uri(queries.images[queries.ids.index(shot.picture)], LARGEST),
        state=state(shot),
        spent=_spent(shot),
        said=_said(shot, view),
        leaders=_leaders(shot),
        out=_out(shot),
        leaving=_leaving(shot),
        placebo=None if above is None or not shot.final or foreign else f"{tr(PLACEBO_SAYS[above])} ({tr(where)})",
        below=above == 0,
        note=note,
        remark=shot.scores[0].origin.remark,
        copied=_copied(service, shot),
        top=[(g.group, data.groups.sizes[data.groups.index(g.group)], _pictures(data, g.group))
             for g in shot.scores[shot.picture].top(TOP)],
        name_width=int(np.clip(max(len(n) for n in data.groups.names) + 3, 4, 15)),
        link=link(shot),
        file="-".join(filter(None, [shot.queries, shot.scores.method, shot.rule])),
    )  # fmt: skip
    return html, scale


def link(shot: Snapshot) -> str:
    """A set of one picture is named after it, so its address needs no picture."""
    return address(shot.queries, shot.scores.method, shot.rule, None if shot.picture == shot.queries else shot.picture)


def state(shot: Snapshot) -> str:
    if not shot.final:
        return tr("Round {n}.", n=shot.rounds.max())
    if shot.scores[0].origin.foreign:  # a race settles who is first among groups that are not named
        return tr("Not attributed.")
    if shot.rule is None:
        return tr("Scored with all rounds.")
    if shot.settled is None:
        return tr("Budget spent.")
    return tr("Settled.") if shot.settled else tr("Not settled: ran out of rounds or budget.")


def _copied(service: Service, shot: Snapshot) -> tuple[str, str] | None:
    """(picture, id) of the training image that it nearly repeats."""
    data, image = load_data(service.run), shot.scores[0].origin.copy_of
    return None if image not in data.ids else (data_uri(data.images[data.ids.index(image)], LARGEST), str(image))


def _spent(shot: Snapshot) -> str:
    rounds, groups = int(shot.rounds.max()), len(shot.scores.groups)
    values = {"n": f"{shot.evals:,}", "method": shot.scores.method}
    if shot.rule is None:
        return tr("{n} network evaluations, method {method}", **values)
    if not shot.final:
        left = int((~shot.left).sum())
        return tr("{n} network evaluations so far, {left} of {groups} groups still in the race", left=left,
                  groups=groups, **values)  # fmt: skip
    return tr("{n} network evaluations, rounds: {rounds}, rule {rule}, method {method}", rounds=rounds, rule=shot.rule,
              **values)  # fmt: skip


def _said(shot: Snapshot, view: MethodView) -> Verdict:
    """During a race there is a leader, but no verdict yet."""
    verdict = view.verdicts[0]
    settled = shot.final or verdict.kind in ("foreign", "copy")  # known before the race
    return verdict if settled else replace(verdict, headline=tr("so far: {headline}", headline=verdict.headline))


def _leaders(shot: Snapshot) -> str:
    """What a race for several places has settled; the verdict covers only the first place."""
    if not (shot.final and shot.settled and shot.rule) or shot.scores[0].origin.foreign:
        return ""
    rule = StopRule.parse(shot.rule)
    if rule.top == 1 or rule.confidence is None:
        return ""
    names = ", ".join(sorted(g.group for g in shot.scores[shot.picture].top(rule.top)))
    return tr("The first {n} groups, in any order, are {names} (confidence {confidence}).", n=rule.top, names=names,
              confidence=f"{rule.confidence:.0%}")  # fmt: skip


def _out(shot: Snapshot) -> str:
    """Eliminated groups, by the round after which they were eliminated."""
    if shot.rule is None:
        return ""
    gone = [(int(shot.rounds[g]), name) for g, name in enumerate(shot.scores.groups) if shot.left[g]]
    by_round = {r: [name for n, name in gone if n == r] for r in sorted({r for r, _ in gone})}
    return "; ".join(tr("{names} after round {n}", names=", ".join(names), n=r) for r, names in by_round.items())


def _leaving(shot: Snapshot) -> str:
    """When the stop rule eliminates a group."""
    if shot.rule is not None and StopRule.parse(shot.rule).confidence is None:
        return tr("The lower half of the groups is eliminated after each round")
    return tr("A group is eliminated once it is clearly behind")


def _rows(shot: Snapshot, view: MethodView) -> list[Row]:
    gone = shot.left if shot.rule is not None else np.zeros(len(shot.scores.groups), bool)
    return [replace(row, kind=f"{row.kind} out") if gone[row.group] else row for row in view.rows(0)]


def _pictures(data: ImageData, group: str) -> list[str]:
    return _exemplars(data, data.groups.index(group))


@lru_cache(maxsize=1024)
def _exemplars(data: ImageData, group: int) -> list[str]:
    return [data_uri(data.images[i], EXEMPLAR) for i in data.groups.members(group)[:EXEMPLARS]]
