"""A part store gives back what was written, on disk and in memory, and refuses parts computed from other inputs."""

import pyarrow as pa
import pytest
import torch

from guda.errors import GudaError, Mismatch
from guda.parts import FolderParts, MemoryParts, Parts


@pytest.fixture(params=["folder", "memory"])
def parts(request, tmp_path) -> Parts:
    return FolderParts(tmp_path) if request.param == "folder" else MemoryParts()


@pytest.mark.parametrize("name", ["a/b.parquet", "a/b.safetensors"])
def test_round_trip_and_header(parts: Parts, name: str) -> None:
    content = pa.table({"x": [1.0, 2.0]}) if name.endswith(".parquet") else {"x": torch.tensor([1.0, 2.0])}
    assert not parts.has(name)
    parts.write(name, content, {"model": "m1", "plan": "p"})
    assert parts.has(name)
    stored = parts.read(name, {"model": "m1"})["x"]
    assert (stored.to_pylist() if name.endswith(".parquet") else stored.tolist()) == [1.0, 2.0]
    with pytest.raises(Mismatch) as e:
        parts.read(name, {"model": "m2"})
    assert e.value.code == "part-stale"
    with pytest.raises(Mismatch) as e:
        parts.read(name, {"model": "m2"}, code="terms-stale")
    assert e.value.code == "terms-stale"


def test_missing_part(parts: Parts) -> None:
    with pytest.raises(GudaError) as e:
        parts.read("nothing.parquet")
    assert e.value.code == "file-missing"


def test_other_suffixes_are_a_programming_error(parts: Parts) -> None:
    with pytest.raises(ValueError, match="parquet"):
        parts.write("a.json", {})
