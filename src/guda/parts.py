"""Part stores: where immutable pieces of a larger result are kept, on disk or in memory.

A part has a name (a relative path that ends in .parquet or .safetensors), a content and a header that says what it was
computed from. Names are derived from inputs, so a part is never overwritten with something else; the header catches
the rest, such as a model that was retrained in place:

    parts = FolderParts(run.root)                      # or MemoryParts(), which forgets when the process ends
    if not parts.has(name):
        parts.write(name, table, {"model": digest})    # whole or absent, even after kill -9
    table = parts.read(name, {"model": digest})        # Mismatch (code part-stale) if computed from something else

The content of a .parquet part is a pyarrow table, that of a .safetensors part a dict of tensors. A header holds texts
in a table and any JSON in a tensors file. `read` compares the keys it is given and ignores others; give `code` where
callers match a code of their own. Code that computes parts takes a `Parts` and need not know which of the two it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from guda.errors import GudaError, Mismatch
from guda.files import read_table, read_tensors, write_table, write_tensors

STALE = "part-stale"


class Parts(Protocol):
    def has(self, name: str) -> bool: ...

    def write(self, name: str, content: Any, header: Mapping[str, Any] | None = None) -> None: ...

    def read(self, name: str, header: Mapping[str, Any] | None = None, code: str = STALE) -> Any: ...


class FolderParts:
    """Parts as files under `root`."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def has(self, name: str) -> bool:
        return (self.root / name).is_file()

    def write(self, name: str, content: Any, header: Mapping[str, Any] | None = None) -> None:
        if _is_table(name):
            write_table(self.root / name, content.replace_schema_metadata(dict(header or {}) or None))
        else:
            write_tensors(self.root / name, content, header)

    def read(self, name: str, header: Mapping[str, Any] | None = None, code: str = STALE) -> Any:
        path = self.root / name
        if _is_table(name):
            content: Any = read_table(path)
            stored: dict[str, Any] = {k.decode(): v.decode() for k, v in (content.schema.metadata or {}).items()}
        else:
            content, stored = read_tensors(path)
        _check(str(path), stored, header, code)
        return content


class MemoryParts:
    """Parts as objects of this process."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Any, dict[str, Any]]] = {}

    def has(self, name: str) -> bool:
        return name in self._parts

    def write(self, name: str, content: Any, header: Mapping[str, Any] | None = None) -> None:
        # A copy: a table may share the memory of large arrays that it was cut from, or keep the allocator from reusing
        # the place between two of them.
        kept = _copy_table(content) if _is_table(name) else {k: v.detach().cpu().clone() for k, v in content.items()}
        self._parts[name] = (kept, dict(header or {}))

    def read(self, name: str, header: Mapping[str, Any] | None = None, code: str = STALE) -> Any:
        if name not in self._parts:
            raise GudaError("file-missing", f"{name} does not exist")
        content, stored = self._parts[name]
        _check(name, stored, header, code)
        return content


def _copy_table(table: Any) -> Any:
    import pyarrow as pa

    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return pa.ipc.open_stream(out.getvalue()).read_all()


def _is_table(name: str) -> bool:
    if not name.endswith((".parquet", ".safetensors")):
        raise ValueError(f"a part is a .parquet table or a .safetensors file, not {name!r}")
    return name.endswith(".parquet")


def _check(where: str, stored: Mapping[str, Any], expected: Mapping[str, Any] | None, code: str) -> None:
    for key, value in (expected or {}).items():
        if (found := stored.get(key)) != value:
            what = f"{where} was computed from other inputs ({key})"
            raise Mismatch(code, what, found, value, "delete it and run the command again")
