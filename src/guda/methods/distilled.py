"""distilled: a small network that says in milliseconds what another method would score (scoring/student.py).

Its features are the full model's own inner activations of the picture at a few noise levels (diffusion/activations.py),
so a picture costs that many network evaluations, however many groups there are. `guda distil` draws pictures from the
run's model, has them scored by the teacher, and trains it; the teacher is any fitted method, the recipe's first with
counterfactuals unless `teacher` names one. The student has learned one question: another estimand, plan or set of
groups needs another student.

    RUN/artifacts/distilled-<settings>/student.safetensors
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field

from guda.config import Config, QueriesConfig
from guda.data.queries import Queries
from guda.diffusion.activations import activations
from guda.errors import GudaError
from guda.files import digest, read_tensors, write_tensors
from guda.methods.base import Method, get_method, make_method, method
from guda.methods.elbo import ElboMethod, has_counterfactuals
from guda.methods.terms import load_queries
from guda.run.data import scored_groups
from guda.run.models import load_model, model_digest, model_files
from guda.run.parts import Sharded, query_shard, query_shards
from guda.run.run import Run
from guda.run.samples import has_samples, set_name
from guda.run.task import Task, pending, tick
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores
from guda.scoring.student import Student, check_student, split, train_student

SEED = 3000  # of the pictures, beyond that of the reported ones; blend, tune and calibrate have others

LEVELS = (0.02, 0.1, 0.25, 0.5)  # noise levels of the features, as fractions of T


class DistilledConfig(Config):
    teacher: str | None = Field(None, description="Method to imitate; null: the recipe's first with counterfactuals.")
    pictures: int = Field(2000, ge=40, le=1_000_000, description="Samples of the model that the teacher scores.")
    width: int = Field(256, gt=0, le=65_536, description="Of the student's two hidden layers.")
    steps: int = Field(2000, gt=0, description="Optimiser steps of the student.")
    lr: float = Field(1e-3, gt=0, description="Learning rate of the student.")
    seed: int = Field(0, ge=0, description="Of the student, and of the pictures it learns from.")


@method("distilled")
class Distilled(Method):
    Config = DistilledConfig
    unit = "as its teacher"
    summary = "a small network that imitates another method's scores in milliseconds (guda distil)"

    @property
    def teacher(self) -> ElboMethod:
        names = [m for m in self.run.recipe.methods if m != self.method_id]
        if self.config.teacher is not None:
            names = [self.config.teacher]
        for name in names:
            found = get_method(self.run, name) if name != self.method_id else self
            if has_counterfactuals(found) and not found.oracle and found.ranks_groups:
                return found
        raise GudaError(
            "distil-teacher-missing",
            f"distilled imitates a method with counterfactuals, e.g. retrack, and {' or '.join(names) or 'the recipe'} "
            f"is none; give one: guda set {self.run.root} methods.distilled.teacher=ID",
        )

    @property
    def pictures(self) -> QueriesConfig:
        """What it learns from: samples under a seed of their own."""
        if self.run.recipe.prompts is not None:
            raise GudaError(
                "distil-text-model",
                "distilled needs many pictures of one kind, and those of a text-to-image model depend on its prompts; "
                "use --stop and --screen instead",
            )
        own = self.run.recipe.queries
        return own.model_copy(update={"n": self.config.pictures, "seed": own.seed + SEED + self.config.seed})

    @property
    def file(self) -> str:
        """Named after all that the student depends on: its settings, the teacher's, and the question."""
        teacher, scoring = self.teacher, self.run.recipe.scoring
        told = {
            "config": self.config.model_dump(mode="json"), "teacher": teacher.method_id,
            "settings": teacher.config.model_dump(mode="json"), "groups": list(scored_groups(self.run)),
            "scoring": scoring.model_dump(mode="json", exclude={"groups", "shard", "foreign"}),
        }  # fmt: skip
        return f"{self.artifact(**told)}/student.safetensors"

    def fitted(self) -> bool:
        """Asked of every run, also of those without anything to imitate."""
        try:
            return self.run.has(self.file)
        except GudaError:
            return False

    @property
    def free(self) -> bool:
        return False

    def check(self) -> None:
        """Refuses what can never be distilled; that the teacher has scored the pictures is checked by the task."""
        self.teacher.check()
        self.pictures  # noqa: B018  refuses text-to-image models

    def fit(self) -> list[Task]:
        return [
            Task(
                name=f"distil {self.teacher.method_id}", stage=f"fit/{self.method_id}",
                fn="guda.methods.distilled:fit_student", args={"config": self.config.model_dump(mode="json")},
                makes=(self.file,), needs=model_files(self.run, "base"), cost=float(len(LEVELS) * self.config.pictures),
            )
        ]  # fmt: skip

    def features(self, queries: Queries) -> np.ndarray:
        """float32 [n, D]: an activation at every level, side by side."""
        model, block = load_model(self.run, "base"), self.run.recipe.scoring.block
        x0 = model.encode(queries.images)
        cond = None if queries.prompts is None else model.condition(queries.prompts)
        return np.concatenate(
            [activations(model, x0, cond, block=block, fractions=(level,), tick=tick) for level in LEVELS], axis=1
        )

    def train(self) -> tuple[Student, dict[str, str]]:
        """What a task of `fit` keeps."""
        run, teacher = self.run, self.teacher
        queries = load_queries(run, set_name(run, self.pictures)) if has_samples(run, self.pictures) else None
        if queries is None or pending(run, teacher.score(queries, set())):
            raise GudaError(
                "distil-teacher-unscored",
                f"{teacher.method_id} has not scored the pictures that distilled learns from; run: guda distil "
                f"{run.root}",
            )
        known = teacher.scores(queries)
        parts = split(queries.n, self.config.seed)
        features = self.features(queries)
        student = train_student(
            features, known.score, parts, width=self.config.width, steps=self.config.steps, lr=self.config.lr,
            seed=self.config.seed,
        )  # fmt: skip
        found = check_student(student, features, known.score, parts.check)
        header = {
            "kind": "student", "teacher": teacher.method_id, "model": model_digest(run, "base"),
            "pictures": queries.digest, "unit": known.unit, "estimand": known.estimand, "sign": known.sign,
            "width": str(self.config.width), "checked": str(found.n), "same_first": str(found.same_first),
            "inside": str(found.inside),
        }  # fmt: skip
        return student, header

    def student(self) -> tuple[Student, dict[str, str]]:
        """Read back, refused where it is damaged or of another model."""
        path = self.run.path(self.file)
        tensors, header = read_tensors(path)
        groups, fix = scored_groups(self.run), "delete it and run guda distil again"
        try:
            student = Student(len(tensors["feature_mean"]), len(groups), int(header["width"]))
            student.load_state_dict(tensors)
        except (KeyError, ValueError, RuntimeError):
            raise GudaError("student-damaged", f"{path} is damaged: it holds no student; {fix}") from None
        if header.get("digest") != digest([{k: v for k, v in header.items() if k != "digest"}, _bytes(tensors)]):
            raise GudaError("student-damaged", f"{path} is damaged: its digest is another; {fix}")
        if header["model"] != model_digest(self.run, "base"):
            raise GudaError("student-damaged", f"{path} is of another model; {fix}")
        return student.eval(), header

    def _features(self, queries: Queries) -> Sharded:
        pattern = f"artifacts/student-features-{digest([model_digest(self.run, 'base'), LEVELS], 8)}/*.safetensors"
        return Sharded(self.run, pattern, query_shards(queries, self.run.recipe.scoring.shard))

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        args = {"config": self.config.model_dump(mode="json"), "queries": queries.name}
        return self._features(queries).tasks(
            "features of {}", f"score/{queries.name}/{self.method_id}", "guda.methods.distilled:feature_shard", args,
            model_files(self.run, "base"), evals=len(LEVELS),
        )  # fmt: skip

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        student, header = self.student()
        score, half = student.predict(self._features(queries).concat("features"))
        return Scores(
            method=self.method_id, unit=header["unit"],
            estimand=f"{header['estimand']}, as {header['teacher']} would score it",
            queries=queries.ids, groups=scored_groups(self.run), score=score, n_evals=len(LEVELS),
            stderr=half / 1.96, lo=score - half, hi=score + half, sign=header["sign"],
        )  # fmt: skip

    def score_evals(self) -> float:
        return float(len(LEVELS))


def _bytes(tensors: dict[str, torch.Tensor]) -> str:
    return digest({name: value.numpy().tobytes().hex() for name, value in sorted(tensors.items())})


def _distilled(run: Run, config: dict[str, Any]) -> Distilled:
    found = make_method(run, "distilled", config)
    assert isinstance(found, Distilled)
    return found


def fit_student(run: Run, config: dict[str, Any]) -> None:
    found = _distilled(run, config)
    student, header = found.train()
    tensors = {name: value.contiguous() for name, value in student.state_dict().items()}
    write_tensors(run.path(found.file), tensors, header | {"digest": digest([header, _bytes(tensors)])})


def feature_shard(run: Run, config: dict[str, Any], queries: str, shard: int) -> None:
    found, size = _distilled(run, config), run.recipe.scoring.shard
    part = query_shard(given := load_queries(run, queries), shard, size)
    found._features(given).write(shard, {"features": torch.from_numpy(found.features(part))})
