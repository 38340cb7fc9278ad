"""A run in an S3 store, by moto's server: only where s3fs is installed and $GUDA_TEST_S3 tells its address.

pip install s3fs; pip install "moto[server]" elsewhere; moto_server -p 5555 &
GUDA_TEST_S3=http://127.0.0.1:5555 pytest tests/runs/test_run_s3.py
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from tinyrun import SET, Inline, digits_folder, exact, tiny

from guda import steps
from guda.errors import GudaError, Mismatch
from guda.run.remote import Mirror
from guda.run.run import Run

pytest.importorskip("s3fs")
SERVER = os.environ.get("GUDA_TEST_S3")
pytestmark = pytest.mark.skipif(SERVER is None, reason="no S3 server: set GUDA_TEST_S3")


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    import s3fs

    for name, value in (("ENDPOINT_URL", SERVER), ("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "x")):
        monkeypatch.setenv(f"AWS_{name}", str(value))
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"b{uuid.uuid4().hex}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}/a/run"


def test_two_machines_share_a_run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_machine(name: str) -> None:
        monkeypatch.setenv("GUDA_CACHE", str(tmp_path / name))
        monkeypatch.setattr("guda.run.remote._MIRRORS", {})

    as_machine("one")
    run, engine = steps.init(url, tiny(digits_folder())), Inline()
    steps.fit(run, ["retrack"], engine)
    steps.sample(run, engine)
    steps.score(run, SET, ["retrack"], engine)
    run.publish()
    as_machine("two")
    other, again = Run.open(url), Inline()
    steps.score(other, SET, ["retrack"], again)
    assert again.ran == []
    assert exact(other.root) == exact(run.root)


def test_who_changed_what(url: str, tmp_path: Path) -> None:
    one, two = (Mirror(url, tmp_path / name) for name in ("one", "two"))
    for name in ("recipe.yaml", "scores/a.parquet", "terms/x.parquet"):
        (one.local / name).parent.mkdir(parents=True, exist_ok=True)
        (one.local / name).write_text("first")
    assert (one.push(), two.pull(), two.pull(), two.push()) == (3, 3, 0, 0)
    (one.local / "scores/a.parquet").write_text("secnd")  # as long as before
    assert (one.push(), two.push(), two.pull()) == (1, 0, 1)
    assert (two.local / "scores/a.parquet").read_text() == "secnd"
    for mirror, text in ((one, "ours"), (two, "theirs")):
        (mirror.local / "recipe.yaml").write_text(text)
    assert one.push() == 1
    with pytest.raises(Mismatch, match="another driver"):
        two.push()
    one.remove("scores/a.parquet")
    two.pull()
    assert not (two.local / "scores/a.parquet").exists()


def test_a_bucket_that_is_not_there_is_one_line(url: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("x")
    with pytest.raises(GudaError, match=r"^s3://no-such-bucket-here/run cannot be "):
        Mirror("s3://no-such-bucket-here/run", tmp_path).push()
