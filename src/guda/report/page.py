"""RUN/report.html: one self-contained page for a person who was not there.

It shows the pictures, their groups with intervals, how far to trust them and what they cannot tell. The same run gives
the same bytes: no date, no path of this machine. Without JavaScript the page shows the answers of its main method;
with it, other methods, sorting and filters.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.diffusion.models import asked_groups, load_data, model_digest
from guda.errors import GudaError, Mismatch
from guda.evaluation import tables
from guda.report import health, numbers, trust
from guda.report.cards import PER, MethodView
from guda.report.thumbnails import Symbols, data_uri, side_for
from guda.report.verdict import LABELS
from guda.runs.run import Run
from guda.runs.store import digest_file, write_text
from guda.scoring.drift import SUBTRACTED
from guda.scoring.scores import Scores
from guda.scoring.terms import load_queries

TEMPLATE = "page.html.j2"
EXEMPLARS = 4  # training images shown of each group
SHOWN = 12  # groups of a picture shown at once; the others are folded away
TINY = 96  # pictures of fewer pixels are enlarged with hard edges

PLACEBO_SAYS = ("does not stand out from placebo groups", "first score above 95 % of placebo scores")


def write_report(run: Run, queries: str) -> Path:
    """Write the report on one scored query set; returns its file."""
    path = run.path("report.html")
    write_text(path, render(run, queries))
    return path


def render(run: Run, queries: str) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("guda.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"percent": numbers.percent, "signed": numbers.signed}
    return environment.get_template(TEMPLATE).render(**_context(run, queries))


def read_scores(run: Run, data: ImageData, queries: Queries, name: str) -> list[Scores]:
    """Every method's scores of the set, refused where they are of other pictures or groups."""
    from guda.verbs import scored_methods, scores_path

    methods = scored_methods(run, name)
    if not methods:
        raise GudaError(f"no scores of {name!r} in {run.root}; run: guda score {run.root} --queries {name}")
    found = [Scores.read(scores_path(run, name, m)) for m in methods]
    for scores in found:
        fix = f"run: guda score {run.root} --queries {name}"
        if scores.queries != queries.ids:
            raise Mismatch(f"{scores.method}: scores are of other queries than {name!r}", len(scores.queries),
                           queries.n, fix)  # fmt: skip
        if scores.groups != data.groups.names:
            raise Mismatch(f"{scores.method}: scores are of other groups", scores.groups, data.groups.names, fix)
    return found


def main_method(run: Run, found: list[Scores]) -> int:
    """Which method's answers the page shows first: an ELBO method that is not the oracle, by recipe order."""
    oracle = run.recipe.evaluation.against
    for fits in (lambda s: s.unit == "nats" and s.method != oracle, lambda s: s.method != oracle):
        for i, scores in enumerate(found):
            if fits(scores):
                return i
    return 0


def _model_digest(run: Run) -> str:
    try:
        return model_digest(run, "base")
    except GudaError:
        return "not recorded"


def _about(method: str) -> str:
    from guda.methods.base import known_methods

    found = known_methods().get(method)
    return found.summary if found else ""


def _oracle_says(oracle: MethodView, q: int) -> str:
    name, kind = oracle.scores.groups[oracle.order[q, 0]], oracle.verdicts[q].kind
    return f"retraining puts group {name} first{', not clearly' if kind in ('tied', 'none') else ''}"


def _taught(run: Run, queries: Queries, name: str) -> list[str] | None:
    """What fine-tuning as a whole taught of each picture, where it was scored (methods/pretrained.py)."""
    from guda.verbs import scores_path

    path = scores_path(run, name, "pretrained")
    scores = Scores.read(path) if path.is_file() else None
    if scores is None or scores.queries != queries.ids or scores.lo is None or scores.hi is None:
        return None
    return [
        f"all fine-tuning data together: {s:+.3g} nats [{lo:+.3g}, {hi:+.3g}] over the pretrained start"
        for s, lo, hi in zip(scores.score[:, 0], scores.lo[:, 0], scores.hi[:, 0], strict=True)
    ]


