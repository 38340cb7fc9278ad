"""The Python interface: unlearn every group, attribute any picture, open a run.

`unlearn` and `attribute(model, bank, ...)` work in memory, everything else goes through a run folder; both use the
same scorer and the same defaults (recipes/own-*.yaml), so they give the same numbers as the command line. To the last
bit they do with one thread (OMP_NUM_THREADS=1), which is what the workers of a run have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from guda.config import ScoringConfig, parse_config
from guda.data.images import ImageData
from guda.data.prompts import Prompts
from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.lora import adapted
from guda.errors import GudaError, suggestion
from guda.run.recipe import Recipe, preset
from guda.scoring.bank_scores import draw_average, score_bank
from guda.scoring.race import StopRule
from guda.scoring.reference import check_drift
from guda.scoring.scores import Scores
from guda.unlearning.bank import Bank
from guda.unlearning.unlearn import refuse_unused, unlearn_group, unlearn_together

if TYPE_CHECKING:
    from guda.evaluation.results import DatasetEntry
    from guda.evaluation.sanity import Sanity
    from guda.report.single_card import Card
    from guda.run.run import Run
    from guda.run.task import Task


def unlearn(
    model: Denoiser,
    data: ImageData,
    operator: str = "retrack",
    conditional: Denoiser | None = None,
    prompts: Prompts | None = None,
    groups: Sequence[str] | None = None,
    **settings: Any,
) -> Bank:
    """A bank of counterfactuals of `model`, one per group of `data` (of a tree, per leaf) or of `groups`.
    `settings` are the operator's; those left out are the same as in a run that `guda init` makes.

    `operator`: retrack, shift, esd, ...; or posterior, which fits a density of the data and trains nothing.
    Text-to-image models: anchors-weighted, -uniform or -removed, with the `prompts` of the training images.
    `conditional`: for operators that ask one (esd), a model told each image's group, the null label last."""
    from guda.unlearning.rule import RuleConfig, rule_bank
    from guda.unlearning.unlearn import CONTROL, OPERATORS, check_groups

    if operator not in (known := sorted([*OPERATORS, "posterior"])):
        raise GudaError(
            "operator-unknown", f"unknown operator {operator!r}{suggestion(operator, known)}; known: {', '.join(known)}"
        )
    if data.shape != model.image_shape:
        raise GudaError(
            "image-shape-mismatch",
            f"the model takes {model.image_shape} pictures (channels, height, width), not {data.shape}",
        )
    data.groups.check_rest()
    settings = _preset(model).settings(operator) | settings
    if operator == "posterior":
        return rule_bank(model, data, parse_config(RuleConfig, settings, operator), groups)
    cls = OPERATORS[operator]
    if cls.from_start:
        raise GudaError("operator-needs-run", f"{operator} begins at a pretrained start, which a run has; use a run")
    config = parse_config(cls.Config, settings, operator)
    chosen = data.groups.leaf_names if groups is None else tuple(groups)
    check_groups(operator, data.groups, chosen)
    if cls.together:
        refuse_unused(operator, conditional)
        made = unlearn_together(model, data, chosen, operator, config, prompts=prompts)
        return Bank(made, data, None if prompts is None else prompts.training)
    made = {
        group: unlearn_group(model, data, group, operator, config, conditional=conditional, prompts=prompts)
        for group in (*chosen, *((CONTROL,) if cls.coupled else ()))
    }
    control = made.pop(CONTROL, None)
    return Bank(made, data, None if prompts is None else prompts.training, control)


