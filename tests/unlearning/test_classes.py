"""Class-conditional models: labels as anchors where a group is a class, the class's own posterior where it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from guda.config import parse_config
from guda.data.classes import Classes, class_numbers
from guda.data.groups import Groups
from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser, encode_all
from guda.unlearning.anchors import AnchorsConfig, Labels
from guda.unlearning.operators.anchors import label_embeddings
from guda.unlearning.operators.retrack import Posterior
from guda.unlearning.unlearn import CONTROL, OPERATORS, Inputs, make_operator, make_samplers, unlearn_group
from refusals import refused

STEP = {"steps": 2, "lr": 1e-3, "warmup": 0}


def settings(name: str, **values: Any) -> Any:
    sizes = {"batch": 8} if name == "continuation" else {"batch_forget": 8, "batch_retain": 8}
    return OPERATORS[name].settle(parse_config(OPERATORS[name].Config, STEP | sizes | values, name), None)


@pytest.fixture
def model(make_mlp: Callable[..., Denoiser]) -> Denoiser:
    return make_mlp("squaredcos_cap_v2:100", num_class_embeds=4)


@pytest.fixture
def data(make_images: Callable[..., ImageData]) -> ImageData:
    """Groups are the classes 0, 1, 2; label 3 is the null label."""
    return make_images({"0": 8, "1": 8, "2": 8})


@pytest.fixture
def split(data: ImageData) -> ImageData:
    """Groups a and b, each with half of every class."""
    half = np.zeros(data.n, bool)
    for k in range(3):
        half[data.groups.members(k)[:4]] = True
    contents = tuple(data.groups.names[k] for k in data.groups.labels)
    return replace(data, groups=Groups(("a", "b"), np.stack([half, ~half], axis=1)), contents=contents)


def test_names_become_numbers(data: ImageData, make_images: Callable[..., ImageData]) -> None:
    found = class_numbers(data, 4)
    assert found.null == "3"
    assert found.training == tuple(data.groups.names[k] for k in data.groups.labels)
    assert class_numbers(data, 3).null is None
    named = class_numbers(make_images({"dog": 2, "cat": 3}), 2)
    assert named.names == {"0": "cat", "1": "dog"}
    with refused("classes-mismatch"):
        class_numbers(data, 2)


def test_what_a_group_takes_with_it(data: ImageData, split: ImageData) -> None:
    whole, parts = class_numbers(data, 4), class_numbers(split, 4)
    assert whole.emptied(data.groups, "1") == ("1",)
    assert whole.group_of(data.groups, data.groups.names) == {"0": "0", "1": "1", "2": "2"}
    assert parts.emptied(split.groups, "a") == ()
    assert parts.of_group(split.groups, "a") == ("0", "1", "2")
    assert not parts.are_groups(split.groups, split.groups.names)


def test_weighted_labels_are_the_softmax_of_their_embeddings() -> None:
    table = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0], [5.0, 5.0]])
    config = AnchorsConfig(tau=3.0, eta=0.2)  # type: ignore[call-arg]
    found = Labels("weighted", ["0"], ["1", "2"], table, "3", config).probabilities("0")
    e = np.exp(3.0 * np.array([np.sqrt(0.5), 0.0]))
    np.testing.assert_allclose(list(found.values()), 0.8 * e / e.sum() + 0.1)  # type: ignore[union-attr]
    uniform = Labels("uniform", ["0"], ["1", "2"], table, "3", config)
    drawn = [uniform.draw("0", ("key", i)) for i in range(200)]
    assert set(drawn) == {"1", "2"}
    assert 60 < drawn.count("1") < 140
    assert Labels("removed", ["0"], ["1", "2"], table, "3", config).draw("0", ("key",)) == "3"
    with refused("null-label-missing"):
        Labels("removed", ["0"], ["1", "2"], table, None, config)


@pytest.mark.parametrize("name", ["anchors-weighted", "anchors-uniform", "anchors-removed", "continuation", "retain"])
def test_whole_classes_can_be_removed(name: str, model: Denoiser, data: ImageData) -> None:
    made = unlearn_group(model, data, "1", name, settings(name))
    assert made.apply(model).digest() != model.digest()


def test_an_anchor_is_what_the_teacher_makes_of_the_null_label(model: Denoiser, data: ImageData) -> None:
    config = settings("anchors-removed")
    classes = class_numbers(data, 4)
    operator = make_operator("anchors-removed", model, data, "1", config, prompts=classes)
    (forget, _), _ = make_samplers(operator, config)
    batch = forget.draw(model, Inputs(encode_all(model, data.images), classes.training), config, "1", 0)
    assert set(batch.prompts) == {"1"}
    null = model.condition(["3"] * 8)
    with torch.no_grad():
        torch.testing.assert_close(operator.target(batch), model.eps(batch.x_t, batch.t, null))  # type: ignore[attr-defined]
    assert label_embeddings(model).shape[0] == 4


@pytest.mark.parametrize("name", ["retrack", "shift"])
def test_within_a_class_the_posterior_is_over_that_class(name: str, model: Denoiser, split: ImageData) -> None:
    """Brute force: image by image, only the retain images of its own class."""
    config, classes = settings(name), class_numbers(split, 4)
    operator = make_operator(name, model, split, "a", config, prompts=classes)
    (forget, _), _ = make_samplers(operator, config)
    batch = forget.draw(model, Inputs(encode_all(model, split.images), classes.training), config, "a", 0)
    found = operator.target(batch)  # type: ignore[attr-defined]
    inside = split.groups.membership[:, 0]
    every = encode_all(model, split.images).x0
    for i, label in enumerate(batch.prompts):
        own = np.array([c == label for c in classes.training])
        x, t = batch.x_t[i : i + 1], batch.t[i : i + 1]
        without = Posterior(every[own & ~inside], model.schedule)
        if name == "retrack":
            expected = without.eps(x, t)
        else:
            a, s = model.schedule.coefficients(t, x)
            moved = without.mean(x, t) - Posterior(every[own], model.schedule).mean(x, t)
            with torch.no_grad():
                expected = model.eps(x, t, model.condition([label])) - (a / s) * moved
        torch.testing.assert_close(found[i : i + 1], expected, rtol=1e-3, atol=1e-4)
    assert unlearn_group(model, split, "a", name, config).apply(model).digest() != model.digest()


def test_patches_within_a_class_are_refused(model: Denoiser, split: ImageData) -> None:
    with refused("patches-class-model"):
        make_operator("shift", model, split, "a", settings("shift", density="patches"), prompts=class_numbers(split, 4))


@pytest.mark.parametrize("density", ["images", "gaussians"])
def test_a_rule_within_a_class_is_the_rule_of_that_class(density: str, model: Denoiser, split: ImageData) -> None:
    """Brute force: an unconditional rule of the class's images alone; told the null label, nothing moves."""
    from guda.diffusion.loading import make_scheduler
    from guda.unlearning.rule import Rule, RuleConfig, fit_rule, make_density

    config, classes = RuleConfig(density=density, components=1), class_numbers(split, 4)  # type: ignore[arg-type, call-arg]
    rule = Rule(make_density(model, split, config, fit_rule(model, split, config)), config.window)
    x, t = torch.randn(6, 1, 4, 4), torch.tensor([5, 20, 50, 70, 90, 98])
    found = rule.changes(x, t, torch.tensor([0, 1, 2, 0, 1, 3]))
    assert found[:, 5].abs().max() == 0
    plain = Denoiser.from_module(torch.nn.Identity(), make_scheduler("squaredcos_cap_v2:100"), (1, 4, 4))
    for row, label in enumerate((0, 1, 2, 0, 1)):
        mine = np.flatnonzero(classes.numbers == label)
        member = split.groups.membership[mine]
        alone = replace(
            split, images=split.images[mine], ids=tuple(split.ids[i] for i in mine), contents=None,
            groups=Groups(("a", "b"), member),
        )  # fmt: skip
        one = Rule(make_density(plain, alone, config, fit_rule(plain, alone, config)), config.window)
        torch.testing.assert_close(found[:, row], one.changes(x[row : row + 1], t[row : row + 1])[:, 0])
    assert found[:, :5].abs().max() > 0


