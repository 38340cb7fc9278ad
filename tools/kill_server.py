"""kill -9 of `guda serve` in the middle of a question, then the same question again: `python tools/kill_server.py`.

Each trial serves a tiny run, asks about one picture over HTTP, and kills the server after a keyed number of newly
published files, once or twice. A new server is then asked about the same picture. Counted:

    kills_of_server               servers killed before they had answered
    server_kills_after_publish    those that hit after the question had published its first file
    server_differences            trials whose answer or files are not those of an undisturbed server
    server_redone                 tasks that were finished before the kill, with all their files there, and ran again
    server_rewritten_files        files written a second time by tasks that were killed between two of their files
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

from kill import differing, digests, published, stamps
from page_server import PageServer
from task_log import Stamp, written_again
from warm import in_memory, prepare, warm

PARTS = ("terms", "queries", "scores", "pilot.json")  # what a question publishes
LIMIT = 600.0


class Trials:
    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.seed, self.counts = root, seed, Counter[str]()
        self.picture = (root / "pictures" / "q0.png").read_bytes()
        place = self.place()
        known = set(published(place / "run", PARTS))
        self.log = root / "tasks.jsonl"
        server = PageServer(place / "run", place, log=self.log)
        self.answer = self.ask(server)
        server.end(signal.SIGTERM)
        self.whole = digests(place / "run")
        self.new = len(set(published(place / "run", PARTS)) - known)

    def place(self) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self.root))
        shutil.copytree(self.root / "run", folder / "run")
        return folder

    def ask(self, server: PageServer) -> object:
        status, body = server.post("/api/attribute", self.picture)
        return json.loads(body) if status == 200 else (status, body.decode(errors="replace")[:200])

    def trial(self, number: int) -> None:
        rng = Random(f"{self.seed}/server/{number}")
        place = self.place()
        run, known = place / "run", set(published(place / "run", PARTS))
        kept: dict[str, Stamp] = {}
        for _ in range(rng.choice([1, 1, 2])):
            server = PageServer(run, place)
            asked = threading.Thread(target=server.post, args=("/api/attribute", self.picture))
            asked.start()
            present = len(set(published(run, PARTS)) - known)
            wanted = present + rng.randint(1, max(1, self.new - present - 1))
            deadline = time.monotonic() + LIMIT
            while len(set(published(run, PARTS)) - known) < wanted and asked.is_alive():
                if time.monotonic() > deadline:
                    break
                time.sleep(0.001)
            waiting = asked.is_alive()
            server.end(signal.SIGKILL)
            asked.join()
            self.counts["kills_of_server"] += waiting
            self.counts["server_kills_after_publish"] += waiting and bool(set(published(run, PARTS)) - known)
            kept = self.redone(kept, run, number)
        server = PageServer(run, place)
        answer = self.ask(server)
        server.end(signal.SIGTERM)
        self.redone(kept, run, number)
        other = differing(digests(run), self.whole)
        if answer != self.answer or other:
            self.counts["server_differences"] += 1
            print(f"       differs: trial {number}: {other[:4]} {answer if answer != self.answer else ''}", flush=True)
        shutil.rmtree(place, ignore_errors=True)

    def redone(self, kept: dict[str, Stamp], run: Path, number: int) -> dict[str, Stamp]:
        """Count what was written again; returns what is there now."""
        now = stamps(run, (*PARTS, "timings"))
        again = written_again(self.log, kept, now)
        self.counts["server_redone"] += len(again.tasks)
        self.counts["server_rewritten_files"] += len(again.unfinished)
        self.counts["server_rewritten_others"] += len(again.others)
        if again.tasks or again.unfinished or again.others:
            print(f"       written again: trial {number}: {again}", flush=True)
        return now


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the counts to benchmarks/results/hardening.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guda-kill-server-", dir=in_memory()) as name:
        warm()
        trials = Trials(prepare(Path(name, "world")), given.seed)
        for number in range(10 * given.kills):
            if trials.counts["kills_of_server"] >= given.kills:
                break
            trials.trial(number)
            print(f"{number:>6}  {dict(trials.counts)}", flush=True)
    names = ("kills_of_server", "server_kills_after_publish", "server_differences", "server_redone",
             "server_rewritten_files", "server_rewritten_others")  # fmt: skip
    value = {n: float(trials.counts[n]) for n in names}
    if given.write:
        from hardening import record

        record("kill-server", value, f"python tools/kill_server.py --kills {given.kills} --write")
    print("\n".join(f"{k} {v:,.0f}" for k, v in value.items()))
    return int(bool(value["server_differences"] or value["server_redone"]))


if __name__ == "__main__":
    sys.exit(main())
