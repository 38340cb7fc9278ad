"""The counterfactuals a run keeps: list them, take in those made elsewhere, check them, hand one out as a model.

Whatever is stored lies under the name the method itself would use (`ElboMethod.file`), so `guda score` makes no
difference between what was fitted here and what was added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from guda.diffusion.denoiser import Denoiser
from guda.diffusion.lora import adapted, lora_file
from guda.errors import GudaError, Mismatch
from guda.files import atomic_folder, read_header, read_tensors, write_tensors
from guda.methods.base import METHODS, get_method
from guda.methods.elbo import has_counterfactuals
from guda.methods.regroup import fitted_placebos, pair_files
from guda.run.data import load_data
from guda.run.models import architecture, load_model, model_digest, model_files, need_training
from guda.run.run import Run
from guda.unlearning.bank import CONTROL_FILE, FILES, Card, Counterfactual, dtype_text, full_bytes
from guda.unlearning.rule import RULE, read_rule
from guda.unlearning.unlearn import CONTROL

SEED = re.compile(r"s[0-9]+")  # the folder of a seed (ElboMethod.file)
LORA = "pytorch_lora_weights.safetensors"  # as diffusers names a LoRA file


@dataclass(frozen=True)
class Stored:
    """One row of `guda bank ls`."""

    method: str
    group: str
    kind: str
    rank: int | None
    dtype: str
    bytes: int
    share: float  # of a full fp32 copy of the network
    base_ok: bool | None  # made from this run's model; None: weights of its own, or the run has no model yet
    used: bool  # by the run's present settings
    file: str  # in the run folder

    @property
    def model(self) -> str:
        """The method, and the seed where that is not the settings' own: continuation-s1; LOGO's names have theirs."""
        folder = Path(self.file).parent.name
        return f"{self.method}-{folder}" if SEED.fullmatch(folder) and not self.method.endswith(folder) else self.method


def _files(run: Run) -> list[str]:
    """Stored by methods that keep counterfactuals, whatever their settings were; samples are artifacts too."""
    keepers = {name for name, cls in METHODS.items() if cls.counterfactuals}
    found = [
        p.relative_to(run.root) for files in (FILES, CONTROL_FILE, RULE) for p in run.path("artifacts").rglob(files)
    ]
    return sorted(str(p) for p in found if p.parts[1].rpartition("-")[0] in keepers)


def _expected(run: Run) -> dict[str, str]:
    """File -> group, of everything the methods look for with the run's settings."""
    names: dict[str, str] = {}
    for name in METHODS:
        method = get_method(run, name)
        if not has_counterfactuals(method):
            continue
        refs = [(r.counterfactual, g) for _, groups in method.sets() for g, r in groups.items()]
        refs += [(full.counterfactual, CONTROL) for full, _ in method.sets()]
        names |= {file: group for file, group in refs if file is not None} | pair_files(method)
        if method.unlearns:  # of a tree, the groups above
            names |= {method.file(group): group for group in method.nodes()}
        if null := fitted_placebos(method):
            refs = [(r.counterfactual, g) for _, groups in null.sets() for g, r in groups.items()]
            names |= {file: group for file, group in refs if file is not None}
    return names


def _base_digest(run: Run) -> str | None:
    """None before the run's model is trained."""
    return model_digest(run, "base") if all(run.has(f) for f in model_files(run, "base")) else None


def _start_digest(run: Run) -> str | None:
    """Of the pretrained start, which a short retraining changes."""
    return None if run.recipe.model.start is None else model_digest(run, "start")


