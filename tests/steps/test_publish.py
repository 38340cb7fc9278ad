"""Cards, data sheets, and banks that are published and fetched: what is pulled is hostile until it is checked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from tinyrun import GROUPS, SET, copy_run, finished_root

import guda
from guda.files import digest_file, write_tensors
from guda.run.models import load_model
from guda.run.run import Run
from guda.steps.card import card_text, datasheet_text, write_card
from guda.steps.hub import FOLDER, MANIFEST, pull, push
from guda.unlearning.bank import Bank, Counterfactual
from refusals import refused


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    run = copy_run(root / "run")
    value = push(run, str(root / "place"))
    assert value["method"] == "retrack"
    assert value["groups"] == 3
    return root / "place"


@pytest.fixture
def place(published: Path, tmp_path: Path) -> Path:
    """A private copy to tamper with."""
    shutil.copytree(published, tmp_path / "place")
    return tmp_path / "place"


def manifest(place: Path) -> dict[str, Any]:
    return json.loads((place / FOLDER / MANIFEST).read_text())


def rewrite(place: Path, **changes: Any) -> None:
    (place / FOLDER / MANIFEST).write_text(json.dumps(manifest(place) | changes))


def test_the_card_has_front_matter_and_states_what_the_files_hold() -> None:
    run = Run.open(finished_root())
    text = card_text(run)
    _, front, body = text.split("---\n", 2)
    about = yaml.safe_load(front)
    assert about["library_name"] == "diffusers"
    assert about["pipeline_tag"] == "unconditional-image-generation"
    assert "training-data-attribution" in about["tags"]
    scores = guda.open(finished_root()).scores("retrack", SET)
    first = [scores.groups[g] for g in scores.rank.argmin(axis=1)]
    for group in GROUPS:
        row = next(line for line in body.splitlines() if line.startswith(f"| {group} |"))
        assert f"{first.count(group)} (" in row.split("|")[3]
    entry = guda.open(finished_root()).evaluate()
    assert f"{entry.methods['retrack'].metrics['top1'].mean:.2f} [" in body
    assert run.info["data_digest"] in body
    assert str(finished_root().parent) not in text  # no path of this machine
    assert str(finished_root().parent) not in datasheet_text(run)
    assert "| 0 | 16 | 33.3% |" in datasheet_text(run)


def test_a_card_of_a_run_without_scores_says_so(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    for name in ("queries", "scores"):
        shutil.rmtree(run.path(name))
    run.path("evaluation.json").unlink()
    made = write_card(run)
    assert "Nothing was scored yet" in made["card"].read_text()
    assert "Not measured" in made["card"].read_text()
    assert made["datasheet"].is_file()


def test_a_bank_comes_back_as_it_was(place: Path, tmp_path: Path) -> None:
    found = pull(str(place), tmp_path / "bank")
    assert [e.group for e in found.files] == list(GROUPS)
    bank = Bank.load(tmp_path / "bank")
    run = Run.open(finished_root())
    base = load_model(run, "base")
    assert found.model == base.digest()
    assert tuple(bank) == GROUPS
    for item in bank.values():
        item.apply(base)
    assert {p.suffix for p in place.rglob("*") if p.is_file()} == {".md", ".json", ".safetensors"}
    assert not any("images" in p.name for p in place.rglob("*"))
    with refused("folder-exists"):
        pull(str(place), tmp_path / "bank")


def test_what_is_not_as_the_manifest_says_is_refused_and_nothing_is_left(place: Path, tmp_path: Path) -> None:
    target, first = tmp_path / "bank", manifest(place)["files"][0]
    file = place / FOLDER / first["file"]
    whole = file.read_bytes()

    def fails(code: str) -> None:
        with refused(code):
            pull(str(place), target)
        assert not target.exists()

    flipped = bytearray(whole)
    flipped[-1] ^= 1
    file.write_bytes(bytes(flipped))
    fails("bank-file-changed")
    file.write_bytes(whole + b"x")
    fails("file-too-large")
    file.unlink()
    fails("bank-file-missing")
    file.write_bytes(whole)
    item = Counterfactual.load(file)

    def published_as(other: Counterfactual | None) -> None:
        if other is not None:
            other.save(file)
        entry = first | {"sha256": digest_file(file), "bytes": file.stat().st_size}
        rewrite(place, files=[entry, *manifest(place)["files"][1:]])

    from dataclasses import replace

    published_as(replace(item, group="another"))
    fails("bank-file-changed")
    published_as(replace(item, base="0" * 64))
    fails("bank-file-changed")
    name = next(k for k, v in item.tensors.items() if v.is_floating_point())
    published_as(replace(item, tensors=item.tensors | {name: torch.full_like(item.tensors[name], torch.nan)}))
    fails("weights-not-finite")
    write_tensors(file, {"weight": torch.zeros(2)})
    published_as(None)
    fails("counterfactual-invalid")


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "guda-bank-9"},
        {"files": []},
        {"method": "../x"},
        {"model": "none"},
        {"unknown": 1},
    ],
)
def test_a_manifest_of_another_form_is_refused(place: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    rewrite(place, **changes)
    with refused("manifest-invalid"):
        pull(str(place), tmp_path / "bank")


@pytest.mark.parametrize(
    "name", ["../../evil.safetensors", "/etc/passwd", "0000-x.bin", "0000-x.safetensors/y", "x.pt"]
)
def test_names_that_lead_elsewhere_are_refused(place: Path, tmp_path: Path, name: str) -> None:
    files = manifest(place)["files"]
    rewrite(place, files=[files[0] | {"file": name}, *files[1:]])
    with refused("manifest-invalid"):
        pull(str(place), tmp_path / "bank")
    rewrite(place, files=[files[0], files[0]])
    with refused("manifest-invalid"):
        pull(str(place), tmp_path / "bank")


def test_what_cannot_be_pushed_is_refused(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    with refused("method-without-bank"):
        push(run, str(tmp_path / "x"), "logo")
    with refused("method-without-bank"):
        push(run, str(tmp_path / "x"), "similarity-pixel")
    with refused("method-not-fitted"):
        push(run, str(tmp_path / "x"), "shift")
    with refused("hub-name-invalid"):
        push(run, "hf:name-alone")
    assert not (tmp_path / "x").exists()


def test_the_hub_is_asked_by_huggingface_hub(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake of the few calls that are used, which keeps repositories in a folder."""
    repositories = tmp_path / "repositories"

    class Api:
        def create_repo(self, name: str, repo_type: str, exist_ok: bool) -> None:
            (repositories / name).mkdir(parents=True, exist_ok=exist_ok)

        def upload_folder(self, repo_id: str, folder_path: Path, repo_type: str, commit_message: str) -> None:
            shutil.copytree(folder_path, repositories / repo_id, dirs_exist_ok=True)

        def get_paths_info(self, name: str, paths: list[str], repo_type: str) -> list[Any]:
            found = [repositories / name / p for p in paths]
            return [SimpleNamespace(size=p.stat().st_size) for p in found if p.is_file()]

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file, repo_type: repositories / name / file)
    assert push(copy_run(tmp_path / "run"), "hf:owner/name")["place"] == "hf:owner/name"
    assert (repositories / "owner" / "name" / "README.md").is_file()
    assert pull("hf:owner/name", tmp_path / "bank").method == "retrack"
    assert len(Bank.load(tmp_path / "bank")) == 3
    with refused("bank-file-missing"):
        pull("hf:owner/other", tmp_path / "none")
    monkeypatch.undo()
    with refused("hub-refused"):  # offline
        pull("hf:owner/name", tmp_path / "none")
