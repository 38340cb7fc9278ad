"""RUN/report.html: one self-contained page for readers who did not run the experiment themselves.

It shows the pictures, their groups with intervals, how far to trust them and what they cannot tell. The same run gives
the same bytes: no date, no path of this machine. Without JavaScript the page shows the answers of its main method;
with it, other methods, sorting and filters.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from guda.errors import GudaError
from guda.evaluation.sanity import table as sanity_table
from guda.evaluation.tables import attributable_tables, averages_table, comparison
from guda.files import write_text
from guda.methods.health import warnings
from guda.report import costs, trust
from guda.report.cards import PER, MethodView
from guda.report.content import Content
from guda.report.pictures import BUDGET, EXEMPLAR, Symbols, data_uri, side_for
from guda.report.same_noise import Drawings, read_drawings
from guda.report.shares import coalition_tables
from guda.run.data import load_data
from guda.run.run import Run
from guda.scoring.reading import LABELS, NOT_VALIDATED, PATH_SIGN, READINGS, Verdict, value
from guda.scoring.reference import SUBTRACTED
from guda.scoring.scores import Scores
from guda.table import percent, signed

TEMPLATE = "page.html.j2"

EXEMPLARS = 4  # training images shown of each group

SHOWN = 12  # groups of a picture shown at once; the others are folded away

TINY = 96  # pictures of fewer pixels are enlarged with hard edges

COMPARED = 3  # groups of each method in the table of all methods

EXAMPLES = 3_000_000  # bytes of base64 of all training images

WEIGHT = 28_000_000  # bytes of the page; thumbnails get what text and symbols leave

ROW, LINE, CARD = 420, 150, 3_000  # bytes at most of a bar, of a method's line, of the rest of a card

PLACEBO_SAYS = (
    "does not stand out from placebo groups",
    "the first score is above 95 % of placebo scores, but not its whole interval",
    "the first score is above 95 % of placebo scores",
)

ODDS_NONE = ", among groups that do not stand out"


def report_path(run: Run, queries: str, variant: str | None = None) -> Path:
    """RUN/report.html for the run's own set; other sets and raced scores have files of their own."""
    from guda.steps import choose_queries

    try:
        own = choose_queries(run) == queries
    except GudaError:  # several sets and none is the recipe's
        own = False
    if own and variant is None:
        return run.path("report.html")
    return run.path("-".join(["report", queries, *([variant] if variant else [])]) + ".html")


def write_report(run: Run, queries: str, variant: str | None = None, out: Path | None = None) -> Path:
    """Write the report on one scored query set; returns its file. `variant`: of raced scores, the stop rule's name."""
    return write_content(Content.read(run, queries, variant), out or report_path(run, queries, variant))


def write_content(content: Content, path: Path, drawn: bool = True) -> Path:
    """`drawn`: with the same-noise pictures that are there."""
    write_text(path, render_content(content, drawn))
    return path


def render(run: Run, queries: str, variant: str | None = None) -> str:
    return render_content(Content.read(run, queries, variant))


def render_content(content: Content, drawn: bool = True) -> str:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader("guda.report", "."), PackageLoader("guda.scoring", ".")]), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"percent": percent, "signed": signed}
    return environment.get_template(TEMPLATE).render(**_context(content, drawn))


def _oracle_says(oracle: MethodView, q: int) -> str:
    name, kind = oracle.scores.groups[oracle.order[q, 0]], oracle.verdicts[q].kind
    return f"retraining ranks group {name} first{' (but not clearly)' if kind in ('close', 'nothing') else ''}"


def _taught(content: Content) -> list[str] | None:
    """How much fine-tuning as a whole contributed to each picture, if that was scored (methods/pretrained.py)."""
    from guda.steps import scores_path

    path = scores_path(content.run, content.name, "pretrained")
    scores = Scores.read(path) if path.is_file() else None
    if scores is None or scores.queries != content.queries.ids or scores.lo is None or scores.hi is None:
        return None
    return [
        f"all fine-tuning data together: {value(s, lo, hi, 1, scores.unit)} over the pretrained start"
        for s, lo, hi in zip(scores.score[:, 0], scores.lo[:, 0], scores.hi[:, 0], strict=True)
    ]


