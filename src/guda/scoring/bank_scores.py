"""Scores pictures with a bank of counterfactuals in memory: the scorer over an in-memory part store.

Only the draws of one shard and round are held at a time; terms are a few numbers per picture and draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from guda.config import QueriesConfig, ScoringConfig
from guda.data.images import ImageData
from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser, encode_all
from guda.diffusion.sampling import sample, sample_id
from guda.diffusion.schedule import FlowSchedule
from guda.errors import GudaError
from guda.files import digest
from guda.parts import MemoryParts
from guda.scoring.bands import Bands
from guda.scoring.combine import combine, contributions, networks
from guda.scoring.copies import Nearest, crowding, find_copied, nearest
from guda.scoring.origin import LEAST, ROUNDS, Copied, Described, Origin, make_origins, typical_p
from guda.scoring.pilot import measure_density
from guda.scoring.plan import OutOfMemory, Plan, Settings, fastest, make_plan, typical_plan
from guda.scoring.race import StopRule
from guda.scoring.race_rounds import evaluate_here, iter_rounds
from guda.scoring.reference import Drift, Excess, check_drift, draw_reference, measure_drift, reference_index
from guda.scoring.reference import average as average_of
from guda.scoring.scorer import Reader, Scorer, Set
from guda.scoring.scores import Scores
from guda.unlearning.bank import Bank, Workbench
from guda.unlearning.rule import Ruled, RuledDenoiser


@dataclass(frozen=True)
class Member:
    """The model without a group of the bank; None: the model itself."""

    group: str | None
    family: str | None = None  # "rule": all groups come from one evaluation

    @property
    def reference(self) -> Member | None:
        return None if self.group is None else Member(None)

    @property
    def key(self) -> str:
        return "full" if self.group is None else f"without/{digest(self.group)}"


class BankModels:
    """The full model, or the bank's control in its place, and the models without each group."""

    def __init__(self, model: Denoiser, bank: Bank) -> None:
        self.model, self.bank = model, bank
        self._digest = model.digest()
        self._bench = Workbench(model, self._digest)

    def sets(self) -> list[Set[Member]]:
        family = {g: "rule" if isinstance(c, Ruled) else None for g, c in self.bank.items()}
        return [(Member(None), {g: Member(g, family[g]) for g in self.bank})]

    def base(self, member: Member) -> Denoiser:
        return self.model

    def identity(self, member: Member) -> str:
        own = f"{self._digest} {member.group}"
        return own if member.group is not None else self._digest if self.bank.control is None else f"{own} control"

    def several(self, members: Sequence[Member]) -> Denoiser:
        group = members[0].group
        if group is None or members[0].family is None:
            return self._bench.use(self.bank.control if group is None else self.bank[group])
        ruled = [self.bank[str(m.group)].apply(self.model) for m in members]  # refuses another base
        assert isinstance(ruled[0], RuledDenoiser)
        return RuledDenoiser(self._bench.use(None), ruled[0].rule, [r.groups[0] for r in ruled])  # type: ignore[attr-defined]


def score_bank(
    model: Denoiser,
    bank: Bank,
    queries: Queries,
    config: ScoringConfig,
    data: ImageData | None = None,
    prompts: Sequence[str] | None = None,
    stop: StopRule | None = None,
    band: str | None = None,
    average: Queries | None = None,
) -> Scores:
    """`data`, `prompts`: the training images, which an importance plan and drift are measured on, and copies of which
    are recognised; `average`: samples of the model, which excess scores are compared with, and which tell foreign
    pictures from those that the model makes."""
    check_drift(config)
    queries.check_shape(model.image_shape)
    settings, _ = fastest(model, config.block)
    while True:
        try:
            scores = _score(model, bank, queries, config, settings, data, prompts, stop, band, average)
            return replace(scores, origins=_origins(model, bank, queries, config, settings, data, average))
        except OutOfMemory:
            settings = settings.halved()


def _score(
    model: Denoiser, bank: Bank, queries: Queries, config: ScoringConfig, settings: Settings, data: ImageData | None,
    prompts: Sequence[str] | None, stop: StopRule | None, band: str | None, average: Queries | None,
) -> Scores:  # fmt: skip
    plan = _plan(model, config, settings, data, prompts)
    bands = None if band is None else Bands.parse(band, model.schedule.T)
    models = BankModels(model, bank)
    path = config.estimand == "path"
    scorer = Scorer(plan, settings, model.schedule, models, MemoryParts(), config.shard, path=path)
    sets, method = models.sets(), next(iter(bank.values())).method
    excess = _excess(scorer, sets, queries, config, average, bands) if config.excess else None
    if stop is not None:
        racing = replace(scorer, parts=MemoryParts())  # its parts are of the pictures that still want a model
        for scores, _ in iter_rounds(  # noqa: B007  the last is the answer
            racing, queries, sets, stop, lambda r: evaluate_here(racing, queries, sets, r), less=excess,
            method=method, unit="nats",
        ):  # fmt: skip
            pass
        return scores
    less: Drift | None = excess
    if config.drift == "subtract":
        less = _drift(scorer, sets, config, need(data, "drift is measured on training images"), prompts, bands)
    d = _paired(scorer, sets, queries, config, bands)
    names: dict[str, Any] = {"method": method, "unit": "nats", "queries": queries.ids, "groups": tuple(bank)}
    return combine(d, scorer, sum(networks(scorer, sets)), bands, less, **names)


