"""Tangent: all groups from one pass, compared with gradients of the masked losses taken one group at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import guda
from guda.config import parse_config
from guda.data.classes import class_numbers
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser, encode_all
from guda.unlearning.operators.tangent import TangentConfig, tangents
from guda.unlearning.unlearn import CONTROL, OPERATORS, Inputs, make_operator, unlearn_group
from refusals import refused


def settings(**values: Any) -> Any:
    given = {"steps": 3, "lr": 1e-3, "batch": 12, "warmup": 0, "scale": 1.0, "clip": 0.05} | values
    return OPERATORS["tangent"].settle(parse_config(TangentConfig, given, "tangent"), None)


@pytest.fixture
def model(make_mlp: Callable[..., Denoiser]) -> Denoiser:
    return make_mlp("squaredcos_cap_v2:100")


@pytest.fixture
def data(make_images: Callable[..., ImageData]) -> ImageData:
    return make_images({"a": 9, "b": 6, "c": 5})


@pytest.fixture
def overlapping(data: ImageData) -> ImageData:
    """Some images of a are in b too."""
    inside = data.groups.membership.copy()
    inside[data.groups.members(0)[:4], 1] = True
    return replace(data, groups=Groups(data.groups.names, inside))


def brute_force(model: Denoiser, data: ImageData, group: str, config: Any) -> dict[str, torch.Tensor]:
    """Mean losses with and without the group, differentiated one after the other; AdamW by hand."""
    inside = data.groups.membership[:, data.groups.index(group)]
    student = model.clone()
    names, weights = zip(*student.module.named_parameters(), strict=True)
    [sampler] = make_operator("tangent", model, data, CONTROL, config).samplers()
    inputs = Inputs(encode_all(model, data.images, False), None)
    m, v, change = ([torch.zeros_like(p) for p in weights] for _ in range(3))
    for step in range(config.steps):
        batch = sampler.draw(model, inputs, config, CONTROL, step)
        each = student.raw(batch.x_t, batch.t) - student.target(batch.x0, batch.eps, batch.t)
        each = each.square().flatten(1).mean(1)
        kept = torch.from_numpy(~inside[batch.index])
        without = torch.autograd.grad(each[kept].mean(), weights, retain_graph=True)
        every = torch.autograd.grad(each.mean(), weights)
        norm = torch.stack([g.norm() for g in every]).norm()
        factor = min(1.0, config.clip / (float(norm) + 1e-6))
        rate = config.lr * (1 + np.cos(np.pi * step / config.steps)) / 2
        with torch.no_grad():
            for i, p in enumerate(weights):
                g = every[i] * factor
                m[i] = 0.9 * m[i] + 0.1 * g
                v[i] = 0.999 * v[i] + 0.001 * g**2
                root = (v[i] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
                change[i] -= rate * factor * (without[i] - every[i]) / root
                p -= rate * m[i] / (1 - 0.9 ** (step + 1)) / root
    return dict(zip(names, change, strict=True))


@pytest.mark.parametrize("kind", ["partition", "overlap"])
def test_it_is_the_gradient_of_the_masked_loss_for_every_group(
    kind: str, model: Denoiser, data: ImageData, overlapping: ImageData
) -> None:
    given, config = (data if kind == "partition" else overlapping), settings()
    for group in given.groups.names:
        found = unlearn_group(model, given, group, "tangent", config).apply(model).weights()
        expected = brute_force(model, given, group, config)
        assert max(float(d.abs().max()) for d in expected.values()) > 1e-5
        for name, change in expected.items():
            torch.testing.assert_close(found[name] - model.weights()[name], change, rtol=2e-3, atol=2e-6)


def test_all_groups_at_once_are_the_same_bits_as_one_at_a_time(model: Denoiser, data: ImageData) -> None:
    bank = guda.unlearn(model, data, "tangent", steps=3, lr=1e-3, batch=12, warmup=0)
    config = settings(scale=0.3, clip=1.0)
    for group in data.groups.names:
        alone = unlearn_group(model, data, group, "tangent", config)
        assert bank[group].digest() == alone.digest()


def test_a_group_that_no_batch_holds_changes_nothing(model: Denoiser, data: ImageData) -> None:
    members = {"nobody": np.zeros(data.n, bool), "a": data.groups.membership[:, 0]}
    found = tangents(model, data, members, settings())
    assert found["nobody"].apply(model).digest() == model.digest()
    assert found["a"].apply(model).digest() != model.digest()


def test_the_cost_does_not_depend_on_the_number_of_groups() -> None:
    assert OPERATORS["tangent"].fit_evals(settings(steps=7, batch=5)) == 7 * 5 * 3


def test_class_conditional_models_and_their_classes(make_mlp: Callable[..., Denoiser], data: ImageData) -> None:
    model = make_mlp("squaredcos_cap_v2:100", num_class_embeds=4)
    named = replace(data, groups=Groups(("0", "1", "2"), data.groups.membership))
    made = unlearn_group(model, named, "1", "tangent", settings(prompt_dropout=0.5), prompts=class_numbers(named, 4))
    assert made.apply(model).digest() != model.digest()


def test_more_groups_than_memory_holds_are_refused(
    model: Denoiser, data: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guda.memory.available", lambda: 1000)
    with refused("memory-too-small"):
        unlearn_group(model, data, "a", "tangent", settings())


def test_a_conditional_model_is_of_no_use(model: Denoiser, data: ImageData) -> None:
    with refused("conditional-model-unused"):
        guda.unlearn(model, data, "tangent", conditional=model, steps=1, lr=1e-3, batch=4, warmup=0)


@pytest.mark.parametrize("wrong", [{"optimizer": "adamw8bit"}, {"average": 0.9}, {"scale": 0.0}, {"holdout": 0.2}])
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with refused("setting-invalid"):
        parse_config(TangentConfig, wrong, "tangent")