def attribute(
    model: Denoiser | str | Path,
    source: Bank | ImageData | str | Path,
    queries: Queries | str | Path,
    method: str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    data: ImageData | None = None,
    stop: str | None = None,
    band: str | None = None,
    screen: str | None = None,
    folder: str | Path | None = None,
    average: Queries | str | Path | None = None,
    **scoring: Any,
) -> Scores:
    """Nats per picture and group, positive = the group mattered; `scoring`: settings of a recipe's `scoring` section
    (rounds, strata, drift="subtract", estimand="path", excess=True, ...).

        scores = guda.attribute(model, guda.unlearn(model, data), queries)      # in memory, the bank is kept
        scores = guda.attribute(model, data, queries, "dtrak")                  # any method, through a run
        scores = guda.attribute("my-model/", "art/", "generated/", "hybrid", stop="top1@0.95", folder="runs/art")

    `source`: a bank, or the training images (an image folder by its path), which need a `method` to be fitted first;
    default: the preset's, retrack or anchors-weighted. `options` are the method's settings, `training` those of
    retrainings (logo). All of it is kept in the run `folder`; without one, in a temporary folder.
    `stop` races to a stop rule, `band` counts some timesteps only, `screen` chooses who races, all as `guda score`.
    `data`: the training images of a bank that was loaded from disk, which an importance plan and drift are measured
    on; without them the plan is stratified: the same estimand for more evaluations.
    `average`: pictures that the model made, which excess scores by a bank are compared with, and which tell pictures
    that the model does not make (verdict `foreign`). For excess scores they are drawn by default, as a run draws its
    queries; text-to-image models need them given."""
    queries = queries if isinstance(queries, Queries) else Queries.from_folder(queries)
    loaded = model if isinstance(model, Denoiser) else Denoiser.from_pretrained(model)
    if isinstance(source, Bank):
        for name, given in (("method", method), ("options", options), ("training", training), ("screen", screen),
                            ("folder", folder)):  # fmt: skip
            if given is not None:
                raise GudaError("bank-option-unsupported", f"a bank is fitted already: leave out {name}=...")
        pictures = average if average is None or isinstance(average, Queries) else Queries.from_folder(average)
        return _attribute_by_bank(loaded, source, queries, data or source.data, stop, band, pictures, scoring)
    if data is not None:
        raise GudaError("bank-option-unsupported", "data=... are the training images of a bank; give them as `source`")
    if average is not None:
        raise GudaError("bank-option-unsupported", "average=... is for a bank; a run compares with its own samples")
    with _folder(folder) as root, _one_thread():
        run = _make_run(root, loaded, None if isinstance(model, Denoiser) else str(model), source, training)
        method = method or next(iter(run.run.recipe.methods))
        run.fit(method, **(options or {}))
        return run.score(queries, method, stop, band, screen, **scoring)


def _preset(model: Denoiser) -> Recipe:
    return preset(text_to_image=model.frozen is not None, adapted=adapted(model.module))


def _attribute_by_bank(
    model: Denoiser, bank: Bank, queries: Queries, data: ImageData | None, stop: str | None, band: str | None,
    average: Queries | None, given: dict[str, Any],
) -> Scores:  # fmt: skip
    preset = _preset(model)
    usual = preset.scoring.model_dump()
    if data is None:  # nothing to measure an importance plan on
        usual["plan"] = "stratified"
    config: ScoringConfig = parse_config(ScoringConfig, usual | given, "scoring")
    if stop is not None and (band is not None or config.drift == "subtract"):
        raise GudaError("stop-with-band", "a race is over plain scores: leave out stop, or band and drift='subtract'")
    rule = None if stop is None else StopRule.parse(stop)
    check_drift(config)
    if average is not None and not config.excess and config.foreign == "skip":
        raise GudaError(
            "bank-option-unsupported",
            "average=... is what excess scores are compared with, and foreign pictures told by: excess=True",
        )
    if config.excess and average is None:
        average = draw_average(model, preset.queries)
    return score_bank(model, bank, queries, config, data, bank.prompts, rule, band, average)


def _make_run(
    root: Path, model: Denoiser, path: str | None, data: ImageData | str | Path, training: Mapping[str, Any] | None
) -> OpenRun:
    """A run from a preset, as `guda init` makes it. A model that is only in memory is saved into its folder."""
    from guda import steps

    recipe = _preset(model).model_dump(mode="json")
    recipe["model"] = {"path": path or str(root.resolve() / "models" / "given")}
    if training is not None:
        recipe["training"] = (recipe["training"] or {}) | dict(training)
    if isinstance(data, ImageData):
        known = ("group_by", "size", "mode", "content_by", "skip_bad")
        from_folder = data.meta.get("source") == "folder"
        recipe["data"] = {"source": data.meta["path"] if from_folder else f"memory:{data.name}"}
        recipe["data"] |= {k: data.meta.get(k) for k in known} if from_folder else {}
        recipe["name"] = data.name
    else:
        recipe["data"]["source"], recipe["name"] = str(data), Path(data).name or str(data)
    given = data if isinstance(data, ImageData) else None
    run = steps.init(root, Recipe.from_dict(recipe, "the settings"), data=given, model=model)
    steps.suit_methods(run)
    if run.recipe.prompts is not None:
        steps.prompts_build(run)
    return OpenRun(run)


@contextmanager
def _folder(given: str | Path | None) -> Iterator[Path]:
    if given is not None:
        yield Path(given).expanduser()
        return
    with TemporaryDirectory(prefix="guda-") as name:
        yield Path(name) / "run"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tasks of a run compute with one thread; the caller's setting comes back afterwards."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_run(path: str | Path, workers: int | None = None) -> OpenRun:
    """An existing run folder; `workers`: processes for what is computed, default: this one."""
    from guda.run.run import Run

    return OpenRun(Run.open(path), workers)


