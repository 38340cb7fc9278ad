"""A bundle: the files of an exhibit in one .zip, with a manifest of their hashes, signed on request.

    manifest.json   {"schema": "guda-bundle/1", "guda": version, "files": {name: {"sha256", "bytes"}}}
    manifest.sig    base64 of the ed25519 signature of manifest.json's bytes
    signer.pem      the public key; who holds the private one is for the reader to find out

The archive's bytes are a function of its files: members are sorted, stored without compression and carry no date. So a
reader can pack again what was read and compare: an altered byte is noticed wherever it is.

Bundles come from strangers. Nothing is ever extracted: members are read into memory, and refused if they are packed,
encrypted, too many, too large, listed twice, or named as anything but a plain file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guda import __version__
from guda.errors import GudaError
from guda.files import write_bytes

SCHEMA = "guda-bundle/1"

MANIFEST, SIGNATURE, SIGNER = "manifest.json", "manifest.sig", "signer.pem"

LIMIT, MEMBERS = 64_000_000, 64  # bytes and files of a bundle

KEY_LIMIT = 10_000  # bytes of a key file

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}\.(png|html|pdf|json|yaml|csv|sig|pem)")

MADE = (1980, 1, 1, 0, 0, 0)  # the first date that a .zip can hold


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pack(files: Mapping[str, bytes]) -> bytes:
    """The archive of these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, MADE)
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, files[name])
    return buffer.getvalue()


def manifest(files: Mapping[str, bytes]) -> bytes:
    listed = {name: {"sha256": sha256(data), "bytes": len(data)} for name, data in sorted(files.items())}
    return (json.dumps({"schema": SCHEMA, "guda": __version__, "files": listed}, indent=1) + "\n").encode()


def write_bundle(path: Path, files: Mapping[str, bytes], key: Path | None = None) -> Path:
    """`key`: a private ed25519 key (PEM) that signs the manifest."""
    made = {**files, MANIFEST: manifest(files)}
    if key is not None:
        made[SIGNATURE], made[SIGNER] = sign(made[MANIFEST], key)
    data = pack(made)
    if len(data) > LIMIT or len(made) > MEMBERS:
        raise GudaError(
            "bundle-too-large",
            f"the bundle has {len(made)} files and {len(data):,} bytes, more than {MEMBERS} or {LIMIT:,}; leave out "
            "--pdf, or ask about fewer groups (--groups)",
        )
    write_bytes(path, data)
    return path


def read_bundle(path: Path) -> dict[str, bytes]:
    """The files of a bundle, refused where one is not what the manifest says, or the archive not what `pack` makes."""
    data = _read(path)
    files = _members(path, data)
    if MANIFEST not in files:
        raise GudaError("bundle-invalid", f"{path} has no {MANIFEST}; it is not a bundle of guda")
    _check(path, files)
    if pack(files) != data:
        raise GudaError(
            "bundle-altered",
            f"{path}: its files are whole, but the archive around them was altered or packed again by another program",
        )
    return files


def _read(path: Path, key: bool = False) -> bytes:
    """A bundle, or a key."""
    limit, what = (KEY_LIMIT, "key") if key else (LIMIT, "bundle")
    try:
        with open(path, "rb") as f:
            data = f.read(limit + 1)
    except OSError as e:
        why = f"{path} cannot be read ({e.strerror}); give the file of a {what}"
        raise GudaError("key-missing" if key else "bundle-missing", why) from None
    if len(data) > limit:
        why = f"{path} has more than {limit:,} bytes, which no {what} of guda has"
        raise GudaError("key-invalid" if key else "bundle-too-large", why)
    return data


def _members(path: Path, data: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) > MEMBERS:
                raise GudaError("bundle-too-large", f"{path} has {len(members)} files, more than {MEMBERS}; refused")
            for info in members:
                name = info.filename
                if not NAME.fullmatch(name):
                    raise GudaError("bundle-name-invalid", f"{path}: a file is called {name[:80]!r}; refused")
                if name in files:
                    raise GudaError("bundle-name-twice", f"{path}: {name} is there twice; refused")
                # stored members cannot be larger than the archive, which is small
                packed = info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size
                if packed or info.flag_bits & 0x1 or info.file_size > len(data):
                    raise GudaError("bundle-packed", f"{path}: {name} is compressed or encrypted; refused")
                files[name] = _content(path, archive, info)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError, RuntimeError) as e:
        raise GudaError("bundle-damaged", f"{path} is not a complete .zip file ({e}); get it again") from None
    return files


