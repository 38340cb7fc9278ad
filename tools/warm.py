"""Processes of the command line that start at once: forked from one that has everything imported.

Importing torch takes seconds of CPU, most of what a tiny input costs. Nothing of torch is run in the process that is
forked, with one thread, because forking after its threads have started deadlocks.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import pkgutil
import signal
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}  # before torch is imported
sys.path[:0] = [str(TOOLS), str(TOOLS.parent / "src")]

OTHERS = ["pyarrow.parquet", "safetensors.torch", "yaml", "PIL.Image", "rich.console", "rich.table", "numpy.testing"]


def in_memory() -> Path | None:
    """A folder that is not on a disk, where there is one: a sync there takes no time."""
    fast = Path("/dev/shm")
    return fast if os.access(fast, os.W_OK) else None


def run_main(argv: list[str], inline: bool = True) -> int:
    """The command line's own main() in this process; `inline`: its tasks too."""
    from contextlib import nullcontext

    from inline_cli import inline_tasks

    from guda.cli.main import main

    sys.argv = ["guda", *argv]
    code = 0
    try:
        with inline_tasks() if inline else nullcontext():
            main()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    return code


def fork(place: Path, work: Callable[[], int]) -> int:
    """`work` in a new process and session, with place/out and place/err as its output; returns its id. It ends with the
    code that `work` returns, 70 if that fails."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: whoever ends the campaign ends this too
        atexit._clear()  # what the parent is to remove when it ends
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
        for name, fd, flags in (("stdin", 0, os.O_RDONLY), ("out", 1, os.O_WRONLY), ("err", 2, os.O_WRONLY)):
            os.dup2(os.open("/dev/null" if fd == 0 else place / name, flags | os.O_CREAT | os.O_APPEND), fd)
        code = work()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def prepare(world: Path) -> Path:
    """The world (tools/tiny_world.py), made in a process of its own; one that is there is used as it is."""
    if world.exists():
        return world
    with tempfile.TemporaryDirectory() as name:

        def work() -> int:
            from tiny_world import write_world

            write_world(world)
            return 0

        if os.waitpid(fork(Path(name), work), 0)[1]:
            raise SystemExit(f"the tiny world could not be made:\n{(Path(name) / 'err').read_text()}")
    return world


def warm() -> None:
    """Import all of guda but the page and Ray, and what its functions import when they are called."""
    import guda

    names = [m.name for m in pkgutil.walk_packages(guda.__path__, "guda.")]
    for name in [n for n in names if not n.startswith(("guda.web", "guda.engine.ray", "guda.__main__"))] + OTHERS:
        with suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(name)
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel  # noqa: F401  (diffusers imports on demand)
