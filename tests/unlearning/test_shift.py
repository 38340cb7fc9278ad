"""Posterior shift: its target against a direct computation, and against what it must leave alone."""

import numpy as np
import pytest
import torch

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.diffusion.families.mlp import ResidualMLP
from guda.diffusion.loading import make_scheduler
from guda.unlearning.operators.shift import Shift, ShiftConfig
from guda.unlearning.rule import Rule, RuleConfig, RuledDenoiser, fit_rule, make_density
from guda.unlearning.unlearn import OPERATORS, Batch


@pytest.fixture(scope="module")
def parts() -> tuple[Denoiser, ImageData]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 1, 4, 4), np.uint8)
    data = ImageData.from_arrays(images, [str(i % 3) for i in range(30)])
    torch.manual_seed(0)
    net = ResidualMLP(sample_size=4, width=16, depth=1)
    torch.nn.init.normal_(net.out.weight, std=0.1)
    return Denoiser.from_module(net, make_scheduler("squaredcos_cap_v2:100")), data


def half(model: Denoiser, data: ImageData, t: torch.Tensor) -> Batch:
    x0 = model.encode(data.images[: len(t)])
    eps = torch.randn(x0.shape, generator=torch.Generator().manual_seed(1))
    return Batch(x0, t, eps, model.schedule.add_noise(x0, eps, t))


def brute_mean(x_t: torch.Tensor, a: float, s: float, images: torch.Tensor) -> torch.Tensor:
    x, r = x_t.double().flatten(), images.double().flatten(1)
    w = torch.softmax(-((x - a * r) ** 2).sum(1) / (2 * s**2), 0)
    return (w @ r).reshape(x_t.shape)


def test_target_is_the_teacher_plus_the_change_of_the_optimal_denoiser(parts) -> None:
    model, data = parts
    rule = Shift(model, data, "1", ShiftConfig.model_validate({}))
    t = torch.tensor([12, 30, 55, 80, 95])
    h = half(model, data, t)
    x = model.encode(data.images)
    retain = torch.from_numpy(data.groups.without(1))
    for i in range(len(t)):
        a, s = float(model.schedule.a[t[i]]), float(model.schedule.s[t[i]])
        change = (a / s) * (brute_mean(h.x_t[i], a, s, x) - brute_mean(h.x_t[i], a, s, x[retain]))
        with torch.no_grad():
            expected = model.eps(h.x_t[i : i + 1], t[i : i + 1])[0].double() + change
        torch.testing.assert_close(rule.target(h)[i].double(), expected, rtol=1e-4, atol=1e-4)


def test_outside_the_window_the_target_is_the_teacher(parts) -> None:
    model, data = parts
    rule = Shift(model, data, "1", ShiftConfig.model_validate({"window": [0.5, 0.9]}))
    h = half(model, data, torch.tensor([10, 49, 50, 89, 90]))
    with torch.no_grad():
        same = (rule.target(h) == model.eps(h.x_t, h.t)).flatten(1).all(1)
    assert same.tolist() == [True, True, False, False, True]


def test_the_cap_bounds_the_shift_and_keeps_its_direction(parts) -> None:
    model, data = parts
    free = Shift(model, data, "1", ShiftConfig.model_validate({}))
    capped = Shift(model, data, "1", ShiftConfig.model_validate({"cap": 0.05}))
    h = half(model, data, torch.tensor([12, 20, 30, 40, 60]))
    with torch.no_grad():
        base = model.eps(h.x_t, h.t)
    one, two = ((r.target(h) - base).flatten(1) for r in (free, capped))
    assert (two.norm(dim=1) <= 0.05 + 1e-6).all()
    long = one.norm(dim=1) > 0.05
    assert long.any()
    torch.testing.assert_close(two[long], 0.05 * one[long] / one[long].norm(dim=1, keepdim=True), rtol=1e-3, atol=1e-5)


def test_it_is_a_registered_operator_whose_cost_counts_both_teachers() -> None:
    config = ShiftConfig.model_validate({"steps": 10, "batch_forget": 3, "batch_retain": 5})
    assert OPERATORS["shift"].fit_evals(config) == 10 * 4 * 8


def test_with_flips_both_posteriors_hold_mirror_images(parts) -> None:
    model, data = parts
    rule = Shift(model, data, "1", ShiftConfig.model_validate({"flips": True}))
    t = torch.tensor([30, 60])
    h = half(model, data, t)
    x = model.encode(data.images)
    x = torch.cat([x, x.flip(-1)])
    keep = np.concatenate([data.groups.labels, data.groups.labels]) != 1
    for i in range(len(t)):
        a, s = float(model.schedule.a[t[i]]), float(model.schedule.s[t[i]])
        change = (a / s) * (brute_mean(h.x_t[i], a, s, x) - brute_mean(h.x_t[i], a, s, x[torch.from_numpy(keep)]))
        with torch.no_grad():
            expected = model.eps(h.x_t[i : i + 1], t[i : i + 1])[0].double() + change
        torch.testing.assert_close(rule.target(h)[i].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("density", ["gaussians", "patches", "images"])
def test_the_target_is_the_training_free_rule_of_the_same_density(parts, density) -> None:
    model, data = parts
    shift = Shift(model, data, "1", ShiftConfig.model_validate({"density": density, "components": 1, "window": (0, 1)}))
    config = RuleConfig.model_validate({"density": density, "components": 1})
    rule = Rule(make_density(model, data, config, fit_rule(model, data, config)), (0.0, 1.0))
    h = half(model, data, torch.tensor([5, 12, 30, 60]))
    ruled = RuledDenoiser(model, rule, [data.groups.index("1")])
    with torch.no_grad():
        torch.testing.assert_close(shift.target(h), ruled.eps(h.x_t, h.t), rtol=1e-3, atol=1e-4)
        assert (shift.target(h) - model.eps(h.x_t, h.t)).norm() > 1e-2


def test_settings_without_a_density_are_named_as_before() -> None:
    plain = ShiftConfig.model_validate({}).model_dump(mode="json")
    assert not {"density", "components", "shrink", "floor"} & set(plain)
    told = ShiftConfig.model_validate({"density": "gaussians", "shrink": 0.6}).model_dump(mode="json")
    assert (told["density"], told["shrink"]) == ("gaussians", 0.6)
    assert ShiftConfig.model_validate(told) == ShiftConfig.model_validate({"density": "gaussians", "shrink": 0.6})


def test_gaussians_are_of_the_data_s_own_groups_only() -> None:
    assert Shift.regroups(ShiftConfig.model_validate({}))
    assert not Shift.regroups(ShiftConfig.model_validate({"density": "gaussians"}))
    plain, patches = (ShiftConfig.model_validate({"density": d}) for d in ("images", "patches"))
    assert Shift.fit_evals(patches) > Shift.fit_evals(plain)