def _content(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    try:
        return archive.read(info)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError, RuntimeError) as e:
        raise _altered(path, info.filename, f"it cannot be read: {e}") from None


def _altered(path: Path, name: str, why: str) -> GudaError:
    return GudaError("bundle-file-altered", f"{path}: {name} was altered ({why}); do not rely on this bundle")


def _check(path: Path, files: Mapping[str, bytes]) -> None:
    """Every file against the manifest, and none besides."""
    try:
        value = json.loads(files[MANIFEST])
        listed = {str(name): (str(entry["sha256"]), entry["bytes"]) for name, entry in value["files"].items()}
        schema = value["schema"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _altered(path, MANIFEST, "it is not a manifest") from None
    if schema != SCHEMA:
        raise GudaError("bundle-schema-unknown", f"{path}: schema {str(schema)[:40]!r}; this guda reads {SCHEMA}")
    for name, (checksum, size) in listed.items():
        if name not in files:
            raise _altered(path, name[:80], "it is missing")
        if sha256(files[name]) != checksum or len(files[name]) != size:
            raise _altered(path, name, f"SHA-256 {sha256(files[name])[:12]}..., the manifest has {checksum[:12]}...")
    for name in files:
        if name not in listed and name not in (MANIFEST, SIGNATURE, SIGNER):
            raise _altered(path, name, "the manifest does not list it")


# ---- signatures -----------------------------------------------------------------------------------------------------
def _crypto() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise GudaError("package-missing", "signatures need cryptography; run: pip install 'guda[exhibit]'") from None
    return serialization


def _private(path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    how = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"
    try:
        key = _crypto().load_pem_private_key(_read(path, key=True), password=None)
    except TypeError:
        raise GudaError("key-encrypted", f"{path} is protected by a password, which guda does not ask for") from None
    except (ValueError, UnsupportedAlgorithm):
        raise GudaError("key-invalid", f"{path} is not a private key in PEM form; {how}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise GudaError("key-invalid", f"{path} is not an ed25519 key; {how}")
    return key


def check_key(path: Path) -> None:
    """Refuse a key that cannot sign, before anything is computed."""
    _crypto()
    _private(path)


def sign(data: bytes, key: Path) -> tuple[bytes, bytes]:
    """(signature, public key), both as text."""
    serialization, private = _crypto(), _private(key)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return base64.b64encode(private.sign(data)) + b"\n", public


def _public(data: bytes, where: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = _crypto().load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise GudaError("key-invalid", f"{where} is not a public ed25519 key in PEM form")
    return key


def _raw(key: Any) -> bytes:
    return bytes(key.public_bytes_raw())


def check_signature(path: Path, files: Mapping[str, bytes], key: Path | None = None) -> str | None:
    """The SHA-256 of the key that signed, or None of a bundle without signature; refused if it does not fit. `key`: the
    public key that must have signed."""
    if SIGNATURE not in files or SIGNER not in files:
        if key is not None or SIGNATURE in files or SIGNER in files:
            raise GudaError("bundle-not-signed", f"{path} has no signature by {key or 'anybody'}; ask for a signed one")
        return None
    serialization = _crypto()
    signer = _public(files[SIGNER], f"{path}: {SIGNER}")
    if key is not None and _raw(_public(_read(key, key=True), str(key))) != _raw(signer):
        raise GudaError("bundle-signer-differs", f"{path} was signed by another key than {key}; do not rely on it")
    from cryptography.exceptions import InvalidSignature

    try:
        signer.verify(base64.b64decode(files[SIGNATURE].strip(), validate=True), files[MANIFEST])
    except (InvalidSignature, binascii.Error, ValueError):
        raise GudaError(
            "bundle-signature-invalid",
            f"{path}: {SIGNATURE} is not a signature of {MANIFEST} by {SIGNER}; do not rely on it",
        ) from None
    spki = signer.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return sha256(spki)