class OpenRun:
    """A run folder, from Python. What is missing is computed, what is there is read; nothing is done twice.

    run = guda.open("runs/demo")
    run.scores("hybrid")["img_0007"].top(3)
    run.fit("shift", steps=50); run.score("generated/", "shift", stop="top1@0.95")
    run.evaluate(); run.sanity("heldout/"); run.report()
    """

    def __init__(self, run: Run, workers: int | None = None) -> None:
        from guda import steps
        from guda.engine.loop import run_inline

        self.run = run
        self._engine: steps.Engine = run_inline if workers is None else steps.local_engine(workers)

    def __repr__(self) -> str:
        sets = ", ".join(self.run.query_sets()) or "none"
        return f"<run {self.run.address}: {len(self.run.info['groups'])} groups; query sets: {sets}>"

    def _work(self, run: Run, tasks: list[Task], title: str) -> int:
        with _one_thread():
            return self._engine(run, tasks, title)

    def status(self) -> dict[str, Any]:
        """What is done and what is left."""
        from guda import steps

        return steps.status(self.run)

    def fit(self, method: str, **settings: Any) -> OpenRun:
        """Make what a method needs; `settings` are kept in the run's recipe."""
        from guda import steps

        if settings:
            steps.update_settings(self.run, method, settings)
        steps.fit(self.run, [method], self._work)
        return self

    def score(
        self, queries: Queries | str | Path | None = None, method: str | None = None, stop: str | None = None,
        band: str | None = None, screen: str | None = None, **scoring: Any,
    ) -> Scores:  # fmt: skip
        """Score pictures (a folder, `Queries`, or a set of the run by its name) by one method, which must be fitted.
        `scoring`: settings of the recipe's `scoring` section, kept there."""
        from guda import steps

        fitted = [] if method is not None else steps.fitted_methods(self.run)
        if method is None and not fitted:
            raise GudaError("method-not-fitted", f"nothing is fitted in {self.run.address} yet; call .fit(method)")
        chosen = method or fitted[0]
        steps.change_scoring(self.run, **scoring)
        name = self._query_set(queries)
        return steps.score(self.run, name, [chosen], self._work, stop, band, screen)[chosen]

    def scores(
        self, method: str, queries: str | None = None, stop: str | None = None, band: str | None = None,
        screen: str | None = None,
    ) -> Scores:  # fmt: skip
        """Scores that were computed before."""
        from guda import steps

        name = steps.choose_queries(self.run, queries)
        path = steps.scores_path(self.run, name, method, steps.variant(self.run, stop, band, "keep", screen))
        if not path.is_file():
            known = ", ".join(steps.scored_methods(self.run, name)) or "nothing"
            raise GudaError(
                "scores-missing", f"{method} has not scored {name} so in {self.run.address} (scored: {known})"
            )
        return Scores.read(path)

    def evaluate(self, queries: str | None = None, band: str | None = None) -> DatasetEntry:
        """Every scored method against the LOGO oracle."""
        from guda import steps

        return steps.evaluate(self.run, steps.choose_queries(self.run, queries), band)

    def sanity(self, heldout: str | Path, method: str | None = None) -> Sanity:
        """Score a folder of held-out real pictures, laid out like the training data, by one method or by all that are
        fitted: how often their own group is first, and how often claims were right."""
        from guda import steps

        return steps.sanity(self.run, heldout, self._work, None if method is None else [method])

    def report(self, queries: str | None = None, out: str | Path | None = None) -> Path:
        """Write the report; returns its file."""
        from guda import steps
        from guda.report.page import write_report

        return write_report(self.run, steps.choose_queries(self.run, queries), out=None if out is None else Path(out))

    def _query_set(self, queries: Queries | str | Path | None) -> str:
        from guda import steps

        if isinstance(queries, Queries):
            return steps.keep_queries(self.run, queries)
        return steps.choose_or_add_queries(self.run, None if queries is None else str(queries))


def show(
    run: OpenRun | Run | str | Path, picture: str, method: str | None = None, queries: str | None = None,
    evidence: bool = True,
) -> Card:  # fmt: skip
    """The card of one scored picture, as the report has it: verdict, bars with intervals, and the evidence (map, with
    and without the first group, nearest images), which is computed unless it is there or `evidence` is False.
    A notebook draws it; `print` gives the verdict."""
    from guda import steps
    from guda.report.content import Content
    from guda.report.exhibit import choose_view
    from guda.report.single_card import Card, single_card
    from guda.run.run import Run

    opened = run if isinstance(run, OpenRun) else OpenRun(run if isinstance(run, Run) else Run.open(run))
    content = Content.read(opened.run, steps.choose_queries(opened.run, queries))
    found = single_card(content, choose_view(content, method), picture, opened._work if evidence else None)
    assert isinstance(found, Card)
    return found
