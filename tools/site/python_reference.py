"""The Python reference: one entry for mkdocstrings per public name of guda."""

from __future__ import annotations


def python_markdown() -> str:
    import guda

    parts = [
        "# Python",
        "`import guda` brings these names; everything else is internal and may change. The command line calls the same "
        "functions.",
    ]
    functions = [name for name in guda.__all__ if name[0].islower()]
    for name in [*functions, *(n for n in guda.__all__ if n not in functions)]:
        thing = getattr(guda, name)
        options = f"    options: {{heading: guda.{name}, toc_label: guda.{name}}}"
        parts.append(f"::: {thing.__module__}.{thing.__qualname__}\n{options}")
    return "\n\n".join(parts) + "\n"
