"""Values of coalitions against a density that is written out: the mixture of the groups that are there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from guda.config import ScoringConfig
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.scoring.coalition import CoalitionRule, Pooled, coalition_draws, residuals
from guda.scoring.plan import make_plan, prior_density
from guda.scoring.shapley import coalitions, exact
from guda.scoring.terms import make_draws, measure
from guda.unlearning.rule import Rule, RuleConfig, RuledDenoiser, fit_rule, make_density
from refusals import refused

CONFIG = RuleConfig(components=2)


@pytest.fixture(scope="module")
def model(make_mlp: Callable[..., Denoiser]) -> Denoiser:
    return make_mlp()


@pytest.fixture(scope="module")
def data(make_images: Callable[..., ImageData]) -> ImageData:
    return make_images({"a": 20, "b": 20, "c": 20})


def rule_of(model: Denoiser, data: ImageData, config: RuleConfig = CONFIG) -> Rule:
    return Rule(make_density(model, data, config, fit_rule(model, data, config)), config.window)


def coalition_rule(model: Denoiser, data: ImageData, parcels: tuple[int, ...]) -> CoalitionRule:
    pooled = Pooled.fit(model.encode(data.images), CONFIG.floor)
    return CoalitionRule(rule_of(model, data), pooled, range(len(data.groups)), parcels)


def gaussian(x: torch.Tensor, mean: np.ndarray, cov: np.ndarray, a: float, s: float) -> tuple[float, np.ndarray]:
    """(log N(x; a mean, a^2 cov + s^2), E[x_0 | x])."""
    total = a**2 * cov + s**2 * np.eye(len(mean))
    off = x.double().numpy() - a * mean
    solved = np.linalg.solve(total, off)
    return -(off @ solved + np.linalg.slogdet(total)[1]) / 2, mean + a * cov @ solved


def test_against_the_mixture_written_out(model: Denoiser, data: ImageData) -> None:
    rule = coalition_rule(model, data, (2, 1, 1))
    density, pooled = rule.density, rule.pooled
    x_t, t = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 20, 50, 80, 98])
    off = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    asked = np.array([[0, 0, 0], [1, 0, 1], [2, 1, 0], [2, 1, 1]])
    change, error = rule.squares(x_t, t, asked), rule.squares(x_t, t, asked, off)

    def mean(row: int, counts: np.ndarray) -> np.ndarray:
        a, s = (float(c[0, 0]) for c in model.schedule.coefficients(t[row : row + 1], x_t[:1].flatten(1).double()))
        logs, means = [pooled.log_share], []
        cov = pooled.vectors.double() @ torch.diag(pooled.values) @ pooled.vectors.double().T
        log, m = gaussian(x_t[row].flatten(), pooled.mean.double().numpy(), cov.numpy(), a, s)
        logs[0] += log
        means.append(m)
        for c in range(len(density.mean)):
            there = counts[int(density.owner[c])] / rule.parcels[int(density.owner[c])].item()
            if there == 0:
                continue
            vectors = density.vectors[c].double()
            cov = vectors @ torch.diag(density.values[c]) @ vectors.T
            log, m = gaussian(x_t[row].flatten(), density.mean[c].double().numpy(), cov.numpy(), a, s)
            logs.append(log + float(density.log_share[c]) + np.log(there))
            means.append(m)
        w = np.exp(np.array(logs) - max(logs))
        return np.einsum("c,cd->d", w / w.sum(), np.stack(means))

    for row in range(len(t)):
        a, s = (float(c[0, 0]) for c in model.schedule.coefficients(t[row : row + 1], x_t[:1].flatten(1).double()))
        for n, counts in enumerate(asked):
            moved = a / s * (mean(row, asked[-1]) - mean(row, counts))  # eps_S - eps_full
            assert float(change[n, row]) == pytest.approx(float(moved @ moved), rel=2e-3, abs=1e-6)
            r = off[row].double().numpy()
            grown = float((r - moved) @ (r - moved) - r @ r)
            assert float(error[n, row]) == pytest.approx(grown, rel=2e-3, abs=1e-5)
    assert change[-1] == pytest.approx(np.zeros(5), abs=1e-9)


def test_all_but_one_group_is_the_posterior_rule(model: Denoiser, data: ImageData) -> None:
    """Where the pooled density, of one image's weight, has no part in it."""
    rule = coalition_rule(model, data, (1, 1, 1))
    rule.pooled = Pooled(rule.pooled.mean, rule.pooled.vectors, rule.pooled.values, -1e9)
    x0 = model.encode(data.images[:4])
    plan = make_plan(model.schedule, ScoringConfig(plan="stratified", strata=4), prior_density(model.schedule))
    draws = make_draws(model, x0, data.ids[:4], plan, 0)
    asked = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    off = residuals(model, draws, 16)
    found = coalition_draws(rule, draws, asked, 16, off)
    ruled = RuledDenoiser(model, rule.rule, [0, 1, 2])
    grown = measure(ruled, draws, 16).errors - measure(model, draws, 16).errors
    assert found == pytest.approx(grown, rel=1e-3, abs=2e-3)


