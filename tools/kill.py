"""kill -9 at keyed moments of every command, then the same command again: `python tools/kill.py --kills 100`.

Each trial takes a tiny run that is ready for one command (train, fit, sample, score, a race, calibrate, evaluate,
shares, without, report), starts the command, and kills its driver or one of its workers: after a keyed number of newly
published files and a keyed short delay, or before the first. It does so up to three times and then lets the command
finish. Counted:

    kills                  processes killed while the command was still running
    kills_after_publish    those that hit after the command had published its first file
    kill_differences       trials whose files are not byte-identical with an undisturbed run, or that did not finish
    redone_tasks           tasks that were finished, with all their files there, and ran again (tools/task_log.py)
    rewritten_files        files written a second time by tasks that were killed between two of their files
    kill_orphans           processes of a killed command that did not end by themselves
    driver_differences     trials with two drivers at once whose files differ, or of which one failed
    full_trials            trials on a disk that fills up while the command runs, with room made afterwards
    full_tracebacks        those that did not end with one line and exit code 2
    full_differences       those whose files differ after the command was run again with room

Drivers are forked from a process that has imported everything (tools/warm.py), and so are their workers, which the
program itself spawns; `--cold` makes every n-th trial start `python -m guda` as a user does. `--engine ray` kills the
driver, a worker and a node (raylet) of a private Ray cluster; all its trials are cold. Trial N of a seed is always the
same up to the machine's timing: `--only N`.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from task_log import Stamp, noting, written_again
from tiny_world import VERBS, command, write_inputs
from warm import TOOLS, fork, in_memory, run_main, warm

LIMIT = 1800.0  # seconds: something is broken, however loaded the machine is
TASKS = ("models", "artifacts", "terms", "queries", "figures", "pilot.json")  # what tasks publish
# what every way to the end must leave in the same bytes; timings and what shows them are compared without seconds
EXACT = (*TASKS, "data", "scores", "calibration", "shares", "without", "recipe.yaml", "evaluation.json")
SECONDS = re.compile(rb'"[a-z_]*seconds[a-z_]*": *[^,}\s]+|"created": *[^,}]+')


# ---- what is on disk -----------------------------------------------------------------------------------------------
def _below(top: Path) -> Iterator[Path]:
    """Its files, temporary folders aside: those vanish while one looks."""
    for folder, folders, names in os.walk(top):  # which passes over what is gone, as rglob does not
        folders[:] = [f for f in folders if not f.startswith(".tmp-")]
        yield from (Path(folder, name) for name in names)


def published(root: Path, parts: tuple[str, ...] = EXACT) -> dict[str, os.stat_result]:
    """Files with their final names."""
    found = {}
    for part in parts:
        top = root / part
        for path in [top] if top.is_file() else _below(top):
            name = path.relative_to(root).as_posix()
            if ".tmp-" not in name and "checkpoints/" not in name:
                with suppress(FileNotFoundError):
                    if path.is_file():
                        found[name] = path.stat()
    return found


def digests(root: Path) -> dict[str, str]:
    found = {}
    for name in sorted(published(root)):
        data = (root / name).read_bytes()
        found[name] = hashlib.sha256(SECONDS.sub(b"", data) if name.endswith(".json") else data).hexdigest()
    return found


def stamps(root: Path, parts: tuple[str, ...]) -> dict[str, Stamp]:
    return {name: (s.st_mtime_ns, s.st_ino) for name, s in published(root, parts).items()}


def differing(a: dict[str, str], b: dict[str, str]) -> list[str]:
    return sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))


# ---- processes -----------------------------------------------------------------------------------------------------
def parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    found[int(entry.name)] = int(fields[1])
    return found


def family(pid: int) -> list[int]:
    """The living descendants of a process, oldest first."""
    known, found, new = parents(), [], [pid]
    while new:
        new = sorted(child for child, parent in known.items() if parent in new)
        found += new
    return found


class Driver:
    """One command on one run, forked or (cold) started as a user does."""

    def __init__(self, argv: list[str], place: Path, cold: bool, file_size: int | None = None) -> None:
        self.place, self.argv = place, argv
        (place / "err").write_text("")
        if cold:
            env = os.environ | {"PYTHONPATH": str(TOOLS.parent / "src")}
            with open(place / "err", "a") as err:
                self.process: subprocess.Popen[bytes] | None = subprocess.Popen(
                    [sys.executable, "-m", "guda", *argv], cwd=place, env=env, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=err, start_new_session=True,
                )  # fmt: skip
            self.pid, self.status = self.process.pid, None
        else:
            self.process, self.status = None, None
            self.pid = fork(place, functools.partial(_work, argv, place, file_size))

    def code(self) -> int | None:
        """None while it runs."""
        if self.status is None:
            if self.process is not None:
                self.status = self.process.poll()
            elif (done := os.waitpid(self.pid, os.WNOHANG))[0]:
                self.status = os.waitstatus_to_exitcode(done[1])
        return self.status

    def wait(self, limit: float = LIMIT) -> int | None:
        deadline = time.monotonic() + limit
        while self.code() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.code()

    @property
    def err(self) -> str:
        return (self.place / "err").read_text(errors="replace")

    def refused(self) -> bool:
        """Ended with one line and exit code 2."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        return self.code() == 2 and bool(lines) and lines[-1].startswith("guda: ") and "Traceback" not in self.err


