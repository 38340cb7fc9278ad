"""Waiting times of the page: from asking to the first bars, and to a settled first place; and pictures of it.

    python benchmarks/web.py RUN [--n 10] [--method M] [--screenshots DIR]

Starts `guda serve` on the run, brings it pictures that the run's model made, one after the other, in a browser, and
writes medians to benchmarks/results/web.json. Each has a pixel changed by a grey level or so: none was scored before.
The run gets query sets of these uploads: give a copy to keep the original clean. Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from guda import steps
from guda.evaluation.results import DatasetEntry, write_results
from guda.methods.terms import load_queries
from guda.run.run import Run
from guda.web.service import raceable

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def served(run: Path, method: str | None) -> Iterator[tuple[str, float]]:
    """(link, seconds until it answered) of a server of its own."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "guda", "serve", str(run), "--port", str(port)]
    command += ["--method", method] if method else []
    started = time.monotonic()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if line.startswith("Serving"):
                link = next(word for word in line.split() if word.startswith("http://"))
                yield link, time.monotonic() - started
                return
        sys.exit("the server did not start")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def fresh_pictures(run: Run, folder: Path, n: int) -> list[tuple[Path, str]]:
    """(file, prompt): samples of the run, each changed a little, spread over the set."""
    queries = load_queries(run, steps.choose_queries(run))
    rng = np.random.default_rng(time.time_ns())  # never seen before is the point
    found = []
    for number, q in enumerate(np.linspace(0, queries.n - 1, n).round().astype(int)):
        pixels = queries.images[q].copy()
        place = tuple(int(rng.integers(s)) for s in pixels.shape)
        pixels[place] = pixels[place] - 1 if pixels[place] else 1
        flat = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
        for row in range(1, 4):  # a little noise elsewhere, too: a second run must not meet the first one's pictures
            flat[-row, -1] ^= np.uint8(rng.integers(2))
        path = folder / f"picture-{number}.png"
        Image.fromarray(flat).save(path)
        found.append((path, queries.prompts[q] if queries.prompts else ""))
    return found


def in_browser(page: Any, picture: Path, prompt: str) -> tuple[float, float, int]:
    """(seconds to the first bars, seconds to the end, evaluations), as a visitor sees them."""
    page.set_input_files("#picture", str(picture))
    if prompt:
        page.fill("#prompt", prompt)
    started = time.monotonic()
    page.click("#ask-button")
    page.wait_for_selector("#answer .answer .bars")
    first = time.monotonic() - started
    page.wait_for_url("**/result?**", timeout=600_000)
    page.wait_for_selector("#answer .answer[data-state=final]")
    settled = time.monotonic() - started
    return first, settled, int(page.get_attribute("#answer .answer", "data-evaluations"))


def measure(address: str, pictures: list[tuple[Path, str]], screenshots: Path | None) -> list[tuple[float, float, int]]:
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for picture, prompt in pictures:
            page = browser.new_page()
            page.goto(address)
            page.wait_for_selector("#ask-button")
            found.append(in_browser(page, picture, prompt))
            page.close()
        if screenshots is not None:
            shoot(browser, address, pictures[0], screenshots)
        browser.close()
    return found


def shoot(browser: Any, address: str, picture: tuple[Path, str], folder: Path) -> None:
    """A settled answer in light and on a telephone, and in dark the page that asks."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"light": (1280, 1000), "dark": (1280, 800), "narrow": (390, 844)}
    for name, (width, height) in sizes.items():
        scheme = "dark" if name == "dark" else "light"
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(address)
        page.wait_for_selector("#ask-button")
        if name == "dark":  # where one asks; the others show an answer
            page.set_input_files("#picture", str(picture[0]))
            page.wait_for_selector("#preview img")
        else:
            in_browser(page, *picture)
        page.mouse.move(0, 0)
        page.screenshot(path=str(folder / f"app-{name}.png"))
        print(folder / f"app-{name}.png")
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--method")
    parser.add_argument("--screenshots", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "web.json")
    asked = parser.parse_args()
    run = Run.open(asked.run)
    method = asked.method or raceable(run)[0]
    with tempfile.TemporaryDirectory() as folder:
        pictures = fresh_pictures(run, Path(folder), asked.n + 1)
        with served(asked.run, method) as (address, cold):
            times = measure(address, pictures, asked.screenshots)[1:]  # the first one warms up
    first, settled, evals = (np.array(column, float) for column in zip(*times, strict=True))
    figures = {
        "first_bars_seconds": float(np.median(first)), "first_bars_seconds_max": float(first.max()),
        "settled_seconds": float(np.median(settled)), "settled_seconds_max": float(settled.max()),
        "settled_evaluations": float(np.median(evals)), "cold_start_seconds": cold,
        "block": float(run.recipe.scoring.block),
    }  # fmt: skip
    entry = DatasetEntry(
        n_queries=len(times), seeds=[], ceiling=None, methods={}, figures=figures, n_groups=len(run.info["groups"]),
        note=f"{method}, top1@0.95, a warm server, one visitor; seconds from the click to what a browser shows",
    )  # fmt: skip
    write_results(asked.out, f"python benchmarks/web.py {asked.run}", {run.recipe.name: entry})
    for name, value in figures.items():
        print(f"{name:24} {value:.3g}")


if __name__ == "__main__":
    main()
