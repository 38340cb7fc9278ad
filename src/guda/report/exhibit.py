"""The exhibit: two A4 pages on one picture and the group that its scores name first, and the files of its bundle.

The verdict is the report's, word for word. Everything shown is in the bundle as well (report/bundle.py), as figures and
pictures: the same run gives the same bytes, with no date and no path of this machine.
"""

from __future__ import annotations

import base64
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from guda import __version__
from guda.diffusion.activations import LEVELS
from guda.diffusion.inversion import STEPS
from guda.errors import GudaError
from guda.files import digest, digest_arrays, digest_file, library_versions
from guda.methods.elbo import ElboMethod
from guda.methods.terms import run_scorer
from guda.report import map_figure, trust
from guda.report.cards import MethodView
from guda.report.content import Content
from guda.report.export import cell_figures
from guda.report.map_figure import png
from guda.run.data import load_data
from guda.run.models import model_digest, run_schedule
from guda.run.plan import run_plan
from guda.run.run import Run
from guda.scoring.bars import Scale
from guda.scoring.reading import LABELS, LOG_UNIT, direction_text
from guda.scoring.scorer import shard_name
from guda.steps.evidence import Evidence
from guda.table import csv_text, measured, plain, probability

SCHEMA = "guda-exhibit/1"

TEMPLATE = "exhibit.html.j2"

ROWS = 8  # groups in the table of scores; the others are counted

TERM_COLUMNS = ("set", "group", "kind", "round", "stratum", "t", "weight", "share", "square")


def choose_view(content: Content, method: str | None) -> MethodView:
    """Whose answer is shown: the report's main method, or another that was scored."""
    if method is None:
        return content.view
    view = next((v for v in content.views if v.id == method), None)
    if view is None:
        scored = ", ".join(v.id for v in content.views)
        raise GudaError("method-not-scored", f"{method} has no scores of {content.name!r}; scored are: {scored}")
    return view


def first_group(view: MethodView, picture: str) -> str:
    return view.scores[picture].ranked[0].group


