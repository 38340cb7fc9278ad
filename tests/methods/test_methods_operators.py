"""Operators inside a run: the conditional model as a task of its own, notes beside counterfactuals."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tinyrun import GROUPS, SET, Inline, copy_run, digits_folder, tiny, unet_folder

from guda import steps
from guda.errors import GudaError
from guda.files import read_json
from guda.methods.base import METHODS, get_method
from guda.run.data import load_data
from guda.run.models import load_model
from guda.run.run import Run
from guda.run.task import pending
from guda.scoring.scores import Scores
from guda.unlearning.bank import Counterfactual
from guda.unlearning.unlearn import unlearn_group

SMALL = ["steps=3", "batch_forget=8", "batch_retain=8"]
CARD = "models/conditional-s0/guda.json"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return copy_run(tmp_path / "run")


def settle(run: Run, name: str, *settings: str) -> Any:
    steps.change_settings(run, [name], [*SMALL, *settings])
    return get_method(run, name)


def test_every_operator_is_a_method() -> None:
    ids = {"retrack", "retrack-zero", "shift", "siss", "erasediff", "ascent", "retain", "esd"}
    assert ids <= METHODS.keys()


def test_esd_trains_its_conditional_model_once_before_the_groups(run: Run) -> None:
    method = settle(run, "esd")
    assert not method.fitted()
    full = read_json(run.path("models/full-s0/guda.json"))["weights"]
    engine = Inline()
    steps.fit(run, ["esd"], engine)
    assert engine.ran == ["train conditional-s0", *(f"fit esd without {g}" for g in GROUPS)]
    card = read_json(run.path(CARD))
    assert card["labels"] == [*GROUPS, None]
    assert card["evals"] == 3 * 40 * 32
    assert card["steps"] == 40
    assert card["weights"] != full
    assert load_model(run, "conditional-s0").n_classes == 4
    assert read_json(run.path("models/full-s0/guda.json"))["weights"] == full
    # booked apart: neither the groups' fits nor the full model's training
    assert run.seconds("train/conditional") > 0
    assert "conditional" not in "".join(p.name for p in run.path("timings/train").glob("*.json"))
    assert method.fit_evals() == 3 * (5 * 8 + 4 * 8)
    assert get_method(run, "esd").fitted()
    assert steps.status(run)["methods"]["esd"] == {"fitted": 3, "of": 3}
    # other settings: other counterfactuals, the same conditional model
    steps.change_settings(run, ["esd"], ["guidance=1.0"])
    engine = Inline()
    steps.fit(run, ["esd"], engine)
    assert engine.ran == [f"fit esd without {g}" for g in GROUPS]
    steps.score(run, SET, ["esd"], Inline())
    found = Scores.read(steps.scores_path(run, SET, "esd"))
    assert np.isfinite(found.score).all()
    assert found.unit == "nats"


def test_a_fit_of_esd_waits_for_the_conditional_model_and_equals_the_call_in_memory(run: Run) -> None:
    method = settle(run, "esd")
    first, *fits = method.fit()
    assert all(CARD in task.needs and not task.ready(run) for task in fits)
    assert first.makes == (CARD,)
    assert first.cost == 3 * 40 * 32
    steps.fit(run, ["esd"], Inline())
    assert all(task.ready(run) for task in fits)
    own = unlearn_group(
        load_model(run, "base"), load_data(run), "1", "esd", method.config,
        conditional=load_model(run, "conditional-s0"),
    )  # fmt: skip
    stored = Counterfactual.load(run.path(method.file("1")))
    assert own.tensors.keys() == stored.tensors.keys()
    assert all(torch.equal(v, stored.tensors[k]) for k, v in own.tensors.items())


def test_the_conditional_model_resumes_where_it_was_killed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from guda.run import models

    settle(run, "esd")
    ticks: list[int] = []

    def dying(done: int, total: int) -> None:
        ticks.append(done)
        if done == 25 and len(ticks) == 25:
            raise KeyboardInterrupt

    monkeypatch.setattr(models, "tick", dying)
    with pytest.raises(KeyboardInterrupt):
        steps.fit(run, ["esd"], Inline())
    steps.fit(run, ["esd"], Inline())
    assert ticks[25] == 21  # the newest checkpoint was at 20
    monkeypatch.undo()
    killed = read_json(run.path(CARD))
    shutil.rmtree(run.path("models/conditional-s0"))
    steps.fit(run, ["esd"], Inline())
    assert read_json(run.path(CARD)) == killed


def test_notes_lie_beside_the_counterfactual(run: Run) -> None:
    method = settle(
        run, "retrack", "density_ratio=true", "holdout=0.25", "check_every=1", "patience=1", "window=[0.5, 1]"
    )
    steps.fit(run, ["retrack"], Inline())
    for group in GROUPS:
        path = run.path(method.file(group))
        notes = json.loads(path.with_suffix(".json").read_text())
        assert 1 <= notes["kept_step"] <= notes["steps"] <= 3
        assert 0 < notes["effective_share"] <= 1
    steps.score(run, SET, ["retrack"], Inline())
    plain = settle(run, "retrack-zero")
    steps.fit(run, ["retrack-zero"], Inline())
    assert sorted(p.suffix for p in run.path(plain.artifact()).iterdir()) == [".safetensors"] * 3


def test_without_a_training_section_esd_says_so_and_disturbs_nobody(tmp_path: Path) -> None:
    recipe = tiny(digits_folder(), model={"path": str(unet_folder()), "scheduler": None}, training=None, methods={})
    own = steps.init(tmp_path / "own", recipe)
    assert steps.fitted_methods(own) == []
    with pytest.raises(GudaError, match=r"esd asks .* no `training` section"):
        steps.fit(own, ["esd"], Inline())
    own.update(own.recipe.model_copy(update={"methods": {"esd": {}, "retrack": {}, "logo": {}}}))
    assert list(steps.status(own)["methods"]) == ["retrack"]


def test_a_given_unet_gets_a_twin_of_its_architecture(tmp_path: Path) -> None:
    recipe = tiny(
        digits_folder(), model={"path": str(unet_folder()), "scheduler": None},
        training={"steps": 4, "batch": 4, "warmup": 1}, methods={"esd": {"steps": 2, "batch_forget": 4}},
    )  # fmt: skip
    own = steps.init(tmp_path / "own", recipe)
    steps.fit(own, ["esd"], Inline())
    twin, base = load_model(own, "conditional-s0"), load_model(own, "base")
    assert set(twin.weights()) - set(base.weights()) == {"class_embedding.weight"}
    assert twin.schedule.digest == base.schedule.digest
    assert pending(own, get_method(own, "esd").fit()) == []
