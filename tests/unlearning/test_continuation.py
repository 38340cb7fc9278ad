"""Continuation: one step by hand, the same batches for all groups, and a control that leaves nothing out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from guda.config import TrainingConfig
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser, encode_all
from guda.diffusion.loading import make_scheduler
from guda.unlearning.operators.continuation import Continuation, ContinuationConfig
from guda.unlearning.unlearn import CONTROL, Inputs, make_operator, unlearn_group
from refusals import refused


def config(**values: Any) -> ContinuationConfig:
    small = {"steps": 1, "warmup": 0, "lr": 0.1, "batch": 12}
    return Continuation.settle(ContinuationConfig.model_validate(small | values), None)  # type: ignore[no-any-return]


class Linear(torch.nn.Module):
    """eps = W x: its loss is quadratic."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.linspace(-0.3, 0.4, 16).reshape(4, 4))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1) @ self.w.T).reshape(x.shape)


@pytest.fixture
def linear() -> Denoiser:
    return Denoiser.from_module(Linear(), make_scheduler("linear:50"), (1, 2, 2))


@pytest.fixture
def data(make_images: Callable[..., ImageData]) -> ImageData:
    return make_images({"a": 9, "b": 14, "c": 7}, size=2)


def drawn(model: Denoiser, data: ImageData, settings: ContinuationConfig, group: str, step: int = 0) -> Any:
    (sampler,) = make_operator("continuation", model, data, group, settings).samplers()
    return sampler.draw(model, Inputs(encode_all(model, data.images)), settings, group, step)


@pytest.mark.parametrize("group", ["a", "b", "c", CONTROL])
@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_one_step_of_a_linear_model_is_the_one_by_hand(
    linear: Denoiser, data: ImageData, group: str, clip: float
) -> None:
    settings = config(clip=clip, weight_decay=0.2)
    made = unlearn_group(linear, data, group, "continuation", settings).apply(linear).weights()["w"]
    batch = drawn(linear, data, settings, group)
    inside = np.zeros(data.n, bool)
    if group != CONTROL:
        inside = data.groups.membership[:, data.groups.index(group)]
    w = linear.weights()["w"].double()
    g = torch.zeros_like(w)
    kept = [i for i, image in enumerate(batch.index) if not inside[image]]
    for i in kept:  # d/dW of the mean over kept images and 4 dims of (W x - eps)^2
        x, eps = batch.x_t[i].flatten().double(), batch.eps[i].flatten().double()
        g += 2 / (4 * len(kept)) * torch.outer(w @ x - eps, x)
    g *= min(1.0, clip / (float(g.norm()) + 1e-6))
    by_hand = w * (1 - 0.1 * 0.2) - 0.1 * g / (g.abs() + 1e-8)  # AdamW's first step
    torch.testing.assert_close(made.double(), by_hand, rtol=0, atol=2e-6)


def test_leaving_out_what_is_not_drawn_is_the_control_to_the_last_bit(linear: Denoiser, data: ImageData) -> None:
    settings = config(batch=4, steps=3)
    seen = {int(i) for step in range(3) for i in drawn(linear, data, settings, "a", step).index}
    absent = next(i for i in range(data.n) if i not in seen)
    alone = np.arange(data.n) == absent
    apart = replace(data, groups=Groups(("absent", "rest"), np.stack([alone, ~alone], axis=1)))
    control = unlearn_group(linear, data, CONTROL, "continuation", settings)
    same = unlearn_group(linear, apart, "absent", "continuation", settings)
    assert torch.equal(same.tensors["w"], control.tensors["w"])
    other = unlearn_group(linear, data, "b", "continuation", settings)
    assert not torch.equal(other.tensors["w"], control.tensors["w"])


def test_every_group_sees_the_same_batches(linear: Denoiser, data: ImageData) -> None:
    settings = config()
    one, two = drawn(linear, data, settings, "a", 5), drawn(linear, data, settings, CONTROL, 5)
    assert (one.index == two.index).all()
    assert torch.equal(one.x_t, two.x_t)
    assert not (one.index == drawn(linear, data, settings, "a", 6).index).all()
    assert not (one.index == drawn(linear, data, config(seed=1), "a", 5).index).all()


def test_an_image_of_two_groups_leaves_with_either(linear: Denoiser, data: ImageData) -> None:
    member = np.zeros((data.n, 2), bool)
    member[:20, 0] = member[10:, 1] = True
    shared = replace(data, groups=Groups(("one", "two"), member))
    settings = config(batch=20)
    for k, group in enumerate(("one", "two")):
        operator = make_operator("continuation", linear, shared, group, settings)
        batch = drawn(linear, shared, settings, group)
        errors = [
            float(
                (linear.raw(batch.x_t[i : i + 1], batch.t[i : i + 1]) - batch.eps[i : i + 1]).square().mean().detach()
            )
            for i in range(20)
            if not member[batch.index[i], k]
        ]
        assert operator.loss(linear, batch).item() == pytest.approx(np.mean(errors), rel=1e-5)  # type: ignore[call-arg]


def test_a_batch_of_the_group_alone_teaches_nothing(linear: Denoiser, data: ImageData) -> None:
    every = replace(data, groups=Groups(("all", "some"), np.stack([np.ones(data.n, bool), np.arange(data.n) < 3], 1)))
    settings = config(weight_decay=0.0)
    made = unlearn_group(linear, every, "all", "continuation", settings)
    assert torch.equal(made.apply(linear).weights()["w"], linear.weights()["w"])


def test_adapters_of_all_groups_begin_alike(make_mlp: Callable[..., Denoiser], make_images: Any) -> None:
    model, data = make_mlp(), make_images({"a": 6, "b": 6})
    settings = config(store="lora:2", steps=1, lr=1e-12, batch=4)
    one, two = (unlearn_group(model, data, g, "continuation", settings) for g in ("a", CONTROL))
    assert one.kind == "lora"
    for name, value in one.tensors.items():
        torch.testing.assert_close(value, two.tensors[name], rtol=0, atol=1e-9)


def test_what_is_not_set_comes_from_the_training() -> None:
    training = TrainingConfig.model_validate({"steps": 9, "batch": 7, "lr": 0.5, "weight_decay": 0.1, "flips": True})
    found = Continuation.settle(ContinuationConfig.model_validate({"lr": 0.25}), training)
    assert (found.lr, found.batch, found.weight_decay, found.flips, found.clip) == (0.25, 7, 0.1, True, 1.0)
    assert Continuation.fit_evals(found) == 80 * 7 * 3


def test_without_a_training_rate_and_batch_must_be_given(linear: Denoiser, data: ImageData) -> None:
    with refused("continuation-training-unknown"):
        unlearn_group(linear, data, "a", "continuation", ContinuationConfig())
    with pytest.raises(ValueError, match="holdout"):
        config(holdout=0.1)
