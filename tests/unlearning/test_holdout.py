"""Stopping early on held-out images, and averaging the weights along the way."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from guda.data.images import ImageData
from guda.diffusion.denoiser import Denoiser
from guda.unlearning.student import BATCHES, Patience, Student, split
from guda.unlearning.unlearn import OPERATORS, Batch, Operator, UnlearnConfig, make_samplers, unlearn_group
from refusals import refused


@pytest.fixture(scope="module")
def model(make_mlp: Callable[..., Denoiser]) -> Denoiser:
    return make_mlp("squaredcos_cap_v2:100")


@pytest.fixture(scope="module")
def data(make_images: Callable[..., ImageData]) -> ImageData:
    return make_images({"a": 10, "b": 20})


class Spy(Operator):
    """A loss that pulls one bias to 1; `checks` are answered with a script instead."""

    script: tuple[float, ...] = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.steps: list[tuple[Batch, Batch]] = []
        self.checks: list[tuple[Batch, Batch]] = []
        self.measured: list[torch.Tensor] = []  # the bias as each check saw it
        Spy.last = self

    last: "Spy"

    def forget(self, student: Denoiser, forget: Batch) -> torch.Tensor:
        return (student.module.out.bias - 1).square().sum()  # type: ignore[union-attr]

    def loss(self, student: Denoiser, forget: Batch, retain: Batch) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.steps.append((forget, retain))
            return self.forget(student, forget)
        if len(self.checks) % BATCHES == 0:
            self.measured.append(student.module.out.bias.detach().clone())  # type: ignore[union-attr]
        value = self.script[len(self.checks) // BATCHES]
        self.checks.append((forget, retain))
        return torch.tensor(value)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS._items, "spy", Spy)


def run(model: Denoiser, data: ImageData, script: tuple[float, ...] = (), **values: Any) -> tuple[Any, dict[str, Any]]:
    Spy.script = script
    settings = {"batch_forget": 6, "batch_retain": 6, "check_every": 4, "patience": 2, "lr": 1e-2} | values
    notes: dict[str, Any] = {}
    made = unlearn_group(model, data, "a", "spy", UnlearnConfig.model_validate(settings), notes=notes)
    return made.apply(model).module.out.bias.detach(), notes  # type: ignore[union-attr]


def biases(model: Denoiser, data: ImageData, steps: int, **values: Any) -> list[torch.Tensor]:
    """The bias after 0, 1, .. steps, from runs cut short."""
    start = model.module.out.bias.detach()  # type: ignore[union-attr]
    return [start, *(run(model, data, steps=n, **values)[0] for n in range(1, steps + 1))]


# ---- the split ----------------------------------------------------------------------------------------------------


def test_a_split_is_keyed_complete_and_of_the_asked_size() -> None:
    members = np.arange(5, 25)
    used, held = split(members, 0.25, "forget", 0, "a")
    assert len(held) == 5
    assert sorted([*used, *held]) == members.tolist()
    assert np.array_equal(held, split(members, 0.25, "forget", 0, "a")[1])
    assert not np.array_equal(held, split(members, 0.25, "forget", 1, "a")[1])


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_a_share_that_leaves_one_side_empty_is_refused(share: float) -> None:
    with refused("holdout-invalid", match=r"holdout = .* of the 10 forget images"):
        split(np.arange(10), share, "forget", 0)


def test_held_out_images_are_never_trained_on_and_their_noise_never_changes(model: Denoiser, data: ImageData) -> None:
    run(model, data, (3.0, 2.0, 1.0), steps=12, holdout=0.3)
    spy = Spy.last
    for side, n_held in ((0, 3), (1, 6)):
        trained = torch.unique(torch.cat([s[side].x0 for s in spy.steps]), dim=0)
        held = torch.unique(torch.cat([c[side].x0 for c in spy.checks]), dim=0)
        assert len(held) == n_held
        assert len(torch.unique(torch.cat([trained, held]), dim=0)) == len(trained) + len(held)
        for i in range(BATCHES):
            one, two, three = (spy.checks[c * BATCHES + i][side] for c in range(3))
            assert torch.equal(one.x_t, two.x_t)
            assert torch.equal(one.x_t, three.x_t)
        assert not torch.equal(spy.checks[0][side].eps, spy.checks[1][side].eps)


def test_overlapping_sides_share_their_holdout(model: Denoiser, data: ImageData) -> None:
    """siss draws from all images on one side; what the other holds out must not slip in there."""
    config = OPERATORS["siss"].Config.model_validate({"holdout": 0.2})
    used, held = make_samplers(OPERATORS["siss"](model, data, "a", config), config)
    out = np.concatenate([s.members for s in held])
    assert all(not np.isin(s.members, out).any() for s in used)


# ---- stopping -----------------------------------------------------------------------------------------------------


def test_the_best_state_is_kept_and_the_rest_not_done(model: Denoiser, data: ImageData) -> None:
    """Checks at 4, 8, 12, 16; the second is best; patience 2 ends it at 16 of 100."""
    path = biases(model, data, 9)
    kept, notes = run(model, data, (5.0, 3.0, 4.0, 3.5, 0.0), steps=100, holdout=0.3)
    assert notes == {"steps": 16, "kept_step": 8, "held_out_loss": 3.0}
    assert len(Spy.last.steps) == 16
    torch.testing.assert_close(kept, path[8], rtol=1e-6, atol=1e-7)
    assert not torch.allclose(kept, path[7], atol=1e-4)


def test_the_last_step_is_checked_too(model: Denoiser, data: ImageData) -> None:
    _, notes = run(model, data, (5.0, 3.0, 1.0), steps=10, holdout=0.3)
    assert notes == {"steps": 10, "kept_step": 10, "held_out_loss": 1.0}


def test_off_by_default(model: Denoiser, data: ImageData) -> None:
    _, notes = run(model, data, steps=12)
    assert notes == {}
    assert Spy.last.checks == []
    config = UnlearnConfig.model_validate({"steps": 12, "batch_forget": 2, "batch_retain": 3})
    assert OPERATORS["retrack"].fit_evals(config) == 12 * (3 * 2 + 4 * 3)


def test_checks_are_paid_for(model: Denoiser, data: ImageData) -> None:
    config = UnlearnConfig.model_validate(
        {"steps": 10, "batch_forget": 2, "batch_retain": 3, "holdout": 0.1, "check_every": 4}
    )
    checks = 3 * BATCHES * (2 + 3 + 3)  # at 4, 8, 10: forwards only, student twice and teacher once
    assert OPERATORS["retrack"].fit_evals(config) == 10 * (3 * 2 + 4 * 3) + checks


def test_patience_counts_checks_in_a_row_and_never_trusts_a_nan() -> None:
    patience = Patience(2)
    stops = [patience.stop(i, loss, lambda i=i: [torch.tensor(i)]) for i, loss in enumerate([math.nan, 5, 6, 4, 4, 9])]
    assert stops == [False, False, False, False, False, True]
    assert (patience.step, patience.loss, int(patience.state[0])) == (3, 4, 3)


def test_a_real_operator_stops_when_its_loss_on_new_images_rises(model: Denoiser, data: ImageData) -> None:
    """Memorising 5 images at a large rate: the held-out loss turns, the loop notices."""
    settings = {
        "steps": 400, "lr": 2e-2, "batch_forget": 16, "batch_retain": 16, "holdout": 0.5, "check_every": 10,
        "patience": 3, "lambda_preserve": 0.0,
    }  # fmt: skip
    notes: dict[str, Any] = {}
    unlearn_group(model, data, "a", "erasediff", OPERATORS["erasediff"].Config.model_validate(settings), notes=notes)
    assert notes["steps"] == notes["kept_step"] + 30 < 400
    assert notes["kept_step"] % 10 == 0


# ---- averaging ----------------------------------------------------------------------------------------------------


def averaged(path: list[torch.Tensor], decay: float) -> torch.Tensor:
    """e_1 = theta_1, e_n = d e_{n-1} + (1 - d) theta_n, d = min(decay, n / (9 + n)): as the EMA of training."""
    value = path[1]
    for n in range(2, len(path)):
        d = min(decay, n / (9 + n))
        value = d * value + (1 - d) * path[n]
    return value


def test_the_average_of_the_trajectory_is_what_is_kept(model: Denoiser, data: ImageData) -> None:
    path = biases(model, data, 12)
    found, _ = run(model, data, steps=12, average=0.5)
    torch.testing.assert_close(found, averaged(path, 0.5), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, path[12], atol=1e-4)


def test_checks_measure_and_keep_the_average_and_leave_the_trajectory_alone(model: Denoiser, data: ImageData) -> None:
    path = biases(model, data, 8)
    kept, notes = run(model, data, (5.0, 3.0, 4.0, 3.5), steps=100, holdout=0.3, average=0.5)
    assert notes["kept_step"] == 8
    torch.testing.assert_close(kept, averaged(path, 0.5), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(Spy.last.measured[0], averaged(path[:5], 0.5), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(Spy.last.measured[1], kept, rtol=1e-6, atol=1e-7)


def test_states_come_back(model: Denoiser) -> None:
    student = Student(model, UnlearnConfig())
    before = student.state()
    with torch.no_grad():
        for p in student.parameters:
            p.add_(1.0)
    student.restore(before)
    assert student.denoiser.digest() == model.digest()
