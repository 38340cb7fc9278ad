"""Validation while training: keyed, resumable, and without any effect on the training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from guda.config import TrainingConfig
from guda.diffusion.training import Trained, train
from guda.diffusion.validation import LOOKS, Validation

CONFIG = TrainingConfig(steps=40, batch=8, warmup=2, lr=1e-3, ema=0.9, checkpoint_every=10)


@pytest.fixture
def trained(make_mlp: Callable[..., Any], make_images: Callable[..., Any]) -> Callable[..., Trained]:
    data, test = make_images({"a": 12, "b": 12}), make_images({"a": 5, "b": 5}, seed=1).images

    def run(validate: bool = True, **options: Any) -> Trained:
        given = test if validate else None
        return train(make_mlp(), data.images, data.groups, CONFIG, seed=3, validation=given, **options)

    return run


def test_the_training_is_the_same_bytes_and_the_last_figure_is_of_its_weights(
    trained: Callable[..., Trained], make_mlp: Callable[..., Any], make_images: Callable[..., Any]
) -> None:
    found, without = trained(), trained(validate=False)
    assert without.validation == []
    assert found.losses == without.losses
    assert all(torch.equal(found.weights[k], without.weights[k]) for k in without.weights)
    assert len(found.validation) == LOOKS
    model = make_mlp().with_weights(found.weights)
    test = make_images({"a": 5, "b": 5}, seed=1).images
    held_out = Validation(model, test)
    assert found.validation[-1] == held_out.loss(model)
    t, eps, x0 = held_out.t, held_out.eps, held_out.x0
    with torch.no_grad():
        error = model.eps(model.schedule.add_noise(x0, eps, t), t, None) - eps
    assert found.validation[-1] == pytest.approx(float(error.square().mean()), rel=1e-5)
    assert np.isfinite(found.validation).all()


def test_it_resumes(trained: Callable[..., Trained], tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 27:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(checkpoint=tmp_path, tick=stop)
    assert trained(checkpoint=tmp_path).validation == trained().validation
