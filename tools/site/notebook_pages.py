"""The tutorials of the site: the executed notebooks of examples/ as pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def tutorial_pages(folder: Path = EXAMPLES) -> dict[str, Callable[[], str]]:
    """{page of the site: what makes it}."""
    return {f"tutorials/{p.stem}.md": partial(page, p) for p in sorted(folder.glob("*.ipynb"))}


def page(path: Path) -> str:
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\]\(([a-z-]+)\.ipynb\)", r"](\1.md)", source).replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts += _output(output)
    link = f"../../examples/{path.name}"
    parts.append(f"*This page is the executed notebook [examples/{path.name}]({link}); `make examples` runs it again.*")
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> Iterator[str]:
    if output["output_type"] == "stream":
        yield f"```text\n{''.join(output['text']).rstrip()}\n```"
        return
    data = output["data"]
    if "text/html" in data:
        rows = (line.strip() for line in "".join(data["text/html"]).splitlines())
        yield '<div class="output">' + "\n".join(line for line in rows if line) + "</div>"
    elif "image/png" in data:
        yield f'<img alt="output of the cell above" src="data:image/png;base64,{data["image/png"]}">'
    else:
        yield f"```text\n{''.join(data['text/plain'])}\n```"