def test_shells_of_the_same_images_share_what_the_whole_group_gets(model: Denoiser, data: ImageData) -> None:
    """The group a as two parcels, and as two groups with the same Gaussians and half the images each."""
    rule = coalition_rule(model, data, (2, 1, 1))
    x_t, t = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(2)), torch.tensor([2, 10, 30, 50, 70, 90])
    off = torch.randn(6, 16, generator=torch.Generator().manual_seed(3))
    whole = exact((2, 1, 1)) @ -rule.squares(x_t, t, coalitions((2, 1, 1)), off).numpy()
    split = coalition_rule(model, data, (2, 1, 1))
    first = split.density.owner == 0
    for name in ("mean", "vectors", "values"):
        tensor = getattr(split.density, name)
        setattr(split.density, name, torch.cat([tensor, tensor[first]]))
    half = split.density.log_share.clone()
    half[first] -= np.log(2)
    split.density.log_share = torch.cat([half, half[first]])
    split.density.owner = torch.cat([split.density.owner, torch.full((int(first.sum()),), 3)])
    split.owned = torch.eye(4, dtype=torch.bool)[split.density.owner]
    split.parcels = torch.ones(4, dtype=torch.float64)
    shells = exact((1, 1, 1, 1)) @ -split.squares(x_t, t, coalitions((1, 1, 1, 1)), off).numpy()
    assert shells[0] + shells[3] == pytest.approx(whole[0], rel=1e-6, abs=1e-8)
    assert shells[1:3] == pytest.approx(whole[1:], rel=1e-6, abs=1e-8)
    assert whole.sum(axis=0) == pytest.approx(rule.squares(x_t, t, np.zeros((1, 3)), off)[0].numpy())


def test_a_group_that_explains_nothing_here_gets_nothing(model: Denoiser, data: ImageData) -> None:
    rule = coalition_rule(model, data, (1, 1, 1))
    rule.density.mean[rule.density.owner == 2] += 1000.0  # images that look like no picture
    x_t, t = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(4)), torch.tensor([5, 20, 40, 60])
    shares = exact((1, 1, 1)) @ -rule.squares(x_t, t, coalitions((1, 1, 1)), torch.ones(4, 16)).numpy()
    assert shares[2] == pytest.approx(np.zeros(4), abs=1e-9)
    assert (np.abs(shares[:2, 1:]) > 1e-6).all()


def test_shared_images_need_all_their_groups_and_parcels_need_a_partition(model: Denoiser) -> None:
    rng = np.random.default_rng(0)
    labels = [["a", "b"]] * 20 + ["a"] * 20 + ["b"] * 20 + ["c"] * 20
    images = ImageData.from_arrays(rng.integers(0, 256, (80, 1, 4, 4), dtype=np.uint8), labels, layout="NCHW")
    pooled = Pooled.fit(model.encode(images.images), CONFIG.floor)
    rule = CoalitionRule(rule_of(model, images), pooled, (0, 1, 2), (1, 1, 1))
    there = rule.log_parts(np.array([[1, 0, 1], [1, 1, 0]]))[:, :-1].exp().bool()
    owned = rule.owned
    assert there[0].tolist() == (~owned[:, 1]).tolist()
    assert there[1].tolist() == (~owned[:, 2]).tolist()
    with refused("parcels-overlap"):
        CoalitionRule(rule_of(model, images), pooled, (0, 1, 2), (2, 1, 1))
    by_images = RuleConfig(density="images")
    with refused("coalition-density-unsupported"):
        CoalitionRule(rule_of(model, images, by_images), pooled, (0, 1, 2), (1, 1, 1))
