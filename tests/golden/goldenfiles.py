"""What a golden run is compared by: the sha256 of every file, and a summary of the values for other machines.

Floating point differs in the last bits between processors and library versions, and so do the files and the names
that are hashes of weights or images. On another machine than the recorded one the summaries are compared instead: file
names with hashes blanked out, column names, types and texts exactly, numbers by their sums.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

FOLDERS = ("data", "prompts", "cache", "models", "artifacts", "queries", "terms", "likelihood", "health", "scores")
FILES = ("pilot.json", "evaluation.json")
TIMED = "evaluation.json"  # holds seconds and sentences beside the metrics; only its other numbers must stay
LIBRARIES = ("torch", "diffusers", "transformers", "numpy", "scipy", "scikit-learn", "pyarrow", "safetensors", "pillow")
RTOL = 1e-4
RTOL_DIFFERENCES = 5e-3  # of what is a difference of two sums of terms: scores, the pilot, health, the evaluation
ARBITRARY = ("vectors",)  # eigenvectors: sign, and rotation among equal eigenvalues
COLUMNS = 20  # files with more columns or tensors (network weights) are summarised as a whole


def machine() -> dict[str, str]:
    """Whatever decides the last bits. Processors of several generations share a model name in virtual machines, and
    numpy's matrix products then differ by the kernel that OpenBLAS chose."""
    import platform

    import torch
    from threadpoolctl import threadpool_info

    found = [line.split(":") for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
    cpu = {name.strip(): value.strip() for name, value in reversed(found)}
    return {
        "cpu": " ".join(cpu.get(name, "unknown") for name in ("model name", "cpu family", "model")),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "blas": " ".join(sorted({lib.get("architecture", "") for lib in threadpool_info()} - {""})),
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }


def measure(run: Path) -> dict[str, Any]:
    """{"digests": {file: sha256}, "values": {file without hashes: summary}} of one finished run."""
    paths = [run / name for name in FILES if (run / name).is_file()]
    paths += [p for folder in FOLDERS for p in sorted((run / folder).rglob("*")) if p.is_file() and p.suffix != ".md"]
    digests: dict[str, str] = {}
    values: dict[str, Any] = {}
    for path in paths:
        name = path.relative_to(run).as_posix()
        digests[name] = hashlib.sha256(content(path, run)).hexdigest()
        add(values.setdefault(blank(name), {"files": 0, "texts": [], "columns": {}}), dict(columns(path, run)))
    for summary in values.values():
        texts = "\n".join(sorted(summary["texts"]))
        summary["texts"] = hashlib.sha256(texts.encode()).hexdigest()[:16]
    return {"digests": digests, "values": values}


def blank(name: str) -> str:
    return re.sub(r"[0-9a-f]{8,}", "#", name)


def content(path: Path, run: Path) -> bytes:
    """The bytes, of JSON without the folder that the run happens to lie in."""
    if path.name == TIMED:
        return json.dumps(timeless(json.loads(path.read_text())), sort_keys=True).encode()
    if path.suffix == ".json":
        return path.read_bytes().replace(str(run.parent).encode(), b"WORK")
    return path.read_bytes()


def timeless(value: Any) -> Any:
    """The numbers of an evaluation, without measured times."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not k.endswith("seconds") and not isinstance(v, str)}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def columns(path: Path, run: Path) -> Iterator[tuple[str, Any]]:
    """(name, array or list of texts) of everything in a file, its header included."""
    if path.suffix == ".json":
        yield from leaves(json.loads(content(path, run)))
    elif path.suffix == ".parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        yield from header(table.schema.metadata or {})
        for name in table.column_names:
            yield name, table[name].to_numpy()
    elif path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "numpy") as f:
            yield from header(f.metadata() or {})
            for name in sorted(f.keys()):
                yield name, f.get_tensor(name)
    else:
        yield "bytes", [hashlib.sha256(path.read_bytes()).hexdigest()]


def header(metadata: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in metadata.items():
        key, value = (x.decode(errors="replace") if isinstance(x, bytes) else x for x in (key, value))
        if not key.startswith("ARROW"):
            if value.startswith(("{", "[")):
                yield from leaves(json.loads(value), f"header.{key}")
            else:
                yield f"header.{key}", [value]


def leaves(value: Any, name: str = "json") -> Iterator[tuple[str, Any]]:
    """Numbers of a JSON value under the name of their key, in one array each; and its texts."""
    numbers: dict[str, list[float]] = {}

    def walk(value: Any, key: str) -> Iterator[str]:
        if isinstance(value, dict):
            for k, v in value.items():
                yield f"{key}.{k}"
                yield from walk(v, f"{key}.{k}")
        elif isinstance(value, list):
            for v in value:
                yield from walk(v, key)
        elif isinstance(value, float | int) and not isinstance(value, bool):
            numbers.setdefault(key, []).append(float(value))
        else:
            yield str(value)

    yield f"{name}.texts", list(walk(value, name))
    for key, found in numbers.items():
        yield key, np.array(found)


def add(summary: dict[str, Any], found: dict[str, Any]) -> None:
    """Add one file; the order in which files come does not matter."""
    summary["files"] += 1
    numeric = {}
    for name, value in found.items():
        array = np.asarray(value)
        if name in ARBITRARY:
            summary["texts"].append(f"{name} {array.dtype} {array.shape}")
        elif array.dtype.kind in "biuf":
            numeric[blank(name)] = array
        else:
            summary["texts"] += [f"{name} {blank(str(text))}" for text in array.ravel()]
    pooled = len(numeric) > COLUMNS
    for name, array in numeric.items():
        summary["texts"].append(f"{name} {array.dtype} {array.shape}")
        finite = array[np.isfinite(array)].astype(np.float64)
        now = [finite.size, finite.sum(), np.abs(finite).sum(), np.abs(finite).max(initial=0.0)]
        before = summary["columns"].setdefault("all" if pooled else name, [0, 0.0, 0.0, 0.0])
        total = [a + b for a, b in zip(before[:3], now[:3], strict=True)] + [max(before[3], now[3])]
        summary["columns"]["all" if pooled else name] = [int(total[0]), *(float(f"{x:.8g}") for x in total[1:])]


def differences(old: dict[str, Any], new: dict[str, Any], exact: bool) -> list[str]:
    """One line per file that is not as it was."""
    if exact:
        a, b = old["digests"], new["digests"]
        return sorted(
            f"{name}: {'gone' if name not in b else 'new' if name not in a else 'other bytes'}"
            for name in a.keys() | b.keys()
            if a.get(name) != b.get(name)
        )
    a, b = old["values"], new["values"]
    lines = []
    for name in sorted(a.keys() | b.keys()):
        if name not in b or name not in a:
            lines.append(f"{name}: {'gone' if name not in b else 'new'}")
            continue
        lines += [f"{name}: other {what}" for what in ("files", "texts") if a[name][what] != b[name][what]]
        rtol = RTOL if name.startswith(("data", "models", "artifacts", "queries", "terms")) else RTOL_DIFFERENCES
        lines += [f"{name}: {c} is not close" for c in unlike(a[name]["columns"], b[name]["columns"], rtol)]
    return lines


def unlike(a: dict[str, list[float]], b: dict[str, list[float]], rtol: float) -> list[str]:
    def close(x: list[float], y: list[float]) -> bool:
        off = rtol * max(x[2], y[2]) + 1e-9  # a sum is known as well as its summands are
        most = math.isclose(x[3], y[3], rel_tol=10 * rtol, abs_tol=1e-9)
        return x[0] == y[0] and abs(x[1] - y[1]) <= off and abs(x[2] - y[2]) <= off and most

    return sorted(c for c in a.keys() | b.keys() if c not in a or c not in b or not close(a[c], b[c]))
