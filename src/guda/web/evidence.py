"""The evidence for an answer on its page: the map, the picture with and without the first group, the nearest images.

It is computed once somebody asks for it, in the queue like a picture, and kept in the run. Further views of an answer
(shares, without two groups) are sections of the same kind: a function (service, shot) -> HTML in VIEWS.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from guda.engine.loop import run_inline
from guda.errors import GudaError
from guda.report import map_figure
from guda.report.map_figure import png
from guda.report.pictures import EXEMPLAR, data_uri
from guda.run.data import load_data
from guda.steps.evidence import Evidence, gather_evidence, read_evidence
from guda.web import answer
from guda.web.job import Snapshot
from guda.web.service import Service

NEAREST = 3


def first_group(shot: Snapshot) -> str:
    return shot.scores[0].ranked[0].group


def gather(service: Service, shot: Snapshot) -> Evidence:
    return gather_evidence(service.run, shot.queries, shot.picture, shot.scores.method, first_group(shot), run_inline)


def evidence_section(service: Service, shot: Snapshot) -> Markup:
    """All views of an answer."""
    return Markup("").join(view(service, shot) for view in VIEWS)


def where_and_without(service: Service, shot: Snapshot) -> Markup:
    """What was gathered, or a button that gathers it; nothing where there are no models without a group."""
    if shot.scores.method not in service.methods or shot.scores[0].origin.foreign:
        return Markup("")
    group = first_group(shot)
    try:
        evidence = read_evidence(service.run, shot.queries, shot.picture, shot.scores.method, group)
    except GudaError:  # a model has changed since
        evidence = None
    shown = None if evidence is None else _shown(service, evidence)
    return answer.render("evidence.html.j2", shot=shot, group=group, shown=shown)


VIEWS: tuple[Callable[[Service, Snapshot], Markup], ...] = (where_and_without,)


def _shown(service: Service, evidence: Evidence) -> dict[str, Any]:
    pixels = evidence.drawn.picture
    whole, worse = evidence.map.whole, None if evidence.signed is None else evidence.signed.whole
    top, data = map_figure.top_of([whole]), load_data(service.run)

    def uri(image: Any) -> str:
        return "data:image/png;base64," + base64.b64encode(png(image)).decode()

    return {
        "map": uri(map_figure.overlay(pixels, whole, top)), "signed": whole.signed,
        "ends": map_figure.scale_ends(top, whole.signed), "floor": map_figure.floor_sentence(whole),
        "worse": None if worse is None else uri(map_figure.overlay(pixels, worse, map_figure.top_of([worse]))),
        "full": uri(map_figure.picture_image(evidence.drawn.full)), "by": evidence.drawn.by,
        "without": uri(map_figure.picture_image(evidence.drawn.without)),
        "nearest": [(data_uri(data.images[i], EXEMPLAR), data.ids[i]) for i in evidence.near[-1].index[:NEAREST]],
    }  # fmt: skip
