"""Evidence on a picture's card, where it was gathered (steps/evidence.py): the map of its first group, the picture with
and without that group, and the nearest training images of the group.

The page's first pictures always have it: `guda report` gathers what is missing. Of other pictures it is shown once
`guda map` or `guda exhibit` was asked about them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from guda.errors import GudaError
from guda.report import map_figure
from guda.report.cards import MethodView
from guda.report.content import Content
from guda.report.map_figure import png
from guda.report.pictures import EXEMPLAR, Symbols
from guda.run.data import load_data
from guda.steps.evidence import Evidence, gather_evidence, read_evidence
from guda.steps.fit import Engine

NEAREST = 3

SIDE = 96  # pixels of a map

UNAVAILABLE = ("map-method-unsupported", "method-not-fitted", "model-not-trained", "model-not-given")


@dataclass(frozen=True)
class CardEvidence:
    """Symbols of the page."""

    group: str
    map: str
    worse: str | None  # the signed map of a path divergence
    ends: tuple[str, str]
    signed: bool
    nats: str
    blank: str
    full: str
    without: str
    by: str
    exact: bool  # the full model gives the picture back, bit by bit
    psnr: float
    nearest: tuple[tuple[str, str], ...]  # (symbol, id) in the denoiser's features


def first_group(view: MethodView, q: int) -> str:
    return view.scores.groups[int(view.order[q, 0])]


def gather_examples(content: Content, examples: Iterable[int], engine: Engine) -> None:
    """What the first pictures of the page need; methods without counterfactual models have none."""
    for q in examples:
        try:
            gather_evidence(content.run, content.name, content.queries.ids[q], content.view.id,
                            first_group(content.view, q), engine)  # fmt: skip
        except GudaError as e:
            if e.code in UNAVAILABLE:
                return
            raise


def card_evidence(content: Content, q: int, symbols: Symbols) -> CardEvidence | None:
    """None where it was not gathered, or for another group than the first."""
    try:
        evidence = read_evidence(content.run, content.name, content.queries.ids[q], content.view.id,
                              first_group(content.view, q))  # fmt: skip
    except GudaError:  # a run of given scores, a method without models, a model that has changed since
        return None
    return None if evidence is None else _drawn(content, q, evidence, symbols)


def _drawn(content: Content, q: int, evidence: Evidence, symbols: Symbols) -> CardEvidence:
    pixels, whole, data = content.queries.images[q], evidence.map.whole, load_data(content.run)
    top = map_figure.top_of([whole])
    worse = None if evidence.signed is None else evidence.signed.whole
    near = evidence.near[-1].index[:NEAREST]

    def shown(image: object) -> str:
        return symbols.add_png(png(image))

    return CardEvidence(
        evidence.group,
        shown(map_figure.overlay(pixels, whole, top, SIDE)),
        None if worse is None else shown(map_figure.overlay(pixels, worse, map_figure.top_of([worse]), SIDE)),
        map_figure.scale_ends(top, whole.signed),
        whole.signed,
        f"{whole.score:.2f}",
        map_figure.floor_sentence(whole),
        symbols.add(evidence.drawn.full, EXEMPLAR),
        symbols.add(evidence.drawn.without, EXEMPLAR),
        evidence.drawn.by,
        bool((evidence.drawn.full == evidence.drawn.picture).all()),
        evidence.drawn.psnr,
        tuple((symbols.add(data.images[i], EXEMPLAR), str(data.ids[i])) for i in near),
    )
