"""The page on paper: printed to PDF by a browser of the Chromium family, if one is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from guda.errors import GudaError
from guda.files import atomic_path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge", "microsoft-edge")

VARIABLE = "GUDA_BROWSER"

PATIENCE = 600  # seconds


def find_browser() -> str:
    """$GUDA_BROWSER, or the first that is found."""
    given = os.environ.get(VARIABLE)
    for name in (given,) if given else BROWSERS:
        if found := shutil.which(name):
            return found
    if given:
        raise GudaError(
            "browser-invalid",
            f"{VARIABLE}={given} is no program; give the path of Chromium, Chrome or Edge, or unset it",
        )
    raise GudaError(
        "browser-missing",
        f"a PDF needs Chromium, Chrome or Edge and none was found; install one, or name it in ${VARIABLE}, or print "
        "report.html from any browser",
    )


def write_pdf(page: Path, path: Path) -> Path:
    """Print `page`. The browser gets an empty profile and no network to speak of: the page asks for nothing."""
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="guda-pdf-") as profile, atomic_path(path) as tmp:
        made = Path(profile) / "page.pdf"
        command = [
            browser, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-extensions", "--no-pdf-header-footer", f"--user-data-dir={profile}/profile",
            # a container's root cannot have the sandbox; the page runs no script but its own (CSP)
            *(["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []),
            f"--print-to-pdf={made}", page.resolve().as_uri(),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, errors="replace")
        except (OSError, subprocess.TimeoutExpired) as e:
            raise GudaError(
                "browser-failed", f"{browser} could not print {page}: {type(e).__name__}; try ${VARIABLE}"
            ) from None
        if not made.is_file() or made.read_bytes()[:5] != b"%PDF-":
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise GudaError("browser-failed", f"{browser} did not print {page} ({said}); try another with ${VARIABLE}")
        shutil.copyfile(made, tmp)
    return path
