"""Execute the notebooks of examples/ and keep their outputs: `make examples`.

    python tools/notebooks.py [NAME ...]

They are ordinary .ipynb files. Jupyter is not needed to execute them: cells run one after the other in this process, in
an empty folder, and a line `!guda ...` runs the command line in it too (in Jupyter it is a shell's). What a cell prints
and the value of its last line become its outputs: text, HTML (`_repr_html_`), or PNG for matplotlib figures and images.
A cell that raises stops everything, and the file stays as it was.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def text(cell: dict[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def execute(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells with fresh outputs, run in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    done, count = [], 0
    for cell in cells:
        if cell["cell_type"] != "code":
            done.append(cell)
            continue
        count += 1
        done.append(cell | {"execution_count": count, "outputs": _run(text(cell), names, count)})
    return done


def _run(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    printed, value = io.StringIO(), None
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        for part in _parts(source):
            if part.startswith("!"):
                print(_command(part[1:]), end="")
                value = None
                continue
            tree = ast.parse(part)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "cell", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        outputs.append(
            {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": shown(value)}
        )
    return outputs


def _parts(source: str) -> Iterator[str]:
    """Python between the lines that begin with an exclamation mark, and those lines."""
    held: list[str] = []
    for line in source.splitlines():
        if line.startswith("!"):
            yield "\n".join(held)
            held = []
            yield line
        else:
            held.append(line)
    yield "\n".join(held)


def _command(line: str) -> str:
    from inline_cli import guda

    program, *words = shlex.split(line, comments=True)
    assert program == "guda", f"only guda can be run: {line}"
    return guda(*words)


def shown(value: Any) -> dict[str, Any]:
    """A value in the forms that it has."""
    found: dict[str, Any] = {"text/plain": _lines(repr(value))}
    if hasattr(value, "_repr_html_"):
        found["text/html"] = _lines(value._repr_html_())
    save = getattr(value, "savefig", None)
    if save is None and type(value).__module__.startswith("PIL."):
        save = value.save
    if save is not None:
        buffer = io.BytesIO()
        save(buffer, format="png")
        found |= {
            "text/plain": [f"<{type(value).__name__}>"],
            "image/png": base64.b64encode(buffer.getvalue()).decode(),
        }
    return found


def _lines(value: str) -> list[str]:
    return value.splitlines(keepends=True)


@contextmanager
def _empty_folder() -> Iterator[None]:
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="guda-notebook-") as folder:
        os.chdir(folder)
        os.environ.setdefault("COLUMNS", "100")
        try:
            yield
        finally:
            os.chdir(before)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    wanted = sys.argv[1:] or sorted(p.stem for p in EXAMPLES.glob("*.ipynb"))
    for name in wanted:
        path = EXAMPLES / f"{name}.ipynb"
        cells = json.loads(path.read_text())["cells"]
        with _empty_folder():
            done = execute(cells)
        path.write_text(json.dumps(notebook(done), indent=1, ensure_ascii=False) + "\n")
        print(f"{path.relative_to(ROOT)}: {sum(c['cell_type'] == 'code' for c in done)} cells executed")


if __name__ == "__main__":
    main()
