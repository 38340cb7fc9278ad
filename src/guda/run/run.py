"""The run folder: the unit of resume, sharing and reporting.

    RUN/run.json        what the run is locked to: recipe sections, data and model digests, library versions
    RUN/recipe.yaml     the whole recipe; `data`, `prompts`, `model`, `training` may be edited until something is made
    RUN/data/           the training images, decoded once, with their groups
    RUN/models/         full-s<seed>/: models trained here, in the diffusers layout
    RUN/previews/       what a model drew while it was trained
    RUN/prompts/        text-to-image: the prompts; RUN/cache/: their embeddings, latents of the images, lists of files
    RUN/artifacts/      <method>-<hash of its settings>/: what `fit` made
    RUN/queries/<set>/  the pictures to attribute
    RUN/terms/          squared errors, one immutable part per (plan, shard, model, round)
    RUN/maps/           the same cell by cell, of pictures asked about; RUN/inversions/: with and without a group
    RUN/scores/<set>/   one parquet per method
    RUN/tune/, RUN/ablations/  what `guda tune` tried and chose; tables of `guda ablate`
    RUN/likelihood/     log p by the probability-flow ODE, one immutable part per (solver, shard, model, seed)
    RUN/tables/, RUN/figures/  what `guda reproduce` writes, pictures with what they are drawn from
    RUN/pairs.json, RUN/partition.json  pairs of groups; a noisy partition against the clean one
    RUN/health/         what each method's counterfactuals do to training images: leakage and drift
    RUN/timings/        wall times and network evaluations, apart from files that must be identical
    RUN/evaluation.json, RUN/report.html, RUN/exhibits/

Opening a run with other inputs than it was made from is an error that prints both values.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from guda.errors import GudaError, Mismatch, refuse_difference
from guda.files import DAY, digest, digest_file, library_versions, read_json, sweep, write_json, write_text
from guda.run.recipe import Recipe, merge

FORMAT = 1

UPLOAD = "upload-"  # names of query sets that were brought to the page (web/uploads.py) begin so

HELDOUT = "heldout-"  # names of query sets of real pictures of known groups (steps/sanity.py) begin so

# names of query sets that are the run's own (methods/reference.py)
REFERENCE = re.compile(r"reference-n\d+-s\d+(-g[0-9a-f]+)?|average-.*")

# what depends on the locked sections of a recipe; and what depends on `training` where the model was given
MADE = ("models/*", "checkpoints/*", "artifacts/*", "prompts/*", "cache/*.safetensors", "queries/*", "terms/*")
RETRAINED = (
    "models/full-*", "models/conditional-*", "checkpoints/*", "artifacts/logo-*", "artifacts/subsets-*",
    "artifacts/datamodel-*", "artifacts/short-*", "artifacts/continuation-*", "artifacts/tangent-*",
)  # fmt: skip

MOMENT = 2.0  # seconds in which a command opens its run several times: one look at a bucket is enough


def _with_defaults(locked: dict[str, Any]) -> dict[str, Any]:
    """A lock written before a setting existed meant what is now its default."""
    try:
        return Recipe.model_validate({"name": "", **locked}).locked()
    except ValueError:
        return locked


def _differences(own: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {key: now.get(key) for key in sorted(own.keys() | now.keys()) if own.get(key) != now.get(key)}


def remote(address: str | Path) -> bool:
    """Whether it is a bucket's: s3://bucket/run, of which a Path has made s3:/bucket/run."""
    return re.match(r"[a-z][a-z0-9+.-]+:/", str(address)) is not None


def local_folder(address: str | Path, patience: float = MOMENT) -> Path:
    """The folder itself; of a run in a bucket its local copy, as it was there not more than so many seconds ago
    (run/remote.py)."""
    if not remote(address):
        return Path(address)
    from guda.run.remote import mirror

    found = mirror(str(address))
    found.pull(patience)
    return found.local


