"""Figures in the text of pages: each is followed by a comment that names it, and is written from benchmarks/results.

    <!-- figures: coalitions digits -->             file and data set of the marks below, up to the next such line
    0.91 [0.89, 0.93]<!--= lds_ceiling -->          a figure, with its interval if the text shows one
    0.93<!--= min answer_set_coverage.elbo.* -->    the smallest (or `max`) of several

    python tools/site/figures.py                    writes every marked figure of README and docs again

A figure keeps the number of digits that it is shown with. A name that the file does not have is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from guda.files import read_json

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
NUMBER = r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
INTERVAL = rf"{NUMBER}\s+\[{NUMBER},\s+{NUMBER}\]"
MARK = re.compile(
    rf"<!-- figures: (?P<file>\S+) (?P<dataset>\S+) -->|(?P<shown>{INTERVAL}|{NUMBER})<!--= (?P<name>[^>]+?) -->"
)


def entries(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """{(file, data set): entry}; of reproduced experiments (file, "evaluation")."""
    found = {
        (path.stem, name): entry
        for path in folder.glob("*.json")
        for name, entry in read_json(path).get("datasets", {}).items()
    }
    return found | {(p.parent.name, "evaluation"): read_json(p) for p in folder.glob("reproduce-*/evaluation.json")}


def flat(entry: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """(dotted name, number) of everything in an entry; `x`, `x.lo` and `x.hi` for an interval, whatever its form."""
    if isinstance(entry, dict):
        for key, value in entry.items():
            short = "" if key in ("figures", "mean") else key
            yield from flat(value, ".".join(filter(None, (name, short))))
    elif isinstance(entry, int | float):
        yield re.sub(r"[._](mean|lo|hi)$", lambda end: "" if end[1] == "mean" else f".{end[1]}", name), float(entry)


def value(figures: dict[str, float], name: str) -> tuple[float, ...]:
    """(figure,) or (figure, lo, hi)."""
    which, _, pattern = name.rpartition(" ")
    if which in ("min", "max"):
        ends = (".lo", ".hi")
        found = [v for k, v in figures.items() if fnmatchcase(k, pattern) and not k.endswith(ends)]
        return ((min if which == "min" else max)(found),)
    return tuple(figures[n] for n in (name, f"{name}.lo", f"{name}.hi") if n == name or n in figures)


def formatted(number: float, like: str) -> str:
    """A number with the digits, the sign and the separators of the text that it replaces."""
    mantissa, e, _ = like.partition("e")
    sign, digits = "+" if like.startswith("+") else "", len(mantissa.partition(".")[2])
    return f"{number:{sign}.{digits}e}" if e else f"{number:{sign},.{digits}f}"


def with_figures(text: str, folder: Path = ROOT / "benchmarks" / "results") -> str:
    """A page with its marked figures as they were measured last."""
    known = {where: dict(flat(entry)) for where, entry in entries(folder).items()}
    here = ("", "")

    def write(found: re.Match[str]) -> str:
        nonlocal here
        if found["shown"] is None:
            here = found["file"], found["dataset"]
            return found[0]
        try:
            numbers = iter(value(known[here], found["name"]))
            shown = re.sub(NUMBER, lambda old: formatted(next(numbers), old[0]), found["shown"])
        except (KeyError, ValueError, StopIteration):
            raise KeyError(f"{here[0]}.json has no figure {found['name']!r} of {here[1]!r} as it is shown") from None
        return f"{shown}<!--= {found['name']} -->"

    return MARK.sub(write, text)


def main() -> None:
    for page in PAGES:
        if (new := with_figures(text := page.read_text())) != text:
            page.write_text(new)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
