"""Terms of a run: which tasks evaluate which models, and where the parts are (see scoring/scorer.py).

A task is one shard of queries and a portion of the models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.files import digest, digest_file, remembered
from guda.parts import FolderParts
from guda.run.data import load_data
from guda.run.models import load_model, model_digest, model_files, run_schedule
from guda.run.plan import run_plan, run_settings
from guda.run.run import Run
from guda.run.task import Task, tick
from guda.scoring.plan import Plan
from guda.scoring.scorer import Scorer, families, shard_names
from guda.unlearning.bank import Counterfactual, Workbench
from guda.unlearning.rule import Rule, RuledDenoiser, read_rule

PORTION = 32  # models in one task

BYTES_PER_TERM = 12  # measured: a compressed parquet row, headers included


@dataclass(frozen=True)
class ModelRef:
    """A model of the run: a full model, or a counterfactual applied to it."""

    base: str  # name of a full model, see run/models.py
    counterfactual: str | None = None  # file, relative to the run
    member: int | None = None  # which group, where one file is the rule of all (unlearning/rule.py)
    against: str | None = None  # what it is compared with, if not its base: a full model (retrainings, the pretrained
    # start), or the file of a control (continuations), which is compared with itself

    @property
    def key(self) -> str:
        """Folder name of its terms."""
        if self.counterfactual is None:
            return self.base
        name = self.counterfactual.removesuffix(".safetensors")
        return name if self.member is None else f"{name}/{self.member:04d}"

    @property
    def family(self) -> tuple[str, str | None] | None:
        """The members of a rule are evaluated together."""
        return None if self.member is None else (self.base, self.counterfactual)

    @property
    def reference(self) -> ModelRef | None:
        """The full model, or the control, that a counterfactual is compared with."""
        if self.against == self.counterfactual:  # a full model (both None), or a control
            return None
        if self._control is not None:
            return control_ref(self.base, self._control)
        return ModelRef(self.against or self.base)

    @property
    def _control(self) -> str | None:
        """The file of the control it is compared with."""
        return self.against if self.against is not None and self.against.endswith(".safetensors") else None

    def identity(self, run: Run) -> str:
        """Changes with the weights."""
        base = model_digest(run, self.base)
        if self.counterfactual is None:
            return base
        file = run.path(self.counterfactual)
        weights = remembered("digest", file, lambda: digest_file(file), keep=4096)
        return digest([base, weights, *([] if self.member is None else [self.member])])

    def as_json(self) -> list[Any]:
        return [self.base, self.counterfactual, self.member, *([] if self.against is None else [self.against])]

    def needs(self, run: Run) -> tuple[str, ...]:
        files = model_files(run, self.base) + ((self.counterfactual,) if self.counterfactual else ())
        if self.against is None:
            return files
        return (*files, *(model_files(run, self.against) if self._control is None else (self._control,)))


def control_ref(base: str, file: str) -> ModelRef:
    """A control: the model `base` after the steps that its counterfactuals took, with all groups."""
    return ModelRef(base, file, against=file)


class Bench:
    """The models of a run for a scorer: one working copy per base model, its counterfactuals swapped in."""

    def __init__(self, run: Run) -> None:
        self.run, self._benches = run, dict[str, Workbench]()

    def base(self, ref: ModelRef) -> Denoiser:
        return load_model(self.run, ref.base)

    def identity(self, ref: ModelRef) -> str:
        return ref.identity(self.run)

    def several(self, refs: Sequence[ModelRef]) -> Denoiser:
        """One denoiser that answers for all of `refs`: a single model, or members of one rule."""
        first = refs[0]
        if first.base not in self._benches:
            self._benches[first.base] = Workbench(self.base(first), model_digest(self.run, first.base))
        bench, file = self._benches[first.base], first.counterfactual
        if file is None:
            return bench.use(None)
        if first.member is None:
            return bench.use(Counterfactual.load(self.run.path(file)))
        return RuledDenoiser(bench.use(None), load_rule(self.run, file), [int(str(r.member)) for r in refs])


def portions(refs: Iterable[ModelRef]) -> list[list[ModelRef]]:
    """The models of each task: many models are split into many tasks, which can be shared and resumed."""
    kin = families(refs)
    return [[ref for family in kin[i : i + PORTION] for ref in family] for i in range(0, len(kin), PORTION)]


def load_rule(run: Run, file: str) -> Rule:
    def read() -> Rule:
        return read_rule(run.path(file), load_model(run, "base"), model_digest(run, "base"), load_data(run))

    return remembered("rule", run.path(file), read, keep=1)  # a density of the images is as large as they are


def load_counterfactual(run: Run, ref: ModelRef) -> Denoiser:
    """A network of its own, beside its base."""
    base = load_model(run, ref.base)
    if ref.counterfactual is None:
        return base
    if ref.member is not None:
        return RuledDenoiser(base, load_rule(run, ref.counterfactual), [ref.member])
    return Counterfactual.load(run.path(ref.counterfactual)).apply(base)


def terms_folder(run: Run, race: str | None = None, plan: Plan | None = None) -> str:
    """Everything that decides the last bits: plan, block, precision; raced terms are packed by their own history,
    which `race` names."""
    name = f"{(plan or run_plan(run)).key}-{run_settings(run).key}"
    return f"terms/{name}" if race is None else f"terms/{name}-race-{race}"


def run_scorer(
    run: Run, race: str | None = None, estimand: str | None = None, plan: Plan | None = None
) -> Scorer[ModelRef]:
    """The scorer over the run's folder; `race` as of `terms_folder`, `estimand` and `plan` other than the recipe's."""
    return Scorer(
        plan or run_plan(run), run_settings(run), run_schedule(run), Bench(run), FolderParts(run.root),
        run.recipe.scoring.shard, terms_folder(run, race, plan),
        path=(estimand or run.recipe.scoring.estimand) == "path",
    )  # fmt: skip


def load_queries(run: Run, name: str) -> Queries:
    folder = run.path("queries", name)
    index = folder / "index.json"
    return remembered("queries", index, lambda: Queries.load(folder)) if index.is_file() else Queries.load(folder)


def score_tasks(
    run: Run, queries: Queries, models: Sequence[ModelRef], stage: str, estimand: str | None = None
) -> list[Task]:
    """Tasks per shard and portion of the models; together they make every missing part."""
    config, scorer = run.recipe.scoring, run_scorer(run, estimand=estimand)
    models, by_path = scorer.evaluated(models), ", path" if scorer.path else ""
    tasks = []
    for number, shard in enumerate(shard_names(queries, config.shard)):
        size = min(config.shard, queries.n - number * config.shard)
        wanted = {m: [scorer.part_name(shard, m, r) for r in range(config.rounds)] for m in models}
        pieces = portions(models)
        for piece, several in enumerate(pieces):
            these = [m for m in several if not all(map(run.has, wanted[m]))]
            if not these:
                continue
            which = f"{number}" if len(pieces) == 1 else f"{number}.{piece}"
            tasks.append(
                Task(
                    name=f"score {queries.name}/{which} by {len(these)} models for {stage}{by_path}",
                    stage=f"score/{queries.name}/{stage}/{scorer.folder.removeprefix('terms/')}",
                    fn="guda.methods.terms:score_shard",
                    args={
                        "queries": queries.name,
                        "shard": number,
                        "models": [m.as_json() for m in these],
                        **({} if estimand is None else {"estimand": estimand}),
                    },
                    makes=tuple(part for m in these for part in wanted[m]),
                    needs=tuple(sorted({p for m in these for p in m.needs(run)})),
                    cost=float(scorer.networks(these) * size * scorer.plan.evals_per_round * config.rounds),
                    bytes=len(these) * size * scorer.plan.n_strata * config.rounds * BYTES_PER_TERM,
                )
            )
    return tasks


def score_shard(run: Run, queries: str, shard: int, models: list[list[Any]], estimand: str | None = None) -> None:
    config = run.recipe.scoring
    part = load_queries(run, queries).shards(config.shard)[shard]
    run_scorer(run, estimand=estimand).evaluate(part, [ModelRef(*m) for m in models], config.rounds, tick)
