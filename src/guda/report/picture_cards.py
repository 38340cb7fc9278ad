"""What the page shows of every picture: its card, its line in the list of a group, and the few that come first.

The first pictures are chosen by a rule that does not look at scores: the first picture (by id) of each of FIRST groups
that stand out, then the first of every other kind of verdict. A page that began with its best scores would mislead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from guda.language import tr
from guda.report.card_evidence import card_evidence
from guda.report.cards import MethodView
from guda.report.content import Content
from guda.report.pictures import EXEMPLAR, Symbols
from guda.run.data import load_data
from guda.scoring.reading import LABELS, LOG_UNIT, NOT_VALIDATED, Verdict, times, value
from guda.scoring.scores import Scores

SHOWN = 12  # groups of a picture shown at once; the others are folded away

COMPARED = 3  # groups of each method in the table of all methods

FIRST, EXAMPLES = 4, 6  # groups that stand out among the first pictures; first pictures


def examples(view: MethodView) -> list[int]:
    """Numbers of the pictures that the page begins with."""
    seen: dict[int, int] = {}
    for q, verdict in enumerate(view.verdicts):
        if verdict.kind in ("stands-out", "unmeasured") and len(seen) < FIRST:
            seen.setdefault(int(view.order[q, 0]), q)
    chosen = list(seen.values())
    kinds = [verdict.kind for verdict in view.verdicts]
    for kind in ("close", "nothing", "copy", "foreign"):
        if kind in kinds and len(chosen) < EXAMPLES:
            chosen.append(kinds.index(kind))
    rest = (q for q in range(len(kinds)) if q not in chosen)
    while len(chosen) < min(3, len(kinds)):
        chosen.append(next(rest))
    return chosen


def oracle_says(oracle: MethodView, q: int) -> str:
    name, kind = oracle.scores.groups[oracle.order[q, 0]], oracle.verdicts[q].kind
    if kind in ("close", "nothing"):
        return tr("retraining ranks group {group} first (but not clearly)", group=name)
    return tr("retraining ranks group {group} first", group=name)


def beside_oracle(rank: int) -> str:
    """How this method ranks the group that retraining ranks first."""
    return tr("this method agrees") if rank == 1 else tr("this method ranks it number {rank}", rank=rank)


@dataclass(frozen=True)
class Attributed:
    """A picture in the list of the group that comes first for it."""

    number: int
    kind: str
    value: str
    agrees: bool | None  # with retraining; None: not retrained


def attributed(content: Content) -> list[list[Attributed]]:
    """For every group its pictures, best first. A picture that the model does not make is in no list."""
    view, first = content.view, content.oracle_first
    lists: list[list[Attributed]] = [[] for _ in content.data.groups.names]
    scores = view.scores.first
    for q in sorted(range(content.queries.n), key=lambda q: (-float(scores[q]), q)):
        g = int(view.order[q, 0])
        if view.verdicts[q].kind != "foreign":
            agrees = None if first is None or view is content.oracle else first[q] == g
            lists[g].append(Attributed(q, view.verdicts[q].kind, view.rows(q)[0].value, agrees))
    return lists


def taught(content: Content) -> list[str] | None:
    """How much fine-tuning as a whole contributed to each picture, if that was scored (methods/pretrained.py)."""
    from guda.steps import scores_path

    path = scores_path(content.run, content.name, "pretrained")
    scores = Scores.read(path) if path.is_file() else None
    if scores is None or scores.queries != content.queries.ids or scores.lo is None or scores.hi is None:
        return None
    return [
        tr("all fine-tuning data together: {value} over the pretrained start", value=value(s, lo, hi, 1, scores.unit))
        for s, lo, hi in zip(scores.score[:, 0], scores.lo[:, 0], scores.hi[:, 0], strict=True)
    ]


def ways(content: Content) -> list[list[str]]:
    """For every picture, the scores of the higher-level groups in a tree descent; empty if there was none."""
    from guda.steps import upper_levels

    levels = upper_levels(content.run, content.name, content.view.id, content.variant)
    return [
        [
            tr("level above ({method})", method=content.view.id) + ": "
            + "; ".join(str(g).removesuffix(f" {g.unit}") for g in level[query].top(COMPARED))
            + f" {level.unit}"
            for level in levels
        ]
        for query in content.queries.ids
    ]  # fmt: skip


def side_by_side(content: Content, q: int) -> dict[str, Any]:
    """Every method's first groups of one picture, and how many methods rank the same group first as retraining."""
    first, names = content.oracle_first, content.data.groups.names
    rows = [
        (v.id, [(names[g], first is not None and g == first[q]) for g in v.order[q, :COMPARED]]) for v in content.views
    ]
    others = [shown for name, shown in rows if content.oracle is None or name != content.oracle.id]
    return {"rows": rows, "of": len(others), "agree": sum(shown[0][1] for shown in others)}


def copied(content: Content, symbols: Symbols) -> list[tuple[str, str] | None]:
    """(symbol, id) of the training image that a picture nearly repeats; None: of no image."""
    data, origins = load_data(content.run), content.view.scores.origins or ()
    ids = [None if origin.copy_of not in data.ids else origin.copy_of for origin in origins]
    shown = [None if i is None else (symbols.add(data.images[data.ids.index(i)], EXEMPLAR), i) for i in ids]
    return shown or [None] * content.queries.n


def noted(verdict: Verdict, compared: bool) -> Verdict:
    """Nobody reads "not validated" beside how often retraining agreed, or beside retraining itself."""
    return replace(verdict, note="") if compared and verdict.note == tr(NOT_VALIDATED) else verdict


def cards(
    content: Content, side: int, places: list[str], says: list[str], symbols: Symbols, only: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """What the template of a card takes, of every picture or of those numbered `only`."""
    view, queries, ranks = content.view, content.queries, content.view.scores.rank
    learned, first, levels = taught(content), content.oracle_first, ways(content)
    copies, claims = copied(content, symbols), content.claims(view)
    claimed = ["" if claims is None or claims[1][q] < 0 else claims[0][claims[1][q]] for q in range(queries.n)]
    return [
        {
            "number": q,
            "place": places[q],
            "id": query,
            "image": symbols.add(queries.images[q], side),
            "prompt": queries.prompts[q] if queries.prompts else None,
            "pretrained": None if learned is None else learned[q],
            "way": levels[q],
            "verdict": noted(view.verdicts[q], bool(claimed[q]) or view is content.oracle),
            "label": tr(LABELS[view.verdicts[q].kind]),
            "group": int(view.order[q, 0]),
            "times": times(float(view.scores.score[q, view.order[q, 0]])) if view.unit == LOG_UNIT else "",
            "remark": view.scores[q].origin.remark,
            "copied": copies[q],
            "odds": view.named_odds(q),
            "unnamed": view.unnamed(q),
            "direction": view.direction(q),
            "claimed": claimed[q],
            # tooltips of folded groups would be a tenth of a large page; the numbers are in the rows
            "rows": [replace(r, title="") if i >= SHOWN else r for i, r in enumerate(view.rows(q))],
            "scale": view.scale(q),
            "oracle": None if first is None else first[q],
            "placebo": None if view.above is None else int(view.above[q]),
            "oracle_says": None if first is None else f"{says[q]}; {beside_oracle(int(ranks[q, first[q]]))}",
            "oracle_rank": None if first is None else int(ranks[q, first[q]]),
            "evidence": card_evidence(content, q, symbols),
            "methods": side_by_side(content, q),
        }
        for q, query in enumerate(queries.ids)
        if only is None or q in only
    ]