class Run:
    def __init__(
        self, root: Path, info: dict[str, Any], address: str | None = None, changes: dict[str, Any] | None = None
    ) -> None:
        self.root, self.info = root, info
        self.address = address or str(root)  # what a worker elsewhere opens it by
        self.changes = changes or {}  # to the recipe, for one command; see `with_changes`

    @staticmethod
    def exists(root: str | Path) -> bool:
        return (local_folder(root) / "run.json").is_file()

    def refresh(self) -> None:
        """Fetch what others have published meanwhile; a folder on a disk needs no such thing."""
        local_folder(self.address, patience=0.0)

    def remove(self, path: Path) -> None:
        """A file that is wrong; of a run in a bucket also there, from where it would come back."""
        if remote(self.address):
            from guda.run.remote import mirror

            mirror(self.address).remove(path.relative_to(self.root).as_posix())
        path.unlink(missing_ok=True)

    def publish(self) -> None:
        """Let others have what was written here; a folder on a disk needs no such thing."""
        if remote(self.address):
            from guda.run.remote import mirror

            mirror(self.address).push()

    @classmethod
    def create(cls, root: str | Path, recipe: Recipe, lock: dict[str, Any]) -> Run:
        """A new run, or the same one again. `lock`: digests of data and model. Everything else must be there already
        except run.json, which is written last: a folder without it is not a run."""
        address, root = str(root), local_folder(root)
        info = {"format": FORMAT, "locked": recipe.locked(), **lock, "versions": library_versions()}
        write_text(root / "recipe.yaml", recipe.to_yaml())
        write_json(root / "run.json", info)
        run = cls(root, info, address)
        run.publish()
        return run

    @classmethod
    def open(cls, root: str | Path) -> Run:
        """An existing run; its recipe must be the one that it is locked to, wherever something depends on it."""
        run = cls.read(root)
        run._relock()
        run.check(run.recipe)
        return run

    @classmethod
    def read(cls, root: str | Path) -> Run:
        """The same without a look at the recipe."""
        address, root = str(root), local_folder(root)
        if not root.is_dir():
            raise GudaError(
                "run-missing", f"run {address!r} does not exist; make it with: guda init {address} --data ..."
            )
        if not (root / "run.json").is_file():
            raise GudaError(
                "run-folder-invalid",
                f"{address!r} is not a run folder (no run.json); make one with: guda init {address} --data ...",
            )
        try:
            info = read_json(root / "run.json")
        except GudaError:
            info = None
        if not isinstance(info, dict) or not isinstance(info.get("locked"), dict):
            raise GudaError(
                "run-damaged", f"{root / 'run.json'} is damaged; restore it, or start again in another folder"
            )
        if info.get("format") != FORMAT:
            raise Mismatch(
                "run-format-mismatch",
                f"{root}: format of the run",
                info.get("format"),
                FORMAT,
                "use the guda version that made it",
            )
        return cls(root, info, address)

    def made(self, section: str = "data") -> str | None:
        """Something in the folder that depends on a locked section of the recipe; None: nothing does yet. Where the
        model was given, only retrainings depend on `training`."""
        kinds: tuple[str, ...] = MADE
        given = self.info["locked"].get("model") or {}
        if section == "training" and isinstance(given, dict) and given.get("path"):
            kinds = RETRAINED
        for kind in kinds:
            for path in sorted(self.root.glob(kind)):
                if not path.name.startswith(".") and path != self.root / "models" / "given":
                    return path.relative_to(self.root).as_posix()
        from guda.run.task import read_progress

        running = (p for p in self.path("progress").glob("[!.]*.json") if read_progress(p) is not None)
        return next((p.relative_to(self.root).as_posix() for p in running), None)

    def same_lock(self, recipe: Recipe) -> bool:
        """Whether a recipe has the locked sections that this run was made from."""
        return _with_defaults(self.info["locked"]) == recipe.locked()

    def edit_training(self, recipe: Recipe) -> None:
        """Write another `training` section, as long as nothing depends on it."""
        write_text(self.root / "recipe.yaml", recipe.to_yaml())
        self._forget_recipe()
        self._relock()

    def _relock(self) -> None:
        """Take over an edited `training` section that nothing depends on yet. The other sections decide what was
        decoded and checked when the run was made: for them `guda init` does that again."""
        now = self.stored_recipe.locked()["training"]
        if now == _with_defaults(self.info["locked"])["training"] or now is None or self.made("training"):
            return
        self.info["locked"] = self.info["locked"] | {"training": now}
        write_json(self.root / "run.json", self.info)
        self.publish()

    @cached_property
    def stored_recipe(self) -> Recipe:
        """As it is in the file."""
        return Recipe.read(self.root / "recipe.yaml")

    @cached_property
    def recipe(self) -> Recipe:
        """What this command works by: the file, with the command's own changes."""
        return self.stored_recipe.changed(self.changes) if self.changes else self.stored_recipe

    def with_changes(self, changes: dict[str, dict[str, Any]]) -> Run:
        """The same run under other settings for one command: section -> key -> value; methods -> method -> settings.
        The recipe's file does not change: tasks carry the changes to the workers, and what is made is named after its
        settings; `set_apart` names the rest."""
        run = Run(self.root, self.info, self.address, merge(self.changes, changes))
        run.check(run.recipe)
        return run

    @cached_property
    def set_apart(self) -> str | None:
        """Folder name for scores whose settings are not those of the recipe's file, so that nobody takes them for the
        run's own; None where there is no difference. Estimands that have folders of their own are not counted."""
        own, now = self.stored_recipe, self.recipe
        found = _differences(own.scoring.model_dump(mode="json"), now.scoring.model_dump(mode="json"))
        if "paper" not in (own.scoring.estimand, now.scoring.estimand):
            found.pop("estimand", None)
        found.pop("excess", None)
        if now.scoring.estimand == "path" or now.scoring.excess:  # which have no drift to subtract
            found.pop("drift", None)
        for method in self.changes.get("methods", {}):
            these = _differences(own.settings(method), now.settings(method))
            found |= {f"{method}.{key}": value for key, value in these.items()}
        if not found:
            return None
        name = "with-" + ",".join(f"{key}={value}" for key, value in sorted(found.items()))
        plain = re.fullmatch(r"[A-Za-z0-9.,=_+-]{1,80}", name)
        return name if plain else f"with-{digest(found)}"

    def check(self, recipe: Recipe) -> None:
        """Refuse a recipe whose locked sections are not those this run was made from."""
        made = self.made()
        fix = f"{made} was made from the first; use another run folder for another experiment"
        if made is None:
            fix = f"nothing depends on it yet: guda init {self.root} makes the run again from its edited recipe.yaml"
        refuse_difference(
            "run-recipe-differs", str(self.root), _with_defaults(self.info["locked"]), recipe.locked(), fix
        )

    def check_lock(self, lock: dict[str, Any]) -> None:
        """Refuse data or a model other than those this run was made from."""
        refuse_difference(
            "run-inputs-differ",
            str(self.root),
            {k: self.info.get(k) for k in lock},
            lock,
            "use another run folder for other data or models",
        )

    def note(self, key: str, value: str) -> None:
        """Lock the run to something that was made after it, once; another value is refused."""
        if self.info.get(key) not in (None, value):
            raise Mismatch("run-lock-mismatch", f"{self.root}: {key}", self.info[key], value, "use another run folder")
        if key not in self.info:
            self.info[key] = value
            write_json(self.root / "run.json", self.info)

    def update(self, recipe: Recipe) -> None:
        """Replace the editable sections of the recipe."""
        self.check(recipe)
        write_text(self.root / "recipe.yaml", recipe.to_yaml())
        self._forget_recipe()

    def _forget_recipe(self) -> None:
        for known in ("recipe", "stored_recipe", "set_apart"):
            self.__dict__.pop(known, None)

    def path(self, *parts: str) -> Path:
        return self.root.joinpath(*parts)

    def has(self, relative: str) -> bool:
        return (self.root / relative).exists()

    def record_time(self, stage: str, name: str, seconds: float, evals: float | None = None) -> None:
        # group names may be long, or differ only in characters no file name takes
        file = f"{name.replace('/', '_')[:60]}-{digest(name, 8)}.json"
        counted = {} if evals is None else {"evals": evals}
        write_json(self.path("timings", stage, file), {"name": name, "seconds": seconds, **counted})

    def timings(self, stage: str) -> list[tuple[float, float | None]]:
        """(worker seconds, network evaluations) of every task of a stage; None: not counted, as in older runs."""
        return [_timing(file) for file in sorted(self.path("timings", stage).glob("[!.]*.json"))]

    def seconds(self, stage: str) -> float | None:
        """Total worker time of a stage; None where nothing was recorded."""
        found = self.timings(stage)
        return sum(seconds for seconds, _ in found) if found else None

    def finish(self, what: str, outputs: list[str]) -> None:
        """Note that `what` is complete, with the files it ended in and the recipe it was made from."""
        value = {"recipe": digest_file(self.path("recipe.yaml")), "outputs": self._sizes(outputs)}
        write_json(self.path("finished", f"{what}.json"), value)

    def finished(self, what: str) -> bool:
        """Whether `what` was completed from this very recipe and its files are still those."""
        if not self.has(f"finished/{what}.json"):
            return False
        noted = read_json(self.path("finished", f"{what}.json"))
        return noted == {"recipe": digest_file(self.path("recipe.yaml")), "outputs": self._sizes(noted["outputs"])}

    def _sizes(self, files: Iterable[str]) -> dict[str, int]:
        return {f: self.path(f).stat().st_size if self.has(f) else -1 for f in files}

    def query_sets(self) -> list[str]:
        """The user's; not training images, nor samples that were drawn only to be compared with."""
        found = (p.parent.name for p in self.path("queries").glob("[!.]*/index.json"))
        return sorted(name for name in found if not REFERENCE.fullmatch(name))

    def query_ids(self, queries: str) -> list[str]:
        """Of a set's pictures, without reading the pictures."""
        path = self.path("queries", queries, "index.json")
        index = read_json(path)
        if not isinstance(index, dict) or not isinstance(index.get("ids"), list):
            raise GudaError("stored-index-invalid", f"{path} is not an index of stored queries; save the queries again")
        return [str(i) for i in index["ids"]]

    def sweep(self, older_than: float = DAY) -> None:
        """Remove temporary files of killed processes; those of other machines once `older_than` seconds old."""
        sweep(self.root, older_than)


def writable(root: Path) -> None:
    """One clear line instead of a traceback from deep inside a worker."""
    probe = root
    while not probe.exists():
        probe = probe.parent
    if not probe.is_dir():
        raise GudaError("path-is-file", f"{probe} is a file; choose another folder")
    if not os.access(probe, os.W_OK):
        raise GudaError("path-not-writable", f"{probe} is not writable; choose another folder")


def _timing(file: Path) -> tuple[float, float | None]:
    value = read_json(file)
    found = (value.get("seconds"), value.get("evals", 0.0)) if isinstance(value, dict) else (None,)
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < math.inf for n in found):
        raise GudaError("timing-damaged", f"{file} is damaged; delete it, and its time is not counted")
    return value["seconds"], value.get("evals")
