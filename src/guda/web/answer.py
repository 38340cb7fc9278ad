"""The answer for one picture as HTML: the report's bars and verdict, plus the progress of the race."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from guda.data.images import ImageData
from guda.methods.terms import load_queries
from guda.report.cards import MethodView, Row, Scale
from guda.report.page import EXEMPLARS, PLACEBO_SAYS, SHOWN, TINY
from guda.report.pictures import EXEMPLAR, LARGEST, data_uri
from guda.run.data import load_data
from guda.scoring.race import StopRule
from guda.scoring.reading import Verdict
from guda.table import percent, signed
from guda.web.job import Snapshot, address, to_csv, to_json
from guda.web.service import Service

if TYPE_CHECKING:
    from jinja2 import Environment


TOP = 3

ELSEWHERE = "dashed line: placebo groups on the run's own pictures"


@cache
def environment() -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=ChoiceLoader([PackageLoader(p, ".") for p in ("guda.web", "guda.report", "guda.scoring")]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"percent": percent, "signed": signed}
    return made


def render(template: str, **context: Any) -> str:
    return environment().get_template(template).render(**context)


def refusal(text: str, what: str = "Not accepted:") -> str:
    """One line, whatever the text holds."""
    return render("refused.html.j2", what=what, text=" ".join(text.split()))


class Held(MethodView):
    """The same bars on an axis that never shrinks during a race; otherwise narrowing intervals would not be visible."""

    held: Scale | None = None

    def scale(self, q: int) -> Scale:
        own = super().scale(q)
        return own if self.held is None else Scale(min(own.lo, self.held.lo), max(own.hi, self.held.hi))


def answer(service: Service, shot: Snapshot, note: str = "", held: Scale | None = None) -> tuple[str, Scale]:
    """(HTML, its axis, which the next call of the same race should keep)."""
    data, queries = service.data, load_queries(service.run, shot.queries)
    method = shot.scores.method
    view = Held(shot.scores, data.groups.sizes, service.about(method), service.floor(method, shot.queries))
    view.held = None if shot.final else held
    scale = view.scale(0)
    value = to_json(shot, view)
    above = None if view.above is None or view.null is None else int(view.above[0])  # which of PLACEBO_SAYS
    where = "dashed line" if service.floor_set(method, shot.queries) == shot.queries else ELSEWHERE
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
        placebo=None if above is None or not shot.final or foreign else f"{PLACEBO_SAYS[above]} ({where})",
        below=above == 0,
        note=note,
        remark=shot.scores[0].origin.remark,
        copied=_copied(service, shot),
        top=[(g.group, data.groups.sizes[data.groups.index(g.group)], _pictures(data, g.group))
             for g in shot.scores[shot.picture].top(TOP)],
        name_width=int(np.clip(max(len(n) for n in data.groups.names) + 3, 4, 15)),
        link=link(shot),
        file="-".join(filter(None, [shot.queries, shot.scores.method, shot.rule])),
        json=_download("application/json", json.dumps(value, indent=1, ensure_ascii=False)),
        csv=_download("text/csv", to_csv(value)),
    )  # fmt: skip
    return html, scale


def link(shot: Snapshot) -> str:
    """A set of one picture is named after it, so its address needs no picture."""
    return address(shot.queries, shot.scores.method, shot.rule, None if shot.picture == shot.queries else shot.picture)


def _download(kind: str, text: str) -> str:
    return f"data:{kind};charset=utf-8;base64," + base64.b64encode(text.encode()).decode()


def state(shot: Snapshot) -> str:
    if not shot.final:
        return f"Round {shot.rounds.max()}."
    if shot.scores[0].origin.foreign:  # a race settles who is first among groups that are not named
        return "Not attributed."
    if shot.rule is None:
        return "Scored with all rounds."
    return {True: "Settled.", False: "Not settled: ran out of rounds or budget.", None: "Budget spent."}[shot.settled]


def _copied(service: Service, shot: Snapshot) -> tuple[str, str] | None:
    """(picture, id) of the training image that it nearly repeats."""
    data, image = load_data(service.run), shot.scores[0].origin.copy_of
    return None if image not in data.ids else (data_uri(data.images[data.ids.index(image)], LARGEST), str(image))


def _spent(shot: Snapshot) -> str:
    rounds, groups = int(shot.rounds.max()), len(shot.scores.groups)
    text = f"{shot.evals:,} network evaluations"
    if shot.rule is None:
        return f"{text}, method {shot.scores.method}"
    if not shot.final:
        return f"{text} so far, {int((~shot.left).sum())} of {groups} groups still in the race"
    return f"{text} in {rounds} round{'' if rounds == 1 else 's'}, rule {shot.rule}, method {shot.scores.method}"


def _said(shot: Snapshot, view: MethodView) -> Verdict:
    """During a race there is a leader, but no verdict yet."""
    found = view.verdicts[0]
    settled = shot.final or found.kind in ("foreign", "copy")  # known before the race
    return found if settled else replace(found, headline=f"so far: {found.headline}")


def _leaders(shot: Snapshot) -> str:
    """What a race for several places has settled; the verdict covers only the first place."""
    if not (shot.final and shot.settled and shot.rule) or shot.scores[0].origin.foreign:
        return ""
    rule = StopRule.parse(shot.rule)
    if rule.top == 1 or rule.confidence is None:
        return ""
    names = ", ".join(sorted(g.group for g in shot.scores[shot.picture].top(rule.top)))
    return f"The first {rule.top} groups, in any order, are {names} (confidence {rule.confidence:.0%})."


def _out(shot: Snapshot) -> str:
    """Eliminated groups, by the round after which they were eliminated."""
    if shot.rule is None:
        return ""
    gone = [(int(shot.rounds[g]), name) for g, name in enumerate(shot.scores.groups) if shot.left[g]]
    by_round = {r: [name for n, name in gone if n == r] for r in sorted({r for r, _ in gone})}
    return "; ".join(f"{', '.join(names)} after round {r}" for r, names in by_round.items())


def _leaving(shot: Snapshot) -> str:
    """When the stop rule eliminates a group."""
    if shot.rule is not None and StopRule.parse(shot.rule).confidence is None:
        return "The lower half of the groups is eliminated after each round"
    return "A group is eliminated once it is clearly behind"


def _rows(shot: Snapshot, view: MethodView) -> list[Row]:
    gone = shot.left if shot.rule is not None else np.zeros(len(shot.scores.groups), bool)
    return [replace(row, kind=f"{row.kind} out") if gone[row.group] else row for row in view.rows(0)]


def _pictures(data: ImageData, group: str) -> list[str]:
    return _exemplars(data, data.groups.index(group))


@lru_cache(maxsize=1024)
def _exemplars(data: ImageData, group: int) -> list[str]:
    return [data_uri(data.images[i], EXEMPLAR) for i in data.groups.members(group)[:EXEMPLARS]]


def html(value: str, **options: Any) -> Any:
    """A place for what guda draws, which brings its own style (app.py)."""
    import gradio as gr

    return gr.HTML(value, apply_default_css=False, **options)
