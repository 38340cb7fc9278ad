"""The list of methods without importing them: `guda methods` answers at once.

method_index.json holds id, unit and summary of guda's own methods, as their classes declare them; a test compares.
After adding or renaming a method, write it again:

    python -m guda.method_index

Where a plug-in adds methods or operators, everything is imported, which takes seconds.
"""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

FILE = "method_index.json"

GROUPS = ("guda.methods", "guda.operators")  # entry points that add methods

Index = dict[str, dict[str, str]]


def method_index() -> Index:
    """{id: {unit, summary}}, sorted."""
    if any(entry_points(group=group) for group in GROUPS):
        return declared()
    return dict(json.loads(files("guda").joinpath(FILE).read_text("utf-8")))


def declared() -> Index:
    """From the classes themselves."""
    from importlib import import_module

    methods = import_module("guda.methods.base").METHODS
    return {name: {"unit": cls.unit, "summary": cls.summary} for name, cls in sorted(methods.items())}


if __name__ == "__main__":
    from guda.files import write_text

    write_text(Path(__file__).with_name(FILE), json.dumps(declared(), indent=1, ensure_ascii=False) + "\n")