def bank_list(run: Run) -> list[Stored]:
    """Every stored counterfactual, by its header: weights are not read."""
    full, base, used = full_bytes(architecture(run).module), _base_digest(run), _expected(run)
    bases = (base, _start_digest(run))

    def row(file: str) -> Stored:
        size = run.path(file).stat().st_size
        try:
            if Path(file).name == RULE:
                header, dtypes = read_header(run.path(file))
                same = None if base is None else header["base"] == base
                dtype, group = dtype_text(dtypes), header.get("group", "(all)")
                return Stored(header["method"], group, "rule", None, dtype, size, size / full, same, file in used, file)
            card = Card.read(run.path(file))
        except (GudaError, KeyError):  # `guda bank verify` says what is wrong with it
            return Stored("?", "?", "damaged", None, "?", size, size / full, False, file in used, file)
        return Stored(
            method=card.method, group=card.group, kind=card.kind, rank=card.about.get("rank"), dtype=card.dtype,
            bytes=size, share=size / full, used=file in used, file=file,
            base_ok=None if card.kind == "weights" or base is None else card.base in bases,
        )  # fmt: skip

    return [row(file) for file in _files(run)]


def bank_verify(run: Run) -> dict[str, Any]:
    """Reads every stored file; returns how many there are and what is wrong with which."""
    files, expected, base = _files(run), _expected(run), _base_digest(run)
    network = architecture(run) if base is None else load_model(run, "base")
    start = None if (first := _start_digest(run)) is None else (load_model(run, "start"), first)
    problems = [
        {"file": file, "problem": problem}
        for file in files
        for problem in (
            _rule_problems(run, file, network, base)
            if Path(file).name == RULE
            else _problems(run.path(file), network, base, expected.get(file), start)
        )
    ]
    return {"run": str(run.root), "files": len(files), "problems": problems}


def _problems(
    path: Path, network: Denoiser, base: str | None, group: str | None, start: tuple[Denoiser, str] | None
) -> Iterator[str]:
    """`start`: the pretrained start and its digest, where there is one."""
    try:
        item = Counterfactual.load(path)
        if start is not None and item.base == start[1]:
            network, base = start
        if group is not None and item.group != group:
            yield f"is the counterfactual without {item.group!r}, in the place of {group!r}; fit or add it again"
        if base is None and item.kind != "weights":
            yield "is a change to a model that the run does not have; run: guda train"
            return
        check_finite(item.changed(network, base), "it")
    except GudaError as e:
        yield str(e).removeprefix(f"{path} ").removeprefix(f"{path}: ")


def _rule_problems(run: Run, file: str, network: Denoiser, base: str | None) -> Iterator[str]:
    path = run.path(file)
    try:
        if base is None:
            yield "is a rule on a model that the run does not have; run: guda train"
            return
        read_rule(path, network, base, load_data(run))
        check_finite(read_tensors(path)[0], "it")
    except GudaError as e:
        yield str(e).removeprefix(f"{path} ").removeprefix(f"{path}: ")


def check_finite(weights: dict[str, torch.Tensor], where: str) -> None:
    for name, value in weights.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise GudaError("weights-not-finite", f"{where} holds NaN or infinity in weight {name!r}; make it again")


def _place(run: Run, method: str, group: str, seed: int | None) -> tuple[str, str]:
    """(file in the run, what its header calls the method)."""
    found = get_method(run, method)
    load_data(run).groups.index(group)
    if not has_counterfactuals(found) or not found.bankable:
        raise GudaError(
            "method-without-models", f"{method} keeps no counterfactual models; give an unlearning method or logo"
        )
    if seeds := tuple(found.seed_sets()):
        if found.oracle:
            need_training(run)  # scoring asks what a retraining costs
        if seed is None or seed not in seeds:
            given = "needs --seed" if seed is None else f"has no seed {seed}"
            raise GudaError(
                "seed-invalid", f"{method} {given}; its seeds are {', '.join(map(str, seeds))} (methods.{method}.seeds)"
            )
        return found.file(group, seed), f"{method}-s{seed}" if found.oracle else method
    if seed is not None:
        raise GudaError(
            "seed-unsupported",
            f"--seed is for methods of several seeds (logo; methods.{method}.seeds); {method} has one model per group",
        )
    return found.file(group), method


