"""A picture's groups as bars with intervals: the report's, the app's and a notebook's HTML, and matplotlib's.

The bar is the score, the whisker its 95 % interval; full colour where the interval is clear of zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from guda.errors import GudaError
from guda.language import html
from guda.scoring.reading import axis_label, value
from guda.table import decimals, measured, plain

if TYPE_CHECKING:
    from guda.scoring.scores import GroupScore, Scores

TICKS = 4

COLOURS = ("#0072B2", "#D55E00")  # mattered, explained better without it: of the Okabe-Ito palette

INK = "#222222"

PICTURES, GROUPS = 12, 10  # that a notebook shows at most

DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{([^}]*)\}\s*\}")

LIGHT = re.compile(r"^:root \{([^}]*)\}", re.MULTILINE)


@dataclass(frozen=True)
class Scale:
    """From scores to percent of a bar's track; zero is always on it."""

    lo: float
    hi: float

    @classmethod
    def of(cls, *arrays: np.ndarray | None) -> Scale:
        known = [a for a in arrays if a is not None]
        lo = min(0.0, *(float(np.nanmin(a)) for a in known if not np.isnan(a).all()))
        hi = max(0.0, *(float(np.nanmax(a)) for a in known if not np.isnan(a).all()))
        return cls(lo, hi) if hi > lo else cls(0.0, 1.0)

    def at(self, value: float) -> float:
        return round(100 * (value - self.lo) / (self.hi - self.lo), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """(percent, label): zero and round numbers on both sides of it."""
        raw = (self.hi - self.lo) / TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = power * next(m for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
        digits = max(0, -math.floor(math.log10(step)))
        numbers = range(math.ceil(self.lo / step - 1e-9), math.floor(self.hi / step + 1e-9) + 1)
        return [(self.at(n * step), plain(n * step, digits)) for n in numbers]


@dataclass(frozen=True)
class Row:
    """One group of one picture; a, w, l, h: left end and width of the bar, ends of the whisker, percent."""

    group: int
    name: str
    kind: str  # CSS classes: pos | neg, sure where the interval clears zero, open where there is none
    style: str
    value: str
    interval: str
    title: str


def make_row(group: int, found: GroupScore, scale: Scale, digits: int, more: str = "") -> Row:
    """`more` goes into the tooltip, behind score and interval."""
    a, b = sorted((scale.at(0.0), scale.at(found.score)))
    style = f"--a:{a:g}%;--w:{b - a:.4g}%"
    if found.lo is not None and found.hi is not None:
        style += f";--l:{scale.at(found.lo):g}%;--h:{scale.at(found.hi) - scale.at(found.lo):.4g}%"
    text, between = measured(found.score, found.lo, found.hi, digits)
    title = f"{found.group}: {value(found.score, found.lo, found.hi, digits, found.unit)}{more}"
    kind = "neg" if found.score < 0 else "pos"
    kind += " open" if found.lo is None else " sure" if found.clear else ""
    return Row(group, found.group, kind, style, text, between, title)


def split_sheet(css: str) -> tuple[str, str, str]:
    """(light colours, dark colours, rules) of a style sheet that declares its colours in :root."""
    dark, css = "".join(DARK.findall(css)), DARK.sub("", css)
    return "".join(LIGHT.findall(css)), dark, LIGHT.sub("", css)


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("guda.scoring", "."), autoescape=True)
    environment.globals["_"] = html
    return environment.from_string(
        """{% from "bars.html.j2" import axis, bars, verdict %}
<div class="guda-scores" style="--names:{{ names }}ch;--values:{{ values }}ch"><style>{{ css|safe }}</style>
<p>{{ about }}</p>
{% for p in pictures %}<section style="--zero:{{ p.scale.at(0) }}%"><p><b>{{ p.query }}</b></p>{{ verdict(p.verdict) }}
{{ bars(p.rows[:shown], none, 1) }}{{ axis(p.scale, unit) }}
{% if p.rows|length > shown %}<p>{{ p.rows|length - shown }} more groups</p>{% endif %}</section>{% endfor %}
{% if left %}<p>{{ left }} more pictures</p>{% endif %}</div>"""
    )


def to_html(scores: Scores) -> str:
    """The first pictures with their verdicts and bars, for a notebook."""
    light, dark, rules = split_sheet(files("guda.scoring").joinpath("bars.css").read_text("utf-8"))
    css = f".guda-scores {{{light}{rules}}}\n@media (prefers-color-scheme: dark) {{ .guda-scores {{{dark}}} }}"
    digits, pictures = decimals(scores.score), list[dict[str, Any]]()
    for each in list(scores)[:PICTURES]:
        scale = Scale.of(*(np.array([np.nan if v is None else v for v in values])
                           for values in zip(*((g.score, g.lo, g.hi) for g in each.ranked), strict=True)))  # fmt: skip
        rows = [make_row(i, g, scale, digits) for i, g in enumerate(each.ranked)]
        pictures.append({"query": each.query, "scale": scale, "rows": rows, "verdict": each.verdict()})
    shown = [row for p in pictures for row in p["rows"][:GROUPS]]
    values = max(len(f"{row.value} {row.interval}") for row in shown)
    return str(
        _template().render(
            css=css, about=f"{scores.method}: {scores.unit}, {scores.sign}; {scores.estimand}",
            unit=axis_label(scores.unit, scores.sign),
            pictures=pictures, names=min(30, max(len(row.name) for row in shown)) + 1, values=values, shown=GROUPS,
            left=len(scores) - len(pictures),
        )
    )  # fmt: skip


def draw_bars(axis: Any, ranked: Sequence[GroupScore], sign: str, mark: str | None = None) -> None:
    """On a matplotlib axis. `mark`: a group whose name gets a diamond."""
    for y, g in enumerate(ranked):
        axis.barh(y, g.score, 0.62, color=COLOURS[g.score < 0], alpha=1 if g.clear else 0.35, lw=0)
        if g.lo is not None and g.hi is not None:
            axis.plot([g.lo, g.hi], [y, y], color=INK, lw=1.1, marker="|", ms=5, zorder=3)
    axis.axvline(0, color=INK, lw=0.7)
    axis.set_yticks(range(len(ranked)), [f"{'◆ ' if g.group == mark else ''}{g.group}" for g in ranked])
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(ranked) - 0.4, -0.6)
    what = "bars: score, lines: 95 % intervals" if ranked[0].lo is not None else "no intervals: no error model"
    axis.set_xlabel(f"{axis_label(ranked[0].unit, sign)} ({sign}; {what})")


def plot(scores: Scores, n: int) -> Any:
    """A matplotlib figure of the first `n` pictures, one below the other."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise GudaError("package-missing", "plots need matplotlib; run: pip install 'guda[figures]'") from None
    shown = list(scores[:n])
    figure = Figure(figsize=(7, len(shown) * max(2.0, 1.1 + 0.24 * len(scores.groups))), layout="constrained")
    for axis, picture in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
        draw_bars(axis, picture.ranked, scores.sign)
        axis.set_title(f"{picture.query}, {scores.method}: {picture.verdict().headline}", loc="left", wrap=True)
    return figure