@dataclass(frozen=True, eq=False)
class Exhibit:
    content: Content
    view: MethodView
    evidence: Evidence

    @property
    def run(self) -> Run:
        return self.content.run

    @property
    def method(self) -> ElboMethod:
        return self.evidence.method

    @cached_property
    def q(self) -> int:
        return self.content.queries.ids.index(self.evidence.picture)

    @property
    def pixels(self) -> np.ndarray:
        return self.content.queries.images[self.q]

    @cached_property
    def terms(self) -> list[dict[str, Any]]:
        """Every squared error or change that the picture's scores are sums of; see docs/evidence.md."""
        scorer, shard = run_scorer(self.run), _shard(self.run, self.content, self.q)
        place, rounds, rows = shard.ids.index(self.evidence.picture), self.run.recipe.scoring.rounds, []
        for number, (full, others) in enumerate(self.method.sets()):
            models = ([] if scorer.path else [("", full)]) + [(g, others[g]) for g in self.method.groups]
            for group, model in models:
                for r in range(rounds):
                    t, squares, ids = scorer.read_part(shard_name(shard), model, r)
                    assert ids[place] == self.evidence.picture
                    weights = scorer.plan.counts(t[place]) * scorer.weights()[t[place]]
                    shares = self.method.shares(t[place], len(self.method.sets()))[number]
                    columns = (t[place], weights, np.broadcast_to(shares, weights.shape), squares[place])
                    for s, values in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
                        rows.append(dict(zip(TERM_COLUMNS, (number, group, scorer.kind, r, s, *values), strict=True)))
        return rows

    @cached_property
    def nats(self) -> dict[str, float]:
        """The plain score of every group, before a ratio or difference is taken."""
        return plain_scores(self.terms, self.method.groups)

    @cached_property
    def parts(self) -> dict[str, str]:
        """SHA-256 of the terms' files."""
        scorer, shard = run_scorer(self.run), shard_name(_shard(self.run, self.content, self.q))
        rounds = range(self.run.recipe.scoring.rounds)
        names = [scorer.part_name(shard, m, r) for m in scorer.evaluated(self.method.models()) for r in rounds]
        return {name: digest_file(self.run.path(name)) for name in names}

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 of what went in."""
        known = self.content.digests()
        file = next(name for name in known if name.endswith(f"/{self.view.id}.parquet"))
        _, others = self.method.sets()[0]
        return {
            "picture": digest_arrays(self.pixels),
            "model": model_digest(self.run, "base"),
            "counterfactual": digest_file(self.run.path(str(others[self.evidence.group].counterfactual))),
            "data": load_data(self.run).digest,
            "queries": self.content.queries.digest,
            "scores": known[file],
            "terms": digest(self.parts, 64),
        }

    @cached_property
    def scores(self) -> dict[str, Any]:
        """scores.json of the bundle."""
        view, q, evidence = self.view, self.q, self.evidence
        prompts, whole = self.content.queries.prompts, evidence.map.whole
        ranked = list(enumerate(view.order[q], 1))
        data = load_data(self.run)
        return {
            "schema": SCHEMA, "guda": __version__, "recipe": self.run.recipe.name, "queries": self.content.name,
            "picture": evidence.picture, "prompt": prompts[q] if prompts else None, "method": view.id,
            "about": view.about, "estimand": view.estimand, "unit": view.unit, "sign": view.scores.sign, "level": 0.95,
            "verdict": asdict(view.verdicts[q]) | {"text": view.verdicts[q].text},
            "origin": None if view.scores.origins is None else view.scores.origins[q].to_json(),
            "groups": [
                {"group": view.scores.groups[g], "rank": rank, "nats": self.nats[view.scores.groups[g]]}
                | cell_figures(view, q, int(g))
                for rank, g in ranked
            ],
            "map": {
                "group": evidence.group, "unit": "nats", "signed": whole.signed, "nats": whole.score,
                "cells": list(whole.nats.shape), "clear_cells": int(whole.clear.sum()), "clear_nats": whole.shown,
                "bands": [{"t": b.name, "nats": b.score, "clear_cells": int(b.clear.sum())} for b in self.bands],
                "elbo": None if evidence.signed is None else evidence.signed.whole.score,
            },
            "with_without": {
                "by": evidence.drawn.by, "levels": STEPS,
                "psnr": None if np.isinf(evidence.drawn.psnr) else evidence.drawn.psnr,
            },
            "nearest": [
                {"space": n.space, "images": [
                    {"id": data.ids[i], "distance": float(d), "sha256": digest_arrays(data.images[i])}
                    for i, d in zip(n.index, n.distance, strict=True)
                ]} for n in evidence.near
            ],
            "calibration": self.trust, "digests": self.digests, "terms": self.parts,
            "scoring": self.run.recipe.scoring.model_dump(mode="json"),
        }  # fmt: skip

    @cached_property
    def bands(self) -> list[Any]:
        return self.evidence.map.bands(map_figure.wide_edges(run_schedule(self.run).T, run_plan(self.run).edges))

    @cached_property
    def trust(self) -> list[str]:
        """How answers like this one were compared with retraining."""
        view, q = self.view, self.q
        sentences = [view.verdicts[q].note] if view.verdicts[q].note else []
        if view.scores.answer is not None and (odds := view.named_odds(q)):
            more = f" and {view.unnamed(q)} more" if view.unnamed(q) else ""
            sentences.append(f"{view.odds_label}: {', '.join(name for name, _ in odds)}{more}")
        claims = self.content.claims(view)
        if claims is not None and claims[1][q] >= 0:
            sentences.append(claims[0][claims[1][q]])
        if self.content.entry is not None:
            sentences += trust.sentences(self.content.entry, view.id)
        elif self.content.oracle is not None:
            sentences.append(
                "Models were retrained without each group, but not compared with this method (guda evaluate)"
            )
        else:
            sentences.append(
                "No model was retrained without a group in this run: nothing here was checked against what it estimates"
            )
        return [s[:1].upper() + s[1:].rstrip(".") + "." for s in sentences]

    def images(self) -> dict[str, bytes]:
        """The pictures of the bundle: PNG, each at its own pixels or enlarged by a whole factor."""
        evidence, group = self.evidence, self.evidence.map
        top, band_top = map_figure.top_of([group.whole]), map_figure.top_of(self.bands)
        data = load_data(self.run)
        made = {
            "picture.png": map_figure.picture_image(self.pixels, 1),
            "map.png": map_figure.overlay(self.pixels, group.whole, top),
            "with.png": map_figure.picture_image(evidence.drawn.full),
            "without.png": map_figure.picture_image(evidence.drawn.without),
            "difference.png": map_figure.difference_image(evidence.drawn.change),
        }
        if evidence.signed is not None:
            worse = evidence.signed.whole
            made["map-worse.png"] = map_figure.overlay(self.pixels, worse, map_figure.top_of([worse]))
        for b, band in enumerate(self.bands):
            made[f"map-band-{b + 1}.png"] = map_figure.overlay(self.pixels, band, band_top)
        for near, space in zip(evidence.near, ("pixels", "features"), strict=True):
            for i, image in enumerate(near.index):
                made[f"nearest-{space}-{i + 1}.png"] = map_figure.picture_image(data.images[image], 1)
        return {name: png(image) for name, image in made.items()}

    def files(self) -> dict[str, bytes]:
        """All files of the bundle but the manifest."""
        whole = self.evidence.map.whole
        cells = [
            (y, x, float(whole.nats[y, x]), "" if whole.stderr is None else float(whole.stderr[y, x]),
             int(whole.clear[y, x]))
            for y in range(whole.nats.shape[0]) for x in range(whole.nats.shape[1])
        ]  # fmt: skip
        versions = {"run": self.run.info["versions"], "exhibit": library_versions() | {
            "python": platform.python_version(), "machine": platform.machine(),
        }}  # fmt: skip
        return {
            **self.images(),
            "exhibit.html": self.html().encode(),
            "scores.json": _json(self.scores),
            "recipe.yaml": self.run.path("recipe.yaml").read_bytes(),
            "versions.json": _json(versions),
            "terms.csv": _csv(TERM_COLUMNS, [tuple(row.values()) for row in self.terms]),
            "map.csv": _csv(("row", "column", "nats", "stderr", "clear"), cells),
        }

    def html(self) -> str:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        environment = Environment(
            loader=PackageLoader("guda.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        return environment.get_template(TEMPLATE).render(**self._context())

    def _context(self) -> dict[str, Any]:
        view, q, evidence = self.view, self.q, self.evidence
        images = {name.removesuffix(".png"): _uri(data) for name, data in self.images().items()}
        whole, groups = evidence.map.whole, view.scores.groups
        top, band_top = map_figure.top_of([whole]), map_figure.top_of(self.bands)
        order = [int(g) for g in view.order[q]]
        shown = order[:ROWS]
        if groups.index(evidence.group) not in shown:
            shown = [*shown[:-1], groups.index(evidence.group)]
        scale = Scale.of(view.scores.score[q], view.lo if view.lo is None else view.lo[q],
                         view.hi if view.hi is None else view.hi[q])  # fmt: skip
        first = view.scores.cell(q, groups.index(evidence.group))
        data = load_data(self.run)
        kind = view.verdicts[q].kind
        return {
            "exhibit": self, "view": view, "verdict": view.verdicts[q], "label": LABELS[kind], "kind": kind,
            "picture": evidence.picture, "set": self.content.name, "recipe": self.run.recipe.name,
            "prompt": self.content.queries.prompts[q] if self.content.queries.prompts else None,
            "group": evidence.group, "size": int(data.groups.sizes[data.groups.index(evidence.group)]), "data": data,
            "direction": direction_text(f"group {evidence.group}", first.direction),
            "remark": view.scores[q].origin.remark, "named": kind in ("stands-out", "close", "copy"),
            "is_retrained": view.id == self.run.recipe.evaluation.against, "n_groups": len(groups),
            "images": images, "whole": whole, "plain_score": _nats(whole.score, whole.signed),
            "is_ratio": view.unit == LOG_UNIT, "excess": self.run.recipe.scoring.excess,
            "floor": map_figure.floor_sentence(whole), "ends": map_figure.scale_ends(top, whole.signed),
            "bar": _uri(png(map_figure.scale_image(top, whole.signed))) if top else None,
            "band_bar": _uri(png(map_figure.scale_image(band_top, whole.signed))) if band_top else None,
            "worse": self._worse(),
            "band_ends": map_figure.scale_ends(band_top, whole.signed),
            "bands": [
                {"name": map_figure.band_name(b, len(self.bands)), "t": band.name.replace(":", " ≤ t < "),
                 "nats": _nats(band.score, whole.signed), "image": images[f"map-band-{b + 1}"]}
                for b, band in enumerate(self.bands)
            ],
            "latent": whole.nats.shape != self.pixels.shape[1:], "cells": whole.nats.shape,
            "drawn": evidence.drawn, "psnr": None if np.isinf(evidence.drawn.psnr) else round(evidence.drawn.psnr, 1),
            "steps": STEPS, "levels": ", ".join(f"{100 * f:.0f} %" for f in LEVELS),
            "rows": [self._row(g, scale) for g in shown], "left_out": len(order) - len(shown),
            "zero": scale.at(0.0), "has_p": view.tells_odds, "ticks": scale.ticks(),
            "nearest": [
                {"space": n.space, "images": [
                    {"id": data.ids[i], "distance": plain(float(d), 3), "image": images[f"nearest-{space}-{j + 1}"]}
                    for j, (i, d) in enumerate(zip(n.index, n.distance, strict=True))
                ]} for n, space in zip(evidence.near, ("pixels", "features"), strict=True)
            ],
            "trust": self.trust, "digests": self.digests, "versions": self.run.info["versions"],
            "tiny": max(self.pixels.shape[1:]) < 96, "n_terms": len(self.terms), "n_parts": len(self.parts),
            "rounds": self.run.recipe.scoring.rounds, "guda": __version__,
        }  # fmt: skip

    def _worse(self) -> dict[str, Any] | None:
        """The signed map of a path divergence."""
        if self.evidence.signed is None:
            return None
        worse = self.evidence.signed.whole
        top = map_figure.top_of([worse])
        bar = _uri(png(map_figure.scale_image(top, True))) if top else None
        return {"nats": _nats(worse.score, True), "ends": map_figure.scale_ends(top, True), "bar": bar}

    def _row(self, g: int, scale: Scale) -> dict[str, Any]:
        cell = self.view.scores.cell(self.q, g)
        score, interval = measured(cell.score, cell.lo, cell.hi, self.view.digits)
        low, high = sorted((scale.at(0.0), scale.at(cell.score)))
        p = None if cell.p_first is None or not self.view.tells_odds else probability(cell.p_first)
        return {
            "rank": cell.rank, "group": cell.group, "score": score, "interval": interval.strip(), "p": p,
            "nats": _nats(self.nats[cell.group], self.evidence.map.whole.signed),
            "x": low, "w": round(high - low, 2), "negative": cell.score < 0,
            "lo": None if cell.lo is None else scale.at(cell.lo),
            "hi": None if cell.hi is None else scale.at(cell.hi), "mine": cell.group == self.evidence.group,
        }  # fmt: skip


def plain_scores(terms: Sequence[dict[str, Any]], groups: Sequence[str]) -> dict[str, float]:
    """Nats of every group from the rows of terms.csv: the sum of weight share square over strata and sets, mean over
    rounds, less the same of the full model where errors are kept."""
    total: dict[tuple[int, str], float] = {}
    rounds = 1 + max(int(row["round"]) for row in terms)
    for row in terms:
        key = (int(row["set"]), str(row["group"]))
        value = float(row["weight"]) * float(row["share"]) * float(row["square"]) / rounds
        total[key] = total.get(key, 0.0) + value
    sets = {number for number, _ in total}
    return {g: sum(total[s, g] - total.get((s, ""), 0.0) for s in sets) for g in groups}


def _shard(run: Run, content: Content, q: int) -> Any:
    size = run.recipe.scoring.shard
    return content.queries.shards(size)[q // size]


def _nats(value: float, is_signed: bool) -> str:
    digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:+.{digits}f}".replace("-", "−") if is_signed else f"{value:.{digits}f}"


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _csv(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> bytes:
    """Floats in full: what is read back has the same bits."""
    return csv_text([columns, *rows]).encode()


def _uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()
