"""The GUDA-C operators: what they redirect, that both halves are always there and that every retain pair is reached."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from guda.data.images import ImageData
from guda.data.prompts import Prompts
from guda.diffusion.denoiser import Denoiser, encode_all
from guda.diffusion.families.base import Cond, Frozen
from guda.diffusion.loading import make_scheduler
from guda.unlearning.operators.anchors import AnchorsUnlearnConfig
from guda.unlearning.unlearn import Inputs, make_operator, make_samplers, unlearn_group
from refusals import refused

WORDS = {"A": ["red", "rough", "wide"], "B": ["blue", "soft", "thin"], "C": ["green", "flat", "bold"]}


class Letters(Frozen):
    """A text encoder that counts letters; pictures are what they are."""

    image_shape = shape = (1, 4, 4)

    def encode(self, images: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(images.astype(np.float32) / 127.5 - 1)

    def decode(self, x0: torch.Tensor) -> np.ndarray:
        return ((x0.numpy() + 1) * 127.5).astype(np.uint8)

    def embed(self, prompts):  # type: ignore[no-untyped-def]
        counts = [[p.count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for p in prompts]
        return {"words": torch.tensor(counts, dtype=torch.float32)}

    def call(self, module, x_t, t, cond):  # type: ignore[no-untyped-def]
        return module(x_t, t, cond.tensors["words"])

    def source(self) -> dict:
        return {"kind": "letters"}

    def digest(self) -> str:
        return "letters"


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.text, self.image = torch.nn.Linear(26, 16), torch.nn.Linear(16, 16)

    def forward(self, x, t, words):  # type: ignore[no-untyped-def]
        return (self.image(x.flatten(1)) + self.text(words)).reshape(x.shape)


@pytest.fixture
def teacher() -> Denoiser:
    return Denoiser.from_module(Net(), make_scheduler("linear:50"), (1, 4, 4), Letters())


@pytest.fixture
def data() -> ImageData:
    rng = np.random.default_rng(0)
    labels = [s for s in "ABC" for _ in range(4)]
    images = rng.integers(0, 256, (12, 1, 4, 4), dtype=np.uint8)
    from guda.data.groups import Groups

    contents = tuple(["Dogs", "Cats"] * 6)
    return ImageData(images, tuple(f"i{i}" for i in range(12)), Groups.from_labels(labels), "x", contents=contents)


@pytest.fixture
def prompts(data: ImageData) -> Prompts:
    return Prompts.from_lists(data, WORDS)


def config(**changes: object) -> AnchorsUnlearnConfig:
    return AnchorsUnlearnConfig.model_validate({"steps": 4, "batch_forget": 2, "batch_retain": 2} | changes)


@pytest.mark.parametrize("strategy", ["uniform", "removed"])
def test_the_target_is_the_full_models_answer_to_the_anchor(
    strategy: str, teacher: Denoiser, data: ImageData, prompts: Prompts
) -> None:
    rule = make_operator(f"anchors-{strategy}", teacher, data, "B", config(), prompts=prompts)
    inputs = Inputs(encode_all(teacher, data.images), prompts.training)
    half = make_samplers(rule, config())[0][0].draw(teacher, inputs, config(), "B", 0)
    anchors = rule.anchors(half)  # type: ignore[attr-defined]
    for before, after in zip(half.prompts, anchors, strict=True):
        thing = "Dogs" if "Dogs" in before else "Cats"
        assert thing in after
        assert not any(word in after for word in WORDS["B"])
    told = Cond(teacher.frozen.embed(anchors))  # type: ignore[union-attr]
    with torch.no_grad():
        assert torch.equal(rule.target(half), teacher.eps(half.x_t, half.t, told))  # type: ignore[attr-defined]
    # the student starts as the teacher: its loss is what the anchor changes
    own = teacher.eps(half.x_t, half.t, half.cond)
    expected = torch.nn.functional.mse_loss(own, rule.target(half))  # type: ignore[attr-defined]
    assert float(expected.detach()) > 0
    assert torch.allclose(rule.forget(teacher, half), expected)


def test_every_step_has_both_halves_and_every_retain_pair_is_reached(
    teacher: Denoiser, data: ImageData, prompts: Prompts
) -> None:
    rule = make_operator("anchors-uniform", teacher, data, "A", config(), prompts=prompts)
    inputs = Inputs(encode_all(teacher, data.images), prompts.training)
    forget, retain = make_samplers(rule, config())[0]
    assert set(forget.members) == {0, 1, 2, 3}
    assert set(retain.members) == set(range(4, 12))
    seen: set[str] = set()
    for step in range(60):
        f, r = (side.draw(teacher, inputs, config(), "A", step) for side in (forget, retain))
        assert len(f.prompts) == len(r.prompts) == 2
        assert all(p in prompts.training[:4] for p in f.prompts)
        seen.update(r.prompts)
        assert torch.equal(f.cond.tensors["words"], teacher.frozen.embed(f.prompts)["words"])  # type: ignore[union-attr]
    assert seen == set(prompts.training[4:])


def test_unlearning_moves_the_forget_prompts_and_little_else(
    teacher: Denoiser, data: ImageData, prompts: Prompts
) -> None:
    made = unlearn_group(
        teacher, data, "C", "anchors-removed", config(steps=200, lr=1e-2, batch_forget=4, batch_retain=8),
        prompts=prompts,
    )  # fmt: skip
    student, x0 = made.apply(teacher), teacher.encode(data.images)
    t = torch.full((12,), 25)
    eps = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    x_t, told = teacher.schedule.add_noise(x0, eps, t), teacher.condition(prompts.training)
    with torch.no_grad():
        moved = (student.eps(x_t, t, told) - teacher.eps(x_t, t, told)).square().flatten(1).mean(1)
    assert float(moved[8:].mean()) > 5 * float(moved[:8].mean())


def test_anchors_without_prompts_or_text_are_refused(data: ImageData, prompts: Prompts, teacher: Denoiser) -> None:
    with refused("operator-needs-text"):
        unlearn_group(teacher, data, "A", "anchors-uniform", config())
    plain = Denoiser.from_module(torch.nn.Identity(), make_scheduler("linear:50"), (1, 4, 4))
    with refused("operator-model-unsupported"):
        unlearn_group(plain, data, "A", "anchors-uniform", config(), prompts=prompts)


def test_the_fit_is_the_same_whatever_was_fitted_before(teacher: Denoiser, data: ImageData, prompts: Prompts) -> None:
    first = unlearn_group(teacher, data, "B", "anchors-uniform", config(), prompts=prompts)
    unlearn_group(teacher, data, "A", "anchors-uniform", config(), prompts=prompts)
    again = unlearn_group(teacher, data, "B", "anchors-uniform", config(), prompts=prompts)
    assert first.digest() == again.digest()
