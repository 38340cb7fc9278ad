"""`guda ...` in this process, tasks included: what tests/golden and tools/walk.py need.

Everything here that depends on names inside guda is in `_inline_engine`, so that a rename touches one place. The names
of the code before the second floor plan stay listed because walk.py is also run on that code, for comparison.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

ENGINES = (("guda.engine.inline", "run_inline"), ("guda.engine.loop", "run_inline"), ("guda.engine.here", "run_here"))


def _inline_engine() -> Callable[..., int]:
    """engine(run, tasks, title) that runs tasks one after the other in this process, with one thread."""
    for module, name in ENGINES:
        try:
            return getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as e:
            if e.name != module:
                raise
    raise SystemExit(f"no inline engine among {ENGINES}; say in tools/inline_cli.py what it is called now")


@contextmanager
def inline_tasks() -> Any:
    """Commands run their tasks in this process instead of in workers."""
    options = importlib.import_module("guda.cli.options")
    engine, before = _inline_engine(), options.make_engine
    options.make_engine = lambda *args, **kwargs: engine
    try:
        yield
    finally:
        options.make_engine = before


def guda(*args: object) -> str:
    """Run a command line; returns what it prints. A failure is an AssertionError with the code it ended with."""
    from guda.cli.main import main

    before, out = sys.argv, StringIO()
    sys.argv = ["guda", *map(str, args)]
    code: object = 0
    try:
        with inline_tasks(), redirect_stdout(out):
            main()
    except SystemExit as e:
        code = e.code or 0
    finally:
        sys.argv = before
    assert code == 0, f"guda {' '.join(map(str, args))} ended with {code}"
    return out.getvalue()
