"""What `guda --version` prints: enough for a bug report, from metadata alone, so that it answers at once."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from guda import __version__

PACKAGE = Path(__file__).parents[1]


def build_info() -> str:
    """One line: guda's version, the commit it was built from if known, Python, torch, diffusers."""
    parts = [f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in ("torch", "diffusers"))]
    if commit := _commit():
        parts.insert(0, f"commit {commit}")
    return f"guda {__version__} ({', '.join(parts)})"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str | None:
    """Of a wheel the commit it was built from (hatch_build.py); of a checkout its HEAD, `-dirty` with changes."""
    built = PACKAGE / "commit.txt"
    if built.is_file():
        return built.read_text().strip()[:7]
    root = PACKAGE.parents[1]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
        done = subprocess.run(git, cwd=root, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
