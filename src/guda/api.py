"""The two calls of the Python interface: unlearn every group, then attribute any picture. Same code as a run's tasks,
in this process and in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guda.config import ScoringConfig, parse_config
from guda.data.images import ImageData
from guda.data.prompts import Prompts
from guda.data.queries import Queries
from guda.diffusion.denoiser import Denoiser
from guda.errors import GudaError, suggestion
from guda.scoring.estimate import difference, rank_columns, stack_estimates
from guda.scoring.pilot import IMAGES, MODELS, measure
from guda.scoring.pilot import density as pilot_density
from guda.scoring.plan import make_plan
from guda.scoring.scores import Scores
from guda.scoring.terms import kl, make_draws, squared_errors
from guda.unlearning.bank import Bank, Counterfactual, Workbench
from guda.unlearning.unlearn import unlearn_group


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
    `settings` are the operator's.

    `operator`: retrack, shift, esd, ...; or posterior, which fits a density of the data and trains nothing.
    Text-to-image models: anchors-weighted, -uniform or -removed, with the `prompts` of the training images.
    `conditional`: for operators that ask one (esd), a model told each image's group, the null label last."""
    from guda.unlearning.rule import RuleConfig, rule_bank
    from guda.unlearning.unlearn import OPERATORS, check_groups

    if operator not in (known := sorted([*OPERATORS, "posterior"])):
        raise GudaError(
            "operator-unknown", f"unknown operator {operator!r}; known: {', '.join(known)}{suggestion(operator, known)}"
        )
    if data.shape != model.image_shape:
        raise GudaError(
            "image-shape-mismatch",
            f"the model takes {model.image_shape} pictures (channels, height, width), not {data.shape}",
        )
    data.groups.check_rest()
    if operator == "posterior":
        return rule_bank(model, data, parse_config(RuleConfig, settings, operator), groups)
    config = parse_config(OPERATORS[operator].Config, settings, operator)
    chosen = data.groups.leaf_names if groups is None else tuple(groups)
    check_groups(operator, data.groups, chosen)
    return Bank({
        group: unlearn_group(model, data, group, operator, config, conditional=conditional, prompts=prompts)
        for group in chosen
    })  # fmt: skip


def attribute(
    model: Denoiser, bank: Bank, queries: Queries, pilot: Queries | ImageData | None = None, **settings: Any
) -> Scores:
    """Nats per picture and group, positive = the group mattered; `settings` as a recipe's `scoring` section.

    With `pilot` images (training images, say; a few dozen are enough) the importance plan is used: the same precision
    for a fraction of the evaluations. Without them, the stratified one. A text-to-image model's pilot needs prompts."""
    import numpy as np

    settings = {"plan": "stratified" if pilot is None else "importance"} | settings
    config: ScoringConfig = parse_config(ScoringConfig, settings, "scoring")
    if config.drift == "subtract":
        raise GudaError(
            "drift-needs-run", "drift is measured on a run's training images; in Python score with drift='keep'"
        )
    queries.check_shape(model.image_shape)
    bench = Workbench(model, model.digest())
    density = None
    if pilot is not None:
        models = [bank[g].apply(model) for g in list(bank)[:MODELS]]
        some = slice(None, None, max(1, len(pilot.images) // IMAGES))
        told = pilot.prompts[some][:IMAGES] if isinstance(pilot, Queries) and pilot.prompts is not None else None
        t, contrasts, _ = measure(model, models, pilot.images[some][:IMAGES], config.seed, config.block, told)
        density = pilot_density(model.schedule, t, contrasts)
    plan = make_plan(model.schedule, config, density)
    x0, cond = model.encode(queries.images), model.condition(queries.prompts)
    draws = [make_draws(model, x0, queries.ids, plan, r) for r in range(config.rounds)]

    def contributions(denoiser: Denoiser) -> np.ndarray:
        errors = [squared_errors(denoiser, d, config.block, cond) for d in draws]
        return np.stack([kl(plan, model.schedule.weights, d.t, e) for d, e in zip(draws, errors, strict=True)])

    def counterfactual(found: Counterfactual) -> Denoiser:
        return found.apply(model) if found.kind == "rule" else bench.use(found)

    full = contributions(model)
    d = np.stack([contributions(counterfactual(bank[g])) - full for g in bank], axis=2)
    found = [difference(d[:, :, g], grid=bool(plan.grid)) for g in range(len(bank))]
    return Scores(
        method=next(iter(bank.values())).method, unit="nats", estimand=plan.estimand, queries=queries.ids,
        groups=tuple(bank), n_evals=2 * plan.evals_per_round * config.rounds, **stack_estimates(found),
        **rank_columns(d),
    )  # fmt: skip