def _ways(content: Content) -> list[list[str]]:
    """For every picture, the scores of the higher-level groups in a tree descent; empty if there was none."""
    from guda.steps import upper_levels

    levels = upper_levels(content.run, content.name, content.view.id, content.variant)
    return [
        [
            f"level above ({content.view.id}): "
            + "; ".join(str(g).removesuffix(f" {g.unit}") for g in level[query].top(COMPARED))
            + f" {level.unit}"
            for level in levels
        ]
        for query in content.queries.ids
    ]


def _side_by_side(content: Content, q: int) -> dict[str, Any]:
    """Every method's first groups of one picture, and how many methods rank the same group first as retraining."""
    first, names = content.oracle_first, content.data.groups.names
    rows = [
        (v.id, [(names[g], first is not None and g == first[q]) for g in v.order[q, :COMPARED]]) for v in content.views
    ]
    others = [shown for name, shown in rows if content.oracle is None or name != content.oracle.id]
    return {"rows": rows, "of": len(others), "agree": sum(shown[0][1] for shown in others)}


def _copied(content: Content, symbols: Symbols) -> list[tuple[str, str] | None]:
    """(symbol, id) of the training image that a picture nearly repeats; None: of no image."""
    data, found = load_data(content.run), content.view.scores.origins or ()
    ids = [None if origin.copy_of not in data.ids else origin.copy_of for origin in found]
    shown = [None if i is None else (symbols.add(data.images[data.ids.index(i)], EXEMPLAR), i) for i in ids]
    return shown or [None] * content.queries.n


def _noted(said: Verdict, compared: bool) -> Verdict:
    """Nobody reads "not validated" beside how often retraining agreed, or beside retraining itself."""
    return replace(said, note="") if compared and said.note == NOT_VALIDATED else said


def _cards(
    content: Content, side: int, drawings: Drawings | None, says: list[str], symbols: Symbols
) -> list[dict[str, Any]]:
    view, queries, ranks = content.view, content.queries, content.view.scores.rank
    taught, first, ways = _taught(content), content.oracle_first, _ways(content)
    copied = _copied(content, symbols)
    drawn = None if drawings is None else drawings.methods.get(view.id)
    claims = content.claims(view)
    claimed = ["" if claims is None or claims[1][q] < 0 else claims[0][claims[1][q]] for q in range(queries.n)]
    return [
        {
            "number": q,
            "id": query,
            "image": data_uri(queries.images[q], side),
            "prompt": queries.prompts[q] if queries.prompts else None,
            "pretrained": None if taught is None else taught[q],
            "way": ways[q],
            "verdict": _noted(view.verdicts[q], bool(claimed[q]) or view is content.oracle),
            "remark": view.scores[q].origin.remark,
            "copied": copied[q],
            "odds": view.told_odds(q),
            "untold": view.untold(q),
            "direction": view.direction(q),
            "claimed": claimed[q],
            # tooltips of folded groups would be a tenth of a large page; the numbers are in the rows
            "rows": [replace(r, title="") if i >= SHOWN else r for i, r in enumerate(view.rows(q))],
            "scale": view.scale(q),
            "oracle": None if first is None else first[q],
            "placebo": None if view.above is None else int(view.above[q]),
            "oracle_says": None if first is None else says[q],
            "oracle_rank": None if first is None else int(ranks[q, first[q]]),
            "columns": [] if drawings is None or drawn is None else drawings.chosen(int(view.order[q, 0])),
            "methods": _side_by_side(content, q),
        }
        for q, query in enumerate(queries.ids)
    ]


def _payload(content: Content, exemplars: list[tuple[str, ...]], drawings: Drawings | None, says: list[str]) -> str:
    """What the page's script needs to switch methods, as JSON that is safe inside HTML."""
    from jinja2.utils import htmlsafe_json_dumps

    groups, queries = content.data.groups, content.queries
    value = {
        "main": content.main,
        "groups": [
            {"name": n, "size": s, "thumb": e[0]} for n, s, e in zip(groups.names, groups.sizes, exemplars, strict=True)
        ],
        "queries": [
            f"{query} {queries.prompts[q] if queries.prompts else ''}".strip().lower()
            for q, query in enumerate(queries.ids)
        ],
        "oracle": content.oracle_first,
        "oracleName": content.oracle.id if content.oracle else None,
        "oracleSays": says,
        "placeboSays": PLACEBO_SAYS,
        "oddsNone": ODDS_NONE,
        "labels": LABELS,
        "notValidated": NOT_VALIDATED,
        "drawings": None if drawings is None else drawings.to_json(),
        "methods": [v.to_json() | {"claims": content.claims(v)} for v in content.views],
    }
    return htmlsafe_json_dumps(value, dumps=lambda v, **_: json.dumps(v, separators=(",", ":"), allow_nan=False))


