"""python tools/walk.py [--src FOLDER] [--json]: what a reader of a command has to walk through.

Runs `guda fit RUN --method retrack` and `guda score RUN --method retrack` on a tiny run with the inline engine, so that
the work of worker processes is included, and lists guda's functions by file in order of first entry. Counted are
functions with a name of their own; not lambdas and comprehensions, and not what runs only while a module is imported.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]


class Walk:
    """Functions of one package that are entered while it is active, in order, with their files."""

    def __init__(self, package: Path) -> None:
        self.package = f"{package}/"
        self.functions: dict[tuple[str, str], None] = {}
        self._counted: set[Any] = set()  # code objects, so that the common case is one look

    def __enter__(self) -> Walk:
        threading.setprofile(self._enter)
        sys.setprofile(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _enter(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in self._counted or not code.co_filename.startswith(self.package):
            return
        if code.co_name.startswith("<"):
            self._counted.add(code)
        elif not self._importing(frame):
            self._counted.add(code)
            self.functions[code.co_filename.removeprefix(self.package), code.co_qualname] = None

    def _importing(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(self.package):
                return True
            frame = frame.f_back
        return False


def walk(package: Path, command: str, run: Path) -> dict[str, list[str]]:
    """{file: functions} of one command, both in order of first entry."""
    from inline_cli import guda

    with Walk(package) as found:
        guda(command, run, "--method", "retrack")
    files: dict[str, list[str]] = {}
    for file, function in found.functions:
        files.setdefault(file, []).append(function.replace(".<locals>.", "."))
    return files


def walks(src: Path) -> dict[str, dict[str, list[str]]]:
    """Of `fit` and `score` on a run that is ready for them, each in a process that remembers nothing."""
    sys.path.insert(0, str(ROOT / "tests" / "golden"))
    from goldenruns import OPERATOR, PLAIN, guda, start, write_digits

    with tempfile.TemporaryDirectory(prefix="guda-walk-") as work:
        run, data = Path(work) / "run", write_digits(Path(work) / "digits", "012")
        start(run, PLAIN | {"data": {"source": str(data)}, "methods": {"retrack": OPERATOR}})
        guda("train", run)
        guda("sample", run)
        found = {}
        for command in ("fit", "score"):
            program = [sys.executable, __file__, "--src", str(src), "--of", command, str(run)]
            found[command] = json.loads(subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout)
        return found


def parts(files: dict[str, list[str]]) -> dict[str, int]:
    """Functions by package (modules of guda itself by their own name), the most first."""
    found: dict[str, int] = {}
    for file, names in files.items():
        part = file.split("/")[0]
        found[part] = found.get(part, 0) + len(names)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def counts(package: Path, found: dict[str, dict[str, list[str]]]) -> dict[str, int]:
    """The figures of benchmarks/results/house.json."""
    files = sorted(package.rglob("*.py"))
    figures = {"src_lines": sum(len(f.read_text().splitlines()) for f in files), "src_files": len(files)}
    for command, prefix in (("score", "walk"), ("fit", "walk_fit")):
        figures[f"{prefix}_functions"] = sum(map(len, found[command].values()))
        figures[f"{prefix}_files"] = len(found[command])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="the code to walk through")
    parser.add_argument("--json", action="store_true", help="the counts only, as one JSON object")
    parser.add_argument("--of", nargs=2, metavar=("COMMAND", "RUN"), help="one command on a run that is there")
    given = parser.parse_args()
    src = given.src.resolve()
    sys.path.insert(0, str(src))
    import guda

    package = Path(guda.__file__).parent
    assert package == src / "guda", package
    if given.of:
        print(json.dumps(walk(package, given.of[0], Path(given.of[1]))))
        return
    found = walks(src)
    figures = counts(package, found)
    if given.json:
        print(json.dumps(figures))
        return
    for command, files in found.items():
        functions = sum(map(len, files.values()))
        print(f"guda {command} RUN --method retrack: {functions} functions in {len(files)} files")
        print("  by part:", ", ".join(f"{part} {n}" for part, n in parts(files).items()))
        for file, names in files.items():
            print(f"  {file}: {', '.join(names)}")
        print()
    print(f"src: {figures['src_lines']:,} lines in {figures['src_files']} files")


if __name__ == "__main__":
    main()
