"""Bundles come from strangers: every altered byte is noticed, and nothing hostile is unpacked."""

import io
import zipfile
from pathlib import Path

import pytest

from guda.errors import GudaError
from guda.report.bundle import LIMIT, MANIFEST, check_signature, manifest, pack, read_bundle, write_bundle

FILES = {"scores.json": b'{"a": 1}\n', "picture.png": bytes(range(60)), "terms.csv": b"set,group\n0,a\n"}


def refused(path: Path) -> GudaError:
    with pytest.raises(GudaError) as e:
        read_bundle(path)
    return e.value


def make_key(folder: Path, name: str = "key") -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    one = write_bundle(tmp_path / "one.zip", FILES)
    two = write_bundle(tmp_path / "two.zip", dict(reversed(FILES.items())))
    assert one.read_bytes() == two.read_bytes()
    assert {k: v for k, v in read_bundle(one).items() if k != MANIFEST} == FILES


def test_every_altered_byte_is_refused(tmp_path: Path) -> None:
    data = write_bundle(tmp_path / "good.zip", FILES).read_bytes()
    bad, named = tmp_path / "bad.zip", 0
    for i in range(len(data)):
        bad.write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        e = refused(bad)
        assert e.code.startswith("bundle-"), (i, e)
        named += e.code == "bundle-file-altered"
    assert named >= sum(map(len, FILES.values()))  # of a file's own bytes the file is named
    at = data.index(FILES["picture.png"])
    bad.write_bytes(data[:at] + b"x" + data[at + 1 :])
    assert "picture.png" in str(refused(bad))
    bad.write_bytes(data + b"x")
    assert refused(bad).code == "bundle-altered"


def test_a_file_that_was_exchanged_with_its_checksum_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.zip"
    bad.write_bytes(pack({**FILES, MANIFEST: manifest(FILES), "scores.json": b"{}"}))
    assert refused(bad).code == "bundle-file-altered"
    assert "scores.json" in str(refused(bad))
    bad.write_bytes(pack({**FILES, MANIFEST: manifest(FILES), "more.json": b"{}"}))
    assert "more.json" in str(refused(bad))
    bad.write_bytes(pack({"scores.json": FILES["scores.json"], MANIFEST: manifest(FILES)}))
    assert refused(bad).code == "bundle-file-altered"
    bad.write_bytes(pack({**FILES, MANIFEST: b'{"schema": "other", "files": {}}'}))
    assert refused(bad).code == "bundle-schema-unknown"


def hostile(*members: tuple[str, bytes], packed: bool = False) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (hostile(("../../etc/passwd.csv", b"")), "bundle-name-invalid"),
        (hostile(("/tmp/a.json", b"")), "bundle-name-invalid"),
        (hostile(("a\\b.json", b"")), "bundle-name-invalid"),
        (hostile(("folder/", b"")), "bundle-name-invalid"),
        (hostile(("a.json", b"1"), ("a.json", b"2")), "bundle-name-twice"),
        (hostile(("a.json", bytes(10_000_000)), packed=True), "bundle-packed"),
        (hostile(*((f"a{i}.json", b"") for i in range(65))), "bundle-too-large"),
        (hostile(("a.json", b"{}")), "bundle-invalid"),
        (b"PK\x03\x04 no zip", "bundle-damaged"),
        (b"", "bundle-damaged"),
    ],
)
def test_hostile_archives_are_refused(tmp_path: Path, data: bytes, code: str) -> None:
    path = tmp_path / "hostile.zip"
    path.write_bytes(data)
    assert refused(path).code == code


def test_large_and_missing_bundles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.zip"
    with open(path, "wb") as f:
        f.truncate(LIMIT + 1)
    assert refused(path).code == "bundle-too-large"
    assert refused(tmp_path / "none.zip").code == "bundle-missing"


def test_signatures(tmp_path: Path) -> None:
    (private, public), (_, other) = make_key(tmp_path), make_key(tmp_path, "other")
    path = write_bundle(tmp_path / "signed.zip", FILES, private)
    files = read_bundle(path)
    assert check_signature(path, files) == check_signature(path, files, public)
    changed = {**FILES, "scores.json": b"{}"}
    forged = {**files, "scores.json": b"{}", MANIFEST: manifest(changed)}
    unsigned = read_bundle(write_bundle(tmp_path / "plain.zip", FILES))
    assert check_signature(path, unsigned) is None
    for given, key, code in (
        (files, other, "bundle-signer-differs"),
        (forged, public, "bundle-signature-invalid"),
        (unsigned, public, "bundle-not-signed"),
        ({k: v for k, v in files.items() if k != "signer.pem"}, None, "bundle-not-signed"),
        (files, private, "key-invalid"),
    ):
        with pytest.raises(GudaError) as e:
            check_signature(path, given, key)
        assert e.value.code == code
    for key in (public, tmp_path / "signed.zip"):
        with pytest.raises(GudaError) as e:
            write_bundle(tmp_path / "no.zip", FILES, key)
        assert e.value.code == "key-invalid"
    assert not (tmp_path / "no.zip").exists()
