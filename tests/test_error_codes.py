"""Every error has a stable code: literal where it is raised, and carried along wherever the error goes."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

import guda
from guda.errors import GudaError, Mismatch, NotFinite, OneProcess, from_line
from guda.files import NotHeld
from guda.scoring.plan import OutOfMemory
from guda.web.uploads import Full, Refused

SOURCE = Path(guda.__file__).parent
FILES = [*SOURCE.rglob("*.py"), *(Path(__file__).parents[1] / "benchmarks" / "sources").rglob("*.py")]
ERRORS = {c.__name__ for c in (GudaError, Mismatch, NotFinite, NotHeld, OneProcess, OutOfMemory, Refused, Full)}
KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+){1,3}")


def well_formed(code: ast.expr) -> bool:
    """A literal, a choice between literals, or one that is passed on (`code`, `e.code`)."""
    if isinstance(code, ast.Constant):
        return isinstance(code.value, str) and KEBAB.fullmatch(code.value) is not None
    if isinstance(code, ast.IfExp):
        return well_formed(code.body) and well_formed(code.orelse)
    return (code.id if isinstance(code, ast.Name) else code.attr if isinstance(code, ast.Attribute) else "") == "code"


def test_every_error_is_made_with_a_code() -> None:
    made, wrong = 0, []
    for path in sorted(FILES):
        if path == SOURCE / "errors.py":  # rebuilds errors from what other processes said
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
                made += 1
                if not node.args or not well_formed(node.args[0]):
                    wrong.append(f"{path}:{node.lineno}")
    assert made > 100
    assert wrong == []


def test_every_kind_of_error_is_checked() -> None:
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and {getattr(b, "id", "") for b in node.bases} & ERRORS:
                found.add(node.name)
    assert found <= ERRORS


@pytest.mark.parametrize("kind", [GudaError, NotFinite, NotHeld, OneProcess, OutOfMemory, Refused, Full])
def test_code_and_message_survive_another_process(kind: type[GudaError]) -> None:
    error = kind("run-missing", "run 'x' does not exist")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.code, str(again)) == (error.code, str(error)) == ("run-missing", "run 'x' does not exist")


def test_a_mismatch_arrives_as_its_line() -> None:
    error = Mismatch("terms-stale", "terms", "a", "b", "delete them")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is GudaError
    assert (again.code, str(again)) == ("terms-stale", "terms: found 'a', given 'b'; delete them")


def test_the_printed_line_reads_back() -> None:
    error = GudaError("band-invalid", "bands [1, 2]\n  overlap [a-b]")
    assert error.line == "guda: bands [1, 2] overlap [a-b] [band-invalid]"
    again = from_line(error.line + "\n")
    assert again is not None
    assert (again.code, str(again)) == ("band-invalid", "bands [1, 2] overlap [a-b]")
    assert from_line("guda: stopped") is None
    assert from_line("Traceback [some-code]") is None