def test_each_kind_of_group_has_its_operators(model: Denoiser, data: ImageData, split: ImageData) -> None:
    for name in ("retrack", "shift"):
        with refused("operator-model-unsupported"):
            unlearn_group(model, data, "1", name, settings(name))
    with refused("operator-model-unsupported"):
        unlearn_group(model, split, "a", "anchors-uniform", settings("anchors-uniform"))
    for group in ("a", CONTROL):
        unlearn_group(model, split, group, "continuation", settings("continuation"))


def test_dropped_labels_are_the_null_label(model: Denoiser, data: ImageData) -> None:
    config, classes = settings("continuation", prompt_dropout=0.5, batch=20), class_numbers(data, 4)
    (sampler,) = make_operator("continuation", model, data, "1", config).samplers()
    batch = sampler.draw(model, Inputs(encode_all(model, data.images), classes.training), config, "1", 0)
    told = batch.cond.tensors["class_labels"]  # type: ignore[union-attr]
    assert 3 < int((told == 3).sum()) < 17
    assert all(p in ("3", classes.training[i]) for p, i in zip(batch.prompts, batch.index, strict=True))  # type: ignore[arg-type]


def test_images_of_several_groups_need_their_class(data: ImageData) -> None:
    both = np.ones((data.n, 2), bool)
    both[:3, 0] = False
    shared = replace(data, groups=Groups(("a", "b"), both))
    with refused("classes-unknown"):
        class_numbers(shared, 4)
    assert isinstance(class_numbers(replace(shared, contents=("0",) * data.n), 4), Classes)
