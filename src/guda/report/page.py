"""RUN/report.html: one self-contained page for readers who did not run the experiment themselves.

It begins with the answer for a few pictures, then shows the groups with what was attributed to each, what scores cannot
tell, every picture, and how far to trust it; the experts' tables are folded. The same run gives the same bytes: no
date, no path of this machine. Without JavaScript the page shows the answers of its main method; with it, other methods,
sorting, filters and pages of 24 pictures, all of them kept in the address behind the `#` (page.js).
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guda.errors import GudaError
from guda.evaluation.sanity import table as sanity_table
from guda.evaluation.tables import attributable_tables, averages_table, comparison
from guda.files import write_text
from guda.language import html, mark, speaking, spoken, tr
from guda.methods.health import warnings
from guda.report import costs, trust
from guda.report.cards import PER, GroupLine
from guda.report.content import Content
from guda.report.picture_cards import SHOWN, Attributed, attributed, cards, examples, oracle_says
from guda.report.pictures import BUDGET, EXEMPLAR, Symbols, side_for
from guda.report.places import GROUP, places
from guda.report.same_noise import read_drawings
from guda.report.shares import coalition_sections
from guda.run.run import Run
from guda.scoring.reading import LABELS, NOT_VALIDATED, PATH_SIGN, READINGS
from guda.scoring.reference import SUBTRACTED
from guda.table import percent, signed

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "page.html.j2"

EXEMPLARS = 4  # training images shown of each group

TINY = 96  # pictures of fewer pixels are enlarged with hard edges

EXAMPLES = 3_000_000  # bytes of base64 of all training images

WEIGHT = 28_000_000  # bytes of the page; thumbnails get what text and symbols leave

ROW, LINE, CARD = 420, 150, 3_500  # bytes at most of a bar, of a method's line, of the rest of a card

PAGE = 24  # cards at a time

GROUPS = 24  # groups shown at once; the others are folded away

PLACEBO_SAYS = (
    mark("does not stand out from placebo groups"),
    mark("the first score is above 95 % of placebo scores, but not its whole interval"),
    mark("the first score is above 95 % of placebo scores"),
)

ODDS_NONE = mark(", among groups that do not stand out")

# What the page's script says by itself.
SCRIPT_TEXTS = (
    mark("All {n} pictures"), mark("{n} of {total} pictures"), mark("{from} to {to} of {n} pictures"),
    mark("{n} of {total} pictures match; {from} to {to} of them"), mark("per {n} images"), mark("group of {n}"),
    mark("first with probability {p}"), mark("this method agrees"), mark("this method ranks it number {rank}"),
    mark("and {n} more"), mark("training image of {group}"), mark("previous"), mark("next"), mark("page {n}"),
    mark("{p} times the average picture"),
    mark("(placebo groups have one size and are not taken into account here)"),
)  # fmt: skip


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


def write_report(
    run: Run, queries: str, variant: str | None = None, out: Path | None = None, language: str = "en"
) -> Path:
    """Write the report on one scored query set; returns its file. `variant`: of raced scores, the stop rule's name."""
    return write_content(
        Content.read(run, queries, variant), out or report_path(run, queries, variant), language=language
    )


def write_content(content: Content, path: Path, drawn: bool = True, language: str = "en") -> Path:
    """`drawn`: with the same-noise pictures that are there."""
    with speaking(language):
        write_text(path, render_content(content, drawn))
    return path


def render(run: Run, queries: str, variant: str | None = None) -> str:
    return render_content(Content.read(run, queries, variant))


def render_content(content: Content, drawn: bool = True) -> str:
    return environment("guda.report").get_template(TEMPLATE).render(**_context(content, drawn))


def environment(*packages: str) -> Environment:
    """Templates of these packages and of the bars; also of the page that `guda serve` shows."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=ChoiceLoader([PackageLoader(p, ".") for p in (*packages, "guda.scoring")]), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {"percent": percent, "signed": signed, "thousands": "{:,}".format}
    made.globals |= {"_": html, "spoken": spoken}
    return made


@dataclass(frozen=True)
class GroupPlace:
    """A group with what was attributed to it."""

    number: int
    place: str
    line: GroupLine
    pictures: list[Attributed]


def _payload(content: Content, exemplars: list[tuple[str, ...]], where: list[str], says: list[str]) -> str:
    """What the page's script needs to switch methods, as JSON that is safe inside HTML."""
    from jinja2.utils import htmlsafe_json_dumps

    groups, queries = content.data.groups, content.queries
    value = {
        "main": content.main,
        "page": PAGE,
        "groups": [
            {"name": n, "size": s, "thumb": e[0]} for n, s, e in zip(groups.names, groups.sizes, exemplars, strict=True)
        ],
        "places": where,
        "queries": [
            f"{query} {queries.prompts[q] if queries.prompts else ''}".strip().lower()
            for q, query in enumerate(queries.ids)
        ],
        "oracle": content.oracle_first,
        "oracleName": content.oracle.id if content.oracle else None,
        "oracleSays": says,
        "placeboSays": [tr(text) for text in PLACEBO_SAYS],
        "oddsNone": tr(ODDS_NONE),
        "labels": {kind: tr(label) for kind, label in LABELS.items()},
        "notValidated": tr(NOT_VALIDATED),
        "text": {text: tr(text) for text in SCRIPT_TEXTS},
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
    says = [] if oracle is None else [oracle_says(oracle, q) for q in range(queries.n)]
    where = places(queries.ids)
    payload = _payload(content, exemplars, where, says)
    text = queries.n * (len(data.groups) * ROW + len(views) * LINE + CARD) + len(payload)
    left = WEIGHT - text - sum(len(uri) for _, uri in symbols.items())
    shown = cards(content, side_for(queries.n, min(BUDGET, left)), where, says, symbols)
    lines, lists = view.group_lines(exemplars), attributed(content)
    listed = [GroupPlace(g, *parts) for g, parts in enumerate(zip(places(data.groups.names, GROUP), lines, lists,
                                                                  strict=True))]  # fmt: skip
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
        "sanities": [sanity_table(check) for check in read_sanity(run)],
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
        "placebo_says": [tr(text) for text in PLACEBO_SAYS],
        "odds_none": tr(ODDS_NONE),
        "trust": trust,
        "comparison": None if content.entry is None else comparison(content.name, content.entry),
        "averages": None if content.entry is None else averages_table(content.name, content.entry),
        "attributable": [] if content.entry is None else attributable_tables(content.name, content.entry),
        "coalitions": coalition_sections(run, content.name, content.entry),
        "costs": costs,
        "cost_lines": costs.cost_lines(run, content.name, views, content.variant),
        "stage_lines": costs.stage_lines(run),
        "labels": {kind: tr(label) for kind, label in LABELS.items()},
        "counts": view.counts(),
        "groups": lines,
        "listed": sorted(listed, key=lambda g: (-len(g.pictures), g.number)),
        "groups_shown": GROUPS,
        "examples": [shown[q] for q in examples(view)],
        "exemplars": exemplars,
        "symbols": symbols.items(),
        "drawings": drawings,
        "drawn": None if drawings is None else drawings.methods.get(view.id),
        "cards": shown,
        "page_size": PAGE,
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
