"""The report as other files: a tidy table (CSV), everything as JSON, and the page printed to PDF.

CSV: one row per picture, method and group; columns as in COLUMNS, empty where the method has none.

JSON, schema "guda-report/1":
    schema, guda            this name and the version of guda that wrote it
    recipe, queries, variant  names; variant: the stop rule of raced scores, or null
    main, oracle            method ids; oracle: null where nothing was retrained
    level                   of the intervals lo, hi, rank_lo, rank_hi
    digests                 {what: SHA-256} of weights, data, pictures, files of scores
    groups                  [{name, images}]
    pictures                [{id, prompt, oracle_first, origin}]; origin: {typical_p, accepted, copy_of, copy_group,
                            copy_distance} (scoring/origin.py), or null where it was not checked
    methods                 [{id, about, unit, sign, estimand, placebo, cost, calibration, answers}]
        placebo             {placebos, images, median, q95, first_above, of} or null
        cost                {fit_seconds, query_seconds, query_stderr, fit_evals, query_evals, ...} or null
        calibration         {by_probability, by_verdict}: [{claim, k, n, lo, hi, said}], or null
        answers             one per picture, in order: {verdict: {kind, headline, detail, note}, groups: best first,
                            [{group, rank, score, stderr, lo, hi, p_first, rank_lo, rank_hi, stderr_training,
                            predicted_lo, predicted_hi, answer, n_evals}]}
    evaluation              the run's evaluation.json of this set (schema guda-results/1, one entry), or null
    health                  {method: leakage and drift, as in RUN/health/, and verdicts {group: sound, ...}}
    warnings                lines to be read before any score: a model still learning, unsound counterfactuals

PDF: printed by a browser of the Chromium family, if one is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from guda import __version__
from guda.errors import GudaError
from guda.files import atomic_path, write_text
from guda.methods.health import warnings
from guda.report import costs, trust
from guda.report.cards import MethodView
from guda.report.content import Content
from guda.table import csv_text

SCHEMA = "guda-report/1"

FIGURES = (
    "score", "stderr", "lo", "hi", "p_first", "rank_lo", "rank_hi", "elbo", "elbo_stderr", "stderr_training",
    "predicted_lo", "predicted_hi", "answer", "n_evals",
)  # fmt: skip

ORIGIN = ("typical_p", "accepted", "copy_of", "copy_group", "copy_distance")  # of the picture

COLUMNS = (
    "query", "prompt", "method", "group", "rank", "score", "unit", "stderr", "lo", "hi", "p_first", "rank_lo",
    "rank_hi", "elbo", "elbo_stderr", "stderr_training", "predicted_lo", "predicted_hi", "answer", "verdict", "n_evals",
    *ORIGIN,
)  # fmt: skip


def cell_figures(view: MethodView, q: int, g: int) -> dict[str, float | int | None]:
    """Everything known of one score; None where the method has none."""
    figures: dict[str, float | int | None] = {}
    for name in FIGURES:
        array = getattr(view.scores, name)
        value = None if array is None else float(np.broadcast_to(array, view.scores.score.shape)[q, g])
        whole = name in ("rank_lo", "rank_hi", "answer", "n_evals")
        figures[name] = None if value is None or np.isnan(value) else int(value) if whole else value
    return figures


def write_csv(content: Content, path: Path) -> Path:
    rows: list[Iterable[object]] = [COLUMNS]
    prompts = content.queries.prompts
    for view in content.views:
        for q, query in enumerate(content.queries.ids):
            same = {"query": query, "prompt": prompts[q] if prompts else None, "method": view.id, "unit": view.unit,
                    "verdict": view.verdicts[q].kind, **(_origin(view, q) or {})}  # fmt: skip
            for rank, g in enumerate(view.order[q], 1):
                row = same | {"group": view.scores.groups[g], "rank": rank} | cell_figures(view, q, int(g))
                rows.append([row.get(column) for column in COLUMNS])
    write_text(path, csv_text(rows))
    return path


def _origin(view: MethodView, q: int) -> dict[str, Any] | None:
    return None if view.scores.origins is None else view.scores.origins[q].to_json()


def to_json(content: Content) -> dict[str, Any]:
    prompts, first, names = content.queries.prompts, content.oracle_first, content.data.groups.names
    timings = costs.cost_lines(content.run, content.name, content.views, content.variant)
    return {
        "schema": SCHEMA,
        "guda": __version__,
        "recipe": content.run.recipe.name,
        "queries": content.name,
        "variant": content.variant,
        "main": content.view.id,
        "oracle": content.oracle.id if content.oracle else None,
        "level": 0.95,
        "digests": content.digests(),
        "groups": [
            {"name": n, "images": int(s)} for n, s in zip(names, content.data.groups.sizes, strict=True)
        ],
        "pictures": [
            {"id": query, "prompt": prompts[q] if prompts else None, "oracle_first": names[first[q]] if first else None,
             "origin": _origin(content.view, q)}
            for q, query in enumerate(content.queries.ids)
        ],
        "methods": [
            _method(content, view) | {"cost": line.timing.model_dump(mode="json") if line.timing else None}
            for view, line in zip(content.views, timings, strict=True)
        ],
        "evaluation": content.entry.model_dump(mode="json") if content.entry else None,
        "warnings": warnings(content.run, [v.id for v in content.views]),
        "health": {
            h.id: h.health.model_dump(mode="json")
            for h in trust.read_views(content.run, content.views, content.main)
        },
    }  # fmt: skip


def _method(content: Content, view: MethodView) -> dict[str, Any]:
    null, calibration = content.nulls[view.id], content.calibration(view)
    return {
        "id": view.id, "about": view.about, "unit": view.unit, "sign": view.scores.sign, "estimand": view.estimand,
        "placebo": null.to_json(view.scores) if null else None,
        "calibration": None if calibration is None else {
            "by_probability": [asdict(s) for s in calibration[0]], "by_verdict": [asdict(s) for s in calibration[1]],
        },
        "answers": [
            {
                "verdict": asdict(view.verdicts[q]),
                "groups": [
                    {"group": view.scores.groups[g], "rank": rank} | cell_figures(view, q, int(g))
                    for rank, g in enumerate(view.order[q], 1)
                ],
            }
            for q in range(content.queries.n)
        ],
    }  # fmt: skip


def write_json_report(content: Content, path: Path) -> Path:
    write_text(path, json.dumps(to_json(content), ensure_ascii=False, allow_nan=False) + "\n")
    return path


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge", "microsoft-edge")

VARIABLE = "GUDA_BROWSER"

PATIENCE = 600  # seconds


def find_browser() -> str:
    """$GUDA_BROWSER, or the first that is installed."""
    named = os.environ.get(VARIABLE)
    for name in (named,) if named else BROWSERS:
        if path := shutil.which(name):
            return path
    if named:
        raise GudaError(
            "browser-invalid",
            f"{VARIABLE}={named} is not a program; give the path of Chromium, Chrome or Edge, or unset it",
        )
    raise GudaError(
        "browser-missing",
        f"a PDF needs Chromium, Chrome or Edge and none was found; install one, or name it in ${VARIABLE}, or print "
        "report.html from any browser",
    )


def write_pdf(page: Path, path: Path) -> Path:
    """Print `page`. The browser gets an empty profile and no network to speak of: the page asks for nothing."""
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="guda-pdf-") as profile, atomic_path(path) as tmp:
        made = Path(profile) / "page.pdf"
        command = [
            browser, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-extensions", "--no-pdf-header-footer", f"--user-data-dir={profile}/profile",
            # a container's root cannot have the sandbox; the page runs no script but its own (CSP)
            *(["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []),
            f"--print-to-pdf={made}", page.resolve().as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, errors="replace")
        except (OSError, subprocess.TimeoutExpired) as e:
            raise GudaError(
                "browser-failed", f"{browser} could not print {page}: {type(e).__name__}; try ${VARIABLE}"
            ) from None
        if not made.is_file() or made.read_bytes()[:5] != b"%PDF-":
            reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise GudaError(
                "browser-failed", f"{browser} did not print {page} ({reason}); try another with ${VARIABLE}"
            )
        shutil.copyfile(made, tmp)
    return path