def bank_add(run: Run, method: str, group: str, path: str | Path, seed: int | None = None) -> dict[str, Any]:
    """Take in a counterfactual made elsewhere; the same one again changes nothing, another one is refused."""
    file, name = _place(run, method, group, seed)
    item = replace(_given(run, Path(path).expanduser(), group, own=METHODS[method].oracle), method=name)
    target, new = run.path(file), True
    if target.exists():
        old = Counterfactual.load(target)
        if old.digest() != item.digest():
            raise Mismatch(
                "counterfactual-exists", f"{target} holds another counterfactual: digest", old.digest(), item.digest(),
                "delete that file first if it should be replaced",
            )  # fmt: skip
        new = False
    else:
        item.save(target)
    return {"method": name, "group": group, "kind": item.kind, "digest": item.digest(), "file": file, "added": new}


def _given(run: Run, path: Path, group: str, own: bool) -> Counterfactual:
    """What lies at `path` as a counterfactual of this run, checked to fit and to be finite. `own`: as weights of its
    own (a retraining), else as a change to the run's model."""
    if path.is_file() and path.suffix != ".safetensors":
        raise GudaError(
            "weights-not-safetensors",
            f"{path} is not a .safetensors file (pickled weights are not read); re-save it as safetensors",
        )
    if not path.exists():
        raise GudaError(
            "weights-file-missing", f"{path} does not exist; give a .safetensors file or a diffusers folder"
        )
    base = architecture(run) if own and _base_digest(run) is None else load_model(run, "base")
    if path.is_file() and "kind" in read_header(path)[0]:
        item = Counterfactual.load(path)
        if item.group != group:
            raise Mismatch(
                "counterfactual-group-mismatch",
                f"{path}: left-out group",
                item.group,
                group,
                "give --group as the file says",
            )
        if own == (item.kind == "weights"):
            check_finite(item.changed(base), str(path))
            # a retraining has no base, unless it is the LoRA of one
            return replace(item, base="") if own and set(item.tensors) == set(base.weights()) else item
        weights = base.weights() | item.changed(base)
    else:
        weights = read_tensors(path)[0] if path.is_file() else _folder_weights(run, path)
    base.check_weights(weights, str(path))
    weights = {k: v.detach().cpu().to(base.weights()[k].dtype) for k, v in weights.items()}
    check_finite(weights, str(path))
    if own:
        return Counterfactual("weights", group, "", "", weights)
    return Counterfactual.delta(base, weights, group, "")


def _folder_weights(run: Run, folder: Path) -> dict[str, torch.Tensor]:
    places = (folder, folder / "scheduler", folder.parent / "scheduler")
    brings = any((p / "scheduler_config.json").is_file() for p in places)
    # a bare model folder lends its weights only; which schedule it is read with does not matter then
    model = Denoiser.from_pretrained(folder, None if brings else "linear:1000")
    if brings and (given := model.schedule.digest) != run.info["schedule"]:
        raise Mismatch(
            "schedule-mismatch", f"{folder}: noise schedule", run.info["schedule"], given,
            "it was trained with another schedule than the run's model",
        )  # fmt: skip
    return model.weights()


def bank_export(run: Run, method: str, group: str, folder: str | Path, seed: int | None = None) -> dict[str, Any]:
    """Write one counterfactual as an ordinary diffusers folder; of a base with a LoRA, as a LoRA file."""
    file, name = _place(run, method, group, seed)
    if not run.has(file):
        raise GudaError(
            "counterfactual-missing",
            f"{run.root} has no {name} model without {group!r}; run: guda fit {run.root} --method {method}",
        )
    folder = Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise GudaError("folder-exists", f"{folder} exists already; give a new folder")
    item = Counterfactual.load(run.path(file))
    own = item.kind == "weights" and _base_digest(run) is None
    model = item.apply(architecture(run) if own else load_model(run, "base"))
    with atomic_folder(folder) as tmp:
        if adapted(model.module):
            write_tensors(tmp / LORA, lora_file(model.module))
        else:
            model.save_pretrained(tmp)
    return {"method": name, "group": group, "folder": str(folder), "weights": model.digest()}
