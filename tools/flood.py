"""A flood of uploads against the page of a tiny run, on loopback: how much disk is left taken.

    python tools/flood.py [--files 60] [--mb 9] [--max-total-mb 256]

Starts `guda serve` on a tiny run of digits, sends it files that are no pictures, and prints one line of JSON:
`upload_disk_mb_after_flood`, bytes of the upload folder and of what the run grew by, as MB of 2^20 bytes;
`upload_disk_mb_peak`, the most that was seen after any upload; how many were received whole (and then refused by their
content) and how many were turned away; and whether the upload folder is gone after SIGTERM. Everything happens in a
temporary folder that is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from page_server import PageServer

MB = 2**20

RECIPE = {  # as small as a run gets that can be raced
    "name": "flood",
    "data": {"source": "digits", "groups": ["0", "1"], "limit_per_group": 16},
    "model": {"net": "mlp", "options": {"width": 16, "depth": 1}, "scheduler": "squaredcos_cap_v2:100"},
    "training": {"steps": 2, "batch": 8, "warmup": 1},
    "methods": {"retrack": {"steps": 1, "batch_forget": 4, "batch_retain": 4}},
    "queries": {"n": 2, "steps": 2},
    "scoring": {"strata": 2, "rounds": 2, "block": 4, "foreign": "skip"},
}


def tiny_run(folder: Path) -> Path:
    """A run that `guda serve` accepts, with models that were hardly trained."""
    from guda import steps
    from guda.engine.loop import run_inline
    from guda.run.recipe import Recipe

    run = steps.init(folder / "run", Recipe.model_validate(RECIPE))
    steps.train(run, run_inline)
    steps.fit(run, ["retrack"], run_inline)
    return run.root


def disk(*folders: Path) -> int:
    """Bytes of all files below."""
    found = (Path(where, name) for folder in folders for where, _, names in os.walk(folder) for name in names)
    return sum(path.stat().st_size for path in found if path.exists())


def flood(files: int = 60, mb: float = 9.0, max_total_mb: float = 256.0) -> dict[str, Any]:
    """What `main` prints; for tools that collect figures."""
    with tempfile.TemporaryDirectory(prefix="guda-flood-") as name:
        root, uploads = tiny_run(Path(name)), Path(name, "tmp")
        uploads.mkdir()
        server = PageServer(root, uploads, "--max-total-mb", f"{max_total_mb:g}")
        try:
            before, peak, answers = disk(root, uploads), 0, Counter[int]()
            for number in range(files):
                unlike = number.to_bytes(8, "big") * int(mb * MB / 8)
                answers[server.post("/ask", unlike, f"{number}.png")[0]] += 1
                peak = max(peak, disk(root, uploads) - before)
            after = disk(root, uploads) - before
            server.end(signal.SIGTERM)
        finally:
            server.end(signal.SIGKILL)
        return {
            "upload_disk_mb_after_flood": round(after / MB, 1), "upload_disk_mb_peak": round(peak / MB, 1),
            "sent_mb": files * mb, "limit_mb": max_total_mb, "received": answers[400],
            "refused": files - answers[400], "folder_removed": not list(uploads.glob("guda-web-*")),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--mb", type=float, default=9.0)
    parser.add_argument("--max-total-mb", type=float, default=256.0)
    print(json.dumps(flood(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
