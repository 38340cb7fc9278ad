"""Files that are either whole or absent, and names derived from what made them.

Everything a run keeps goes through here: written under a temporary name in the same folder, flushed to disk,
renamed. A reader therefore never meets a half-written artifact, two writers of the same artifact do not clash
(the last rename wins and both wrote the same bytes), and kill -9 leaves at most a stray temporary file.

Publishing is idempotent, so nobody holds a lease: two drivers of one run, or a task that a cluster runs twice because
it lost sight of a node, at worst do the same work twice. A temporary name says who is writing (runs/writers.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guda.errors import GudaError
from guda.runs.writers import temporary

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch

HEADER = "guda"  # the entry of a safetensors header that holds ours, as JSON


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: the text that hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any, length: int = 12) -> str:
    """A short stable name for any JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def digest_arrays(*arrays: np.ndarray) -> str:
    """sha256 over dtype, shape and bytes."""
    import numpy as np

    h = hashlib.sha256()
    for a in arrays:
        h.update(f"{a.dtype.str}{a.shape}".encode())
        h.update(np.ascontiguousarray(a).tobytes() if a.ndim == 0 else np.ascontiguousarray(a).data)
    return h.hexdigest()


def digest_file(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary sibling of `path`; on success it is synced and renamed to `path`, on error it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = temporary(path)
    try:
        yield tmp
        _sync(tmp)
        os.replace(tmp, path)
    finally:
        tmp.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """The same for a folder. If somebody else published `path` meanwhile, theirs stays (contents are equal)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = temporary(path)
    tmp.mkdir()
    try:
        yield tmp
        for file in tmp.rglob("*"):
            if file.is_file():
                _sync(file)
        try:
            os.replace(tmp, path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def write_bytes(path: Path, data: bytes) -> None:
    with atomic_path(path) as tmp:
        tmp.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise GudaError("file-missing", f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise GudaError("file-damaged", f"{path} is damaged ({e}); delete it and run the command again") from None


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Safetensors whose bytes depend only on what is in them."""
    from safetensors.torch import save_file

    # one text, because safetensors writes several in a random order, and files are compared by their bytes
    header = {HEADER: canonical(dict(metadata))} if metadata else None
    with atomic_path(path) as tmp:
        save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, tmp, metadata=header)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The safetensors file and our header."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise GudaError("file-missing", f"{path} does not exist")
    try:
        with safe_open(path, framework="pt") as f:
            header = dict(f.metadata() or {})
            header |= json.loads(header.pop(HEADER, "{}"))
            yield f, header
    except (SafetensorError, OSError, ValueError) as e:
        raise GudaError("file-damaged", f"{path} is damaged ({e}); delete it and run the command again") from None


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with _opened(path) as (f, header):
        return {k: f.get_tensor(k) for k in f.keys()}, header  # noqa: SIM118


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The header alone, and the dtype of each tensor: no weights are read."""
    with _opened(path) as (f, header):
        return header, {k: f.get_slice(k).get_dtype() for k in f.keys()}  # noqa: SIM118


def write_table(path: Path, table: pa.Table) -> None:
    """Parquet whose bytes depend only on the table's contents."""
    import pyarrow.parquet as pq

    with atomic_path(path) as tmp:
        pq.write_table(table, tmp, compression="zstd")


def read_table(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise GudaError("file-missing", f"{path} does not exist") from None
    except (pa.ArrowException, OSError) as e:
        raise GudaError("file-damaged", f"{path} is damaged ({e}); delete it and run the command again") from None
