"""subsets: models trained on random halves of the groups, in complementary pairs.

    pair p:   every group is in S_p or not by a fair coin;   one model is trained on S_p, one on its complement

LOGO asks about one group at a time, so of M trainings only M / G speak about a group. Here every model speaks about
every group: half of them have seen it, and the regression of methods/datamodel.py weighs all of them (a weighing
design). A pair shares its seed, so both of its models start from the same weights and see the same stream up to the
images that are left out (diffusion/stream.py); other pairs have other seeds, so the spread between pairs contains the
randomness of training. Every model takes the recipe's number of steps, from its pretrained start where it has one.

What a model of S has seen: an image is left out if any of its groups is left out, as everywhere in guda
(docs/groups.md). Images of no scored group are always in. A pair that would leave a model without images is drawn
again.

The draw of a pair is a function of (seed, pair) alone: 128 models contain the first 64.

    RUN/artifacts/subsets-<settings>/0000.safetensors     pair 0: S;  0001: its complement;  0002: pair 1; ...
"""

from __future__ import annotations

import numpy as np
from pydantic import Field, field_validator

from guda.config import Config
from guda.data.groups import Groups
from guda.data.queries import Queries
from guda.diffusion import distributed
from guda.diffusion.noise import generator
from guda.errors import GudaError
from guda.files import digest
from guda.methods.base import Method, get_method, method
from guda.methods.terms import ModelRef, score_tasks
from guda.run.data import load_data, prompt_files, scored_groups
from guda.run.models import drop_checkpoints, need_training, train_evals, train_model
from guda.run.run import Run
from guda.run.task import Task
from guda.scoring.bands import Bands
from guda.scoring.scores import Scores
from guda.unlearning.bank import Counterfactual

ATTEMPTS = 1000  # draws of a pair before it is given up

FIRST_SEED = 1_000_000  # seeds of pairs are above those that anybody gives to a training or to LOGO


class SubsetsConfig(Config):
    models: int = Field(64, ge=4, le=100_000, description="Trainings, two to a pair; more later keep the first.")
    seed: int = Field(0, ge=0, le=1000, description="Seed of the halves and of their trainings.")

    @field_validator("models")
    @classmethod
    def _even(cls, models: int) -> int:
        if models % 2:
            raise ValueError("models come in complementary pairs; give an even number")
        return models


def draw_pair(membership: np.ndarray, seed: int, pair: int) -> np.ndarray:
    """bool [groups]: the first half of a pair. `membership`: bool [images, groups], of the groups that are drawn."""
    n = membership.shape[1]
    for attempt in range(ATTEMPTS):
        inside: np.ndarray = np.asarray(generator(seed, "subset", pair, attempt).random(n) < 0.5)
        if all(half.any() and not left_out(membership, half).all() for half in (inside, ~inside)):
            return inside
    raise GudaError(
        "subsets-impossible",
        f"{ATTEMPTS} random halves of the {n} groups left one model of a pair without images, because groups share "
        "them; ask about groups that share less: --groups",
    )


def left_out(membership: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """bool [images]: those with a group that is not `inside`."""
    return np.asarray(membership[:, ~inside].any(axis=1))


def left_out_groups(known: Groups, players: tuple[str, ...], inside: np.ndarray) -> Groups:
    """The training images with the union of all groups that are not `inside` as one group, called OUT."""
    away = [known.index(name) for name, kept in zip(players, inside, strict=True) if not kept]
    union = known.membership[:, away].any(axis=1)
    return Groups((OUT, "kept"), np.stack([union, ~union], axis=1))


OUT = "left out"


@method("subsets")
class Subsets(Method):
    Config = SubsetsConfig
    summary = "retrain on random halves of the groups (what datamodel, shares and opt-outs are computed from)"
    trains = True
    oracle = True
    ranks_groups = False
    by_terms = True
    scored = False

    @property
    def groups(self) -> tuple[str, ...]:
        return scored_groups(self.run)

    @property
    def folder(self) -> str:
        # the number of models is not part of the name: more of them keep those that are there
        training = self.run.info["locked"]["training"]
        return self.artifact(seed=self.config.seed, groups=list(self.groups), training=training)

    def file(self, number: int) -> str:
        return f"{self.folder}/{number:04d}.safetensors"

    def seed_of(self, number: int) -> int:
        return FIRST_SEED * (1 + self.config.seed) + number // 2

    def inside(self, number: int) -> np.ndarray:
        """bool [groups]: the groups that model `number` is trained on."""
        known = load_data(self.run).groups
        columns = known.membership[:, [known.index(name) for name in self.groups]]
        half = draw_pair(columns, self.config.seed, number // 2)
        return half if number % 2 == 0 else ~half

    def design(self, n: int | None = None) -> np.ndarray:
        """bool [models, groups]."""
        return np.stack([self.inside(i) for i in range(self.config.models if n is None else n)])

    def models(self) -> list[ModelRef]:
        return [ModelRef("base", self.file(i)) for i in range(self.config.models)]

    def check(self) -> None:
        need_training(self.run)
        self.design(2)

    def fit(self) -> list[Task]:
        need_training(self.run)
        return [
            Task(
                name=f"train half {i:04d} of subsets-{self.config.seed}", stage=f"fit/{self.method_id}",
                fn="guda.methods.subsets:train_subset", args={"number": i}, makes=(self.file(i),),
                needs=prompt_files(self.run), cost=float(train_evals(self.run)), trains=True, store="fp32",
            )
            for i in range(self.config.models)
        ]  # fmt: skip

    def fit_evals(self) -> float:
        """Per group."""
        return float(self.config.models * train_evals(self.run)) / len(self.groups)

    def score(self, queries: Queries, planned: set[str]) -> list[Task]:
        models = [m for m in (ModelRef("base"), *self.models()) if m.key not in planned]
        planned.update(m.key for m in models)
        return score_tasks(self.run, queries, models, self.method_id)

    def scores(self, queries: Queries, bands: Bands | None = None) -> Scores:
        raise GudaError(
            "subsets-not-scored", "subsets are models of halves, not scores of groups; score with --method datamodel"
        )


def find_subsets(run: Run) -> Subsets:
    """The run's subset models, by its settings."""
    found = get_method(run, "subsets")
    assert isinstance(found, Subsets)
    return found


def train_subset(run: Run, number: int) -> float:
    found = find_subsets(run)
    checkpoints = run.path("checkpoints", f"subset-{digest([found.folder, number])}")
    groups = left_out_groups(load_data(run).groups, found.groups, found.inside(number))
    trained = train_model(run, found.seed_of(number), checkpoints, groups, leave_out=OUT)
    if not distributed.is_main():
        return trained.earlier
    half = Counterfactual("weights", f"half-{number:04d}", "", "subsets", trained.weights)
    half.save(run.path(found.file(number)))
    return drop_checkpoints(checkpoints, trained.earlier)
