"""A flood of uploads against the page of a tiny run, on loopback: how much disk is left taken.

    python tools/flood.py [--files 60] [--mb 9] [--max-total-mb 256]

Starts `guda serve` on a tiny run of digits, sends it files that are no pictures, and prints one line of JSON:
`upload_disk_mb_after_flood`, bytes of the upload folder and of what the run grew by, as MB of 2^20 bytes;
`upload_disk_mb_peak`, the most that was seen after any upload; how many were received whole (and then refused by their
content) and how many were turned away; and whether the upload folder is gone after SIGTERM. Everything happens in a temporary folder that is removed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

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


def send(port: int, token: str, number: int, size: int) -> int:
    """HTTP status of one upload of `size` bytes, unlike any other."""
    edge = "guda-flood"
    head = (
        f'--{edge}\r\nContent-Disposition: form-data; name="picture"; filename="{number}.png"\r\n'
        "Content-Type: image/png\r\n\r\n"
    ).encode()
    body = head + number.to_bytes(8, "big") * (size // 8) + f"\r\n--{edge}--\r\n".encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        headers = {"Content-Type": f"multipart/form-data; boundary={edge}", "Authorization": f"Bearer {token}"}
        connection.request("POST", "/ask", body, headers)
        return connection.getresponse().status
    except ConnectionError:  # refused before all of it was read
        return 0
    finally:
        connection.close()


def flood(files: int = 60, mb: float = 9.0, max_total_mb: float = 256.0) -> dict[str, Any]:
    """What `main` prints; for tools that collect figures."""
    with tempfile.TemporaryDirectory(prefix="guda-flood-") as name:
        root, uploads = tiny_run(Path(name)), Path(name, "tmp")
        uploads.mkdir()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        command = [sys.executable, "-m", "guda", "serve", str(root), "--port", str(port)]
        command += ["--max-total-mb", f"{max_total_mb:g}"]
        server = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(uploads)},
        )
        try:
            assert server.stdout is not None
            token = next((m[1] for m in (re.search(r"\?token=(\S+)", line) for line in server.stdout) if m), None)
            if token is None:
                sys.exit("the server did not start")
            before, peak, answers = disk(root, uploads), 0, Counter[int]()
            for number in range(files):
                answers[send(port, token, number, int(mb * MB))] += 1
                peak = max(peak, disk(root, uploads) - before)
            after = disk(root, uploads) - before
            server.send_signal(signal.SIGTERM)
            server.wait(600)
        finally:
            server.kill()
            server.wait()
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
