"""Publish a bank of counterfactual models beside a model, and fetch one: `guda push`, `guda pull`.

    README.md, DATASHEET.md          the card and the data sheet (steps/card.py)
    guda/manifest.json               what the bank is of: method, settings, groups, digests of model, data and files
    guda/0000-monet.safetensors ...  one counterfactual per group

A place is a repository of the Hugging Face Hub (`hf:owner/name`) or a folder. What is pulled is hostile until it is
checked: only names of the form above are fetched, only safetensors, no more bytes than the manifest says, SHA-256 of
every file, and each must be a counterfactual of the group and model that the manifest names, with finite numbers. The
target folder appears when all of it has passed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, ValidationError

from guda.config import Config
from guda.errors import GudaError, Mismatch, first_line
from guda.files import atomic_folder, digest_file, write_json
from guda.methods.base import METHODS, get_method
from guda.methods.elbo import has_counterfactuals
from guda.parsing import ParseError, check_regular, read_json
from guda.run.data import load_data
from guda.run.models import model_digest
from guda.run.run import Run
from guda.steps.bank import check_finite
from guda.steps.card import CARD, SHEET, write_card
from guda.steps.fit import fitted_methods
from guda.unlearning.bank import Counterfactual

FOLDER, MANIFEST = "guda", "manifest.json"

HUB = "hf:"

MANIFEST_BYTES = 16 * 2**20

FORMAT = "guda-bank-1"


class Entry(Config):
    group: str = Field(min_length=1, max_length=1000)
    file: str = Field(pattern=r"^[0-9]{4,9}-[A-Za-z0-9._-]{0,60}\.safetensors$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(gt=0, le=2**40)


class Manifest(Config):
    """guda/manifest.json."""

    format: str = Field(pattern=f"^{FORMAT}$")
    method: str = Field(pattern=r"^[a-z0-9-]{1,60}$")
    settings: dict[str, Any]
    model: str = Field(pattern=r"^[0-9a-f]{64}$", description="Digest of the weights that the bank belongs to.")
    schedule: str = Field(max_length=100)
    data: str = Field(pattern=r"^[0-9a-f]{64}$", description="Digest of the training images.")
    sizes: dict[str, int] = Field(description="Training images of each group.")
    files: tuple[Entry, ...] = Field(min_length=1, max_length=1_000_000)
    versions: dict[str, str | None]


# ---- places ----------------------------------------------------------------------------------------------------------
class Place(Protocol):
    def put(self, folder: Path) -> str:
        """Publish everything in `folder`; returns where it is."""

    def get(self, name: str, target: Path, limit: int) -> None:
        """Fetch one file of at most `limit` bytes."""


class LocalPlace:
    """A folder: a shared disk, a mounted bucket, or a test."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, folder: Path) -> str:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            target = self.root / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        return str(self.root)

    def get(self, name: str, target: Path, limit: int) -> None:
        try:
            check_regular(self.root / name, limit)
            shutil.copyfile(self.root / name, target)
        except OSError as e:
            raise GudaError("bank-file-missing", f"{self.root / name} cannot be read: {e.strerror}") from None


class HubPlace:
    """A model repository of the Hugging Face Hub; who is logged in there may write."""

    def __init__(self, name: str) -> None:
        if name.count("/") != 1 or not all(name.split("/")):
            raise GudaError("hub-name-invalid", f"{HUB}{name}: write hf:owner/name")
        self.name = name

    def put(self, folder: Path) -> str:
        from huggingface_hub import HfApi

        try:
            api = HfApi()
            api.create_repo(self.name, repo_type="model", exist_ok=True)
            api.upload_folder(
                repo_id=self.name, folder_path=folder, repo_type="model", commit_message="guda: bank and card"
            )
        except Exception as e:  # offline, not logged in, refused: huggingface_hub has a class for each
            raise GudaError("hub-refused", f"{HUB}{self.name}: the Hub says: {first_line(e)}") from None
        return f"{HUB}{self.name}"

    def get(self, name: str, target: Path, limit: int) -> None:
        from huggingface_hub import HfApi, hf_hub_download

        try:
            about = HfApi().get_paths_info(self.name, [name], repo_type="model")
            size = getattr(about[0], "size", None) if about else None
            if size is None or size > limit:
                raise GudaError("bank-file-missing", f"{HUB}{self.name} has no file {name} of at most {limit:,} bytes")
            shutil.copyfile(hf_hub_download(self.name, name, repo_type="model"), target)
        except GudaError:
            raise
        except Exception as e:
            raise GudaError("hub-refused", f"{HUB}{self.name}: the Hub says: {first_line(e)}") from None


