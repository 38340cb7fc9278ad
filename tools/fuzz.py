"""Bad inputs through the real command line: `python tools/fuzz.py --inputs 2000`.

Recipes, folders, pictures, metadata, prompts, models, damaged runs, options and numbers (tools/fuzz_inputs.py) meet
`guda.cli.main:main`. Each input runs in a process of its own, forked from one that has everything imported, on its own
copy of a tiny world and with limits on memory, CPU and time. What may happen:

    refused        exit code 2, one line (or typer's usage) on stderr, and nothing on disk has changed; `guda check`
                   refuses a folder with exit code 1 and what it found on stdout
    ok             exit code 0
    traceback      a traceback, another exit code, or death by a signal
    hang           the limit of CPU or wall time was reached
    wrong_success  exit code 0 although the input is known to be bad
    partial        refused, but something was written, or a temporary file stayed (new whole files are allowed where a
                   run was damaged, because tasks finish before the damage is met)
    untidy         refused with more than one line on stderr

Input N of a seed is always the same: `--only N` repeats one and shows it. Failures are appended to a file with
`--keep`; tools/fuzz_corpus.json holds those of the past, which `--corpus` runs again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz_case import Case, listing
from warm import TOOLS, fork, in_memory, prepare, run_main, warm

CORPUS = TOOLS / "fuzz_corpus.json"

# of one input: seconds of CPU, in all, and without using the CPU; bytes beyond what is mapped already
CPU, WALL, IDLE, MEMORY = 40, 400, 20, 4 << 30
FAULTS = ("traceback", "hang", "wrong_success", "partial", "untidy")


@dataclass
class Outcome:
    kind: str
    code: int | None  # None: killed by its limits
    err: str
    changed: list[str]
    seconds: float


# ---- one input -----------------------------------------------------------------------------------------------------
def _meet(case: Case, world: Path, place: Path) -> int:
    """In the forked process: make the input, limit this process, run the command."""
    (place / "tmp").mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(place / "tmp")
    here = place / "world"
    here.mkdir()
    case.copy_needs(world, here)
    os.chdir(here)
    case.apply()
    (place / "before.json").write_text(json.dumps(listing(here)))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY,) * 2)
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU,) * 2)
    return run_main(case.argv)


class Runner:
    """Inputs in forked processes, `jobs` at a time."""

    def __init__(self, world: Path, scratch: Path, jobs: int = 1) -> None:
        self.world, self.scratch, self.jobs = world, scratch, jobs

    def run(self, cases: Iterable[tuple[int, Case]]) -> Iterator[tuple[int, Case, Outcome]]:
        """In the order in which they end."""
        running: dict[int, tuple[int, Case, Path, float]] = {}
        worked: dict[int, tuple[int, float]] = {}  # ticks of CPU, and when they were last seen to change
        left = iter(cases)
        while True:
            while len(running) < self.jobs and (found := next(left, None)):
                place = Path(tempfile.mkdtemp(dir=self.scratch))
                pid = fork(place, functools.partial(_meet, found[1], self.world, place))
                running[pid] = (*found, place, time.monotonic())
            if not running:
                return
            pid, status, hung = _wait(running, worked)
            del worked[pid]
            number, case, place, began = running.pop(pid)
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)  # whatever it has started
            yield number, case, judge(case, place, status, hung, time.monotonic() - began)
            with suppress(RecursionError):
                shutil.rmtree(place, ignore_errors=True)
            if place.exists():  # folders deeper than a path may be long
                subprocess.run(["rm", "-rf", "--", place], check=False)


def _wait(running: dict[int, Any], worked: dict[int, tuple[int, float]]) -> tuple[int, int, bool]:
    """The first process that ends or has had its time; polls, because there is no wait for either of two things.

    A process that has not used the CPU for `IDLE` seconds waits for something that will not come. One that works may
    have to wait for the CPU of a loaded machine, so its own limit is far off."""
    while True:
        now = time.monotonic()
        for pid, (*_, began) in running.items():
            if worked.get(pid, (-1, now))[0] != (ticks := _ticks(pid)):
                worked[pid] = (ticks, now)
            late = now - began > WALL or (now - worked[pid][1] > IDLE and _state(pid) != "R")
            if late:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if done:
                return pid, status, late
        time.sleep(0.005)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _ticks(pid: int) -> int:
    return sum(map(int, _stat(pid)[11:13]))


def judge(case: Case, place: Path, status: int, hung: bool, seconds: float) -> Outcome:
    err = (place / "err").read_text(errors="replace") if (place / "err").exists() else ""
    before = json.loads((place / "before.json").read_text()) if (place / "before.json").exists() else {}
    after = listing(place / "world")
    after |= {f"$TMPDIR/{name}": digest for name, digest in listing(place / "tmp").items()}
    changed = sorted(f"{'+' if k not in before else '-' if k not in after else '~'} {k}"
                     for k in before.keys() | after.keys() if before.get(k) != after.get(k))  # fmt: skip
    if hung or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)):
        return Outcome("hang", None, err, changed, seconds)
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    refusal = case.argv[:1] == ["check"] and code == 1 and not err  # what it found is its answer, on stdout
    if (code not in (0, 2) and not refusal) or "Traceback (most recent call last)" in err or not before:
        return Outcome("traceback", code, err, changed, seconds)
    if code == 0:
        return Outcome("wrong_success" if case.bad else "ok", code, err, [] if not case.bad else changed, seconds)
    written = [c for c in changed if not (case.kind == "run" and c[0] == "+" and ".tmp-" not in c)]
    if written:
        return Outcome("partial", code, err, written, seconds)
    usage = err.startswith(("Usage: ", "╭─ Error"))  # how typer refuses
    told = refusal or (case.argv[:2] == ["bank", "verify"] and not err)  # its problems are its answer, on stdout
    tidy = usage or told or (err.startswith("guda: ") and err.count("\n") == 1)
    return Outcome("refused" if tidy else "untidy", code, err, [], seconds)


# ---- the campaign --------------------------------------------------------------------------------------------------
def campaign(cases: Iterable[tuple[int, Case]], runner: Runner, until: float, keep: Path | None = None) -> Counter:
    """Run the cases, or as many of them as begin before the moment `until`."""
    counts: Counter[str] = Counter()
    for number, case, found in runner.run(itertools.takewhile(lambda _: time.monotonic() < until, cases)):
        counts[found.kind] += 1
        if found.kind in FAULTS:
            last = found.err.strip().splitlines()[-1:] or [""]
            print(f"{number:>6} {found.kind:<13} {found.seconds:5.1f} s  {case.kind}: {case.note!a}", flush=True)
            print(f"       {last[0]!a:.200}" + (f"  {found.changed[:4]}" if found.changed else ""), flush=True)
        if found.kind in FAULTS and keep is not None:
            with open(keep, "a") as f:
                row = {"number": number, "found": found.kind, "code": found.code, "err": found.err[-3000:]}
                f.write(json.dumps(row | {"changed": found.changed[:20], "case": case.to_json()}) + "\n")
        if sum(counts.values()) % 100 == 0:
            print(f"{sum(counts.values()):>6} inputs: {dict(counts)}", flush=True)
    return counts


def figures(counts: Counter) -> dict[str, float]:
    """For benchmarks/results/hardening.json."""
    names = {"traceback": "tracebacks", "hang": "hangs"}
    found = {f"fuzz_{names.get(kind, kind)}": float(counts[kind]) for kind in FAULTS}
    more = {f"fuzz_{kind}": float(counts[kind]) for kind in ("refused", "ok")}
    return {"fuzz_inputs": float(sum(counts.values()))} | found | more


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=200, help="how many generated inputs; default 200")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one input, shown in full")
    parser.add_argument("--kind", help="only inputs of this kind, e.g. image")
    parser.add_argument("--corpus", action="store_true", help="the failures of the past first")
    parser.add_argument("--jobs", type=int, default=1, help="inputs at a time")
    parser.add_argument("--keep", type=Path, help="append failures to this file, one JSON object each")
    parser.add_argument("--again", type=Path, help="run the cases of such a file instead of generated ones")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no input after this time")
    parser.add_argument("--world", type=Path, help="keep the prepared world in this folder, or use the one there")
    parser.add_argument("--json", action="store_true", help="print the counts as the last line")
    parser.add_argument("--write", action="store_true", help="write the counts to benchmarks/results/hardening.json")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the world is removed on the way out
    with tempfile.TemporaryDirectory(prefix="guda-fuzz-", dir=in_memory()) as name:
        scratch = Path(name)
        warm()
        world = prepare(given.world or scratch / "world")
        from fuzz_inputs import World, make

        known, cases = World(world), []
        generated: Iterable[tuple[int, Case]] = ()  # one at a time: thousands would fill the memory
        if given.corpus:
            cases += [(-1 - i, Case(**value)) for i, value in enumerate(json.loads(CORPUS.read_text()))]
        if given.again:
            rows = [json.loads(line) for line in given.again.read_text().splitlines()]
            cases += [(row["number"], Case(**row["case"])) for row in rows]
        elif given.only is not None:
            cases += [(given.only, make(given.seed, given.only, known))]
        else:
            numbers = range(given.first, given.first + given.inputs)
            made = ((n, make(given.seed, n, known)) for n in numbers)
            generated = (found for found in made if given.kind in (None, found[1].kind))
        runner = Runner(world, scratch, given.jobs)
        if given.only is not None:
            print(json.dumps(cases[-1][1].to_json(), indent=1))
            for *_, found in runner.run(cases):
                print(f"{found.kind} (exit code {found.code})\n{found.err}\n" + "\n".join(found.changed))
            return 0
        counts = campaign(itertools.chain(cases, generated), runner, time.monotonic() + 60 * given.minutes, given.keep)
    value = figures(counts)
    if given.write:
        from hardening import record

        record("fuzz", value, f"python tools/fuzz.py --corpus --inputs {given.inputs} --seed {given.seed} --write")
    print(json.dumps(value) if given.json else "\n".join(f"{k} {v:,.0f}" for k, v in value.items()))
    return int(any(counts[kind] for kind in FAULTS))


if __name__ == "__main__":
    sys.exit(main())
