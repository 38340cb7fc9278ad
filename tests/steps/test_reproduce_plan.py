"""`guda reproduce --plan`: every part of an experiment has a row, or is named."""

from pathlib import Path
from typing import Any

import pytest

from guda import steps
from guda.diffusion.likelihood import evals
from guda.report.reproduce import plan_reproduction, read_reproduction, scaled_recipe

EMOJI = Path(__file__).parents[2] / "benchmarks" / "recipes" / "reproduce" / "emoji.yaml"


def rows(value: dict[str, Any]) -> dict[str, float | None]:
    return {row["what"]: row["evals"] for row in value["rows"]}


def test_the_parts_beside_the_recipe() -> None:
    wanted = read_reproduction("digits")
    recipe = scaled_recipe(wanted)
    alone, value = steps.outline(recipe), plan_reproduction(wanted)
    found = rows(value)
    assert {k: v for k, v in found.items() if k in rows(alone)} == rows(alone)
    assert recipe.training is not None
    once, draws = 3 * recipe.training.steps * recipe.training.batch, 300 * value["evals_per_model_and_query"]
    assert value["queries"] == 300
    assert found["the same on a noisy partition (23 trainings)"] == sum(v or 0 for v in rows(alone).values())
    path = found["the same under path divergence"]
    assert path is not None
    # retrack, shift and their full model, two retrainings of ten groups and theirs; posterior evaluates no network
    assert path % draws == 0
    assert path >= draws * 22
    assert found["3 pairs by logo (6 trainings)"] == 6 * (once + draws)
    retrack = (rows(alone)["fit retrack"] or 0) / 10
    assert found["3 pairs by retrack"] == pytest.approx(3 * (retrack + draws))
    assert found["log p of 100 queries by 22 models of logo"] == 100 * 22 * evals(recipe.likelihood)
    assert "Only with --ablations: epochs, lambda, " in value["note"]


def test_sweeps_and_what_is_not_counted_of_them() -> None:
    wanted = read_reproduction("cifar10")
    value = plan_reproduction(wanted, ablations=True)
    found = rows(value)
    one = 780 * (3 * 256 + 128)
    scored = 2_048 * 399
    assert found["ablation paper-lr (4 settings of retrack)"] == 4 * 10 * (one + scored)
    assert found["ablation paper-epochs (5 settings of retrack)"] == 10 * (
        one * 7.5 + 5 * scored
    )  # 10 + .. + 50 epochs
    assert found["ablation das-ridge (3 settings of das)"] is None
    assert "--ablations" not in value["note"]
    assert "log p of 2048 queries by 11 models of logo" in found


def test_trainings_are_counted_where_the_data_are_not_known() -> None:
    value = plan_reproduction(read_reproduction(str(EMOJI)))
    found = rows(value)
    assert found["train the full model"] == 3 * 700 * 32
    assert found["fit logo (18 trainings)"] == 18 * 3 * 700 * 32
    assert found["train the pretrained start, emoji-start"] == 3 * 2500 * 32
    assert value["queries"] is None
    assert "Not counted: scoring; " in value["note"]
    assert "trak" in value["note"]