def _context(run: Run, name: str) -> dict[str, Any]:
    from guda.verbs import placebo_null

    data, queries = load_data(run), load_queries(run, name)
    if run.recipe.scoring.groups is not None:
        data = data.only(asked_groups(run))
    found = read_scores(run, data, queries, name)
    main = main_method(run, found)
    nulls = {s.method: placebo_null(run, name, s.method) for s in found}
    views = [MethodView(s, data.groups.sizes, _about(s.method), nulls[s.method]) for s in found]
    view = views[main]
    healths = health.read_views(run, views, main)
    null = nulls[view.id]
    oracle = next((v for v in views if v.id == run.recipe.evaluation.against), None)
    entry = trust.read_evaluation(run, name, queries.n, len(data.groups))
    symbols = Symbols()
    exemplars = [
        tuple(symbols.add(data.images[i]) for i in data.groups.members(g)[:EXEMPLARS]) for g in range(len(data.groups))
    ]
    side = side_for(queries.n)
    oracle_first = [None] * queries.n if oracle is None else [int(g) for g in oracle.order[:, 0]]
    says = [] if oracle is None else [_oracle_says(oracle, q) for q in range(queries.n)]
    ranks = view.scores.rank
    taught = _taught(run, queries, name)
    cards = [
        {
            "id": query,
            "image": data_uri(queries.images[q], side),
            "prompt": queries.prompts[q] if queries.prompts else None,
            "pretrained": None if taught is None else taught[q],
            "verdict": view.verdicts[q],
            "rows": view.rows(q),
            "scale": view.scale(q),
            "oracle": oracle_first[q],
            "placebo": None if view.above is None else int(view.above[q]),
            "oracle_says": None if oracle_first[q] is None else says[q],
            "oracle_rank": None if oracle_first[q] is None else int(ranks[q, oracle_first[q]]),
        }
        for q, query in enumerate(queries.ids)
    ]
    script = files("guda.report").joinpath("page.js").read_text("utf-8")
    return {
        "run": run,
        "set": name,
        "data": data,
        "data_digest": load_data(run).digest,
        "queries": queries,
        "names": data.groups.names,
        "views": views,
        "view": view,
        "evals": int(np.median(view.scores.n_evals)),
        "main": main,
        "oracle": oracle,
        "entry": entry,
        "healths": healths,
        "oracle_health": next((h for h in healths if oracle is not None and h.id == oracle.id), None),
        "drift_subtracted": any(v.estimand.endswith(SUBTRACTED) for v in views if healths and v.id == healths[0].id),
        "null_view": None if null is None else health.NullView(view, null),
        "has_nulls": any(n is not None for n in nulls.values()),
        "placebo_says": PLACEBO_SAYS,
        "trust": trust,
        "tables": tables,
        "labels": LABELS,
        "counts": view.counts(),
        "groups": view.group_lines(exemplars),
        "exemplars": exemplars,
        "symbols": symbols.items(),
        "cards": cards,
        "shown": SHOWN,
        "per": PER,
        "tiny": max(data.shape[1:]) < TINY,
        "uneven": max(data.groups.sizes) / min(data.groups.sizes),
        "name_width": int(np.clip(max(len(n) for n in data.groups.names) + 3, 4, 15)),
        "script": script,
        # The page's own script may run and nothing else: names of groups and queries are other people's text.
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "model_digest": _model_digest(run),
        "score_files": [
            (f"scores/{name}/{v.id}.parquet", digest_file(run.path("scores", name, f"{v.id}.parquet"))) for v in views
        ],
        "json": {
            "main": main,
            "groups": [
                {"name": n, "size": s, "thumb": e[0]}
                for n, s, e in zip(data.groups.names, data.groups.sizes, exemplars, strict=True)
            ],
            "queries": [
                f"{query} {queries.prompts[q] if queries.prompts else ''}".strip().lower()
                for q, query in enumerate(queries.ids)
            ],
            "oracle": oracle_first if oracle else None,
            "oracleName": oracle.id if oracle else None,
            "oracleSays": says,
            "placeboSays": PLACEBO_SAYS,
            "methods": [v.to_json() for v in views],
        },
    }