def find_place(name: str) -> Place:
    if name.startswith(HUB):
        return HubPlace(name.removeprefix(HUB))
    root = Path(name).expanduser()
    if root.exists() and not root.is_dir():
        raise GudaError("path-is-file", f"{root} is a file; give a folder, or hf:owner/name")
    return LocalPlace(root)


# ---- push ------------------------------------------------------------------------------------------------------------
def push(run: Run, place: str, method: str | None = None) -> dict[str, Any]:
    """Publish a method's counterfactual models with the card; returns what was published."""
    target, chosen = find_place(place), method or _default(run)
    found = get_method(run, chosen)
    if not has_counterfactuals(found) or not found.bankable or found.oracle or found.seed_sets():
        raise GudaError(
            "method-without-bank", f"{chosen} keeps no single model per group; push an unlearning method, e.g. retrack"
        )
    if not found.fitted():
        raise GudaError("method-not-fitted", f"{chosen} is not fitted; run: guda fit {run.root} --method {chosen}")
    with atomic_folder(run.path("published")) as tmp:
        write_card(run, tmp)
        entries = []
        for group in found.nodes():
            source = run.path(found.file(group))
            Counterfactual.load(source)  # its own digest
            copy = tmp / FOLDER / source.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            entries.append(Entry(group=group, file=copy.name, sha256=digest_file(copy), bytes=copy.stat().st_size))
        groups = load_data(run).groups
        manifest = Manifest(
            format=FORMAT, method=chosen, settings=found.config.model_dump(mode="json"), model=model_digest(run,
            "base"), schedule=run.info["schedule"], data=run.info["data_digest"],
            sizes=dict(zip(groups.names, groups.sizes, strict=True)), files=tuple(entries),
            versions=run.info["versions"], )  # fmt: skip
        write_json(tmp / FOLDER / MANIFEST, manifest.model_dump(mode="json"))
        where = target.put(tmp)
    size = sum(e.bytes for e in entries)
    return {"place": where, "method": chosen, "groups": len(entries), "bytes": size, "files": [CARD, SHEET]}


def _default(run: Run) -> str:
    found = [m for m in fitted_methods(run) if METHODS[m].unlearns]
    if not found:
        raise GudaError("method-not-fitted", f"nothing to publish in {run.root} yet; run: guda fit {run.root}")
    return found[0]


# ---- pull ------------------------------------------------------------------------------------------------------------
def pull(place: str, folder: str | Path) -> Manifest:
    """Fetch a bank into a new folder, everything checked; `guda.Bank.load(folder)` reads it."""
    source, target = find_place(place), Path(folder).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise GudaError("folder-exists", f"{target} exists already; give a new folder")
    with atomic_folder(target) as tmp:
        tmp.mkdir(parents=True, exist_ok=True)
        source.get(f"{FOLDER}/{MANIFEST}", tmp / MANIFEST, MANIFEST_BYTES)
        manifest = read_manifest(tmp / MANIFEST, place)
        for entry in manifest.files:
            source.get(f"{FOLDER}/{entry.file}", tmp / entry.file, entry.bytes)
            check_entry(tmp / entry.file, entry, manifest, place)
    return manifest


def read_manifest(path: Path, place: str) -> Manifest:
    try:
        found = Manifest.model_validate(read_json(path, MANIFEST_BYTES))
    except (ParseError, ValidationError, OSError) as e:
        raise GudaError("manifest-invalid", f"{place}: {FOLDER}/{MANIFEST} is not a bank's: {first_line(e)}") from None
    for kind in ("group", "file"):
        names = [getattr(e, kind) for e in found.files]
        if len(set(names)) != len(names):
            raise GudaError("manifest-invalid", f"{place}: {FOLDER}/{MANIFEST} names a {kind} twice")
    return found


def check_entry(path: Path, entry: Entry, manifest: Manifest, place: str) -> None:
    """Refuse a file that is not what the manifest says."""
    where = f"{place}: {entry.file}"
    if (found := digest_file(path)) != entry.sha256:
        raise Mismatch("bank-file-changed", f"{where}: SHA-256", found, entry.sha256, "ask its publisher")
    item = Counterfactual.load(path)
    told: Mapping[str, tuple[str, str]] = {
        "group": (item.group, entry.group), "base model": (item.base, manifest.model),
        "method": (item.method, manifest.method),
    }  # fmt: skip
    for what, (inside, said) in told.items():
        if inside != said:
            raise Mismatch("bank-file-changed", f"{where}: {what}", inside, said, "ask its publisher")
    check_finite(item.tensors, where)
