"""The language of what people read: the report and the page of a run.

English is in the code and in the templates; every other language is a catalogue beside this file,
`languages/<code>.json`, English text -> translation, with the same {placeholders}. tests/test_language.py extracts the
English texts and compares: a text that a catalogue lacks, or does not need any more, fails there.

    with speaking("de"):
        tr("group {group} stands out", group="5")      # Gruppe 5 ragt heraus

What machines read (JSON, CSV, the HTTP API), error messages, the command line and the experts' tables stay English.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Any

from guda.errors import GudaError, choices

LANGUAGES = {"en": "English", "de": "Deutsch", "fr": "Français"}

_spoken: ContextVar[str] = ContextVar("language", default="en")


def spoken() -> str:
    """The code of the present language."""
    return _spoken.get()


@contextmanager
def speaking(code: str) -> Iterator[None]:
    """Everything inside is said in that language."""
    if code not in LANGUAGES:
        raise GudaError("language-unknown", f"{code!r} is not a known language: {choices(LANGUAGES)}")
    token = _spoken.set(code)
    try:
        yield
    finally:
        _spoken.reset(token)


@cache
def catalogue(code: str) -> dict[str, str]:
    if code == "en":
        return {}
    text = files("guda").joinpath("languages", f"{code}.json").read_text("utf-8")
    return dict(json.loads(text))


def mark(text: str) -> str:
    """A constant that is translated where it is shown, by `tr`."""
    return text


def translated(text: str) -> str:
    return catalogue(spoken()).get(text, text)


def tr(text: str, **values: Any) -> str:
    """`text` in the present language, with its placeholders filled in."""
    found = translated(text)
    return found.format(**values) if values else found


def html(text: str, **values: Any) -> Any:
    """For templates: the text may have tags, the values are escaped."""
    from markupsafe import Markup

    found = Markup(translated(text))
    return found.format(**values) if values else found


def preferred(header: str | None) -> str:
    """The first known language of an Accept-Language header."""
    asked = []
    for place, part in enumerate((header or "")[:500].split(",")):
        name, _, quality = part.partition(";q=")
        try:
            asked.append((-float(quality or 1), place, name.strip().lower().partition("-")[0]))
        except ValueError:
            continue
    return next((name for q, _, name in sorted(asked) if name in LANGUAGES and q < 0), "en")
