"""How much memory there is, asked before something large is made: a refusal in one line, not a machine that swaps."""

from __future__ import annotations

from pathlib import Path

from guda.errors import GudaError


def available() -> int | None:
    """Bytes that this process may still take, by the system and by its control group; None where neither says."""
    found = []
    try:
        with open("/proc/meminfo") as f:
            lines = dict(line.split(":", 1) for line in f)
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):  # not Linux
        pass
    try:  # of a container (cgroup v2); the root group of a machine has no such file
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        found.append(limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):  # `max`: no limit
        pass
    return max(0, min(found)) if found else None


def check_memory(needed: int, what: str, fix: str) -> None:
    """Refuse what needs more bytes than there are."""
    there = available()
    if there is not None and needed > there:
        raise GudaError(
            "memory-too-small",
            f"{what} needs {needed / 2**30:,.1f} GB of memory, {there / 2**30:,.1f} GB are free; {fix}",
        )
