"""One picture's card by itself, for a notebook: `guda.show(run, picture)`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files

import numpy as np

from guda.files import digest
from guda.report.card_evidence import gather_examples
from guda.report.cards import MethodView
from guda.report.content import Content
from guda.report.page import TINY, environment
from guda.report.picture_cards import SHOWN, cards, oracle_says
from guda.report.pictures import EXEMPLAR, LARGEST, Symbols
from guda.report.places import places
from guda.scoring.bars import split_sheet
from guda.steps.fit import Engine


@dataclass(frozen=True)
class Card:
    """`html`: the card with its own style; text: the verdict."""

    picture: str
    text: str
    html: str

    def __str__(self) -> str:
        return f"{self.picture}: {self.text}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.html


def single_card(content: Content, view: MethodView, picture: str, engine: Engine | None) -> Card:
    """By another method than the report's where `view` is; with an `engine`, missing evidence is gathered."""
    content.queries.subset([picture])  # an unknown one is refused with a suggestion
    content = replace(content, main=content.views.index(view))
    q = content.queries.ids.index(picture)
    if engine is not None:
        gather_examples(content, [q], engine)
    oracle, data = content.oracle, content.data
    symbols = Symbols(f"g{digest([content.queries.digest, view.id, picture], 8)}-")
    says = [] if oracle is None else [oracle_says(oracle, i) for i in range(content.queries.n)]
    exemplars = [(symbols.add(data.images[data.groups.members(g)[0]], EXEMPLAR),) for g in range(len(data.groups))]
    [card] = cards(content, LARGEST, places(content.queries.ids), says, symbols, [q])
    html = environment("guda.report").get_template("single_card.html.j2").render(
        c=card, view=view, views=content.views, names=data.groups.names, oracle=oracle, shown=SHOWN,
        exemplars=exemplars, symbols=symbols.items(), has_directions=view.scores.elbo is not None, odds_none="",
        has_claims=oracle is not None, has_nulls=False, placebo_says=(), tiny=max(data.shape[1:]) < TINY,
        name_width=int(np.clip(max(len(n) for n in data.groups.names) + 3, 4, 15)), css=_sheet(),
    )  # fmt: skip
    return Card(picture, view.verdicts[q].text, html)


def _sheet() -> str:
    """The report's rules for a card, inside `.guda-card` only: a notebook has its own."""
    light = dark = rules = ""
    for package, name in (("guda.scoring", "bars.css"), ("guda.report", "page_card.css")):
        sheet = split_sheet(files(package).joinpath(name).read_text("utf-8"))
        light, dark, rules = light + sheet[0], dark + sheet[1], rules + sheet[2]
    page = files("guda.report").joinpath("page.css").read_text("utf-8")
    rules += page[page.index("/* Pictures: cards */") : page.index("pre {")]
    return f".guda-card {{{light}{rules}}}\n@media (prefers-color-scheme: dark) {{ .guda-card {{{dark}}} }}"