def _context(content: Content, drawn: bool) -> dict[str, Any]:
    from guda.steps import read_sanity

    run, data, queries, view, views = content.run, content.data, content.queries, content.view, content.views
    oracle, null = content.oracle, content.nulls[content.view.id]
    healths = trust.read_views(run, views, content.main)
    symbols = Symbols()
    small = min(EXEMPLAR, side_for(EXEMPLARS * len(data.groups), EXAMPLES))
    exemplars = [
        tuple(symbols.add(data.images[i], small) for i in data.groups.members(g)[:EXEMPLARS])
        for g in range(len(data.groups))
    ]
    ids = [v.id for v in views]
    against = [oracle.id] if oracle is not None and oracle.id in ids else []
    order = list(dict.fromkeys([view.id, *against, *ids]))
    drawings = read_drawings(run, order, symbols) if drawn else None
    says = [] if oracle is None else [_oracle_says(oracle, q) for q in range(queries.n)]
    payload = _payload(content, exemplars, drawings, says)
    text = queries.n * (len(data.groups) * ROW + len(views) * LINE + CARD) + len(payload)
    left = WEIGHT - text - sum(len(uri) for _, uri in symbols.items())
    cards = _cards(content, side_for(queries.n, min(BUDGET, left)), drawings, says, symbols)
    script = files("guda.report").joinpath("page.js").read_text("utf-8")
    digests = content.digests()
    return {
        "run": run,
        "set": content.name,
        "variant": content.variant,
        "data": data,
        "queries": queries,
        "names": data.groups.names,
        "views": views,
        "view": view,
        "evals": int(np.median(view.scores.n_evals)),
        "main": content.main,
        "oracle": oracle,
        "entry": content.entry,
        "calibration": content.calibration(view),
        "sanities": [sanity_table(found) for found in read_sanity(run)],
        "healths": healths,
        "oracle_health": next((h for h in healths if oracle is not None and h.id == oracle.id), None),
        "drift_subtracted": any(v.estimand.endswith(SUBTRACTED) for v in views if healths and v.id == healths[0].id),
        "null_view": None if null is None else trust.NullView(view, null),
        "has_nulls": any(n is not None for n in content.nulls.values()),
        "warnings": warnings(run, ids),
        "has_claims": oracle is not None,
        "headline": trust.headline(content.entry, view.id, oracle is not None),
        "has_directions": any(v.scores.elbo is not None for v in views),
        "excess": view.reading.kind.endswith("excess"),  # whose mean over the pictures of the average is zero
        "asked": READINGS["elbo"].question,
        "path_sign": PATH_SIGN,
        "placebo_says": PLACEBO_SAYS,
        "odds_none": ODDS_NONE,
        "trust": trust,
        "comparison": None if content.entry is None else comparison(content.name, content.entry),
        "averages": None if content.entry is None else averages_table(content.name, content.entry),
        "attributable": [] if content.entry is None else attributable_tables(content.name, content.entry),
        "coalitions": coalition_tables(run, content.name, content.entry),
        "costs": costs,
        "cost_lines": costs.cost_lines(run, content.name, views, content.variant),
        "stage_lines": costs.stage_lines(run),
        "labels": LABELS,
        "counts": view.counts(),
        "groups": view.group_lines(exemplars),
        "exemplars": exemplars,
        "symbols": symbols.items(),
        "drawings": drawings,
        "drawn": None if drawings is None else drawings.methods.get(view.id),
        "cards": cards,
        "shown": SHOWN,
        "per": PER,
        "tiny": max(data.shape[1:]) < TINY,
        "uneven": max(data.groups.sizes) / min(data.groups.sizes),
        "name_width": int(np.clip(max(len(n) for n in data.groups.names) + 3, 4, 15)),
        "script": script,
        # The page's own script may run and nothing else: names of groups and queries are other people's text.
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "digests": digests,
        "payload": payload,
    }