def _origins(
    model: Denoiser, bank: Bank, queries: Queries, config: ScoringConfig, settings: Settings, data: ImageData | None,
    samples: Queries | None,
) -> tuple[Origin, ...] | None:  # fmt: skip
    """Where the pictures come from, as a run tells it (methods/origin.py), as far as samples and images are there."""
    samples = None if samples is None or samples.n < LEAST else samples
    if config.foreign == "skip" or (samples is None and data is None):
        return None
    p, copied = None, list[Copied | None]([None] * queries.n)
    near_queries, near_samples = None, None
    if data is not None:
        images = _flat(model, data.images)
        about = crowding(images)
        near_samples = None if samples is None else nearest(_flat(model, samples.images), images, None, about)
        near_queries = nearest(_flat(model, queries.images), images, None, about)
        copied = find_copied(near_queries, near_samples, about, data, tuple(bank))
    if samples is not None:
        plan, full = typical_plan(model.schedule, config.seed), Member(None)
        models = BankModels(model, Bank({}))
        scorer = Scorer(plan, settings, model.schedule, models, MemoryParts(), config.shard)

        def describe(pictures: Queries, near: Nearest | None) -> Described:
            for shard in pictures.shards(config.shard):
                scorer.evaluate(shard, [full], ROUNDS)
            distance = None if near is None else near.distance
            return Described.of_terms(Reader(scorer, pictures, ROUNDS)(full), pictures.images, distance)

        places = samples.find(queries.images, queries.prompts)
        p = typical_p(describe(samples, near_samples), describe(queries, near_queries), places)
    return make_origins(None if p is None else p.tolist(), copied, config.foreign == "accept")


def _flat(model: Denoiser, images: np.ndarray) -> np.ndarray:
    return encode_all(model, images).x0.flatten(1).float().cpu().numpy()


def draw_average(model: Denoiser, config: QueriesConfig) -> Queries:
    """The samples of which a run would make its average picture."""
    if model.conditional or isinstance(model.schedule, FlowSchedule):
        raise GudaError(
            "average-missing",
            "excess scores need pictures that this model made from prompts; give them as average=Queries(...)",
        )
    images = sample(model, range(config.n), seed=config.seed, steps=config.steps)
    return Queries(tuple(sample_id(config.seed, i) for i in range(config.n)), images)


def _excess(
    scorer: Scorer[Member], sets: list[Set[Member]], queries: Queries, config: ScoringConfig,
    pictures: Queries | None, bands: Bands | None,
) -> Excess:  # fmt: skip
    if pictures is None:
        raise GudaError("average-missing", "excess scores need samples of the model; give them as average=...")
    scored = _paired(scorer, sets, pictures, config, bands).mean(axis=0).sum(axis=-1)
    return average_of(scored, scorer.path, pictures.find(queries.images, queries.prompts))


def need(data: ImageData | None, why: str) -> ImageData:
    if data is None:
        raise GudaError("training-images-missing", f"{why}, and this bank was loaded without them: give data=...")
    return data


def _plan(
    model: Denoiser, config: ScoringConfig, settings: Settings, data: ImageData | None, prompts: Sequence[str] | None
) -> Plan:
    if config.estimand == "paper" or config.plan != "importance":
        return make_plan(model.schedule, config)
    data = need(data, "the importance plan is measured on training images")
    with settings.active():
        measured = measure_density(model, data, settings.block, prompts, config.estimand == "path")
    return make_plan(model.schedule, config, measured.density)


def _paired(
    scorer: Scorer[Member], sets: list[Set[Member]], queries: Queries, config: ScoringConfig, bands: Bands | None
) -> np.ndarray:
    full, others = sets[0]
    for shard in queries.shards(scorer.shard):
        scorer.evaluate(shard, [full, *others.values()], config.rounds)
    return contributions(sets, tuple(others), Reader(scorer, queries, config.rounds, bands))


def _drift(
    scorer: Scorer[Member], sets: list[Set[Member]], config: ScoringConfig, data: ImageData,
    prompts: Sequence[str] | None, bands: Bands | None,
) -> Drift:  # fmt: skip
    groups = [data.groups.index(g) for g in sets[0][1]]
    images = draw_reference(data, config.reference, prompts=prompts, groups=groups)
    scored = _paired(scorer, sets, images, config, bands).mean(axis=0).sum(axis=-1)
    return measure_drift(np.asarray(scored), ~data.groups.membership[reference_index(images)][:, groups])
