"""`guda serve` as a process of its own, for the campaigns that disturb it (tools/flood.py, tools/kill_server.py)."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

EDGE = "guda-campaign"


class PageServer:
    """The page of a run on a free port of loopback. `tmp`: where it keeps uploads while it looks at them; `log`: where
    its tasks are noted (tools/task_log.py)."""

    def __init__(self, root: Path, tmp: Path, *options: str, log: Path | None = None) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        program = ["-m", "guda"] if log is None else [str(Path(__file__).parent / "task_log.py"), str(log)]
        self.process = subprocess.Popen(
            [sys.executable, *program, "serve", str(root), "--port", str(self.port), *options],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp)},
        )
        assert self.process.stdout is not None
        found = (re.search(r"\?token=(\S+)", line) for line in self.process.stdout)
        self.token = next((m[1] for m in found if m), None)
        if self.token is None:
            sys.exit("the server did not start")

    def post(self, path: str, picture: bytes, name: str = "picture.png") -> tuple[int, bytes]:
        """(HTTP status, body) of an upload; (0, b"") if the server hung up before it answered."""
        head = (
            f'--{EDGE}\r\nContent-Disposition: form-data; name="picture"; filename="{name}"\r\n'
            "Content-Type: image/png\r\n\r\n"
        ).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            headers = {"Content-Type": f"multipart/form-data; boundary={EDGE}", "Authorization": f"Bearer {self.token}"}
            connection.request("POST", path, head + picture + f"\r\n--{EDGE}--\r\n".encode(), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (ConnectionError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def end(self, sign: signal.Signals) -> None:
        self.process.send_signal(sign)
        self.process.wait(600)