def _work(argv: list[str], place: Path, file_size: int | None) -> int:
    os.chdir(place)
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    context = multiprocessing.get_context  # a worker that is spawned would import torch again
    multiprocessing.get_context = lambda method=None: context("fork")  # type: ignore[assignment]
    return run_main(argv, inline=False)


def end(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# ---- trials --------------------------------------------------------------------------------------------------------
class Campaign:
    def __init__(self, scratch: Path, seed: int, engine: str) -> None:
        self.scratch, self.seed, self.engine = scratch, seed, engine
        self.counts: Counter[str] = Counter()
        self.log = scratch / "tasks.jsonl"  # of the undisturbed run
        self.before: dict[str, Path] = {}  # a run that is ready for the verb
        self.whole: dict[str, dict[str, str]] = {}  # what it must leave behind
        self.new: dict[str, int] = {}  # how many files it publishes

    def prepare(self) -> None:
        """Every verb undisturbed, one after the other, with tasks in one process."""
        root = self.scratch / "reference"
        write = self.scratch / "prepared"
        write.mkdir()

        def work() -> int:
            write_inputs(root)
            os.chdir(root)
            code = run_main(["init", "run", "--recipe", "recipe.yaml"])
            with noting(self.log):
                for verb in VERBS:
                    shutil.copytree("run", self.scratch / "before" / verb)
                    code = code or run_main(command(verb, "run"))
                    (write / f"{verb}.json").write_text(json.dumps(digests(Path("run"))))
            return code

        if os.waitpid(fork(write, work), 0)[1]:
            raise SystemExit(f"the undisturbed run failed:\n{(write / 'err').read_text()}")
        for verb in VERBS:
            self.before[verb] = self.scratch / "before" / verb
            self.whole[verb] = json.loads((write / f"{verb}.json").read_text())
            self.new[verb] = len(self.whole[verb]) - len(published(self.before[verb]))

    def place(self, verb: str, where: Path | None = None) -> Path:
        folder = Path(tempfile.mkdtemp(dir=where or self.scratch))
        shutil.copytree(self.before[verb], folder / "run")
        return folder

    def argv(self, verb: str) -> list[str]:
        more = ["--engine", "ray"] if self.engine == "ray" else ["--workers", "2"]
        return command(verb, "run", *(more if verb != "evaluate" or self.engine != "ray" else []))

    def judge(self, verb: str, place: Path, counter: str, said: str) -> None:
        """The finished run against the undisturbed one."""
        other = differing(digests(place / "run"), self.whole[verb])
        stray = [p.name for p in (place / "run").rglob(".tmp-*")]
        if other or stray:
            self.counts[counter] += 1
            print(f"       {counter}: {said}: {other[:4]} {stray[:2]}", flush=True)

    def kill_trial(self, number: int, cold: bool) -> None:
        rng = Random(f"{self.seed}/kill/{number}")
        verb = list(VERBS)[number % len(VERBS)]
        place = self.place(verb)
        known, said = set(published(place / "run")), f"trial {number}, {verb}{', cold' if cold else ''}"
        kept: dict[str, Stamp] = {}
        try:
            for _ in range(rng.choice([1, 2, 2, 3])):
                driver = Driver(self.argv(verb), place, cold)
                if not self._kill(driver, verb, rng, known, cold):
                    break
                now = stamps(place / "run", (*TASKS, "timings"))
                self._redone(kept, now, said)
                kept = now
            driver = Driver(self.argv(verb), place, cold)
            if driver.wait() != 0:
                self.counts["kill_differences"] += 1
                print(f"       not finished: {said}: {driver.code()} {driver.err[-300:]}", flush=True)
                end([driver.pid, *family(driver.pid)])
                return
            self._redone(kept, stamps(place / "run", (*TASKS, "timings")), said)
            self.judge(verb, place, "kill_differences", said)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _redone(self, kept: dict[str, Stamp], now: dict[str, Stamp], said: str) -> None:
        again = written_again(self.log, kept, now)
        self.counts["redone_tasks"] += len(again.tasks)
        self.counts["rewritten_files"] += len(again.unfinished)
        self.counts["rewritten_others"] += len(again.others)
        if again.tasks or again.unfinished or again.others:
            print(f"       written again: {said}: {again}", flush=True)

    def _kill(self, driver: Driver, verb: str, rng: Random, known: set[str], cold: bool) -> bool:
        """Kill at a keyed moment; False if the command was faster."""
        place = driver.place / "run"
        present = len(set(published(place)) - known)
        left = self.new[verb] - present
        events = present + rng.randint(1, max(1, left - 1)) if rng.random() < 0.8 else 0
        delay = rng.uniform(0, 0.06) if events else rng.uniform(0, 8.0 if cold else 0.8)
        victim = rng.choice(["driver", "worker", "worker"] if self.engine == "local" else ["driver", "worker", "node"])
        deadline = time.monotonic() + LIMIT
        while events and len(set(published(place)) - known) < events and driver.code() is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
        time.sleep(delay)
        members = family(driver.pid)
        if driver.code() is not None:
            if driver.code() != 0:
                self.counts["kill_differences"] += 1
                print(f"       failed undisturbed: {verb}: {driver.err[-300:]}", flush=True)
            return False
        target = self._victim(victim, driver.pid, members)
        fresh = len(set(published(place)) - known)
        end([target])
        self.counts["kills"] += 1
        self.counts["kills_after_publish"] += fresh > 0
        self.counts[f"kills_of_{'driver' if target == driver.pid else victim}"] += 1
        driver.wait()
        deadline = time.monotonic() + LIMIT
        while orphans := [p for p in members if p in parents()]:
            if time.monotonic() > deadline:
                self.counts["kill_orphans"] += len(orphans)
                end(orphans)
                break
            time.sleep(0.005)
        if target != driver.pid and driver.code() not in (0, 2):  # Ray may run the task again and finish
            self.counts["kill_differences"] += 1
            print(f"       {verb}: a dead {victim} ended the command with {driver.code()}: {driver.err[-300:]}")
        return True

    def _victim(self, victim: str, driver: int, members: list[int]) -> int:
        """A process of this kind; the driver where there is none yet."""
        if victim == "driver" or not members:
            return driver
        if self.engine == "local":
            return members[-1]
        names = {}
        for pid in members:
            with suppress(OSError):
                names[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        wanted = b"ray::" if victim == "worker" else b"raylet/raylet"
        return next((p for p, n in names.items() if wanted in n), driver)

    def two_drivers(self, number: int) -> None:
        rng = Random(f"{self.seed}/two/{number}")
        verb = list(VERBS)[number % len(VERBS)]
        place = self.place(verb)
        try:
            (place / "b").mkdir()
            (place / "b" / "run").symlink_to("../run")
            first = Driver(self.argv(verb), place, cold=False)
            time.sleep(rng.uniform(0, 0.3))
            second = Driver(self.argv(verb), place / "b", cold=False)
            codes = first.wait(), second.wait()
            self.counts["driver_pairs"] += 1
            if codes != (0, 0):
                self.counts["driver_differences"] += 1
                print(f"       two drivers of {verb}: {codes} {first.err[-200:]} {second.err[-200:]}", flush=True)
            else:
                self.judge(verb, place, "driver_differences", f"two drivers of {verb}")
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def disk_full(self, number: int) -> None:
        """On a file system of its own with a keyed share of the room that is needed; who may not mount limits files."""
        rng = Random(f"{self.seed}/full/{number}")
        verb = list(VERBS)[number % len(VERBS)]
        mounted = Path(tempfile.mkdtemp(dir=self.scratch))
        share = rng.uniform(0.02, 0.9)
        used, more = self._room(verb)
        small = mount(mounted, used + int(share * more))
        try:
            place = self.place(verb, mounted) if small else self.place(verb)
            driver = Driver(
                self.argv(verb), place, cold=False, file_size=None if small else rng.choice([0, 1000, 9000])
            )
            driver.wait()
            self.counts["full_trials"] += 1
            said = f"full disk, {verb}, {share:.0%} of the room"
            if driver.code() == 0:
                self.counts["full_unnoticed"] += 1  # the estimate of its needs was too high: nothing was tested
            elif not driver.refused():
                self.counts["full_tracebacks"] += 1
                print(f"       {said}: {driver.code()} {driver.err[-300:]}", flush=True)
            if small:
                mount(mounted, 400 << 20, again=True)
            driver = Driver(self.argv(verb), place, cold=False)
            if driver.wait() != 0:
                self.counts["full_differences"] += 1
                print(f"       not finished: {said}: {driver.err[-300:]}", flush=True)
            else:
                self.judge(verb, place, "full_differences", said)
        finally:
            if small:
                subprocess.run(["umount", "-l", str(mounted)], check=False)
            shutil.rmtree(mounted, ignore_errors=True)

    def _room(self, verb: str) -> tuple[int, int]:
        """Bytes in blocks that the run takes before the verb, and that it adds."""
        verbs = list(VERBS)
        after = verbs[verbs.index(verb) + 1 :][:1]
        folder = self.before[after[0]] if after else self.scratch / "reference" / "run"
        before = blocks(self.before[verb])
        return before, max(blocks(folder) - before, 1 << 14)


def blocks(folder: Path) -> int:
    return sum(-(-p.stat().st_size // 4096) * 4096 if p.is_file() else 0 for p in folder.rglob("*")) + 4096


def mount(folder: Path, size: int, again: bool = False) -> bool:
    """A tmpfs of this size; False for those who may not."""
    options = f"{'remount,' if again else ''}size={size}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=24, help="stop after so many kills; default 24")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one trial")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--cold", type=int, default=10, help="every n-th trial starts python -m guda; 0: none")
    parser.add_argument("--pairs", type=int, default=8, help="trials with two drivers at once")
    parser.add_argument("--full", type=int, default=16, help="trials on a disk that fills up")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no kill after this time")
    parser.add_argument("--json", action="store_true", help="print the counts as the last line")
    parser.add_argument("--write", action="store_true", help="write the counts to benchmarks/results/hardening.json")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # file systems are unmounted on the way out
    if given.engine == "local":  # a worker of Ray ends when its parent is process 1, and not if it is another
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come here, not to a container's init
    with tempfile.TemporaryDirectory(prefix="guda-kill-", dir=in_memory()) as name:
        campaign = Campaign(Path(name), given.seed, given.engine)
        warm()
        campaign.prepare()
        counts, until = campaign.counts, time.monotonic() + 60 * given.minutes
        for number in [given.only] if given.only is not None else range(10 * given.kills):
            if counts["kills"] >= given.kills or time.monotonic() > until:
                break
            cold = given.engine == "ray" or bool(given.cold and number % given.cold == given.cold - 1)
            campaign.kill_trial(number, cold)
            print(f"{number:>6}  {dict(counts)}", flush=True)
        if given.engine == "local" and given.only is None:
            for number in range(given.pairs):
                campaign.two_drivers(number)
            for number in range(given.full):
                campaign.disk_full(number)
    names = ["kills", "kills_after_publish", "kill_differences", "redone_tasks", "kill_orphans"]
    names += ["driver_pairs", "driver_differences", "full_trials", "full_tracebacks", "full_differences"]
    value = {n: float(counts[n]) for n in names} | {k: float(v) for k, v in sorted(counts.items())}
    if given.write:
        from hardening import record

        entry = "kill" if given.engine == "local" else "kill-ray"
        record(entry, value, f"python tools/kill.py --kills {given.kills} --engine {given.engine} --write")
    print(json.dumps(value) if given.json else "\n".join(f"{k} {v:,.0f}" for k, v in value.items()))
    faults = ("kill_differences", "redone_tasks", "kill_orphans", "driver_differences", "full_tracebacks",
              "full_differences")  # fmt: skip
    return int(any(counts[k] for k in faults))


if __name__ == "__main__":
    sys.exit(main())
